//! Stands between sessions and their store: it keeps what they write, and a test lets a batch wait, get lost or be refused.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::FutureExt as _;
use futures::stream::BoxStream;
use picofleet_session::storage::{
    Batch, Commit, CommitHandle, Corruption, Created, Cursor, ExportLine, Fence, Fut, Head, ImportTarget, Maintained, OutboxRow, Page,
    Rejection, SessionCreate, SessionQuery, SessionReader, SessionRecord, SessionStore, StorageError, Store, Wake, Write,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId, TaskId, TaskRecord};
use picofleet_storage::reading::ReadThrough;
use tokio::sync::{oneshot, watch};

type Pick = Arc<dyn Fn(&Write) -> bool + Send + Sync>;

/// What goes wrong between sessions and their store. Clones are one.
#[derive(Clone, Default)]
pub struct Disk {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    plans: Mutex<VecDeque<Plan>>,
    picked: Mutex<Vec<(Pick, Plan)>>,
    refused: Mutex<Option<Pick>>,
    /// Reads whose answers have these in the names of their types are damaged.
    damaged: Mutex<Vec<&'static str>>,
    /// The same of those that fail, and may not the next time.
    failing: Mutex<Vec<&'static str>>,
    /// How often open sessions read, by the type of what they got.
    reads: Mutex<BTreeMap<&'static str, usize>>,
    /// What batches are refused for; another reason where it is absent.
    reason: Mutex<Option<Rejection>>,
    written: Mutex<Vec<Commit>>,
    sent: Mutex<Vec<Write>>,
    lines: AtomicUsize,
}

enum Plan {
    Write,
    Lose,
    Refuse,
    Hold { arrived: watch::Sender<bool>, go: oneshot::Receiver<Lost> },
}

/// The batch of a hold is to be lost.
struct Lost;

/// A batch that waits; it goes on when this is dropped.
pub struct HeldBatch {
    arrived: watch::Receiver<bool>,
    go: oneshot::Sender<Lost>,
}

impl HeldBatch {
    /// Waits until the batch is there.
    pub async fn arrived(&self) {
        let waited = tokio::time::timeout(crate::kit::PATIENCE, self.arrived.clone().wait_for(|arrived| *arrived).map(drop)).await;
        waited.expect("a batch comes");
    }

    /// It is not written, and whether it was can't be told: the session fails.
    pub fn lose(self) {
        assert!(self.go.send(Lost).is_ok(), "the batch waits");
    }
}

impl Disk {
    /// The next batch is not written, and whether it was can't be told: the session fails.
    pub fn lose(&self) {
        self.plans().push_back(Plan::Lose);
    }

    /// The next batch waits.
    pub fn hold(&self) -> HeldBatch {
        self.hold_behind(0)
    }

    /// A batch waits that comes behind so many others.
    pub fn hold_behind(&self, others: usize) -> HeldBatch {
        let ((arrived, seen), (go, gone)) = (watch::channel(false), oneshot::channel());
        let mut plans = self.plans();
        plans.extend(std::iter::repeat_with(|| Plan::Write).take(others));
        plans.push_back(Plan::Hold { arrived, go: gone });
        HeldBatch { arrived: seen, go }
    }

    /// The next batch with a write that is picked waits.
    pub fn hold_write(&self, pick: impl Fn(&Write) -> bool + Send + Sync + 'static) -> HeldBatch {
        let ((arrived, seen), (go, gone)) = (watch::channel(false), oneshot::channel());
        self.shared.picked.lock().unwrap().push((Arc::new(pick), Plan::Hold { arrived, go: gone }));
        HeldBatch { arrived: seen, go }
    }

    /// From now on every batch with a write that is picked is refused without effect.
    pub fn refuse(&self, pick: impl Fn(&Write) -> bool + Send + Sync + 'static) {
        *self.shared.refused.lock().unwrap() = Some(Arc::new(pick));
    }

    /// How often open sessions have read something of this record.
    pub fn reads(&self, record: &str) -> usize {
        self.shared.reads.lock().unwrap().iter().filter(|(read, _)| read.contains(record)).map(|(_, count)| count).sum()
    }

    /// From now on every batch is refused for this reason; `None` ends that.
    pub fn refuse_all(&self, reason: Option<Rejection>) {
        let refused = reason.is_some().then(|| Arc::new(|_: &Write| true) as Pick);
        *self.shared.reason.lock().unwrap() = reason;
        *self.shared.refused.lock().unwrap() = refused;
    }

    /// From now on what open sessions read of a record is damaged.
    pub fn damage(&self, record: &'static str) {
        self.shared.damaged.lock().unwrap().push(record);
    }

    /// From now on, and until [`Disk::mend`], what open sessions read of a record can't be read.
    pub fn fail(&self, record: &'static str) {
        self.shared.failing.lock().unwrap().push(record);
    }

    /// Reads fail no more.
    pub fn mend(&self) {
        self.shared.failing.lock().unwrap().clear();
    }

    fn read_error<T>(&self) -> Option<StorageError> {
        let of = |records: &Mutex<Vec<&'static str>>| {
            records.lock().unwrap().iter().find(|record| std::any::type_name::<T>().contains(**record)).copied()
        };
        let damaged = of(&self.shared.damaged).map(|what| {
            StorageError::from(Corruption { store: "the disk".to_owned(), what: what.to_owned(), why: "a test damaged it".to_owned() })
        });
        damaged.or_else(|| of(&self.shared.failing).map(|what| StorageError::failed(what, std::io::Error::other("the disk fails"))))
    }

    /// Every write that was sent so far.
    pub fn writes(&self) -> Vec<Write> {
        self.shared.sent.lock().unwrap().clone()
    }

    /// The records of a task that were sent so far, in order.
    pub fn records(&self, task: TaskId) -> Vec<TaskRecord> {
        let record = |write| if let Write::Task(record) = write { (record.id == task).then(|| TaskRecord::clone(&record)) } else { None };
        self.writes().into_iter().filter_map(record).collect()
    }

    /// What was sent since the last call, commit by commit.
    pub fn written(&self) -> Vec<Commit> {
        std::mem::take(&mut self.shared.written.lock().unwrap())
    }

    /// How many lines of sessions were taken and not given back.
    pub fn lines(&self) -> usize {
        self.shared.lines.load(Ordering::SeqCst)
    }

    pub(crate) fn before(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Watched { disk: self.clone(), store })
    }

    fn plan(&self, batch: &Batch) -> Option<Plan> {
        let writes = || batch.commits.iter().flat_map(|commit| &commit.writes);
        self.shared.written.lock().unwrap().extend(batch.commits.iter().cloned());
        self.shared.sent.lock().unwrap().extend(writes().cloned());
        let is_picked = |pick: &Pick| writes().any(|write| pick(write));
        let mut picked = self.shared.picked.lock().unwrap();
        if let Some(index) = picked.iter().position(|(pick, _)| is_picked(pick)) {
            return Some(picked.remove(index).1);
        }
        let refused = self.shared.refused.lock().unwrap().as_ref().is_some_and(is_picked);
        if refused { Some(Plan::Refuse) } else { self.plans().pop_front() }
    }

    fn reason(&self) -> Rejection {
        let reason = self.shared.reason.lock().unwrap().clone();
        reason.unwrap_or(Rejection::Missing { what: "document", id: 0 })
    }

    fn plans(&self) -> MutexGuard<'_, VecDeque<Plan>> {
        self.shared.plans.lock().unwrap()
    }
}

/// A write of a task's record that is picked.
pub fn task_write(pick: impl Fn(&TaskRecord) -> bool + Send + Sync + 'static) -> impl Fn(&Write) -> bool + Send + Sync + 'static {
    move |write| matches!(write, Write::Task(record) if pick(record))
}

struct WatchedLine {
    disk: Disk,
    line: Arc<dyn SessionStore>,
}

impl ReadThrough for WatchedLine {
    fn target(&self) -> &dyn SessionReader {
        &*self.line
    }

    fn through<'a, T: Send + 'a>(&'a self, read: impl FnOnce(&'a dyn SessionReader) -> Fut<'a, T> + Send + 'a) -> Fut<'a, T> {
        *self.disk.shared.reads.lock().unwrap().entry(std::any::type_name::<T>()).or_default() += 1;
        match self.disk.read_error::<T>() {
            Some(error) => async move { Err(error) }.boxed(),
            None => read(self.target()),
        }
    }
}

picofleet_storage::read_through!(WatchedLine);

impl SessionStore for WatchedLine {
    fn commit(&self, batch: Batch) -> CommitHandle {
        let Some(plan) = self.disk.plan(&batch) else { return self.line.commit(batch) };
        let (answer, handle) = CommitHandle::channel();
        let (line, disk) = (Arc::clone(&self.line), self.disk.clone());
        tokio::spawn(async move {
            let outcome = match plan {
                Plan::Write => line.commit(batch).await,
                Plan::Lose => Err(StorageError::lost()),
                Plan::Refuse => Err(disk.reason().into()),
                Plan::Hold { arrived, go } => {
                    arrived.send_replace(true);
                    match go.await {
                        Ok(Lost) => Err(StorageError::lost()),
                        Err(_) => line.commit(batch).await,
                    }
                }
            };
            // The session may be gone by now.
            let _ = answer.send(outcome);
        });
        handle
    }

    fn opened(&self) -> Head {
        self.line.opened()
    }

    fn release(&self) -> Fut<'_, ()> {
        async move {
            self.line.release().await?;
            self.disk.shared.lines.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
        .boxed()
    }
}

struct Watched {
    disk: Disk,
    store: Arc<dyn Store>,
}

impl Store for Watched {
    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        async move {
            let line = self.store.open(id, fence).await?;
            self.disk.shared.lines.fetch_add(1, Ordering::SeqCst);
            let line: Arc<dyn SessionStore> = Arc::new(WatchedLine { disk: self.disk.clone(), line });
            Ok(line)
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

    fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
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
