//! A store whose commits a test sees, holds inside storage, or refuses.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::stream::BoxStream;
use picofleet_session::storage::{
    Batch, CommitHandle, Created, Cursor, ExportLine, Fence, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, Rejection,
    SessionCreate, SessionQuery, SessionReader, SessionRecord, SessionStore, StorageError, Store, Wake, Write,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId, TaskRecord};
use picofleet_storage::reading::ReadThrough;
use tokio::sync::watch;

type Pick = Arc<dyn Fn(&Write) -> bool + Send + Sync>;

/// What stands between the lines of a kit and its store. Clones are one.
#[derive(Clone, Default)]
pub struct Disk(Arc<State>);

#[derive(Default)]
struct State {
    writes: Mutex<Vec<Write>>,
    holds: Mutex<Vec<(Pick, Waits)>>,
    refuses: Mutex<Option<Pick>>,
}

struct Waits {
    arrived: watch::Sender<bool>,
    go: watch::Receiver<bool>,
}

/// A commit that is held inside storage. Dropped, it is never written.
pub struct Hold {
    arrived: watch::Receiver<bool>,
    go: watch::Sender<bool>,
}

impl Hold {
    /// Waits until the commit is inside storage.
    pub async fn arrived(&self) {
        let mut arrived = self.arrived.clone();
        let waited = tokio::time::timeout(crate::kit::PATIENCE, arrived.wait_for(|arrived| *arrived)).await;
        waited.expect("the commit comes").expect("the commit is still held");
    }

    /// Lets it be written.
    pub fn release(self) {
        self.go.send_replace(true);
    }
}

impl Disk {
    /// Holds the next commit with a write that is picked.
    #[must_use]
    pub fn hold(&self, pick: impl Fn(&Write) -> bool + Send + Sync + 'static) -> Hold {
        let ((arrived, seen), (go, gone)) = (watch::channel(false), watch::channel(false));
        lock(&self.0.holds).push((Arc::new(pick), Waits { arrived, go: gone }));
        Hold { arrived: seen, go }
    }

    /// Every commit with a write that is picked is refused without effect.
    pub fn refuse(&self, pick: impl Fn(&Write) -> bool + Send + Sync + 'static) {
        *lock(&self.0.refuses) = Some(Arc::new(pick));
    }

    /// What was sent to storage so far.
    pub fn writes(&self) -> Vec<Write> {
        lock(&self.0.writes).clone()
    }

    /// The records of a task that were sent to storage, in order.
    pub fn records(&self, task: picofleet_session::TaskId) -> Vec<TaskRecord> {
        let record = |write| if let Write::Task(record) = write { (record.id == task).then(|| TaskRecord::clone(&record)) } else { None };
        self.writes().into_iter().filter_map(record).collect()
    }

    pub(crate) fn before(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Watched { disk: self.clone(), inner })
    }

    fn meets(&self, batch: &Batch) -> Option<Plan> {
        let writes = || batch.commits.iter().flat_map(|commit| &commit.writes);
        lock(&self.0.writes).extend(writes().cloned());
        let mut holds = lock(&self.0.holds);
        if let Some(index) = holds.iter().position(|(pick, _)| writes().any(|write| pick(write))) {
            return Some(Plan::Hold(holds.remove(index).1));
        }
        let refuses = lock(&self.0.refuses).clone();
        refuses.filter(|pick| writes().any(|write| pick(write))).map(|_| Plan::Refuse)
    }
}

enum Plan {
    Hold(Waits),
    Refuse,
}

/// A write of a task's record that is picked.
pub fn task_write(pick: impl Fn(&TaskRecord) -> bool + Send + Sync + 'static) -> impl Fn(&Write) -> bool + Send + Sync + 'static {
    move |write| matches!(write, Write::Task(record) if pick(record))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct WatchedLine {
    disk: Disk,
    inner: Arc<dyn SessionStore>,
}

impl ReadThrough for WatchedLine {
    fn target(&self) -> &dyn SessionReader {
        &*self.inner
    }
}

picofleet_storage::read_through!(WatchedLine);

impl SessionStore for WatchedLine {
    fn commit(&self, batch: Batch) -> CommitHandle {
        let mut waits = match self.disk.meets(&batch) {
            None => return self.inner.commit(batch),
            Some(Plan::Refuse) => {
                return CommitHandle::refused(StorageError::from(Rejection::Missing { what: "document", id: 0 }));
            }
            Some(Plan::Hold(waits)) => waits,
        };
        let (answer, handle) = CommitHandle::channel();
        let inner = Arc::clone(&self.inner);
        tokio::spawn(async move {
            waits.arrived.send_replace(true);
            if waits.go.wait_for(|go| *go).await.is_ok() {
                // The session may be gone by now.
                let _ = answer.send(inner.commit(batch).await);
            }
        });
        handle
    }

    fn opened(&self) -> Head {
        self.inner.opened()
    }

    fn release(&self) -> Fut<'_, ()> {
        self.inner.release()
    }
}

struct Watched {
    disk: Disk,
    inner: Arc<dyn Store>,
}

macro_rules! pass {
    ($($name:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        $(fn $name(&self, $($argument: $of),*) -> $answer {
            self.inner.$name($($argument),*)
        })*
    };
}

impl Store for Watched {
    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        Box::pin(async move {
            let inner = self.inner.open(id, fence).await?;
            Ok(Arc::new(WatchedLine { disk: self.disk.clone(), inner }) as Arc<dyn SessionStore>)
        })
    }

    pass! {
        partitions() -> PartitionCount;
        create(session: SessionCreate) -> Fut<'_, Created>;
        session(id: SessionId) -> Fut<'_, Option<SessionRecord>>;
        sessions(query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>>;
        fence(sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>>;
        reader(id: SessionId) -> Fut<'_, Arc<dyn SessionReader>>;
        set_quarantined(id: SessionId, quarantined: bool) -> Fut<'_, ()>;
        delete(id: SessionId, at: Millis) -> Fut<'_, bool>;
        export(id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>>;
        import(target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord>;
        due(partitions: std::ops::Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>>;
        outbox(limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>>;
        acknowledge(rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()>;
        maintain(budget: u32, now: Millis) -> Fut<'_, Maintained>;
        close() -> Fut<'_, ()>;
    }
}
