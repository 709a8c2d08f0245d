//! The session that a case works on, and the restarts between its steps.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use picofleet_session::storage::{
    Batch, Commit, ExportLine, Fence, Head, Rejection, SessionCreate, SessionStore, StorageError, Store, Write,
};
use picofleet_session::{CommitToken, Epoch, Millis, ROOT_CONVERSATION_ID, SessionId};

use super::records::conversation;

/// A backend under test.
pub trait Backend: Send + Sync + 'static {
    /// A store without sessions.
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>>;

    /// The same data again, as after a restart of the process. Everything that was opened on `store` is given up.
    fn reopen(&self, store: Arc<dyn Store>) -> BoxFuture<'_, Arc<dyn Store>>;
}

/// Whether the store is reopened between every two steps of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// It stays open.
    Plain,
    /// It is reopened, and the session with it.
    Reopened,
}

/// The time of everything in a case that does not say another one.
pub const NOW: Millis = Millis(1_700_000_000_000);

/// A store with one open session.
pub struct World {
    backend: Arc<dyn Backend>,
    mode: Mode,
    store: Arc<dyn Store>,
    line: Arc<dyn SessionStore>,
    /// The session.
    pub session: SessionId,
    /// The newest commit that the owner knows.
    pub head: Head,
    /// The next id to mint; ids of refused commits are not used again.
    next: i64,
}

impl World {
    /// A store with one empty session.
    pub async fn new(backend: impl Backend, mode: Mode) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(backend);
        let store = backend.open().await;
        let session = SessionCreate::new(NOW);
        let id = session.id;
        store.create(session).await.unwrap();
        let line = store.open(id, fence()).await.unwrap();
        let head = line.opened();
        Self { backend, mode, store, line, session: id, head, next: head.next_id }
    }

    /// Writes the root conversation.
    pub async fn root(&mut self) {
        self.ok(vec![conversation(ROOT_CONVERSATION_ID.get())]).await;
    }

    /// Where the mode says so, the store is reopened, and the session is not open any more.
    pub async fn restart(&mut self) {
        if self.mode == Mode::Reopened {
            self.line.release().await.unwrap();
            self.store = self.backend.reopen(Arc::clone(&self.store)).await;
        }
    }

    /// The end of a step: where the mode says so, everything is reopened.
    pub async fn step(&mut self) {
        if self.mode == Mode::Plain {
            return;
        }
        self.restart().await;
        // The case may have deleted its session: reads then fail on the released line.
        if let Ok(line) = self.open_again().await {
            self.line = line;
            self.head = self.line.opened();
            self.next = self.next.max(self.head.next_id);
        }
    }

    /// Restarts do not count as failed opens, so the count starts again before each.
    async fn open_again(&self) -> Result<Arc<dyn SessionStore>, StorageError> {
        self.store.set_quarantined(self.session, false).await?;
        self.store.open(self.session, fence()).await
    }

    /// The store.
    pub async fn store(&mut self) -> Arc<dyn Store> {
        self.step().await;
        Arc::clone(&self.store)
    }

    /// The store as it is, without a restart: for cases that are about what one process does.
    #[must_use]
    pub fn same_store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Another store without sessions.
    pub async fn another_store(&self) -> Arc<dyn Store> {
        self.backend.open().await
    }

    /// The session's line.
    pub async fn line(&mut self) -> Arc<dyn SessionStore> {
        self.step().await;
        Arc::clone(&self.line)
    }

    /// The line as it is, without a restart.
    #[must_use]
    pub fn same_line(&self) -> Arc<dyn SessionStore> {
        Arc::clone(&self.line)
    }

    /// Takes the session over in place of the line that was open.
    pub async fn open(&mut self) {
        self.line = self.store.open(self.session, fence()).await.unwrap();
        self.head = self.line.opened();
    }

    /// A new id.
    pub fn mint(&mut self) -> i64 {
        self.next += 1;
        self.next - 1
    }

    /// New ids.
    pub fn mints<const N: usize>(&mut self) -> [i64; N] {
        std::array::from_fn(|_| self.mint())
    }

    /// A commit that mints everything so far.
    #[must_use]
    pub fn commit_of(&self, writes: Vec<Write>) -> Commit {
        Commit { token: CommitToken::random(), at: NOW, next_id: self.next, writes }
    }

    /// A batch on top of what the owner knows.
    #[must_use]
    pub fn batch(&self, commits: Vec<Commit>) -> Batch {
        Batch { expect: (self.head.seq, self.head.token), commits }
    }

    /// Sends a batch of one commit and adopts it where it landed.
    ///
    /// # Errors
    /// What the backend says.
    pub async fn commit(&mut self, writes: Vec<Write>) -> Result<Head, StorageError> {
        self.step().await;
        let batch = self.batch(vec![self.commit_of(writes)]);
        self.send(batch).await
    }

    /// Sends a batch and adopts it where it landed.
    ///
    /// # Errors
    /// What the backend says.
    pub async fn send(&mut self, batch: Batch) -> Result<Head, StorageError> {
        let head = self.line.commit(batch).await?;
        self.head = head;
        Ok(head)
    }

    /// A commit that lands.
    pub async fn ok(&mut self, writes: Vec<Write>) -> Head {
        self.commit(writes).await.unwrap()
    }

    /// A commit that is refused and after which the chain is as before.
    pub async fn refused(&mut self, writes: Vec<Write>) -> Rejection {
        self.step().await;
        let before = self.line.head().await.unwrap();
        let reason = rejection(self.line.commit(self.batch(vec![self.commit_of(writes)])).await);
        assert_eq!(self.line.head().await.unwrap(), before, "a refused batch moved the chain");
        reason
    }

    /// The lines of an export.
    pub async fn export(&mut self) -> Vec<ExportLine> {
        self.step().await;
        export(&*self.store, self.session).await
    }
}

/// All lines of an export.
pub async fn export(store: &dyn Store, session: SessionId) -> Vec<ExportLine> {
    let lines: Vec<_> = store.export(session).await.unwrap().collect().await;
    lines.into_iter().map(Result::unwrap).collect()
}

/// The fence of the owner in a case.
#[must_use]
pub const fn fence() -> Fence {
    Fence { epoch: Epoch(0), at: NOW }
}

/// The reason of a refusal; anything else fails the case.
pub fn rejection<T: std::fmt::Debug>(result: Result<T, StorageError>) -> Rejection {
    match result {
        Err(StorageError::Rejected(rejected)) => rejected.reason,
        other => panic!("not refused but {other:?}"),
    }
}
