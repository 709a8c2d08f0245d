//! The live document: who runs, what is streamed, which tools work (section 8.2).

use picofleet_session::{DocDefinition, DocToken, EntryId, Initial, Json, Latest, Millis, SubmissionId, TaskId};
use serde::{Deserialize, Serialize};

use crate::compaction::CompactionReason;

/// Kind `pi.live`, version 1, latest, fresh in forks; a complete base whenever nothing runs.
pub static LIVE: DocToken<LiveState, Latest<Initial>> = DocToken::new("pi.live", 1, || DocDefinition {
    initial: LiveState::default,
    migrate: None,
    checkpoint_when: |value, _, _| idle(value),
});

/// Whether no generation and no tool runs, by the JSON value: the predicate must not cost the document.
fn idle(value: &Json) -> bool {
    let running = |tool: &Json| tool.get("status").and_then(Json::as_str).as_deref() == Some("running");
    let tools = value.get("tools").and_then(Json::as_array);
    value.get("generation").is_none() && !tools.is_some_and(|tools| tools.iter().any(running))
}

/// What happens in a conversation now.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct LiveState {
    /// Who has the run; present exactly while the conversation is busy (section 6).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<Run>,
    /// The current generation attempt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<LiveGeneration>,
    /// The current tool round, in call order.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tools: Option<Vec<ToolSlot>>,
    /// Live compactions, in the order of their ids.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compactions: Option<Vec<CompactionStatus>>,
}

/// Who settles the run's inputs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// The generation that has the run.
    pub task_id: TaskId,
    /// The placed inputs that its end settles.
    pub inputs: Vec<SubmissionId>,
}

/// A generation attempt as it is shown.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LiveGeneration {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The committed part of the response.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub message: Option<Json>,
    /// The pause before the next attempt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry: Option<LiveRetry>,
    /// A response that comes later.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deferred: Option<LiveDeferred>,
}

/// A pause before the next attempt.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LiveRetry {
    /// When it ends.
    pub at: Millis,
    /// Why there is one.
    pub error: String,
}

/// A response that comes later.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveDeferred {
    /// When it is asked for again.
    pub poll_at: Millis,
}

/// One call of the current tool round.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolSlot {
    /// The provider's name of the call.
    pub call_id: String,
    /// The tool.
    pub name: String,
    /// Its task; absent before it started and for a tool that was not offered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub task_id: Option<TaskId>,
    /// How far it is.
    pub status: SlotStatus,
    /// Retained running output.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub output: Option<String>,
    /// Bytes that the bounds dropped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dropped_bytes: Option<u64>,
    /// Lines that the bounds dropped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub dropped_lines: Option<u64>,
    /// The last details that the tool reported.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub details: Option<Json>,
    /// The diagnostics that the tool reported.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub diagnostics: Option<Vec<ToolDiagnostic>>,
    /// The result entry, once done.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub entry: Option<EntryId>,
}

/// How far a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SlotStatus {
    /// Not started.
    Pending,
    /// Executing.
    Running,
    /// Over.
    Done,
}

/// A remark about a call, for the model and for people (section 7.3).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ToolDiagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What it says.
    pub message: String,
    /// What it is, as a stable word.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub code: Option<String>,
}

/// How bad a diagnostic is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Not as it should be.
    Warn,
    /// Failed.
    Error,
}

impl Severity {
    /// The word that the model sees.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A live compaction (section 8.7).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionStatus {
    /// Its task.
    pub task_id: TaskId,
    /// Why it was started.
    pub reason: CompactionReason,
    /// A generation waits for it.
    pub blocking: bool,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The pause before the next attempt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry: Option<LiveRetry>,
}
