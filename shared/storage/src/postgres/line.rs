//! The line of an open session, and its batches on their way.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_session::storage::{
    Batch, CommitHandle, CommitOutcome, Fut, Head, Rejection, SessionReader, SessionStore, StorageError, Tenant,
};
use picofleet_session::{CommitToken, SessionId};
use tokio::sync::{oneshot, watch};

use super::Shared;
use super::known::{Key, Known};
use super::load::load;
use super::read::Reader;
use super::run::Run;
use super::staged::Staged;
use crate::reading::ReadThrough;
use crate::rules::apply_batch;

/// How often a batch is judged again behind a read. Each time more is known, and the lookups of a batch are few kinds that depend on each
/// other.
const ROUNDS: usize = 16;

/// A batch above this goes over the connection for large ones, so that it holds up no others.
pub(super) const LARGE: usize = 256 << 10;

/// What the line holds between its batches.
pub(super) struct State {
    head: Head,
    known: Known,
}

/// The line of an open session.
pub(super) struct Line {
    reader: Arc<Reader>,
    shared: Arc<Shared>,
    tenant: Tenant,
    opened: Head,
    state: Arc<Mutex<State>>,
    busy: Arc<watch::Sender<bool>>,
}

/// Says that a batch is in flight, until it is dropped.
struct Busy(Arc<watch::Sender<bool>>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

/// Counts a batch that is judged behind a read, until it is dropped.
struct Judging(Arc<watch::Sender<usize>>);

impl Judging {
    fn new(count: &Arc<watch::Sender<usize>>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(Arc::clone(count))
    }
}

impl Drop for Judging {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A batch on its way to a committer.
pub(super) struct Work {
    session: SessionId,
    tenant: Tenant,
    behind: CommitToken,
    /// The predecessor.
    head: Head,
    staged: Box<Staged>,
    state: Arc<Mutex<State>>,
    busy: Busy,
    answer: oneshot::Sender<CommitOutcome>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What judging a batch came to.
enum Judged {
    Staged(Box<Staged>),
    Missing(Vec<Key>),
    Refused(StorageError),
}

fn judge(session: SessionId, head: &Head, known: &Known, batch: &Batch) -> Judged {
    let mut run = Run::new(known, head.next_id);
    let applied = apply_batch(&mut run, session, head, batch);
    if !run.missing.is_empty() {
        return Judged::Missing(run.missing);
    }
    match applied.map(|_| run.finish()) {
        Ok(Ok(staged)) => Judged::Staged(Box::new(staged)),
        Ok(Err(missing)) => Judged::Missing(missing),
        Err(error) => Judged::Refused(error),
    }
}

impl Line {
    pub(super) fn new(reader: Reader, shared: Arc<Shared>, tenant: Tenant, opened: Head) -> Self {
        let state = Arc::new(Mutex::new(State { head: opened, known: Known::default() }));
        Self { reader: Arc::new(reader), shared, tenant, opened, state, busy: Arc::new(watch::Sender::new(false)) }
    }
}

impl ReadThrough for Line {
    fn target(&self) -> &dyn SessionReader {
        &*self.reader
    }
}

crate::read_through!(Line);

impl SessionStore for Line {
    fn commit(&self, batch: Batch) -> CommitHandle {
        if let Err(error) = self.reader.check() {
            return CommitHandle::refused(error);
        }
        if self.shared.lane(self.reader.id).troubled.load(Ordering::SeqCst) {
            return CommitHandle::refused(Rejection::Unavailable { operation: format!("commit in {}", self.shared.access.place.0) }.into());
        }
        if self.busy.send_replace(true) {
            return CommitHandle::refused(Rejection::InFlight.into());
        }
        let busy = Busy(Arc::clone(&self.busy));
        let session = self.reader.id;
        let (head, judged) = {
            let state = lock(&self.state);
            (state.head, judge(session, &state.head, &state.known, &batch))
        };
        let (answer, handle) = CommitHandle::channel();
        let pending = Pending { session, tenant: self.tenant.clone(), head, state: Arc::clone(&self.state), busy, answer };
        match judged {
            Judged::Staged(staged) => pending.send(&self.shared, staged),
            Judged::Refused(error) => pending.refuse(error),
            Judged::Missing(keys) => {
                let shared = Arc::clone(&self.shared);
                let judging = Judging::new(&shared.judging);
                tokio::spawn(async move {
                    pending.read_and_send(&shared, keys, batch).await;
                    drop(judging);
                });
            }
        }
        handle
    }

    fn opened(&self) -> Head {
        self.opened
    }

    fn release(&self) -> Fut<'_, ()> {
        Box::pin(async {
            self.reader.released.store(true, Ordering::SeqCst);
            // The sender lives in this line, so waiting can't fail.
            let _ = self.busy.subscribe().wait_for(|busy| !busy).await;
            Ok(())
        })
    }
}

/// A batch that is not judged yet.
struct Pending {
    session: SessionId,
    tenant: Tenant,
    head: Head,
    state: Arc<Mutex<State>>,
    busy: Busy,
    answer: oneshot::Sender<CommitOutcome>,
}

impl Pending {
    fn refuse(self, error: StorageError) {
        drop(self.busy);
        // The caller may have gone.
        let _ = self.answer.send(Err(error));
    }

    fn send(self, shared: &Shared, staged: Box<Staged>) {
        let Self { session, tenant, head, state, busy, answer } = self;
        let work = Work { session, tenant, behind: head.token, head, staged, state, busy, answer };
        shared.send(work);
    }

    /// Reads what the rules ask for, and judges the batch again.
    async fn read_and_send(self, shared: &Shared, mut keys: Vec<Key>, batch: Batch) {
        // Everything that the batch can ask for in one round trip; what it did not foresee comes in the next.
        keys.extend(super::load::foreseen(&batch));
        for _ in 0..ROUNDS {
            if let Err(error) = self.read(shared, &keys).await {
                return self.refuse(error);
            }
            let judged = judge(self.session, &self.head, &lock(&self.state).known, &batch);
            match judged {
                Judged::Staged(staged) => return self.send(shared, staged),
                Judged::Refused(error) => return self.refuse(error),
                Judged::Missing(missing) => keys = missing,
            }
        }
        let lost = std::io::Error::other("its lookups do not end");
        self.refuse(StorageError::failed("judge a batch", lost));
    }

    async fn read(&self, shared: &Shared, keys: &[Key]) -> Result<(), StorageError> {
        let mut wanted: Vec<&Key> = Vec::new();
        {
            let state = lock(&self.state);
            for key in keys {
                if !super::load::known(&state.known, key) && !wanted.contains(&key) {
                    wanted.push(key);
                }
            }
        }
        let loaded = load(shared, self.session, &wanted).await?;
        // What another owner wrote would be judged as if it were ours.
        if loaded.head.seq != self.head.seq || loaded.head.token != self.head.token {
            return Err(StorageError::Fenced { session: self.session });
        }
        loaded.add_to(&mut lock(&self.state).known);
        Ok(())
    }
}

impl Work {
    pub(super) fn session(&self) -> SessionId {
        self.session
    }

    pub(super) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    pub(super) fn behind(&self) -> CommitToken {
        self.behind
    }

    pub(super) fn head(&self) -> Head {
        self.head
    }

    pub(super) fn staged(&self) -> &Staged {
        &self.staged
    }

    pub(super) fn bytes(&self) -> usize {
        self.staged.bytes
    }

    pub(super) fn progress(&self) -> bool {
        self.staged.progress()
    }

    /// The token of its first row.
    pub(super) fn first(&self) -> CommitToken {
        self.staged.commits.first().map_or(self.behind, |head| head.token)
    }

    /// Puts it on top of a fence that took the place of its first row.
    pub(super) fn rebase(&mut self, fence: CommitToken) {
        self.head = Head { seq: self.head.seq.next(), token: fence, ..self.head };
        self.behind = fence;
        self.staged.shift();
        // Should the batch be refused, the next one has to stand on the fence.
        lock(&self.state).head = self.head;
    }

    pub(super) fn landed(self) {
        let Self { staged, state, busy, answer, head, .. } = self;
        let landed = staged.commits.last().copied().unwrap_or(head);
        {
            let mut state = lock(&state);
            state.head = landed;
            staged.land(&mut state.known);
        }
        // Whoever gets the answer may send the next batch at once.
        drop(busy);
        let _ = answer.send(Ok(landed));
    }

    pub(super) fn fenced(self) {
        let session = self.session;
        self.refused(StorageError::Fenced { session });
    }

    pub(super) fn refused(self, error: StorageError) {
        lock(&self.state).known.settle();
        drop(self.busy);
        let _ = self.answer.send(Err(error));
    }
}
