//! The compaction task, line half (section 8.7): it replaces an old prefix of the model's context with a summary. Its checkpoints and
//! decisions, the range that it selects and the text that it has summarized; the requests themselves are in the worker half.

mod apply;
pub mod range;
pub mod source;
mod status;

use picofleet_session::message::AssistantMessage;
use picofleet_session::{ConversationId, EntryId, Json, Millis, SubmissionId, TaskCreate, TaskId, TaskOwnership, TaskRecord, Tx, TxError};
use serde::{Deserialize, Serialize};

use crate::config::{CompactionPolicy, ConversationConfig, ModelRef};
use crate::kinds::COMPACTION;

pub use apply::apply;
pub(crate) use status::{any as any_live, remove as remove_status};

/// The version of [`Decision`]; a line reads this one and the one before.
pub const DECISION_VERSION: u32 = 1;

/// Why a compaction was started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CompactionReason {
    /// Somebody asked for it.
    Manual,
    /// The context grew above a threshold.
    Threshold,
    /// A request did not fit.
    Overflow,
}

/// What a compaction is created with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Input {
    /// Why.
    pub reason: CompactionReason,
    /// What the summary is to look at most, where somebody said so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub instructions: Option<String>,
}

/// What a compaction came to. Both are absent where nothing was compacted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionResult {
    /// The summary that a generation waited for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub entry_id: Option<EntryId>,
    /// The write of a summary that the conversation itself asked for; it tells when it is placed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub submission_id: Option<SubmissionId>,
}

/// The pinned request for a summary.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SummaryRequest {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The model.
    pub model: ModelRef,
    /// How much it thinks.
    pub thinking_level: String,
    /// Options of the conversation's requests.
    pub stream_options: Json,
    /// Most tokens of the summary.
    pub max_tokens: u64,
    /// The newest entry of the context that the range was selected from.
    pub tail: EntryId,
    /// The first entry that stays: the summary's head.
    pub first_kept: EntryId,
}

/// Where a compaction is (section 8.7).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum Checkpoint {
    /// It selects the range.
    Select,
    /// It asks for the summary.
    Summarize(Box<SummaryRequest>),
    /// It waits for its next attempt.
    Retry {
        /// When the next one begins.
        until: Millis,
        /// The request; its attempt is the one that failed.
        #[serde(flatten)]
        request: Box<SummaryRequest>,
    },
}

/// What a compaction's worker decided. A value: it holds no closure and no storage write.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Decision {
    /// The range is selected, and hooks were asked about it.
    Selected(Box<Selected>),
    /// It can't go on: `no_model`.
    Fail {
        /// Why, as a stable word.
        reason: String,
        /// More about it.
        detail: Option<Json>,
    },
    /// The request for the summary was answered.
    Summarized {
        /// The answer.
        message: Box<AssistantMessage>,
        /// An error that may pass: another attempt can help.
        retryable: bool,
    },
    /// The pause before the next attempt is over.
    Due,
    /// The abort handler.
    Aborted,
}

/// A selection with what it was made from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Selected {
    /// What the conversation was configured to; where that changed, the decision is stale.
    pub config: Basis,
    /// The marker that began the context; behind another one the decision is stale. Entries that were appended since stay behind the cut.
    pub marker: Option<EntryId>,
    /// What comes of it.
    pub choice: Choice,
}

/// The part of a configuration that a selection depends on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Basis {
    model: Option<ModelRef>,
    thinking_level: String,
    stream_options: Option<Json>,
    policy: CompactionPolicy,
}

impl Basis {
    /// That part.
    #[must_use]
    pub fn of(config: &ConversationConfig) -> Self {
        Self {
            model: config.model.clone(),
            thinking_level: config.thinking_level.clone(),
            stream_options: config.stream_options.clone(),
            policy: config.compaction.unwrap_or_default(),
        }
    }
}

/// What comes of a selection.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Choice {
    /// There is nothing to compact, or a hook declined.
    Nothing,
    /// A hook gave the summary.
    Summary {
        /// Its text.
        text: String,
        /// The first entry that stays.
        first_kept: EntryId,
    },
    /// The model is asked.
    Summarize(Box<SummaryRequest>),
}

/// What a decision does with its task.
pub type Then = crate::task::Then<Checkpoint>;

/// Who starts a compaction, and with that where its summary goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Starter<'a> {
    /// A host: it is work of the conversation like any other.
    Host(ConversationId),
    /// A generation that goes on meanwhile.
    Beside(&'a TaskRecord),
    /// A generation that waits for it, and owns it.
    Waiting(&'a TaskRecord),
}

/// Creates a compaction and shows its status.
pub(crate) async fn start(tx: &Tx, by: Starter<'_>, input: Input) -> Result<TaskId, TxError> {
    let (ownership, conversation, background) = match by {
        Starter::Host(conversation) => (TaskOwnership::Conversation, conversation, false),
        Starter::Beside(task) => (TaskOwnership::Conversation, task.conversation_id, true),
        Starter::Waiting(task) => (TaskOwnership::Task { task_id: task.id }, task.conversation_id, false),
    };
    let reason = input.reason;
    let instructions = input.instructions.map(|text| ("instructions", Json::from(text)));
    let task = TaskCreate {
        kind: COMPACTION.to_owned(),
        version: 1,
        input: Json::object([("reason", Json::from(reason.as_str()))].into_iter().chain(instructions)),
        checkpoint: Json::object([("phase", "select")]),
        ownership,
        conversation_id: Some(conversation),
        background,
    };
    let task_id = tx.create_task_raw(task).await?;
    let blocking = matches!(by, Starter::Waiting(_));
    status::add(tx, conversation, task_id, reason, blocking).await?;
    Ok(task_id)
}

impl CompactionReason {
    /// The word that is stored.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Manual => "manual",
            Self::Threshold => "threshold",
            Self::Overflow => "overflow",
        }
    }
}

impl std::fmt::Display for CompactionReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}
