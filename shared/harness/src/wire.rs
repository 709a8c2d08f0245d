//! What workers, hosts and the line say to each other (`protocol.md` 3). Every message can be encoded; nothing in one is a pointer.

use picofleet_session::storage::{Cursor, EntryQuery};
use picofleet_session::{
    CommitToken, ConversationId, ConversationOwnership, DocumentAddress, EntryId, InvocationId, Json, Seq, SessionId, SubmissionId,
    TaskError, TaskId, TaskRecord,
};
use serde::{Deserialize, Serialize};

use crate::config::ConversationConfig;
use crate::step::Mode;
use crate::submission::SubmissionDraft;

/// The random name of one run of a worker process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(pub InvocationId);

/// Where a task is pulled from (`design.md` 7).
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Route(pub String);

/// That a task is ready. It carries no state: lost, doubled or late ones change nothing.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hint {
    /// The session.
    pub session: SessionId,
    /// The task.
    pub task: TaskId,
    /// Its route.
    pub route: Route,
}

/// What the line tells a worker by itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Signal {
    /// Stop an invocation, and say when it has ended.
    Cancel {
        /// The session.
        session: SessionId,
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
    },
}

/// What is asked of a session's line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Take a task. The same invocation gets the same reservation again.
    Reserve {
        /// The task.
        task: TaskId,
        /// The worker's name for the invocation, and its capability.
        invocation: InvocationId,
        /// The worker.
        worker: WorkerId,
    },
    /// The next numbered saying of an invocation.
    Say {
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
        /// One above the last one's.
        number: u32,
        /// What it says.
        said: Said,
    },
    /// Progress: not numbered, and repeated without harm.
    Progress {
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
        /// The decision.
        decision: Json,
    },
    /// The invocation is over in the worker: nothing of it runs any more.
    Ended {
        /// The task.
        task: TaskId,
        /// The invocation.
        invocation: InvocationId,
    },
    /// A read.
    Read(Read),
    /// A call of a host.
    Host(Box<HostCall>),
}

/// What an invocation says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Said {
    /// Apply a decision; with `last` it also ends the phase.
    Decide {
        /// The version of the decision type.
        version: u32,
        /// The decision.
        decision: Json,
        /// The step runs in the same commit.
        last: bool,
    },
    /// Keep a value under a name; the first writer wins.
    Memo {
        /// The name.
        name: String,
        /// The value.
        candidate: Json,
    },
    /// The phase handler ended.
    PhaseEnd(Option<TaskError>),
}

/// How a phase goes on, as the line decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Next {
    /// The invocation goes on with the phase of the record.
    Continue(Box<TaskRecord>),
    /// The invocation is over.
    Stop,
}

/// A reserved task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Reservation {
    /// Its record, running.
    pub record: TaskRecord,
    /// What to run.
    pub mode: Mode,
}

/// Why a task was not reserved, or a saying not taken.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The task is not there, not ready, or another invocation has it. The hint is done with.
    #[error("the task is not to be reserved")]
    NotReady,
    /// The invocation is over: the worker drops its effects.
    #[error("the invocation is over")]
    Gone,
    /// A later saying was taken already.
    #[error("a later saying was taken already")]
    Superseded,
    /// The saying breaks the protocol; the invocation is over.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The text that progress stands on is another one; the worker sends the whole.
    #[error("the progress stands on another text")]
    Resync,
    /// What a decision was computed from has changed; the phase runs again.
    #[error("the decision is stale")]
    Stale,
    /// The line refused the commit; the message says why. The task is faulted.
    #[error("{0}")]
    Rejected(String),
    /// The session is not here, or closing: ask again.
    #[error("ask again")]
    AskAgain,
}

/// What the line answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// To a reservation.
    Reserved(Box<Reservation>),
    /// To a saying.
    Said {
        /// The decision's own answer, or the winning memo.
        answer: Json,
        /// How the phase goes on, where the saying ended it.
        next: Option<Next>,
    },
    /// Done; there is nothing to say.
    Done,
    /// To a read or a host's call.
    Value(Json),
    /// Not done.
    Refused(Refusal),
    /// A host's call failed.
    Failed(HostFailure),
}

/// A read of committed state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Read {
    /// A task's record.
    Task(TaskId),
    /// An entry.
    Entry(EntryId),
    /// A submission.
    Submission(SubmissionId),
    /// The active transcript and the model's context.
    Context {
        /// The conversation.
        conversation: ConversationId,
        /// Up to this entry.
        at: Option<EntryId>,
    },
    /// Entries, newest first.
    Entries {
        /// The conversation.
        conversation: ConversationId,
        /// The oldest.
        min: Option<EntryId>,
        /// The newest.
        max: Option<EntryId>,
        /// How many.
        limit: u32,
    },
    /// A conversation's document by kind; `null` where there is none.
    ConversationDocument {
        /// The conversation.
        conversation: ConversationId,
        /// The kind.
        kind: String,
    },
    /// A conversation's record; `null` where there is none.
    Conversation(ConversationId),
    /// Conversations in the order of their ids; both filters together are conjunctive.
    Conversations {
        /// Owned from this conversation.
        owner_conversation: Option<ConversationId>,
        /// Owned by this task.
        owner_task: Option<TaskId>,
        /// How many.
        limit: u32,
        /// Behind an earlier page.
        cursor: Option<Cursor>,
    },
    /// A page of entries, newest first.
    EntryPage {
        /// The conversation.
        conversation: ConversationId,
        /// The oldest.
        min: Option<EntryId>,
        /// The newest.
        max: Option<EntryId>,
        /// How many.
        limit: u32,
        /// Behind an earlier page.
        cursor: Option<Cursor>,
    },
    /// The active transcript with what each of its entries contributes.
    ContextView {
        /// The conversation.
        conversation: ConversationId,
        /// Up to this entry.
        at: Option<EntryId>,
    },
    /// What the conversations spent together (section 8.6).
    SessionUsage,
    /// A document of any definition as it is stored, with the version that wrote it: [`StoredValue`]; `null` where there is none.
    Document(DocumentAddress),
}

/// The committed value of a document, as the definition of `version` wrote it. Nothing is migrated.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredValue {
    /// The version of the definition that wrote it.
    pub version: u32,
    /// The value.
    pub value: Json,
}

/// A page of records, with where the next one begins.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Paged<T> {
    /// The records.
    pub items: Vec<T>,
    /// For the next call; `None` at the end.
    pub next: Option<Cursor>,
}

impl Read {
    /// The query of [`Read::Entries`].
    #[must_use]
    pub const fn entries(conversation: ConversationId, min: Option<EntryId>, max: Option<EntryId>) -> EntryQuery {
        EntryQuery { conversation_id: conversation, min_entry_id: min, max_entry_id: max }
    }
}

/// A call of a host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum HostCall {
    /// The root conversation, made where it is not there.
    Root,
    /// Admit a submission.
    Submit {
        /// The conversation.
        conversation: ConversationId,
        /// What is submitted.
        draft: SubmissionDraft,
    },
    /// Wait until a submission is settled, or the time is over.
    WaitSubmission {
        /// The submission.
        submission: SubmissionId,
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// Replace a conversation's configuration.
    Configure {
        /// The conversation.
        conversation: ConversationId,
        /// The new configuration.
        config: Box<ConversationConfig>,
    },
    /// Withdraw a queued submission.
    Withdraw {
        /// The submission.
        submission: SubmissionId,
    },
    /// Ask a task to stop.
    AbortTask {
        /// The task.
        task: TaskId,
    },
    /// Stop what a conversation does.
    Abort {
        /// The conversation.
        conversation: ConversationId,
        /// Background work too.
        background: bool,
    },
    /// A call that is done once, however often it is sent: its answer is stored under the key in the same commit and answered again
    /// (`protocol.md` 3). For calls that commit.
    Keyed {
        /// The caller's key, of 1 to 255 bytes.
        key: String,
        /// The call.
        call: Box<HostCall>,
    },
    /// A new independent conversation, with its built-in documents.
    CreateConversation {
        /// Who owns it.
        ownership: ConversationOwnership,
        /// A change of its first configuration, as [`crate::config::ConfigPatch`] reads it.
        config: Option<Json>,
    },
    /// A conversation that begins with another one's history.
    Fork {
        /// The parent.
        conversation: ConversationId,
        /// The newest entry that the fork sees.
        at: EntryId,
        /// Who owns it.
        ownership: ConversationOwnership,
        /// A change of the configuration that it takes over.
        config: Option<Json>,
    },
    /// Begin a new context at the next boundary: admits a write of `pi.reset`.
    Reset {
        /// The conversation.
        conversation: ConversationId,
        /// What the new context begins with.
        handoff: Option<String>,
    },
    /// Change a conversation's configuration.
    Patch {
        /// The conversation.
        conversation: ConversationId,
        /// The change, as [`crate::config::ConfigPatch`] reads it.
        patch: Json,
    },
    /// Withdraw a queued submission of a conversation: `aborted`, `already_placed`, `settled`, or `not_found`.
    AbortSubmission {
        /// The submission.
        submission: SubmissionId,
        /// The conversation that it must belong to.
        conversation: Option<ConversationId>,
    },
}

/// Why a host's call failed, by what the caller can do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum HostFailure {
    /// The conversation has a run and the submission does not want to wait.
    #[error("conversation {0} is busy")]
    Busy(ConversationId),
    /// What the call names is not there.
    #[error("{what} {id} does not exist")]
    NotFound {
        /// What.
        what: String,
        /// Its id.
        id: i64,
    },
    /// The call breaks a rule.
    #[error("{0}")]
    Invalid(String),
    /// The inbox of the conversation is full.
    #[error("the inbox of conversation {0} is full")]
    InboxFull(ConversationId),
    /// The session is not here or closing; ask again.
    #[error("ask again: {0}")]
    Unavailable(String),
    /// A field of the call is not allowed.
    #[error("{field}: {why}")]
    InvalidField {
        /// The path of the field.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// The key was given to another call.
    #[error("key {key:?} was given to another call; use a key for one call only")]
    KeyReused {
        /// The key.
        key: String,
    },
    /// Storage failed in the middle: whether the call was stored can't be told. With a key it can be repeated.
    #[error("whether the call was stored can't be told: {0}")]
    OutcomeUnknown(String),
}

/// Names a commit: `(seq, token)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Point(pub Seq, pub CommitToken);
