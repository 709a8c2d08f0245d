//! Slots of a worker: one counts a running effect, not an invocation. Waits give it back (`design.md` 7).

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The slots of a worker. Cheap to clone; all clones are one set.
#[derive(Clone, Debug)]
pub struct Slots {
    free: Arc<Semaphore>,
    /// How many effects whose wait is over want theirs again.
    wanting: Arc<watch::Sender<usize>>,
}

impl Slots {
    /// As many as effects may run at once.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(count)), wanting: Arc::new(watch::Sender::new(0)) }
    }

    /// Waits for a free slot.
    pub async fn take(&self) -> Slot {
        // The semaphore is never closed, so that there always is a permit in the end.
        let permit = Arc::clone(&self.free).acquire_owned().await.ok();
        Slot { slots: self.clone(), state: Mutex::new(Held { permit, waits: 0 }) }
    }

    /// How many are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.available_permits()
    }

    /// Waits until an effect whose wait is over wants a slot: who only keeps one for work to come gives it back then.
    pub async fn wanted(&self) {
        // The sender lives as long as this.
        let _ = self.wanting.subscribe().wait_for(|wanting| *wanting > 0).await;
    }

    /// Takes a slot again behind a wait.
    async fn again(&self) -> Option<OwnedSemaphorePermit> {
        let _wanting = Wanting::begin(&self.wanting);
        Arc::clone(&self.free).acquire_owned().await.ok()
    }
}

/// Counts one effect that wants its slot again, also where its future is dropped.
struct Wanting<'a>(&'a watch::Sender<usize>);

impl<'a> Wanting<'a> {
    fn begin(wanting: &'a watch::Sender<usize>) -> Self {
        wanting.send_modify(|wanting| *wanting += 1);
        Self(wanting)
    }
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|wanting| *wanting -= 1);
    }
}

/// The slot of one invocation.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    state: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    permit: Option<OwnedSemaphorePermit>,
    waits: usize,
}

impl Slot {
    /// Awaits while the slot is free for others, and takes one again before it answers. Waits of one invocation may overlap: the last
    /// one that ends takes the slot.
    pub(crate) async fn idle<T>(&self, wait: impl Future<Output = T>) -> T {
        let waiting = Waiting::begin(self);
        let result = wait.await;
        drop(waiting);
        let needed = {
            let state = self.state();
            state.waits == 0 && state.permit.is_none()
        };
        if needed {
            let permit = self.slots.again().await;
            let mut state = self.state();
            // Another wait may have begun or taken one meanwhile; then this permit goes back.
            if state.waits == 0 && state.permit.is_none() {
                state.permit = permit;
            }
        }
        result
    }

    fn state(&self) -> MutexGuard<'_, Held> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts one wait, also where its future is dropped.
struct Waiting<'a>(&'a Slot);

impl<'a> Waiting<'a> {
    fn begin(slot: &'a Slot) -> Self {
        let mut state = slot.state();
        state.waits += 1;
        state.permit = None;
        drop(state);
        Self(slot)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waits -= 1;
        // A wait that is dropped can't wait for a slot: the effect goes on with one where there is one, else beside the others.
        if state.waits == 0 && state.permit.is_none() {
            state.permit = Arc::clone(&self.0.slots.free).try_acquire_owned().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_gives_its_slot_to_another_and_takes_one_again() {
        let slots = Slots::new(1);
        let first = slots.take().await;
        assert_eq!(slots.free(), 0);
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        {
            let wait = first.idle(async { released.await.unwrap() });
            tokio::pin!(wait);
            assert!(futures::poll!(&mut wait).is_pending());
            let second = slots.take().await;
            release.send(()).unwrap();
            // The wait is over, but its slot is taken.
            assert!(futures::FutureExt::now_or_never(slots.wanted()).is_none());
            assert!(futures::poll!(&mut wait).is_pending());
            slots.wanted().await;
            drop(second);
            wait.await;
        }
        assert_eq!(slots.free(), 0);
        drop(first);
        assert_eq!(slots.free(), 1);
    }

    #[tokio::test]
    async fn overlapping_waits_take_one_slot() {
        let slots = Slots::new(1);
        let slot = slots.take().await;
        let (a, b) = (slot.idle(tokio::task::yield_now()), slot.idle(tokio::task::yield_now()));
        futures::join!(a, b);
        assert_eq!(slots.free(), 0);
        // A dropped wait gives nothing away for ever.
        assert!(futures::FutureExt::now_or_never(slot.idle(std::future::pending::<()>())).is_none());
        assert_eq!(slots.free(), 0);
        drop(slot);
        assert_eq!(slots.free(), 1);
    }
}
