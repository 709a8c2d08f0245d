//! The messages of commits whose code runs elsewhere: a hold of the session's line (`design.md` 1).

use picofleet_session::storage::{ConversationQuery, Cursor, DocumentQuery, EntryQuery, Head, Page, SubmissionQuery, TaskQuery, Write};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, InvocationId, Millis, Point,
    Seq, StoredDocument, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};
use serde::{Deserialize, Serialize};

use super::HostCall;
use crate::task::NextState;

/// The random name of one hold, given by who asks for it: a repeated message finds the same hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HoldId(pub InvocationId);

impl HoldId {
    /// A new one, from the system's random numbers.
    #[must_use]
    pub fn random() -> Self {
        Self(InvocationId::random())
    }
}

/// What is asked for at the begin of a hold.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begin {
    /// For which task, and by which invocation; `None` for a host.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub by: Option<(TaskId, InvocationId)>,
    /// The conversation whose record a host wants; a task gets the one of its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub conversation: Option<ConversationId>,
    /// The conversation that the commit makes before its closure runs: a [`HostCall::Root`], [`HostCall::CreateConversation`] or
    /// [`HostCall::Fork`], which may be keyed. Where it is there already the answer is its record, and nothing is held.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub make: Option<Box<HostCall>>,
    /// Documents that the closure will open: their values come with the answer.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub documents: Vec<DocumentAddress>,
}

/// What a hold begins with: the state that its transaction stands on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    /// The newest commit, with the next id that the transaction mints.
    pub head: Head,
    /// The line's time.
    pub now: Millis,
    /// How long the line is held at most, in milliseconds.
    pub bound_ms: u64,
    /// The running task.
    pub task: Option<TaskRecord>,
    /// Its conversation, or the one that a host named or makes.
    pub conversation: Option<ConversationRecord>,
    /// The named documents, in their order.
    pub documents: Vec<Option<StoredDocument>>,
}

/// The end of a task's hold: what the closure wrote and decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finish {
    /// The hold.
    pub hold: HoldId,
    /// What it wrote.
    pub writes: Written,
    /// What becomes of the task.
    pub next: NextState,
    /// The step runs in the same commit.
    pub last: bool,
}

/// The writes of a transaction that ran elsewhere.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// The next id that it would have minted.
    pub next_id: i64,
    /// The writes.
    pub writes: Vec<Write>,
}

/// A read of a held line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreRead {
    /// A conversation.
    Conversation(ConversationId),
    /// Conversations.
    Conversations(ConversationQuery, u32, Option<Cursor>),
    /// An entry, where it is visible in a conversation if one is named.
    Entry(Option<ConversationId>, EntryId),
    /// Visible entries, newest first.
    Entries(EntryQuery, u32, Option<Cursor>),
    /// The newest visible entry with a head.
    HeadMarker(ConversationId, Option<EntryId>),
    /// A task.
    Task(TaskId),
    /// Tasks.
    Tasks(TaskQuery, u32, Option<Cursor>),
    /// A submission.
    Submission(SubmissionId),
    /// The submission with the caller's key.
    SubmissionByRequest(ConversationId, String),
    /// Submissions.
    Submissions(SubmissionQuery, u32, Option<Cursor>),
    /// The current document of an address with its value.
    DocumentAt(DocumentAddress),
    /// The incarnation at an address at a point.
    FindDocument(DocumentAddress, Point),
    /// The value of an incarnation.
    Document(DocumentId, Point),
    /// Incarnations of a scope.
    Documents(DocumentQuery, u32, Option<Cursor>),
}

/// The answer to a [`StoreRead`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum StoreAnswer {
    /// A conversation.
    Conversation(Option<ConversationRecord>),
    /// Conversations.
    Conversations(Page<ConversationRecord>),
    /// An entry with the sequence of its commit.
    Entry(Option<(EntryRecord, Seq)>),
    /// Entries.
    Entries(Page<EntryRecord>),
    /// An entry with a head.
    HeadMarker(Option<EntryRecord>),
    /// A task.
    Task(Option<TaskRecord>),
    /// Tasks.
    Tasks(Page<TaskRecord>),
    /// A submission.
    Submission(Option<SubmissionRecord>),
    /// Submissions.
    Submissions(Page<SubmissionRecord>),
    /// A document with its value.
    Stored(Option<StoredDocument>),
    /// A document's record.
    Found(Option<DocumentRecord>),
    /// Documents' records.
    Documents(Page<DocumentRecord>),
    /// The read failed.
    Failed(ReadFailure),
}

/// Why a read of a held line failed: what a transaction tells apart.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReadFailure {
    /// There is no such conversation.
    UnknownConversation(ConversationId),
    /// The document keeps only its newest value.
    NoHistory(DocumentId),
    /// The cursor is of another scan.
    BadCursor(String),
    /// Something else; the text says what.
    Other(String),
}
