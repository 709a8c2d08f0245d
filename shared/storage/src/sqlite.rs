//! Many sessions in one SQLite file (section 11.2).
//!
//! | module | what |
//! | --- | --- |
//! | `schema`, `sql` | the tables, and every statement |
//! | `writer`, `group` | the one thread that writes, and its group commit over sessions |
//! | `tables`, `texts`, `rows` | what the rules need of a session, and records as rows |
//! | `admin`, `import`, `maintain` | what else the thread does |
//! | `pool`, `read`, `session`, `lists`, `export` | readers |
//! | `check`, `copy` | what looks at the whole file |
//! | `lock`, `errors` | one process for each file, and what failures mean |
//!
//! **Architecture invariants.** Only the thread of `writer` changes the file. Every decision about a commit is made inside its
//! transaction from rows that were read there, never from memory. A batch is answered as refused only when it is certain that it is not
//! and will not be in the file.

mod admin;
mod check;
mod copy;
mod errors;
mod export;
mod group;
#[cfg(test)]
mod group_tests;
mod import;
mod lists;
pub(crate) mod lock;
mod maintain;
#[cfg(test)]
mod plans;
mod pool;
mod read;
mod rows;
mod schema;
mod session;
mod sql;
#[cfg(test)]
mod store_tests;
mod tables;
mod texts;
mod writer;

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::stream::BoxStream;
use picofleet_session::storage::{
    Created, Cursor, ExportLine, Fence, Finding, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, Rejection, SessionCreate,
    SessionQuery, SessionReader, SessionRecord, SessionState, SessionStore, StorageError, Store, Wake,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId};
use rusqlite::Connection;

use crate::rules::creatable;
use errors::Place;
use export::Exports;
use lock::Lock;
use pool::Pool;
use read::{Answer, one};
use rows::Session;
use session::{Line, Reader};
use tables::Tx;
use writer::{Imports, Queue, Writer};

pub use errors::OpenError;

/// Sessions that are fenced, and notices that are acknowledged, in one piece of work: it holds up the others no longer than a group.
const PIECE: usize = 256;

/// Steps of maintenance in one call at most.
const MAINTAIN_STEPS: u32 = 8;

/// What an acknowledged commit survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// A loss of power: each group of commits is synced to the disk before it is answered.
    #[default]
    Power,
    /// The end of the process in any way. A loss of power may take the newest commits; it never breaks the file.
    Process,
}

/// How a store is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SqliteOptions {
    /// What an acknowledged commit survives.
    pub durability: Durability,
    /// The count of partitions. A new store gets it, or [`PartitionCount::DEFAULT`]; an existing one must have it.
    pub partitions: Option<PartitionCount>,
    /// How many reads run at the same time; at least one.
    pub readers: usize,
    /// About how many rows of document content that became unnecessary leave the file with each group of commits, so that it does not grow
    /// between calls of [`Store::maintain`]; 0 leaves them all to those calls.
    pub reclaim_rows: u32,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { durability: Durability::default(), partitions: None, readers: 4, reclaim_rows: 64 }
    }
}

/// A store in one SQLite file. Clones share it.
///
/// Where all clones and all that was opened on them are dropped without [`Store::close`], what was sent still settles and the file is then
/// closed, but nothing tells when.
///
/// Its calls need a tokio runtime: reads run on the runtime's threads for blocking calls.
#[derive(Clone, Debug)]
pub struct SqliteStore(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    place: Place,
    partitions: PartitionCount,
    pool: Arc<Pool>,
    /// `None` where the store is only read.
    queue: Option<Queue>,
    imports: Imports,
    exports: Exports,
}

impl SqliteStore {
    /// Opens the store in the file at `path`, which is made where there is none. Blocks while it reads and writes the file.
    ///
    /// # Errors
    /// [`StorageError::InUse`] while another process, or another store of this one, has it open, by whatever path;
    /// [`StorageError::SchemaTooNew`];
    /// [`StorageError::Corrupt`] for a damaged file; [`StorageError::Failed`] above an [`OpenError`] for anything else that is no store.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Self, StorageError> {
        let path = &*lock::resolved(path.as_ref())?;
        let place = Place(Arc::from(path));
        if path.is_dir() {
            return Err(OpenError::Directory(path.to_owned()).at(path));
        }
        let mut lock = Lock::take(path)?;
        present(&place, options.partitions)?;
        lock.identify(path)?;
        if path.metadata().is_ok_and(|file| file.permissions().readonly()) {
            return Err(OpenError::ReadOnly(path.to_owned()).at(path));
        }
        // Looked at first, since the writer's settings change the file, and this may be another application's.
        let partitions = schema::reader(path).map_err(|error| place.unopened(error)).and_then(|file| schema::check(&file, &place))?;
        if let Some(asked) = options.partitions.filter(|asked| *asked != partitions) {
            let (stored, asked) = (partitions.get(), asked.get());
            return Err(OpenError::Partitions { file: path.to_owned(), stored, asked }.at(path));
        }
        let connection = schema::writer(path, options.durability).map_err(|error| place.unopened(error))?;
        // Fails here and not at the first commit where the file system forbids to write.
        group::execute(&connection, group::BEGIN).map_err(|error| place.unopened(error))?;
        group::execute(&connection, "ROLLBACK").map_err(|error| place.unopened(error))?;
        let (imports, exports) = (Imports::default(), Exports::default());
        let writer = Writer::new(place.clone(), partitions, options, connection, imports.clone(), exports.clone());
        let queue = writer.start(lock).map_err(|error| OpenError::io(path, error).at(path))?;
        let pool = Arc::new(Pool::new(place.clone(), options.readers));
        Ok(Self(Arc::new(Shared { place, partitions, pool, queue: Some(queue), imports, exports })))
    }

    /// Opens a store to look at it, also while another process uses it. Whatever would write is refused with [`Rejection::ReadOnly`].
    ///
    /// # Errors
    /// As [`SqliteStore::open`], without [`StorageError::InUse`]; [`OpenError::Missing`] where there is no file.
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<Self, StorageError> {
        let asked = path.as_ref();
        let file = asked.metadata().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => OpenError::Missing(asked.to_owned()).at(asked),
            _ => OpenError::io(asked, error).at(asked),
        })?;
        let path = &*lock::resolved(asked)?;
        let place = Place(Arc::from(path));
        if file.is_dir() {
            return Err(OpenError::Directory(path.to_owned()).at(path));
        }
        lock::one_name(path, &file)?;
        schema::whole(&place, file.len())?;
        let connection = schema::reader(path).map_err(|error| place.unread(error))?;
        let partitions = schema::check(&connection, &place)?;
        let pool = Arc::new(Pool::new(place.clone(), SqliteOptions::default().readers));
        let (imports, exports) = (Imports::default(), Exports::default());
        Ok(Self(Arc::new(Shared { place, partitions, pool, queue: None, imports, exports })))
    }

    /// Writes a copy of the whole store to a new file, also while this or another process uses it: all of one commit, checked and without
    /// free pages. Copying the file and its log by other means is not safe while it is open.
    ///
    /// The file appears complete or not at all.
    ///
    /// # Errors
    /// [`OpenError::Exists`] where there is a file; [`Rejection::DiskFull`]; whatever else is wrong with either file.
    pub async fn copy_to(&self, path: impl AsRef<Path>) -> Result<(), StorageError> {
        self.0.pool.check()?;
        copy::copy(self.0.place.clone(), path.as_ref().to_owned()).await
    }

    fn queue(&self) -> Result<&Queue, StorageError> {
        let shared = &self.0;
        shared.pool.check()?;
        shared.queue.as_ref().ok_or_else(|| Rejection::ReadOnly { store: shared.place.name() }.into())
    }

    /// Does work in a group.
    fn unit<T: Send + 'static>(&self, work: impl FnMut(&mut Tx<'_>) -> Answer<T> + Send + 'static) -> Fut<'_, T> {
        Box::pin(async move { self.queue()?.unit(work).await })
    }

    fn read<T: Send + 'static>(&self, read: impl FnOnce(&Connection, &Place) -> Answer<T> + Send + 'static) -> Fut<'_, T> {
        Box::pin(async move { self.0.pool.read(read).await })
    }

    /// A session that is not being deleted.
    async fn find(&self, id: SessionId) -> Answer<Option<Session>> {
        let session =
            self.0.pool.read(move |connection, place| one(connection, place, "a session", sql::SESSION, [id.as_bytes()], rows::session));
        Ok(session.await?.filter(|session| session.record.state != SessionState::Deleting))
    }
}

/// A file beside a store's: its name with something after it.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the file where there is none.
fn present(place: &Place, partitions: Option<PartitionCount>) -> Result<(), StorageError> {
    let path = &*place.0;
    match path.metadata() {
        Ok(file) => schema::whole(place, file.len()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => schema::create(place, partitions.unwrap_or_default()),
        Err(error) => Err(OpenError::io(path, error).at(path)),
    }
}

impl Store for SqliteStore {
    fn partitions(&self) -> PartitionCount {
        self.0.partitions
    }

    fn create(&self, session: SessionCreate) -> Fut<'_, Created> {
        Box::pin(async move {
            creatable(&session)?;
            let text = session.metadata.to_string();
            self.queue()?.sized(text.len(), move |tx| admin::create(tx, &session, &text)).await
        })
    }

    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>> {
        Box::pin(async move { Ok(self.find(id).await?.map(|session| session.record)) })
    }

    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>> {
        self.read(move |connection, place| lists::sessions(connection, place, &query, limit, cursor.as_ref()))
    }

    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        Box::pin(async move {
            let queue = self.queue()?;
            let (n, opened) = queue.unit(move |tx| admin::open(tx, id, fence)).await??;
            let reader = Reader::new(Arc::clone(&self.0.pool), id, n);
            Ok(Arc::new(Line::new(reader, queue.clone(), opened)) as Arc<dyn SessionStore>)
        })
    }

    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>> {
        Box::pin(async move {
            let queue = self.queue()?;
            let mut fenced = Vec::new();
            for piece in sessions.chunks(PIECE) {
                let piece = piece.to_vec();
                let heads = queue.unit(move |tx| {
                    let heads = piece.iter().map(|id| Ok(admin::take_over(tx, *id, fence)?.map(|head| (*id, head))));
                    heads.filter_map(Result::transpose).collect::<Result<Vec<_>, StorageError>>()
                });
                fenced.extend(heads.await?);
            }
            Ok(fenced)
        })
    }

    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>> {
        Box::pin(async move {
            let session = self.find(id).await?.ok_or(StorageError::NotFound { session: id })?;
            Ok(Arc::new(Reader::new(Arc::clone(&self.0.pool), id, session.n)) as Arc<dyn SessionReader>)
        })
    }

    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()> {
        self.unit(move |tx| admin::set_quarantined(tx, id, quarantined))
    }

    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool> {
        self.unit(move |tx| admin::delete(tx, id, at))
    }

    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>> {
        Box::pin(export::export(Arc::clone(&self.0.pool), self.0.exports.clone(), id))
    }

    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord> {
        Box::pin(async move {
            let queue = self.queue()?.clone();
            import::import(queue, self.0.imports.clone(), target, lines).await
        })
    }

    fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
        self.read(move |connection, place| lists::due(connection, place, partitions, until, limit, cursor.as_ref()))
    }

    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>> {
        self.read(move |connection, place| lists::outbox(connection, place, limit, cursor.as_ref()))
    }

    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()> {
        Box::pin(async move {
            let queue = self.queue()?;
            for piece in rows.chunks(PIECE) {
                let piece = piece.to_vec();
                queue.unit(move |tx| admin::acknowledge(tx, &piece)).await?;
            }
            Ok(())
        })
    }

    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained> {
        Box::pin(async move {
            let queue = self.queue()?;
            let mut done = Maintained::default();
            for _ in 0..MAINTAIN_STEPS {
                let left = budget.saturating_sub(u32::try_from(done.removed).unwrap_or(u32::MAX));
                let step = queue.alone(move |writer| writer.maintain(left, now)).await?;
                done = Maintained { removed: done.removed + step.removed, more: step.more };
                if !done.more || done.removed >= u64::from(budget) {
                    break;
                }
            }
            Ok(done)
        })
    }

    fn examine(&self) -> Fut<'_, Vec<Finding>> {
        self.read(check::check)
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async move {
            let shared = &self.0;
            if let Some(queue) = shared.queue.clone() {
                queue.seal();
                // The readers go first, so that the writer is the last to leave and empties the log into the file.
                shared.pool.close().await;
                let closed = tokio::task::spawn_blocking(move || queue.close()).await;
                return closed.map_err(|error| StorageError::failed(format!("close {}", shared.place.name()), error));
            }
            shared.pool.close().await;
            Ok(())
        })
    }
}
