//! Faults that a test asks for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_session::storage::{Rejection, StorageError};
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
}

/// The faults of a [`super::MemoryStore`], in the order in which they were asked for. Each meets one batch, of whatever session; a batch
/// without one is written at once. Clones share the faults.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Mutex<VecDeque<Planned>>>);

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

    pub(super) fn next(&self) -> Option<Planned> {
        lock(&self.0).pop_front()
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
