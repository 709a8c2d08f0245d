//! An open session: its line of commits, reads of its documents, and its end (sections 3.3 and 4).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::definition::Located;
use crate::error::{CloseError, CommitError, OpenError, ReadError, SessionFailed};
use crate::line::{CacheSize, Line, check_semantics, load};
use crate::publication::{Publication, ValueChange};
use crate::storage::{Fence, Head, Rejection, SessionStore, StorageError, Store};
use crate::tx::{Bound, Prepared, Setups, Tx};
use crate::watch::{DocumentState, Observers, Watch, WatchEnd};
use crate::{Clock, Epoch, Point, SessionId};

mod end;
mod listeners;
mod reads;

use end::Ended;
use listeners::Listeners;
pub use listeners::Subscription;
use reads::delivery;

/// Takes what ended a session: an uncertain failure of its storage, or that another owner has it.
pub type Report = Arc<dyn Fn(&SessionFailed) + Send + Sync>;

/// How a session is opened.
#[derive(Clone, Default)]
pub struct SessionOptions {
    /// Tells the time of commits.
    pub clock: Clock,
    /// The epoch of the partition's owner; 0 where nobody leases partitions.
    pub epoch: Epoch,
    /// How much committed state stays in memory.
    pub cache: CacheSize,
    /// What every new conversation is set up with, in this order (section 7.1).
    pub on_create: Setups,
    /// Called once when the session fails or finds that another owner has it.
    pub on_report: Option<Report>,
}

/// An open session. Cheap to clone; all clones are one session.
///
/// It needs a tokio runtime: what must not depend on its callers, the end of an admitted commit and of the session, runs as a task. All
/// other work is done by the caller's future.
#[derive(Clone)]
pub struct Session {
    inner: Arc<Inner>,
}

struct Inner {
    id: SessionId,
    store: Arc<dyn SessionStore>,
    options: SessionOptions,
    line: Arc<AsyncMutex<Line>>,
    admission: Mutex<Admission>,
    observers: Arc<Observers>,
    commits: Listeners<Publication>,
    closes: Listeners<()>,
    reported: AtomicBool,
    /// The end that somebody asked for.
    ended: Mutex<Option<Ended>>,
}

/// Whether a session takes commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It does.
    Open,
    /// It was closed or released.
    Closed,
    /// Another owner has it.
    NotOwner,
    /// Its storage failed in a way that leaves open what was written; it can be opened again.
    Failed,
}

/// Whether the session takes new work.
#[derive(Clone)]
enum Admission {
    Open,
    Closed,
    NotOwner,
    Failed(SessionFailed),
}

tokio::task_local! {
    /// The open sessions whose lines the running callback holds, to refuse a wait that could never end.
    static HELD: Vec<OpenSession>;
}

/// One opening of a session, by its address: two stores may have sessions of one id. Its callback keeps it where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
struct OpenSession(usize);

impl Session {
    /// Opens a session: fences every earlier owner (`protocol.md` 1). Nothing else is read.
    ///
    /// # Errors
    /// [`OpenError::Storage`].
    pub async fn open(store: &dyn Store, id: SessionId, options: SessionOptions) -> Result<Session, OpenError> {
        let fence = Fence { epoch: options.epoch, at: options.clock.now() };
        let store = store.open(id, fence).await?;
        Ok(Self::over(store, options))
    }

    /// The session over a line that was opened already.
    #[must_use]
    pub fn over(store: Arc<dyn SessionStore>, options: SessionOptions) -> Session {
        let line = Line::new(store.opened(), options.cache);
        let inner = Inner {
            id: store.id(),
            store,
            options,
            line: Arc::new(AsyncMutex::new(line)),
            admission: Mutex::new(Admission::Open),
            observers: Arc::default(),
            commits: Listeners::default(),
            closes: Listeners::default(),
            reported: AtomicBool::new(false),
            ended: Mutex::default(),
        };
        Session { inner: Arc::new(inner) }
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.inner.id
    }

    /// Its storage, for reads of committed records.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn SessionStore> {
        &self.inner.store
    }

    /// Its clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.options.clock
    }

    /// Whether it takes commits, and why not.
    #[must_use]
    pub fn standing(&self) -> Standing {
        match &*self.inner.admission() {
            Admission::Open => Standing::Open,
            Admission::Closed => Standing::Closed,
            Admission::NotOwner => Standing::NotOwner,
            Admission::Failed(_) => Standing::Failed,
        }
    }

    /// Ends the session because what is stored of it is damaged where its owner has to read: trying again would meet the same damage, and
    /// nothing would go on. Commits that storage itself refuses as damaged end it without this.
    pub fn give_up(&self, error: StorageError) {
        self.inner.fail(error);
    }

    /// Runs `change` while it holds the line, then stores what it wrote in one commit.
    ///
    /// `change` runs on the caller's task: dropping the future rolls back, until the batch is admitted to storage. From then on a task of
    /// the line finishes the commit, whatever the caller does (section 4). A transaction that writes nothing stores nothing.
    ///
    /// # Errors
    /// What `change` says; else a [`CommitError`].
    pub async fn commit<R, E, F>(&self, change: F) -> Result<R, E>
    where
        F: AsyncFnOnce(&Tx) -> Result<R, E>,
        E: From<CommitError>,
    {
        self.commit_bound(Bound::default(), change).await
    }

    /// A commit with defaults for what it creates.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub async fn commit_bound<R, E, F>(&self, bound: Bound, change: F) -> Result<R, E>
    where
        F: AsyncFnOnce(&Tx) -> Result<R, E>,
        E: From<CommitError>,
    {
        if self.inner.is_held() {
            return Err(CommitError::Nested.into());
        }
        let line = self.inner.line().await.map_err(CommitError::from)?;
        let (store, setups) = (Arc::clone(&self.inner.store), Arc::clone(&self.inner.options.on_create));
        let tx = Tx::new(store, line, self.inner.options.clock.now(), bound, setups);
        // Boxed, so that a large callback makes no large future of its caller.
        let result = HELD.scope(self.inner.held_too(), Box::pin(change(&tx))).await;
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                tx.roll_back();
                return Err(error);
            }
        };
        let prepared = Box::pin(tx.prepare()).await?;
        self.inner.admit(prepared).await?;
        Ok(result)
    }

    /// Calls `listener` with every commit, on the line, right after it became the committed state. It must not block, panic or call the
    /// session.
    #[must_use = "dropping the subscription ends it"]
    pub fn subscribe_commits(&self, listener: impl Fn(&Publication) + Send + Sync + 'static) -> Subscription {
        self.inner.commits.add(Arc::new(listener))
    }

    /// How many listeners of commits and watches of documents it has: who would notice if it rested.
    #[must_use]
    pub fn followers(&self) -> usize {
        self.inner.commits.count() + self.inner.observers.count()
    }

    /// Calls `listener` once when the session ends, right after admission was sealed and watches have ended: when closing begins, and when it
    /// fails or loses the line. It must not block, panic or call the session.
    #[must_use = "dropping the subscription ends it"]
    pub fn subscribe_close(&self, listener: impl Fn() + Send + Sync + 'static) -> Subscription {
        self.inner.closes.add(Arc::new(move |()| listener()))
    }
}

impl Inner {
    fn admission(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the running callback holds the line.
    fn is_held(&self) -> bool {
        HELD.try_with(|held| held.contains(&self.opening())).unwrap_or(false)
    }

    /// The lines that a callback on this line holds.
    fn held_too(&self) -> Vec<OpenSession> {
        let mut held = HELD.try_with(Clone::clone).unwrap_or_default();
        held.push(self.opening());
        held
    }

    fn opening(&self) -> OpenSession {
        OpenSession(std::ptr::from_ref(self).addr())
    }

    fn admits(&self) -> Result<(), Refused> {
        match &*self.admission() {
            Admission::Open => Ok(()),
            Admission::Closed => Err(Refused::Closed),
            Admission::NotOwner => Err(Refused::NotOwner),
            Admission::Failed(failed) => Err(Refused::Failed(failed.clone())),
        }
    }

    /// The line, for a commit or for a read of committed documents. Waiters are served in their order.
    async fn line(&self) -> Result<OwnedMutexGuard<Line>, Refused> {
        self.admits()?;
        let line = Arc::clone(&self.line).lock_owned().await;
        // What was queued when admission was sealed is refused.
        self.admits()?;
        Ok(line)
    }

    /// Stores a prepared transaction. The line is held until it is settled.
    async fn admit(self: &Arc<Self>, prepared: Prepared) -> Result<(), CommitError> {
        let Some(batch) = prepared.batch() else {
            prepared.roll_back();
            return Ok(());
        };
        // Enqueued here and not in the task, so that nothing can come between.
        let stored = self.store.commit(batch);
        let inner = Arc::clone(self);
        let settled = tokio::spawn(async move { inner.settle(prepared, stored.await) });
        settled.await.unwrap_or_else(|stopped| Err(self.fail(StorageError::failed("settle a commit", stopped)).into()))
    }

    fn settle(&self, prepared: Prepared, outcome: Result<Head, StorageError>) -> Result<(), CommitError> {
        match outcome {
            Ok(head) => {
                let (line, publication) = prepared.adopt(self.id, head);
                // Judged while the line is held: behind a listener that panicked frames are missing, so that nobody goes on.
                let published = catch_unwind(AssertUnwindSafe(|| self.publish(&publication))).unwrap_or(false);
                let result = if published { Ok(()) } else { Err(self.fail(panicked()).into()) };
                drop(line);
                result
            }
            Err(StorageError::Rejected(rejected)) if !matches!(rejected.reason, Rejection::Damaged { .. }) => {
                prepared.roll_back();
                Err(rejected.into())
            }
            Err(error @ StorageError::Fenced { .. }) => {
                self.lose(error);
                Err(CommitError::NotOwner)
            }
            Err(error) => Err(self.fail(error).into()),
        }
    }

    /// Hands a commit out; whether everybody took it. One that settles while the session closes publishes nothing.
    fn publish(&self, publication: &Publication) -> bool {
        if self.admits().is_err() {
            return true;
        }
        let taken = self.commits.call(publication);
        for document in &publication.documents {
            if let Some(delivery) = delivery(publication, document) {
                self.observers.deliver(&delivery);
            }
        }
        taken
    }
}

impl Drop for Inner {
    /// Without a handle nobody commits any more: who still watches would wait for ever.
    fn drop(&mut self) {
        self.observers.end_all(&WatchEnd::SessionClosed);
    }
}

fn panicked() -> StorageError {
    StorageError::failed("publish a commit", std::io::Error::other("a listener of commits panicked"))
}

/// Why the session takes no work.
enum Refused {
    Closed,
    NotOwner,
    Failed(SessionFailed),
}

impl From<Refused> for CommitError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Closed => Self::Closed,
            Refused::NotOwner => Self::NotOwner,
            Refused::Failed(failed) => Self::Failed(failed),
        }
    }
}

impl From<Refused> for ReadError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Closed => Self::Closed,
            Refused::NotOwner => Self::NotOwner,
            Refused::Failed(failed) => Self::Failed(failed),
        }
    }
}
