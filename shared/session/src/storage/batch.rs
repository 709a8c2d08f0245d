//! What one session sends to storage at once.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::{Head, StorageError};
use crate::{
    CommitToken, ConversationRecord, DocumentContent, DocumentCreate, DocumentId, EntryRecord, InvocationRow, Millis, Point, Seq,
    SubmissionId, SubmissionRecord, TaskRecord,
};

/// How many commits a batch has at most (`protocol.md` 2).
pub(crate) const COMMITS_MAX: usize = 64;

/// Commits with consecutive sequences that land together or not at all.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// The predecessor: its sequence and token, as the line holds them.
    pub expect: (Seq, CommitToken),
    /// At least one, at most [`Batch::COMMITS_MAX`].
    pub commits: Vec<Commit>,
}

impl Batch {
    /// How many commits a batch has at most.
    pub const COMMITS_MAX: usize = COMMITS_MAX;
}

/// One commit of a batch; its sequence is one above its predecessor's.
#[derive(Clone, PartialEq, Debug)]
pub struct Commit {
    /// Names it together with its sequence; settles an uncertain commit after a reconnect.
    pub token: CommitToken,
    /// Its time.
    pub at: Millis,
    /// The next id that the session mints after it. New records have ids from the predecessor's up to here, only the root is older.
    pub next_id: i64,
    /// What it writes.
    pub writes: Vec<Write>,
}

/// One write of a commit (section 10). Content is applied before retirement, and copies read the state before the batch,
/// whatever the order. Records are shared with the session that sends them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Write {
    /// A new conversation.
    Conversation(ConversationRecord),
    /// A new entry.
    Entry(Arc<EntryRecord>),
    /// A new task, or the replacement of one.
    Task(Arc<TaskRecord>),
    /// What a task keeps of its invocation; the task is in the same commit or older (`protocol.md` 3).
    Invocation(Box<InvocationRow>),
    /// A new submission, or the replacement of one.
    Submission(Arc<SubmissionRecord>),
    /// A new incarnation with its first base.
    DocumentCreate {
        /// What it is.
        create: DocumentCreate,
        /// The version of its definition.
        version: u32,
        /// Its value: a JSON object.
        value: Json,
    },
    /// A new incarnation whose base is what another has at a point.
    DocumentCopy(DocumentCopy),
    /// New content of an incarnation.
    DocumentChange {
        /// The incarnation.
        id: DocumentId,
        /// A base or a delta.
        content: DocumentContent,
    },
    /// The end of an incarnation.
    DocumentRetire(DocumentId),
    /// The answer to a request key.
    Request(Box<RequestRow>),
    /// A settlement notice to be sent.
    Outbox(Box<OutboxRow>),
    /// When the owner has to look at the session again; `None` for never.
    Wake(Option<Millis>),
}

/// A new incarnation whose base is what another has at a point (section 3.7).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DocumentCopy {
    /// What is made.
    pub create: DocumentCreate,
    /// The source.
    pub source: DocumentId,
    /// The source's value is the one at this point.
    pub at: Point,
}

/// What was answered to a request key (`protocol.md` 3).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RequestRow {
    /// The caller's key.
    pub key: String,
    /// The digest of the request; another body under a key is refused.
    pub digest: String,
    /// The answer.
    pub answer: Json,
    /// When it was answered; rows are kept 48 hours.
    pub at: Millis,
}

/// A settlement notice (`protocol.md` 5).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OutboxRow {
    /// The submission that was settled; names the notice.
    pub submission_id: SubmissionId,
    /// What is sent.
    pub body: Json,
}

/// What became of a batch: the newest commit of it, or why it did not land.
pub type CommitOutcome = Result<Head, StorageError>;

/// A batch on its way. A future; dropping it cancels nothing.
#[derive(Debug)]
pub struct CommitHandle(State);

#[derive(Debug)]
enum State {
    Waiting(oneshot::Receiver<CommitOutcome>),
    Refused(Option<StorageError>),
}

impl CommitHandle {
    /// A handle with the sender that a backend answers on.
    #[must_use]
    pub fn channel() -> (oneshot::Sender<CommitOutcome>, CommitHandle) {
        let (sender, receiver) = oneshot::channel();
        (sender, CommitHandle(State::Waiting(receiver)))
    }

    /// A batch that was refused before it was admitted.
    #[must_use]
    pub fn refused(error: StorageError) -> CommitHandle {
        CommitHandle(State::Refused(Some(error)))
    }
}

impl Future for CommitHandle {
    type Output = CommitOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CommitOutcome> {
        match &mut self.0 {
            // A backend that goes away without an answer leaves open whether the batch landed.
            State::Waiting(receiver) => Pin::new(receiver).poll(cx).map(|answer| answer.unwrap_or_else(|_| Err(StorageError::lost()))),
            State::Refused(error) => Poll::Ready(Err(error.take().unwrap_or(StorageError::Closed))),
        }
    }
}
