//! The storage contract (section 10; `protocol.md` 1-4 and 7): what a backend does for many sessions and for one.
//!
//! A backend trusts the session that owns the line to send meaningful records. It enforces atomicity, the chain of commits,
//! ownership of ids, and that document records are consistent. Every value that crosses these traits is immutable or owned.

mod batch;
mod error;
mod export;
mod finding;
mod query;
mod session;

use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub use batch::{Batch, Commit, CommitHandle, CommitOutcome, DocumentCopy, OutboxRow, RequestRow, Write};
pub use error::{Cause, Corruption, Rejection, StorageError, StorageRejected};
pub use export::{EXPORT_FORMAT, ExportLine, ExportReader, ExportWriter, ImportId, ImportTarget, SessionLine};
pub use finding::{FINDINGS_MAX, Finding};
pub use query::{ConversationQuery, Cursor, DocumentQuery, EntryQuery, Page, SessionQuery, SubmissionQuery, TaskFilter, TaskQuery};
pub use session::{Created, Head, SessionCreate, SessionRecord, SessionState, Tenant};

use crate::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, Epoch, InvocationRow, Millis,
    PartitionCount, Point, Seq, SessionId, StoredDocument, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};

/// A future of the contract.
pub type Fut<'a, T> = BoxFuture<'a, Result<T, StorageError>>;

/// How many items a page has at most; a larger limit is cut to it.
pub const PAGE_MAX: u32 = 1_000;

/// How often a session is opened in a row without a later commit; the next open quarantines it (`protocol.md` 4).
pub const OPENS_MAX: u32 = 3;

/// How an owner opens or fences a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fence {
    /// The epoch of the partition's owner; a session fenced by a higher one can't be opened by a lower.
    pub epoch: Epoch,
    /// The time, from the owner's clock.
    pub at: Millis,
}

/// A session and when its owner has to look at it again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wake {
    /// The session.
    pub session: SessionId,
    /// The time.
    pub at: Millis,
}

/// What one step of maintenance did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Maintained {
    /// Rows that were removed.
    pub removed: u64,
    /// Whether more could be done at once.
    pub more: bool,
}

/// A backend: many sessions. Memory, SQLite, JSONL, PostgreSQL.
pub trait Store: Send + Sync + 'static {
    /// Into how many partitions its sessions hash; fixed when the store was made.
    fn partitions(&self) -> PartitionCount;

    /// Makes a session without any record. One that exists under this id is answered as it is.
    ///
    /// # Errors
    /// [`Rejection::SessionDeleted`] while the tombstone of a deleted one stands.
    fn create(&self, session: SessionCreate) -> Fut<'_, Created>;

    /// The session's record; `None` where there is none, or it is being deleted.
    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>>;

    /// Sessions in ascending order of their ids.
    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>>;

    /// Takes the line of a session. **Opening is itself a commit**: a fence at the next sequence, before anything is read, so that no
    /// commit of an earlier owner can land any more (`protocol.md` 1).
    ///
    /// # Errors
    /// [`StorageError::NotFound`]; [`StorageError::Fenced`] when its epoch is higher than `fence.epoch`;
    /// [`StorageError::Quarantined`] when it is quarantined.
    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>>;

    /// Fences many sessions at once; sessions that do not exist or have a higher epoch are left out of the answer.
    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>>;

    /// Reads a session without opening it; the owner is not disturbed.
    ///
    /// # Errors
    /// [`StorageError::NotFound`].
    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>>;

    /// Sets a session's state between active and quarantined. Active again, its opens are counted from the beginning.
    ///
    /// # Errors
    /// [`StorageError::NotFound`].
    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()>;

    /// Deletes a session: marks it, fences its owner, drops its outbox and wake, and leaves a tombstone. Its rows go with
    /// [`Store::maintain`]. `false` where there was none.
    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool>;

    /// Everything about a session as of one sequence. A delete meanwhile ends the lines with an error.
    ///
    /// # Errors
    /// [`StorageError::NotFound`].
    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>>;

    /// Makes a session of exported lines. Nothing of it can be seen until the last line has been checked.
    ///
    /// # Errors
    /// [`Rejection::Import`] for lines that are damaged, incomplete or out of order; [`Rejection::SessionExists`].
    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord>;

    /// Sessions of the partitions whose wake time is at or before `until`, in order of time.
    fn due(&self, partitions: std::ops::Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>>;

    /// Settlement notices that have not been acknowledged, in the order of their sessions and ids.
    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>>;

    /// Drops settlement notices.
    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()>;

    /// One bounded step off the commit path: commit rows far behind, content that a base or a retirement made unnecessary, rows of
    /// deleted sessions, old tombstones and request keys. Removes about `budget` rows at most. Records of tasks and submissions that are
    /// over stay as long as their session.
    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained>;

    /// What is wrong with how this backend keeps its sessions, as far as no read shows it: indexes against records, the chain of commit
    /// rows, files. It writes nothing, works on a store that another process uses, and gives at most [`FINDINGS_MAX`] findings.
    fn examine(&self) -> Fut<'_, Vec<Finding>> {
        Box::pin(std::future::ready(Ok(Vec::new())))
    }

    /// Lets admitted batches settle, then closes. Later calls fail with [`StorageError::Closed`].
    fn close(&self) -> Fut<'_, ()>;
}

/// Reads of one session.
pub trait SessionReader: Send + Sync + 'static {
    /// The session.
    fn id(&self) -> SessionId;

    /// The newest commit as storage has it now.
    fn head(&self) -> Fut<'_, Head>;

    /// A conversation.
    fn conversation(&self, id: ConversationId) -> Fut<'_, Option<ConversationRecord>>;

    /// Conversations in ascending order of their ids.
    fn scan_conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<ConversationRecord>>;

    /// An entry with the sequence of its commit. With a conversation only where it is visible through that conversation's ancestry.
    ///
    /// # Errors
    /// [`StorageError::UnknownConversation`].
    fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Fut<'_, Option<(EntryRecord, Seq)>>;

    /// Visible entries, newest first, with every cap of the ancestry applied.
    ///
    /// # Errors
    /// [`StorageError::UnknownConversation`].
    fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<EntryRecord>>;

    /// The newest visible entry with a head, at or before `at` where it is given.
    ///
    /// # Errors
    /// [`StorageError::UnknownConversation`].
    fn latest_head_marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Fut<'_, Option<EntryRecord>>;

    /// A task.
    fn task(&self, id: TaskId) -> Fut<'_, Option<TaskRecord>>;

    /// Tasks in ascending order of their ids.
    fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<TaskRecord>>;

    /// What a task keeps of its invocation.
    fn invocation(&self, task: TaskId) -> Fut<'_, Option<InvocationRow>>;

    /// A submission.
    fn submission(&self, id: SubmissionId) -> Fut<'_, Option<SubmissionRecord>>;

    /// The submission that has the caller's key in a conversation.
    fn submission_by_request(&self, conversation: ConversationId, request_id: String) -> Fut<'_, Option<SubmissionRecord>>;

    /// Submissions in ascending order of their ids.
    fn scan_submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SubmissionRecord>>;

    /// The incarnation at exactly this address, alive at `at`.
    fn find_document(&self, address: DocumentAddress, at: Point) -> Fut<'_, Option<DocumentRecord>>;

    /// The value of one incarnation; never another one at the same address. A retired one has no current value.
    ///
    /// # Errors
    /// [`StorageError::NoHistory`] for a past point of a document that keeps only its newest value;
    /// [`StorageError::Corrupt`] where content is missing or does not apply.
    fn document(&self, id: DocumentId, at: Point) -> Fut<'_, Option<StoredDocument>>;

    /// The incarnations alive in exactly one scope, in ascending order of their ids.
    fn scan_documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<DocumentRecord>>;

    /// What was answered to a request key.
    fn request(&self, key: String) -> Fut<'_, Option<RequestRow>>;

    /// The session's wake time.
    fn wake(&self) -> Fut<'_, Option<Millis>>;
}

/// The line of one open session: reads, and commits on a known predecessor.
pub trait SessionStore: SessionReader {
    /// Enqueues at once, not at the first poll; dropping the handle cancels nothing. One batch of a session is in flight: a second
    /// one sent before the first settled is refused with [`Rejection::InFlight`].
    fn commit(&self, batch: Batch) -> CommitHandle;

    /// The fence that opened it.
    fn opened(&self) -> Head;

    /// Gives the line back. Admitted batches settle; later calls fail with [`StorageError::Closed`].
    fn release(&self) -> Fut<'_, ()>;
}
