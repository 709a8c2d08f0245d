//! Faults that a test asks for.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use picofleet_session::SessionId;
use picofleet_session::storage::{Batch, Head, Rejection, StorageError};
use tokio::sync::watch;

use super::line::Job;

/// What becomes of a batch instead of being written.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is not written and the answer is [`StorageError::Uncertain`].
    LostBefore,
    /// It is written and the answer is [`StorageError::Uncertain`].
    LostAfter,
    /// It is not written and the answer is this rejection.
    Rejected(Rejection),
    /// It is in flight for this long, then written.
    Late(Duration),
}

/// Chooses what a batch meets; `None` for no fault.
type Choose = dyn Fn(SessionId, &Batch) -> Option<Fault> + Send + Sync;

/// Sees a batch that was written, with the head behind it.
type Observe = dyn Fn(SessionId, &Batch, &Head) + Send + Sync;

/// The faults of a [`super::MemoryStore`], in the order in which they were asked for. Each meets one batch, of whatever session; a batch
/// without one is written at once. Clones share the faults.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<VecDeque<Planned>>>, Arc<Mutex<Simulation>>);

/// What a simulation hangs in.
#[derive(Default)]
struct Simulation {
    choose: Option<Arc<Choose>>,
    observe: Option<Arc<Observe>>,
}

impl fmt::Debug for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) enum Planned {
    Fault(Fault),
    Hold(Arc<Slot>),
}

/// Where a held batch waits.
#[derive(Debug)]
pub(super) struct Slot {
    place: Mutex<Place>,
    arrived: watch::Sender<bool>,
}

#[derive(Debug)]
enum Place {
    Empty,
    Taken(Job),
    /// The hold is gone: what arrives now does not wait, but meets the fault.
    Open(Option<Fault>),
}

impl Faults {
    /// No faults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The next batch meets `fault`.
    pub fn push(&self, fault: Fault) {
        lock(&self.0).push_back(Planned::Fault(fault));
    }

    /// The next batch waits in the returned [`Hold`]: its commit is in flight until then.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let slot = Arc::new(Slot { place: Mutex::new(Place::Empty), arrived: watch::Sender::new(false) });
        lock(&self.0).push_back(Planned::Hold(Arc::clone(&slot)));
        Hold(slot)
    }

    /// Lets `choose` decide what each batch meets for which nothing was asked.
    pub fn choose(&self, choose: impl Fn(SessionId, &Batch) -> Option<Fault> + Send + Sync + 'static) {
        lock(&self.1).choose = Some(Arc::new(choose));
    }

    /// Shows every batch to `observe` right after it was written, in the order of the writes.
    pub fn observe(&self, observe: impl Fn(SessionId, &Batch, &Head) + Send + Sync + 'static) {
        lock(&self.1).observe = Some(Arc::new(observe));
    }

    pub(super) fn next(&self, session: SessionId, batch: &Batch) -> Option<Planned> {
        let planned = lock(&self.0).pop_front();
        planned.or_else(|| {
            let choose = lock(&self.1).choose.clone();
            choose.and_then(|choose| choose(session, batch)).map(Planned::Fault)
        })
    }

    pub(super) fn written(&self, session: SessionId, batch: &Batch, head: &Head) {
        let observe = lock(&self.1).observe.clone();
        if let Some(observe) = observe {
            observe(session, batch, head);
        }
    }
}

/// A batch that waits. Dropping it lets the batch go.
#[derive(Debug)]
pub struct Hold(Arc<Slot>);

impl Hold {
    /// Waits until a batch has arrived.
    pub async fn arrived(&self) {
        // The sender lives in the slot, so waiting can't fail.
        let _ = self.0.arrived.subscribe().wait_for(|arrived| *arrived).await;
    }

    /// Lets the batch be written.
    pub fn release(self) {
        self.0.settle(None);
    }

    /// Lets the batch meet `fault`.
    pub fn fail(self, fault: Fault) {
        self.0.settle(Some(&fault));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.settle(None);
    }
}

impl Slot {
    pub(super) fn take(&self, job: Job) {
        let mut place = lock(&self.place);
        if let Place::Open(fault) = &*place {
            let fault = fault.clone();
            drop(place);
            job.settle(fault.as_ref());
        } else {
            *place = Place::Taken(job);
        }
        self.arrived.send_replace(true);
    }

    fn settle(&self, fault: Option<&Fault>) {
        let mut place = lock(&self.place);
        if matches!(*place, Place::Open(_)) {
            return;
        }
        let before = std::mem::replace(&mut *place, Place::Open(fault.cloned()));
        drop(place);
        if let Place::Taken(job) = before {
            job.settle(fault);
        }
    }
}

pub(super) fn lost() -> StorageError {
    let cause = std::io::Error::other("a test took the answer away");
    StorageError::Uncertain { operation: "commit".to_owned(), cause: Arc::new(cause) }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change is made in one step, so that a panic elsewhere leaves nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
