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
mod open;
mod prepared;
mod sidecar;
#[cfg(all(test, feature = "conformance"))]
mod tests;
mod upkeep;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::BoxStream;
use picofleet_session::storage::{
    Created, Cursor, ExportLine, FINDINGS_MAX, Fence, Finding, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, Rejection,
    SessionCreate, SessionQuery, SessionReader, SessionRecord, SessionStore, StorageError, Store, Wake,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId};
use tokio::sync::{mpsc, oneshot};

use crate::memory::state::Shared;
use crate::memory::{MemoryStore, export};
use files::SystemFiles;
use journal::Journal;
use line::Line;
use load::Tail;

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
    /// There is nothing to look at.
    #[error("{} is no store; only a store that can be written is made new", .0.display())]
    Missing(PathBuf),
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
    /// `None` where the store is only looked at.
    queue: Option<mpsc::Sender<Work>>,
    directory: Arc<Path>,
    /// Sessions whose files are damaged.
    damaged: Arc<BTreeMap<SessionId, StorageError>>,
    /// What nothing confirms, of a store that is only looked at.
    tails: Arc<Vec<(SessionId, Tail)>>,
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
        open::open(directory.as_ref(), options, Box::new(SystemFiles::default()))
    }

    /// Opens a store to look at it, also while another process uses it: what it had at one moment, which this store keeps showing. It
    /// takes no lock and changes no file. Whatever would write is refused with [`Rejection::ReadOnly`].
    ///
    /// # Errors
    /// As [`JsonlStore::open`], without [`StorageError::InUse`]; [`OpenError::Missing`] where there is no store.
    pub fn open_read_only(directory: impl AsRef<Path>) -> Result<Self, StorageError> {
        open::look(directory.as_ref())
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.rows.0
    }

    fn queue(&self) -> Result<&mpsc::Sender<Work>, StorageError> {
        self.queue.as_ref().ok_or_else(|| Rejection::ReadOnly { store: self.directory.display().to_string() }.into())
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
            self.queue()?.send(work).await.map_err(|_| StorageError::Closed)?;
            result.await.unwrap_or_else(|_| Err(StorageError::lost()))
        })
    }
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
            Ok(Arc::new(Line::new(Arc::clone(self.shared()), self.queue()?.clone(), id, opened)) as Arc<dyn SessionStore>)
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
            self.queue()?;
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

    fn examine(&self) -> Fut<'_, Vec<Finding>> {
        Box::pin(async {
            drop(self.shared().open_state()?);
            let damaged = self.damaged.iter().map(|(id, error)| Finding::of_session("files", *id, error.to_string()));
            let tails = self.tails.iter().map(|(id, tail)| {
                let what = format!("the last {} bytes of {} are confirmed by no marker", tail.bytes, tail.path.display());
                Finding::of_session("tail", *id, what)
            });
            Ok(damaged.chain(tails).take(FINDINGS_MAX).collect())
        })
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async {
            self.rows.close().await?;
            // Wakes the thread, which then sees that the store is closed.
            if let Some(queue) = &self.queue {
                let _ = queue.send(Box::new(|_| {})).await;
            }
            let mut ended = (*self.ended).clone();
            // The thread tells at its end; one that is gone without it has nothing to wait for.
            let _ = ended.wait_for(|ended| *ended).await;
            Ok(())
        })
    }
}
