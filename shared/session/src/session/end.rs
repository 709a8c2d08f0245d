//! How a session ends: because its owner wants it, because its storage failed, or because somebody else has it.

use std::error::Error;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use tokio::sync::OwnedMutexGuard;

use super::{
    Admission, Arc, AssertUnwindSafe, CloseError, Head, Inner, Ordering, PoisonError, ReadError, Session, SessionFailed, StorageError,
    WatchEnd, catch_unwind,
};
use crate::CommitToken;
use crate::error::CommitError;
use crate::line::Line;
use crate::storage::{Batch, Commit, Rejection};

/// The end that was asked for: all who ask wait for the same one.
pub(super) type Ended = Shared<BoxFuture<'static, Result<(), CloseError>>>;

/// From how many opens in a row an orderly end clears their count. Below it the next commit will, and an end writes nothing.
const OPENS_CLEARED: u32 = 2;

/// How an owner ends a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Close,
    Release,
}

impl Ending {
    fn admission(self) -> Admission {
        match self {
            Self::Close => Admission::Closed,
            Self::Release => Admission::NotOwner,
        }
    }

    const fn watches(self) -> WatchEnd {
        match self {
            Self::Close => WatchEnd::SessionClosed,
            Self::Release => WatchEnd::Takeover,
        }
    }
}

impl Session {
    /// Says that opening the session did not kill its owner, which has lived for a while since: opens without a commit in between are
    /// counted, and three quarantine the session (`protocol.md` 4). Commits nothing where the count is low.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub async fn survived(&self) -> Result<(), CommitError> {
        let line = self.inner.line().await.map_err(CommitError::from)?;
        if line.head.opens < OPENS_CLEARED {
            return Ok(());
        }
        self.commit_nothing(line).await
    }

    /// Makes sure that nobody else has the session: an empty commit finds its place, or the session ends for this owner. Reads can't tell.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub async fn assert_owner(&self) -> Result<(), CommitError> {
        let line = self.inner.line().await.map_err(CommitError::from)?;
        self.commit_nothing(line).await
    }

    async fn commit_nothing(&self, line: OwnedMutexGuard<Line>) -> Result<(), CommitError> {
        let cleared = tokio::spawn(Arc::clone(&self.inner).clear_living(line)).await;
        cleared.unwrap_or_else(|stopped| Err(self.inner.fail(StorageError::failed("commit nothing", stopped)).into()))
    }

    /// Closes: takes no new work, ends watches, lets the admitted commit settle, gives the line back. Once it has begun, a task finishes
    /// it, whatever the caller does; whoever closes later waits for the same end.
    ///
    /// # Errors
    /// [`CloseError::Storage`] where storage did not take the line back; the session is closed all the same. [`CloseError::Nested`].
    pub async fn close(&self) -> Result<(), CloseError> {
        self.inner.end(Ending::Close).await
    }

    /// Hands the session over or lets it rest: as [`Session::close`], but watches and later calls say that somebody else goes on.
    ///
    /// # Errors
    /// As [`Session::close`].
    pub async fn release(&self) -> Result<(), CloseError> {
        self.inner.end(Ending::Release).await
    }
}

impl Inner {
    async fn end(self: &Arc<Self>, ending: Ending) -> Result<(), CloseError> {
        if self.is_held() {
            return Err(CloseError::Nested);
        }
        let mut orderly = false;
        let ended = {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = || {
                // One that has failed, or has lost its line, has ended for everybody already and only gives the line back.
                orderly = self.seal(ending.admission());
                self.give_back(orderly)
            };
            ended.get_or_insert_with(begin).clone()
        };
        if orderly {
            self.observers.end_all(&ending.watches());
            self.call_closes();
        }
        ended.await
    }

    /// Tells who listens for the end, once.
    fn call_closes(&self) {
        if !self.closes.call(&()) {
            tracing::error!(session = %self.id, "a listener of the session's end panicked");
        }
    }

    /// Lets a task end what goes on and give the line back.
    fn give_back(self: &Arc<Self>, orderly: bool) -> Ended {
        let inner = Arc::clone(self);
        let finished = tokio::spawn(async move { inner.finish_end(orderly).await });
        let stopped = |stopped| Err(CloseError::Storage(StorageError::failed("close session", stopped)));
        finished.map(move |ended| ended.unwrap_or_else(stopped)).boxed().shared()
    }

    /// Takes no new work; whether it did until now.
    fn seal(&self, sealed: Admission) -> bool {
        let mut admission = self.admission();
        let open = matches!(&*admission, Admission::Open);
        if open {
            *admission = sealed;
        }
        open
    }

    async fn finish_end(&self, orderly: bool) -> Result<(), CloseError> {
        // The admitted commit settles, and whoever waits for the line is refused.
        let head = self.line.lock().await.head;
        let cleared = if orderly && head.opens >= OPENS_CLEARED { self.clear_opens(head).await } else { Ok(()) };
        // Whatever became of that, the line is given back.
        let released = match self.store.release().await {
            Ok(()) | Err(StorageError::Closed) => Ok(()),
            Err(error) => Err(CloseError::Storage(error)),
        };
        cleared.and(released)
    }

    /// An owner that ends in order was not killed by the session: an empty commit says so, before the count of opens without a commit
    /// quarantines it (`protocol.md` 4).
    async fn clear_opens(&self, head: Head) -> Result<(), CloseError> {
        let commit = Commit { token: CommitToken::random(), at: self.options.clock.now(), next_id: head.next_id, writes: Vec::new() };
        let batch = Batch { expect: (head.seq, head.token), commits: vec![commit] };
        match self.store.commit(batch).await {
            // Somebody else has the line already: their opening counts, not this one's.
            Ok(_) | Err(StorageError::Fenced { .. } | StorageError::Closed) => Ok(()),
            Err(error) => Err(CloseError::Storage(error)),
        }
    }

    /// An empty commit where opens without a commit have added up.
    async fn clear_living(self: Arc<Self>, mut line: OwnedMutexGuard<Line>) -> Result<(), CommitError> {
        let (head, next_id) = (line.head, line.next_id());
        let commit = Commit { token: CommitToken::random(), at: self.options.clock.now(), next_id, writes: Vec::new() };
        let batch = Batch { expect: (head.seq, head.token), commits: vec![commit] };
        match self.store.commit(batch).await {
            Ok(head) => {
                line.head = head;
                Ok(())
            }
            Err(StorageError::Rejected(rejected)) if !matches!(rejected.reason, Rejection::Damaged { .. }) => Err(rejected.into()),
            Err(error @ StorageError::Fenced { .. }) => {
                self.lose(error);
                Err(CommitError::NotOwner)
            }
            Err(error) => Err(self.fail(error).into()),
        }
    }

    /// The session is over: what is stored can't be told (invariant 8).
    pub(super) fn fail(&self, error: StorageError) -> SessionFailed {
        let failed = SessionFailed { cause: Arc::new(error) };
        // One that is being closed stays closed; its failure is told all the same, and before its watchers hear of the end.
        let sealed = self.seal(Admission::Failed(failed.clone()));
        if self.report(&failed) && self.options.on_report.is_none() {
            tracing::error!(session = %self.id, error = %Chain(&*failed.cause), "session failed");
        }
        if sealed {
            self.observers.end_all(&WatchEnd::SessionFailed);
            self.call_closes();
        }
        failed
    }

    /// The session is over for this owner: another one has the line, and nothing of the refused commit was written.
    pub(super) fn lose(&self, error: StorageError) {
        let lost = SessionFailed { cause: Arc::new(error) };
        let sealed = self.seal(Admission::NotOwner);
        if self.report(&lost) && self.options.on_report.is_none() {
            tracing::warn!(session = %self.id, error = %Chain(&*lost.cause), "session lost to another owner");
        }
        if sealed {
            self.observers.end_all(&WatchEnd::Takeover);
            self.call_closes();
        }
    }

    /// Tells the first cause; whether this one is it.
    fn report(&self, failed: &SessionFailed) -> bool {
        let first = !self.reported.swap(true, Ordering::AcqRel);
        if let (true, Some(report)) = (first, &self.options.on_report)
            && catch_unwind(AssertUnwindSafe(|| report(failed))).is_err()
        {
            tracing::error!(session = %self.id, "the report of a session's end panicked");
        }
        first
    }

    /// The error of a read. One that met the end of the session says so: what storage says is only what follows from it.
    pub(super) fn read_error(&self, error: ReadError) -> ReadError {
        match error {
            ReadError::Storage(StorageError::Closed | StorageError::Fenced { .. }) => {
                self.admits().map_or_else(ReadError::from, |()| error)
            }
            other => other,
        }
    }
}

/// An error with everything below it: `Display` of an error leaves its source out.
struct Chain<'a>(&'a dyn Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut below = self.0.source();
        while let Some(error) = below {
            write!(f, ": {error}")?;
            below = error.source();
        }
        Ok(())
    }
}
