//! A store in front of the kit's that shows every commit, keeps one in flight, or loses the process at one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use futures::stream::BoxStream;
use picofleet_session::storage::{
    Batch, Commit, CommitHandle, Created, Cursor, ExportLine, Fence, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, SessionCreate,
    SessionQuery, SessionReader, SessionRecord, SessionStore, StorageError, Store, Wake, Write,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId, TaskRecord};
use picofleet_storage::reading::ReadThrough;
use tokio::sync::watch;

type Pick = Box<dyn Fn(&Commit) -> bool + Send + Sync>;

/// What storage does for a test. Clones are one.
#[derive(Clone, Default)]
pub struct Tap(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    commits: Vec<Commit>,
    plan: Option<(Pick, Plan)>,
    /// What the next opening of a session waits for.
    opening: Option<Wait>,
    /// Whether the engine that was started last has lost its storage. One that lost it never has it again.
    lost: watch::Sender<bool>,
}

enum Plan {
    /// The commit stays in flight.
    Hold(Wait),
    /// It is the last one that is stored.
    CrashBehind,
    /// It is the first one that is not stored.
    CrashAt,
}

/// The side of the store of an [`InFlight`].
struct Wait {
    arrived: watch::Sender<bool>,
    go: watch::Receiver<bool>,
}

impl Wait {
    fn new() -> (Self, InFlight) {
        let (arrived_in, arrived) = watch::channel(false);
        let (go, gone) = watch::channel(false);
        (Self { arrived: arrived_in, go: gone }, InFlight { arrived, go })
    }

    async fn over(mut self) {
        self.arrived.send_replace(true);
        // Without its test it goes on.
        let _ = self.go.wait_for(|go| *go).await;
    }
}

/// A commit or an opening in flight.
pub struct InFlight {
    arrived: watch::Receiver<bool>,
    go: watch::Sender<bool>,
}

impl InFlight {
    /// Waits until it is inside storage.
    pub async fn arrived(&self) {
        self.arrived.clone().wait_for(|arrived| *arrived).await.unwrap();
    }

    /// Lets it go on.
    pub fn release(self) {
        self.go.send_replace(true);
    }
}

impl Tap {
    /// The store of an engine that starts.
    pub(crate) fn over(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        let lost = watch::Sender::new(false);
        self.state().lost = lost.clone();
        Arc::new(Tapped { tap: self.clone(), store, lost })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the next commit that is picked in flight.
    pub fn hold(&self, pick: impl Fn(&Commit) -> bool + Send + Sync + 'static) -> InFlight {
        let (wait, in_flight) = Wait::new();
        self.state().plan = Some((Box::new(pick), Plan::Hold(wait)));
        in_flight
    }

    /// Keeps the next opening of a session in flight.
    pub fn hold_opening(&self) -> InFlight {
        let (wait, in_flight) = Wait::new();
        self.state().opening = Some(wait);
        in_flight
    }

    /// Stores nothing more behind the next commit that is picked, as where the process is lost there.
    pub fn crash_behind(&self, pick: impl Fn(&Commit) -> bool + Send + Sync + 'static) {
        self.state().plan = Some((Box::new(pick), Plan::CrashBehind));
    }

    /// Stores nothing more from the next commit on that is picked.
    pub fn crash_at(&self, pick: impl Fn(&Commit) -> bool + Send + Sync + 'static) {
        self.state().plan = Some((Box::new(pick), Plan::CrashAt));
    }

    /// Waits until nothing is stored any more.
    pub async fn crashed(&self) {
        let mut lost = self.state().lost.subscribe();
        let waited = tokio::time::timeout(crate::kit::PATIENCE, lost.wait_for(|lost| *lost)).await;
        waited.expect("the commit comes").unwrap();
    }

    /// The position of the first commit with a task like this.
    pub fn first(&self, like: impl Fn(&TaskRecord) -> bool) -> Option<usize> {
        self.state().commits.iter().position(|commit| tasks(commit).any(&like))
    }

    /// The position of the last commit with a task like this.
    pub fn last(&self, like: impl Fn(&TaskRecord) -> bool) -> Option<usize> {
        self.state().commits.iter().rposition(|commit| tasks(commit).any(&like))
    }

    /// A commit that was sent.
    pub fn commit(&self, position: usize) -> Commit {
        self.state().commits[position].clone()
    }

    fn plan(&self, batch: &Batch) -> Option<Plan> {
        let mut state = self.state();
        state.commits.extend(batch.commits.iter().cloned());
        let picked = state.plan.as_ref().is_some_and(|(pick, _)| batch.commits.iter().any(pick));
        if picked { state.plan.take().map(|(_, plan)| plan) } else { None }
    }
}

/// The tasks that a commit writes.
pub fn tasks(commit: &Commit) -> impl Iterator<Item = &TaskRecord> {
    commit.writes.iter().filter_map(|write| if let Write::Task(task) = write { Some(&**task) } else { None })
}

struct Tapped {
    tap: Tap,
    store: Arc<dyn Store>,
    lost: watch::Sender<bool>,
}

struct Line {
    tap: Tap,
    store: Arc<dyn SessionStore>,
    lost: watch::Sender<bool>,
}

impl ReadThrough for Line {
    fn target(&self) -> &dyn SessionReader {
        &*self.store
    }
}

picofleet_storage::read_through!(Line);

impl SessionStore for Line {
    fn commit(&self, batch: Batch) -> CommitHandle {
        if *self.lost.borrow() {
            return CommitHandle::refused(StorageError::lost());
        }
        match self.tap.plan(&batch) {
            None => self.store.commit(batch),
            Some(Plan::CrashAt) => {
                self.lost.send_replace(true);
                CommitHandle::refused(StorageError::lost())
            }
            Some(Plan::CrashBehind) => {
                let (answer, handle) = CommitHandle::channel();
                let (lost, stored) = (self.lost.clone(), self.store.commit(batch));
                tokio::spawn(async move {
                    let outcome = stored.await;
                    lost.send_replace(true);
                    answer.send(outcome)
                });
                handle
            }
            Some(Plan::Hold(wait)) => {
                let (answer, handle) = CommitHandle::channel();
                let store = Arc::clone(&self.store);
                tokio::spawn(async move {
                    wait.over().await;
                    answer.send(store.commit(batch).await)
                });
                handle
            }
        }
    }

    fn opened(&self) -> Head {
        self.store.opened()
    }

    fn release(&self) -> Fut<'_, ()> {
        self.store.release()
    }
}

impl Store for Tapped {
    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        async move {
            if *self.lost.borrow() {
                return Err(StorageError::lost());
            }
            let opening = self.tap.state().opening.take();
            if let Some(wait) = opening {
                wait.over().await;
            }
            let store = self.store.open(id, fence).await?;
            Ok(Arc::new(Line { tap: self.tap.clone(), store, lost: self.lost.clone() }) as Arc<dyn SessionStore>)
        }
        .boxed()
    }

    fn partitions(&self) -> PartitionCount {
        self.store.partitions()
    }

    fn create(&self, session: SessionCreate) -> Fut<'_, Created> {
        self.store.create(session)
    }

    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>> {
        self.store.session(id)
    }

    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>> {
        self.store.sessions(query, limit, cursor)
    }

    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>> {
        self.store.fence(sessions, fence)
    }

    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>> {
        self.store.reader(id)
    }

    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()> {
        self.store.set_quarantined(id, quarantined)
    }

    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool> {
        self.store.delete(id, at)
    }

    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>> {
        self.store.export(id)
    }

    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord> {
        self.store.import(target, lines)
    }

    fn due(&self, partitions: std::ops::Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
        self.store.due(partitions, until, limit, cursor)
    }

    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>> {
        self.store.outbox(limit, cursor)
    }

    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()> {
        self.store.acknowledge(rows)
    }

    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained> {
        self.store.maintain(budget, now)
    }

    fn close(&self) -> Fut<'_, ()> {
        self.store.close()
    }
}
