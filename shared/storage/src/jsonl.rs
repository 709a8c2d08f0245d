//! JSON lines in a directory (section 11.3): the rows are in memory, every commit is a line of a file first.
//!
//! ```text
//! DIR/store.json            the format and the count of partitions
//! DIR/store-lock            one process at a time
//! DIR/tombstones.jsonl      deleted sessions
//! DIR/<session>/main.jsonl  records, and one marker for each batch
//! DIR/<session>/doc-<id>.jsonl   the content of one document incarnation
//! DIR/<session>/task-<id>.jsonl  the records of a live task
//! ```
//!
//! A batch appends to its sidecars, then its marker to `main.jsonl`; only then anybody reads it. What no marker confirms is cut off at the
//! next opening. Sidecars lose what a base or the end of their task made unnecessary; `main.jsonl` only grows.
//!
//! It is for small stores that people want to look into; all of it has to fit into memory.

mod files;
mod format;
mod journal;
mod line;
mod load;
mod prepared;
mod sidecar;
#[cfg(all(test, feature = "conformance"))]
mod tests;
mod upkeep;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::BoxStream;
use picofleet_session::storage::{
    Corruption, Created, Cursor, ExportLine, Fence, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, SessionCreate, SessionQuery,
    SessionReader, SessionRecord, SessionStore, StorageError, Store, Wake,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId};
use tokio::sync::{mpsc, oneshot};

use crate::memory::state::Shared;
use crate::memory::{Faults, MemoryStore, export, maintain};
use crate::sqlite::lock::Lock;
use files::{Files, SystemFiles};
use format::{FORMAT, StoreFile, TombstoneLine};
use journal::Journal;
use line::Line;

const MAIN: &str = "main.jsonl";
const TOMBSTONES: &str = "tombstones.jsonl";
const STORE: &str = "store.json";

/// How many calls wait for the thread that writes; beyond it a commit is refused as overload, and others wait.
const QUEUE_MAX: usize = 1_024;

/// How a store is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JsonlOptions {
    /// Flushes sidecars before their marker, and the marker before anything is reclaimed, so that a loss of power leaves a consistent
    /// store. Without it only the end of the process does.
    pub fsync: bool,
    /// The count of partitions. A new store gets it, or [`PartitionCount::DEFAULT`]; an existing one must have it.
    pub partitions: Option<PartitionCount>,
    /// From how many unneeded bytes on a sidecar is written anew with a commit; 0 leaves that to [`Store::maintain`].
    pub reclaim_bytes: u64,
}

impl Default for JsonlOptions {
    fn default() -> Self {
        Self { fsync: false, partitions: None, reclaim_bytes: 64 << 10 }
    }
}

/// Why a directory can't be opened as a store. It is the cause below a [`StorageError::Failed`], which names the directory.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store hashes its sessions into another number of partitions.
    #[error("{} has {stored} partitions and {asked} are configured; the count never changes: configure {stored}", directory.display())]
    Partitions {
        /// The directory.
        directory: PathBuf,
        /// What was fixed when it was made.
        stored: u16,
        /// What is configured.
        asked: u16,
    },
    /// There are files in the directory that are not those of a store.
    #[error("{} is no store and not empty; name another directory", .0.display())]
    OtherFiles(PathBuf),
    /// The operating system refused.
    #[error("{}: the system refused; check the path and its permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl OpenError {
    fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    fn at(self, path: &Path) -> StorageError {
        StorageError::failed(format!("open {}", path.display()), self)
    }
}

/// What the thread that writes does.
type Work = Box<dyn FnOnce(&mut Journal) + Send>;

/// A store in a directory. Clones share it.
///
/// Where all clones and all that was opened on them are dropped without [`Store::close`], what was sent still settles, but nothing tells
/// when.
#[derive(Clone)]
pub struct JsonlStore {
    rows: MemoryStore,
    queue: mpsc::Sender<Work>,
    /// Sessions whose files are damaged.
    damaged: Arc<BTreeMap<SessionId, StorageError>>,
    ended: Arc<tokio::sync::watch::Receiver<bool>>,
}

impl std::fmt::Debug for JsonlStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JsonlStore").field("damaged", &self.damaged).finish_non_exhaustive()
    }
}

impl JsonlStore {
    /// Opens the store in a directory, which is made where there is none. Blocks while it reads all of it.
    ///
    /// A session whose files are damaged does not keep the others from being used: what asks for it fails with
    /// [`StorageError::Corrupt`].
    ///
    /// # Errors
    /// [`StorageError::InUse`] while another process, or another store of this one, has it open; [`StorageError::SchemaTooNew`];
    /// [`StorageError::Failed`] above an [`OpenError`].
    pub fn open(directory: impl AsRef<Path>, options: JsonlOptions) -> Result<Self, StorageError> {
        Self::open_with(directory.as_ref(), options, Box::new(SystemFiles::default()))
    }

    fn open_with(directory: &Path, options: JsonlOptions, mut files: Box<dyn Files>) -> Result<Self, StorageError> {
        let failed = |error| OpenError::io(directory, error).at(directory);
        std::fs::create_dir_all(directory).map_err(failed)?;
        let root = directory.canonicalize().map_err(failed)?;
        let lock = Lock::take(&root.join("store"))?;
        let partitions = store_file(&root, options, &mut *files)?;
        let shared = Arc::new(Shared::new(partitions, Faults::new()));
        let tombstones = tombstones(&root)?;
        let (mut sizes, mut damaged, mut swept) = (HashMap::new(), BTreeMap::new(), HashMap::new());
        for (id, path) in session_directories(&root)? {
            match load::session(&path) {
                Ok(loaded) => {
                    sizes.insert(id, loaded.sizes);
                    swept.insert(id, loaded.swept);
                    crate::memory::add(&mut shared.state(), loaded.record, loaded.rows);
                }
                Err(error) => {
                    tracing::error!(session = %id, error = %error, "the files of a session are damaged; the others can be used");
                    damaged.insert(id, error);
                }
            }
        }
        for (id, at) in tombstones {
            let mut state = shared.state();
            if !crate::memory::delete(&mut state, id, at) {
                state.tombstones.insert(id, at);
            } else if let Some(session) = state.sessions.get_mut(&id) {
                maintain::sweep_again(&mut session.rows, swept.get(&id).copied().unwrap_or(0));
            }
        }
        let journal = Journal {
            root,
            files,
            fsync: options.fsync,
            reclaim_bytes: options.reclaim_bytes,
            shared: Arc::clone(&shared),
            sizes,
            deferred: BTreeSet::new(),
            poisoned: None,
        };
        let (queue, ended) = start(journal, lock).map_err(failed)?;
        Ok(Self { rows: MemoryStore(shared), queue, damaged: Arc::new(damaged), ended: Arc::new(ended) })
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.rows.0
    }

    fn whole(&self, id: SessionId) -> Result<(), StorageError> {
        self.damaged.get(&id).map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Work of the thread that writes.
    fn write<T: Send + 'static>(&self, work: impl FnOnce(&mut Journal) -> Result<T, StorageError> + Send + 'static) -> Fut<'_, T> {
        Box::pin(async move {
            drop(self.shared().open_state()?);
            let (answer, result) = oneshot::channel();
            let work: Work = Box::new(move |journal| {
                let result = work(journal);
                // Nobody may wait any more: it is done all the same.
                let _ = answer.send(result);
            });
            self.queue.send(work).await.map_err(|_| StorageError::Closed)?;
            result.await.unwrap_or_else(|_| Err(StorageError::lost()))
        })
    }
}

/// Starts the thread that writes; it ends, and gives the lock back, when nobody can send to it any more, or the store is closed.
fn start(mut journal: Journal, lock: Lock) -> std::io::Result<(mpsc::Sender<Work>, tokio::sync::watch::Receiver<bool>)> {
    let (queue, mut works) = mpsc::channel::<Work>(QUEUE_MAX);
    let (over, ended) = tokio::sync::watch::channel(false);
    std::thread::Builder::new().name("picofleet-jsonl".to_owned()).spawn(move || {
        while let Some(work) = works.blocking_recv() {
            if std::panic::catch_unwind(AssertUnwindSafe(|| work(&mut journal))).is_err() {
                // Nobody knows how far it came.
                let _ = journal.poison("write", std::io::Error::other("the work panicked"));
            }
            if journal.shared.state().closed && *journal.shared.in_flight.borrow() == 0 {
                break;
            }
        }
        drop(journal);
        drop(lock);
        over.send_replace(true);
    })?;
    Ok((queue, ended))
}

/// `store.json`, made where the directory is new.
fn store_file(root: &Path, options: JsonlOptions, files: &mut dyn Files) -> Result<PartitionCount, StorageError> {
    let path = root.join(STORE);
    let failed = |error| OpenError::io(&path, error).at(root);
    let corrupt = |why: String| StorageError::from(Corruption { store: path.display().to_string(), what: "the file".to_owned(), why });
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let others = root.read_dir().map_err(failed)?.filter_map(Result::ok).any(|entry| entry.file_name() != "store-lock");
            if others {
                return Err(OpenError::OtherFiles(root.to_owned()).at(root));
            }
            let partitions = options.partitions.unwrap_or(PartitionCount::DEFAULT);
            let bytes = format::encode(&StoreFile { format: FORMAT, partitions: partitions.get() }).map_err(corrupt)?;
            files.replace(&path, &bytes, options.fsync).map_err(failed)?;
            return Ok(partitions);
        }
        Err(error) => return Err(failed(error)),
    };
    let StoreFile { format, partitions: stored } = format::decode(bytes.trim_ascii_end()).map_err(corrupt)?;
    if format > FORMAT {
        return Err(StorageError::SchemaTooNew {
            store: root.display().to_string(),
            found: format,
            compatible_from: format,
            known: FORMAT,
        });
    }
    let partitions = PartitionCount::new(stored).ok_or_else(|| corrupt(format!("{stored} is no count of partitions")))?;
    match options.partitions.filter(|asked| *asked != partitions) {
        Some(asked) => Err(OpenError::Partitions { directory: root.to_owned(), stored, asked: asked.get() }.at(root)),
        None => Ok(partitions),
    }
}

fn tombstones(root: &Path) -> Result<Vec<(SessionId, Millis)>, StorageError> {
    let path = root.join(TOMBSTONES);
    let mut found = Vec::new();
    if path.exists() {
        load::whole_lines(&path, |line| {
            let TombstoneLine { session, at } = format::decode(line)?;
            found.push((session, at));
            Ok(true)
        })?;
    }
    Ok(found)
}

/// The directories of sessions. One that was not whole when the process ended is removed.
fn session_directories(root: &Path) -> Result<Vec<(SessionId, PathBuf)>, StorageError> {
    let failed = |error| OpenError::io(root, error).at(root);
    let mut found = Vec::new();
    for entry in root.read_dir().map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.ends_with(".tmp") {
            if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.map_err(failed)?;
        } else if let Ok(id) = name.parse()
            && path.is_dir()
        {
            found.push((id, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

impl Store for JsonlStore {
    fn partitions(&self) -> PartitionCount {
        self.rows.partitions()
    }

    fn create(&self, session: SessionCreate) -> Fut<'_, Created> {
        Box::pin(async move {
            self.whole(session.id)?;
            self.write(move |journal| journal.create(session)).await
        })
    }

    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>> {
        Box::pin(async move {
            self.whole(id)?;
            self.rows.session(id).await
        })
    }

    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>> {
        self.rows.sessions(query, limit, cursor)
    }

    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        Box::pin(async move {
            self.whole(id)?;
            let opened: Head = self.write(move |journal| journal.open(id, fence)).await?;
            Ok(Arc::new(Line::new(Arc::clone(self.shared()), self.queue.clone(), id, opened)) as Arc<dyn SessionStore>)
        })
    }

    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>> {
        self.write(move |journal| journal.fence(sessions, fence))
    }

    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>> {
        Box::pin(async move {
            self.whole(id)?;
            self.rows.reader(id).await
        })
    }

    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()> {
        self.write(move |journal| journal.set_quarantined(id, quarantined))
    }

    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool> {
        self.write(move |journal| journal.delete(id, at))
    }

    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>> {
        Box::pin(async move {
            self.whole(id)?;
            self.rows.export(id).await
        })
    }

    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord> {
        Box::pin(async move {
            drop(self.shared().open_state()?);
            let (record, rows) = export::read(&target, lines).await?;
            self.whole(record.id)?;
            let made = record.clone();
            self.write(move |journal| journal.import(&record, &rows)).await?;
            Ok(made)
        })
    }

    fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
        self.rows.due(partitions, until, limit, cursor)
    }

    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>> {
        self.rows.outbox(limit, cursor)
    }

    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()> {
        self.write(move |journal| journal.acknowledge(rows))
    }

    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained> {
        self.write(move |journal| journal.maintain(budget, now))
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async {
            self.rows.close().await?;
            // Wakes the thread, which then sees that the store is closed.
            let _ = self.queue.send(Box::new(|_| {})).await;
            let mut ended = (*self.ended).clone();
            // The thread tells at its end; one that is gone without it has nothing to wait for.
            let _ = ended.wait_for(|ended| *ended).await;
            Ok(())
        })
    }
}
