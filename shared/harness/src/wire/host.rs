//! What a host asks of a session's line, and why it may fail.

use picofleet_session::{ConversationId, ConversationOwnership, EntryId, Json, SubmissionId, TaskId};
use serde::{Deserialize, Serialize};

use crate::config::ConversationConfig;
use crate::submission::SubmissionDraft;

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
    /// Ask a task to stop: `terminal`, `marked` once its run has joined, or `stopping` where it has not within the line's bound; then
    /// [`HostCall::WaitStopped`] waits on.
    AbortTask {
        /// The task.
        task: TaskId,
    },
    /// Stop what a conversation does. Where it has not stopped within the line's bound the answer names the tasks that were marked; then
    /// [`HostCall::WaitAborted`] waits on, without marking what came later.
    Abort {
        /// The conversation.
        conversation: ConversationId,
        /// Background work too.
        background: bool,
    },
    /// Enables scheduling.
    Resume,
    /// Let a task that was parked at the restart limit run again: `retried` or `not_parked`.
    RetryTask {
        /// The task.
        task: TaskId,
    },
    /// Wait until a task is terminal, or the time is over; the record.
    WaitTask {
        /// The task.
        task: TaskId,
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// Wait until the run of a task that was asked to stop has joined, or the time is over; whether it has.
    WaitStopped {
        /// The task.
        task: TaskId,
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// Wait until a conversation is idle and the tasks that an abort of it marked are over, or the time is over; whether they are.
    WaitAborted {
        /// The conversation.
        conversation: ConversationId,
        /// The marked tasks.
        tasks: Vec<TaskId>,
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// Wait until a conversation, or all of the session, is idle, or the time is over; whether it is.
    WaitIdle {
        /// The conversation; all ownerless ones where it is absent.
        conversation: Option<ConversationId>,
        /// How long, in milliseconds.
        timeout_ms: u64,
    },
    /// The live work, as an [`crate::inspection::Inspection`]. Of a quarantined session it shows what is stored.
    Inspect,
    /// Lets a quarantined session be opened again: `retried` or `not_quarantined`. Answered without opening it.
    RetrySession,
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
    /// Begin a manual compaction: its task.
    Compact {
        /// The conversation.
        conversation: ConversationId,
        /// What the summary is to look at most.
        instructions: Option<String>,
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
