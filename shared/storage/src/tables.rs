//! What the rules need of one session inside one transaction of a backend.

use picofleet_delta::Json;
use picofleet_session::storage::{Head, OutboxRow, RequestRow, StorageError};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentContent, DocumentId, DocumentRecord, EntryRecord, InvocationRow, Millis,
    Point, Seq, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};

use crate::rules::Replay;

/// What a lookup or write of [`Tables`] gives. An error ends the transaction without effect.
pub(crate) type Found<T> = Result<T, StorageError>;

/// What never changes about a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TaskIdentity {
    pub(crate) conversation_id: ConversationId,
    pub(crate) owner: Option<TaskId>,
    pub(crate) kind: String,
}

/// What never changes about a submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SubmissionIdentity {
    pub(crate) conversation_id: ConversationId,
    pub(crate) request_id: Option<String>,
    /// An input; a write otherwise.
    pub(crate) input: bool,
}

/// A document with the version of its newest content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DocumentState {
    pub(crate) record: DocumentRecord,
    /// `None` once retirement let the content go.
    pub(crate) version: Option<u32>,
}

/// The rows of one session in one transaction. Every lookup is by a full key and sees the earlier writes of the transaction; dropping
/// the transaction undoes them all. The rules check before they write: a write needs no check of its own.
///
/// | path | lookups |
/// | --- | --- |
/// | a new entry, conversation, task, submission with a minted id | none |
/// | a submission's request id | [`Tables::request_owner`] once |
/// | a replaced task or submission | its identity |
/// | a changed or retired document | [`Tables::document`] |
/// | a created document | [`Tables::current`] |
/// | a copied one | [`Tables::document`] of the source, [`Tables::replay`], [`Tables::current`] |
pub(crate) trait Tables {
    /// What has the id: `conversation`, `entry`, `task`, `submission` or `document`. Only asked for the root conversation and to explain
    /// a rejection.
    fn owner(&mut self, id: i64) -> Found<Option<&'static str>>;

    /// A stored task.
    fn task(&mut self, id: TaskId) -> Found<Option<TaskIdentity>>;

    /// A stored submission.
    fn submission(&mut self, id: SubmissionId) -> Found<Option<SubmissionIdentity>>;

    /// The submission that has this request id in a conversation.
    fn request_owner(&mut self, conversation: ConversationId, request_id: &str) -> Found<Option<SubmissionId>>;

    /// An incarnation, retired or not.
    fn document(&mut self, id: DocumentId) -> Found<Option<DocumentState>>;

    /// The incarnation at exactly this address that is not retired.
    fn current(&mut self, address: &DocumentAddress) -> Found<Option<DocumentId>>;

    /// The newest base at or before `at` and the deltas after it up to `at`. The caller has checked that the document is alive there.
    fn replay(&mut self, id: DocumentId, at: Point) -> Found<Replay>;

    /// The row of a commit, after everything else that the commit writes.
    fn put_commit(&mut self, head: &Head) -> Found<()>;

    /// A new conversation.
    fn put_conversation(&mut self, record: &ConversationRecord) -> Found<()>;

    /// A new entry.
    fn put_entry(&mut self, seq: Seq, entry: &EntryRecord) -> Found<()>;

    /// A new task.
    fn insert_task(&mut self, record: &TaskRecord) -> Found<()>;

    /// The whole record of a stored task; what is kept of its invocation stays.
    fn replace_task(&mut self, record: &TaskRecord) -> Found<()>;

    /// The only row that a stored task keeps of its invocation.
    fn put_invocation(&mut self, row: &InvocationRow) -> Found<()>;

    /// A new submission.
    fn insert_submission(&mut self, record: &SubmissionRecord) -> Found<()>;

    /// The whole record of a stored submission; its conversation and request id are the stored ones.
    fn replace_submission(&mut self, record: &SubmissionRecord) -> Found<()>;

    /// A new incarnation. It may be retired already: then it has no content.
    fn put_document(&mut self, record: &DocumentRecord) -> Found<()>;

    /// Content of a stored incarnation. A base of one that keeps no history makes what is older unnecessary; the removal is left to
    /// [`picofleet_session::storage::Store::maintain`].
    fn put_content(&mut self, record: &DocumentRecord, seq: Seq, content: &DocumentContent) -> Found<()>;

    /// Ends a stored incarnation, given as it was before. What keeps no history needs no content any more; the removal is left to
    /// [`picofleet_session::storage::Store::maintain`].
    fn retire(&mut self, record: &DocumentRecord, seq: Seq) -> Found<()>;

    /// The answer to a request key, in place of an older one.
    fn put_request(&mut self, row: &RequestRow) -> Found<()>;

    /// A settlement notice, in place of an older one of the same submission.
    fn put_outbox(&mut self, row: &OutboxRow) -> Found<()>;

    /// The session's wake time.
    fn put_wake(&mut self, at: Option<Millis>) -> Found<()>;
}

/// A base that a rule made itself.
pub(crate) fn base(version: u32, value: Json) -> DocumentContent {
    DocumentContent::Base { version, value }
}
