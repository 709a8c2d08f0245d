//! The line of one open session, and the batches that it sends to the thread that writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::SessionId;
use picofleet_session::storage::{Batch, CommitHandle, Fut, Head, Rejection, SessionReader, SessionStore};
use tokio::sync::{mpsc, watch};

use super::Work;
use crate::memory::reader::Reader;
use crate::memory::state::Shared;
use crate::reading::ReadThrough;

/// A line.
pub(super) struct Line {
    reader: Reader,
    opened: Head,
    queue: mpsc::Sender<Work>,
    /// Whether a batch is in flight.
    busy: Arc<watch::Sender<bool>>,
}

impl Line {
    pub(super) fn new(shared: Arc<Shared>, queue: mpsc::Sender<Work>, id: SessionId, opened: Head) -> Self {
        let released = Some(Arc::new(AtomicBool::new(false)));
        Self { reader: Reader { shared, id, released }, opened, queue, busy: Arc::new(watch::Sender::new(false)) }
    }
}

impl ReadThrough for Line {
    fn target(&self) -> &dyn SessionReader {
        &self.reader
    }
}

crate::read_through!(Line);

impl SessionStore for Line {
    fn commit(&self, batch: Batch) -> CommitHandle {
        if let Err(error) = self.reader.shared.open_state().and_then(|_| self.reader.check_released()) {
            return CommitHandle::refused(error);
        }
        if self.busy.send_replace(true) {
            return CommitHandle::refused(Rejection::InFlight.into());
        }
        let admitted = Admitted::new(&self.reader.shared, &self.busy);
        let (answer, handle) = CommitHandle::channel();
        let id = self.reader.id;
        let work: Work = Box::new(move |journal| {
            let outcome = journal.commit(id, &batch);
            drop(admitted);
            // Nobody may wait any more: the batch settled all the same.
            let _ = answer.send(outcome);
        });
        match self.queue.try_send(work) {
            Ok(()) => handle,
            Err(_) => CommitHandle::refused(Rejection::Overloaded.into()),
        }
    }

    fn opened(&self) -> Head {
        self.opened
    }

    fn release(&self) -> Fut<'_, ()> {
        Box::pin(async {
            if let Some(released) = &self.reader.released {
                released.store(true, Ordering::SeqCst);
            }
            // The sender lives in this line, so waiting can't fail.
            let _ = self.busy.subscribe().wait_for(|busy| !busy).await;
            Ok(())
        })
    }
}

/// A batch in flight, until it settled or was given up.
struct Admitted {
    shared: Arc<Shared>,
    busy: Arc<watch::Sender<bool>>,
}

impl Admitted {
    fn new(shared: &Arc<Shared>, busy: &Arc<watch::Sender<bool>>) -> Self {
        shared.in_flight.send_modify(|count| *count += 1);
        Self { shared: Arc::clone(shared), busy: Arc::clone(busy) }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.busy.send_replace(false);
        self.shared.in_flight.send_modify(|count| *count -= 1);
    }
}
