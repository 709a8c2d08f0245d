//! The line of one open session, and the batches that it sends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::SessionId;
use picofleet_session::storage::{Batch, CommitHandle, CommitOutcome, Fut, Head, Rejection, SessionReader, SessionStore, StorageError};
use tokio::sync::{oneshot, watch};

use super::faults::{Fault, Planned, lost};
use super::reader::Reader;
use super::state::Shared;
use crate::reading::ReadThrough;
use crate::rules;

/// A line.
pub(super) struct Line {
    pub(super) reader: Reader,
    opened: Head,
    /// Whether a batch is in flight.
    busy: Arc<watch::Sender<bool>>,
}

impl Line {
    pub(super) fn new(shared: Arc<Shared>, id: SessionId, opened: Head) -> Self {
        let released = Some(Arc::new(AtomicBool::new(false)));
        Self { reader: Reader { shared, id, released }, opened, busy: Arc::new(watch::Sender::new(false)) }
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
        let shared = Arc::clone(&self.reader.shared);
        shared.in_flight.send_modify(|count| *count += 1);
        let (answer, handle) = CommitHandle::channel();
        let job = Job { shared: Arc::clone(&shared), session: self.reader.id, batch, busy: Arc::clone(&self.busy), answer };
        match shared.faults.next(job.session, &job.batch) {
            None => job.settle(None),
            Some(Planned::Fault(Fault::Late(late))) => {
                tokio::spawn(async move {
                    tokio::time::sleep(late).await;
                    job.settle(None);
                });
            }
            Some(Planned::Fault(fault)) => job.settle(Some(&fault)),
            Some(Planned::Hold(slot)) => slot.take(job),
        }
        handle
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

/// A batch that was admitted.
#[derive(Debug)]
pub(super) struct Job {
    shared: Arc<Shared>,
    session: SessionId,
    batch: Batch,
    busy: Arc<watch::Sender<bool>>,
    answer: oneshot::Sender<CommitOutcome>,
}

impl Job {
    /// Writes the batch, or lets it meet a fault, and answers.
    pub(super) fn settle(self, fault: Option<&Fault>) {
        let outcome = match fault {
            None | Some(Fault::Late(_)) => self.write(),
            Some(Fault::LostBefore) => Err(lost()),
            Some(Fault::LostAfter) => self.write().and_then(|_| Err(lost())),
            Some(Fault::Rejected(reason)) => Err(reason.clone().into()),
        };
        self.busy.send_replace(false);
        self.shared.in_flight.send_modify(|count| *count -= 1);
        // Nobody may wait any more: the batch settled all the same.
        let _ = self.answer.send(outcome);
    }

    fn write(&self) -> Result<Head, StorageError> {
        let mut state = self.shared.state();
        // A session that is being deleted, or is gone, has no line any more.
        let session = state.session(self.session).map_err(|_| StorageError::Fenced { session: self.session })?;
        let mut rows = session.rows.clone();
        let before = rows.head;
        let head = rules::apply_batch(&mut rows, self.session, &before, &self.batch)?;
        state.replace_rows(self.session, rows);
        drop(state);
        self.shared.faults.written(self.session, &self.batch, &head);
        Ok(head)
    }
}
