//! Many sessions in a PostgreSQL database, for a fleet (`design.md` 5; `protocol.md` 1 and 2; `docs/schema.md`).
//!
//! | module | what |
//! | --- | --- |
//! | `connect`, `tls`, `errors`, `retry` | connections, what failures mean, pauses between attempts |
//! | `migrate` | the schema |
//! | `line`, `known`, `run`, `load`, `staged` | a batch is judged here, from what the line knows, and becomes rows |
//! | `queue`, `group`, `committer`, `settle` | groups of batches: order, statement, outcome |
//! | `read`, `lists`, `rows`, `sql` | reads |
//! | `admin`, `export`, `import`, `maintain`, `check` | sessions as a whole |
//!
//! **Architecture invariants.** What is stored is decided by the chain of commit rows alone: whoever inserts the row behind its predecessor
//! has the line. A batch is judged from rows that only the owner of the line can have changed since, so that a judgement is right wherever
//! the batch lands. A batch is answered as refused only when it is certain that it is not and will not be stored.

mod admin;
mod check;
mod committer;
mod connect;
mod errors;
mod export;
mod group;
#[cfg(all(test, feature = "conformance"))]
mod group_tests;
mod import;
mod known;
mod line;
mod lists;
mod load;
mod maintain;
mod migrate;
#[cfg(all(test, feature = "conformance"))]
mod plans;
mod queue;
mod read;
mod retry;
mod rows;
mod run;
mod settle;
mod sql;
mod staged;
mod tls;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use deadpool_postgres::Pool;
use futures::stream::BoxStream;
use picofleet_session::storage::{
    Created, Cursor, ExportLine, Fence, Finding, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, Rejection, SessionCreate,
    SessionQuery, SessionReader, SessionRecord, SessionStore, StorageError, Store, Wake,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::rules::creatable;
use committer::Committer;
use connect::{Access, Purpose};
use line::{LARGE, Line, Work};
use maintain::Rounds;
use queue::Queue;
use read::Reader;

pub use errors::OpenError;

/// How a store is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PostgresOptions {
    /// The count of partitions. A new database gets it, or [`PartitionCount::DEFAULT`]; an existing one must have it.
    pub partitions: Option<PartitionCount>,
    /// How many reads run at the same time; at least one.
    pub readers: usize,
    /// How many groups of commits are written at the same time; at least one. Sessions are spread over them.
    pub committers: usize,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self { partitions: None, readers: 8, committers: 2 }
    }
}

/// A store in a PostgreSQL database. Clones share it.
///
/// Where all clones and all that was opened on them are dropped without [`Store::close`], what was sent still settles, but nothing tells
/// when. Never give it a connection through a pooler that hands out transactions: its connections have settings of their own.
#[derive(Clone)]
pub struct PostgresStore(Arc<Shared>);

/// A committer's queue, and whether it can write at all just now.
#[derive(Clone, Default)]
struct Lane {
    queue: Arc<Queue>,
    troubled: Arc<AtomicBool>,
}

struct Shared {
    access: Access,
    partitions: PartitionCount,
    reads: Pool,
    bulk: Pool,
    lanes: Vec<Lane>,
    large: Lane,
    committers: Mutex<Vec<JoinHandle<()>>>,
    closed: AtomicBool,
    /// How many batches are judged behind a read just now.
    judging: Arc<watch::Sender<usize>>,
    rounds: Rounds,
}

impl Shared {
    /// # Errors
    /// [`StorageError::Closed`].
    fn check(&self) -> Result<(), StorageError> {
        if self.closed.load(Ordering::SeqCst) { Err(StorageError::Closed) } else { Ok(()) }
    }

    fn lane(&self, session: SessionId) -> &Lane {
        let mut hasher = DefaultHasher::new();
        session.hash(&mut hasher);
        let count = u64::try_from(self.lanes.len()).unwrap_or(1).max(1);
        let index = usize::try_from(hasher.finish() % count).unwrap_or_default();
        self.lanes.get(index).unwrap_or(&self.large)
    }

    /// Gives a batch to the committer of its session.
    fn send(&self, work: Work) {
        let lane = if work.bytes() > LARGE { &self.large } else { self.lane(work.session()) };
        if let Err(work) = lane.queue.push(work) {
            let closed = self.closed.load(Ordering::SeqCst);
            work.refused(if closed { StorageError::Closed } else { Rejection::Overloaded.into() });
        }
    }

    fn seal(&self) {
        self.lanes.iter().chain([&self.large]).for_each(|lane| lane.queue.seal());
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.seal();
    }
}

impl PostgresStore {
    /// Brings the schema of a database up to this program's version. A new one gets `partitions`, or [`PartitionCount::DEFAULT`].
    ///
    /// # Errors
    /// [`StorageError::Failed`] above an [`OpenError`]; [`StorageError::SchemaTooNew`].
    pub async fn migrate(url: &str, partitions: Option<PartitionCount>) -> Result<(), StorageError> {
        migrate::migrate(&Access::new(url, uuid::Uuid::new_v4())?, partitions).await
    }

    /// Opens the store in the database at `url`, whose schema has been brought up.
    ///
    /// # Errors
    /// [`StorageError::Failed`] above an [`OpenError`] or what the connection failed with; [`StorageError::SchemaTooNew`].
    pub async fn open(url: &str, options: PostgresOptions) -> Result<Self, StorageError> {
        let access = Access::new(url, uuid::Uuid::new_v4())?;
        let client = access.connect(Purpose::Read).await.map_err(|error| access.place.open(error))?;
        let partitions = migrate::check(&client, &access.place, options.partitions).await?;
        let (reads, bulk) = (access.pool(Purpose::Read, options.readers)?, access.pool(Purpose::Bulk, 4)?);
        let lanes: Vec<Lane> = (0..options.committers.max(1)).map(|_| Lane::default()).collect();
        let large = Lane::default();
        let committers = lanes.iter().chain([&large]).map(|lane| {
            let committer = Committer::new(access.clone(), partitions, Arc::clone(&lane.queue), Arc::clone(&lane.troubled));
            tokio::spawn(committer.run())
        });
        let committers = Mutex::new(committers.collect());
        let (closed, judging, rounds) = (AtomicBool::new(false), Arc::new(watch::Sender::new(0)), Rounds::default());
        Ok(Self(Arc::new(Shared { access, partitions, reads, bulk, lanes, large, committers, closed, judging, rounds })))
    }
}

impl Store for PostgresStore {
    fn partitions(&self) -> PartitionCount {
        self.0.partitions
    }

    fn create(&self, session: SessionCreate) -> Fut<'_, Created> {
        Box::pin(async move {
            creatable(&session)?;
            self.0.create(session).await
        })
    }

    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>> {
        Box::pin(self.0.find(id))
    }

    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>> {
        Box::pin(self.0.sessions(query, limit, cursor))
    }

    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        Box::pin(async move {
            let (record, opened) = self.0.open(id, fence).await?;
            let reader = Reader::new(Arc::clone(&self.0), id);
            Ok(Arc::new(Line::new(reader, Arc::clone(&self.0), record.tenant, opened)) as Arc<dyn SessionStore>)
        })
    }

    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>> {
        Box::pin(self.0.take_over(sessions, fence))
    }

    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>> {
        Box::pin(async move {
            self.0.find(id).await?.ok_or(StorageError::NotFound { session: id })?;
            Ok(Arc::new(Reader::new(Arc::clone(&self.0), id)) as Arc<dyn SessionReader>)
        })
    }

    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()> {
        Box::pin(self.0.set_quarantined(id, quarantined))
    }

    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool> {
        Box::pin(self.0.delete(id, at))
    }

    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>> {
        Box::pin(export::export(Arc::clone(&self.0), id))
    }

    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord> {
        Box::pin(import::import(&self.0, target, lines))
    }

    fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
        Box::pin(self.0.due(partitions, until, limit, cursor))
    }

    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>> {
        Box::pin(self.0.outbox(limit, cursor))
    }

    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()> {
        Box::pin(async move { self.0.acknowledge(&rows).await })
    }

    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained> {
        Box::pin(maintain::maintain(&self.0, budget, now))
    }

    fn examine(&self) -> Fut<'_, Vec<Finding>> {
        Box::pin(check::check(&self.0))
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async {
            self.0.closed.store(true, Ordering::SeqCst);
            // The sender lives in the store, so waiting can't fail.
            let _ = self.0.judging.subscribe().wait_for(|count| *count == 0).await;
            self.0.seal();
            let committers = std::mem::take(&mut *self.0.committers.lock().unwrap_or_else(PoisonError::into_inner));
            for committer in committers {
                committer.await.map_err(|error| StorageError::failed(format!("close {}", self.0.access.place.0), error))?;
            }
            self.0.reads.close();
            self.0.bulk.close();
            Ok(())
        })
    }
}
