//! Agent events (section 9.4): what a commit means to somebody who shows a conversation, as a pure function of the mounts around it.
//!
//! The events are experimental and may change. They name no document: every one applies to the [`EventSnapshot`] and the events before it.
//!
//! **Architecture invariants.** Nothing here sees a session or a clock. An event tells what is committed, and never what is about to be.

mod derive;
mod message;
mod tools;

use std::sync::Arc;

use picofleet_session::message::Usage;
use picofleet_session::{EntryRecord, Json, Millis, Segment, SubmissionId, SubmissionRecord, TaskId};
use serde::{Deserialize, Serialize};

use crate::compaction::CompactionReason;
use crate::config::ConversationConfig;
use crate::live::{CompactionStatus, LiveGeneration, ToolDiagnostic, ToolSlot};
use crate::usage::UsageState;

pub use derive::{events, snapshot};

/// Something that happened in a conversation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AgentEvent {
    /// Takes the place of everything that came before.
    Snapshot(Box<EventSnapshot>),
    /// A run began, or took the place of another one.
    RunStart {
        /// The inputs that its end settles.
        inputs: Vec<SubmissionId>,
    },
    /// A run is over; how it ended for its inputs their `submission` events tell.
    RunEnd {
        /// The inputs that it had.
        inputs: Vec<SubmissionId>,
    },
    /// A generation was created.
    TurnStart,
    /// The outcome of a generation is decided.
    TurnEnd,
    /// A message begins: the first committed part of a response, or a whole message right before its `message_end`.
    MessageStart {
        /// The message, as far as it is known.
        message: Json,
    },
    /// More of the message that is coming in.
    MessageUpdate {
        /// What it cost so far.
        usage: Usage,
        /// What changed, in order.
        changes: Vec<MessageChange>,
    },
    /// An entry with messages.
    MessageEnd {
        /// The entry.
        entry: Arc<EntryRecord>,
    },
    /// A tool is about to execute.
    ToolExecutionStart {
        /// The provider's name of the call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// The final arguments.
        args: Json,
    },
    /// A tool that executes says something.
    ToolExecutionUpdate {
        /// The provider's name of the call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// What happened to the retained output.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        output: Option<OutputChange>,
        /// The details as they are now, where they changed; `null` where they are gone.
        #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
        details: Option<Json>,
        /// The diagnostics as they are now, where they changed.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        diagnostics: Option<Vec<ToolDiagnostic>>,
    },
    /// A call is over.
    ToolExecutionEnd {
        /// The provider's name of the call.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// Its result; absent where the tool's task faulted or was orphaned.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        entry: Option<Arc<EntryRecord>>,
    },
    /// The inbox changed.
    InboxUpdate {
        /// What waits now.
        items: Vec<Queued>,
    },
    /// A submission is new or changed its status.
    Submission {
        /// The submission.
        record: Arc<SubmissionRecord>,
    },
    /// An attempt failed, and another one follows.
    AutoRetryStart {
        /// The attempt that failed, from 1.
        attempt: u32,
        /// When the next one begins.
        at: Millis,
        /// What failed.
        error_message: String,
    },
    /// The pause before another attempt is over.
    AutoRetryEnd {
        /// The attempt that had failed.
        attempt: u32,
    },
    /// The response comes later.
    DeferredPoll {
        /// When it is asked for again.
        poll_at: Millis,
    },
    /// An entry without messages.
    EntryAppended {
        /// The entry.
        entry: Arc<EntryRecord>,
    },
    /// The configuration changed.
    ConfigChanged {
        /// As it is now.
        config: ConversationConfig,
    },
    /// Something was spent.
    UsageChanged {
        /// What the conversation spent so far.
        usage: UsageState,
    },
    /// A task of the conversation ended faulted or orphaned.
    TaskFailed {
        /// The task.
        task_id: TaskId,
        /// Its kind.
        kind: String,
        /// What happened.
        message: String,
    },
    /// A compaction began.
    CompactionStart {
        /// Its task.
        task_id: TaskId,
        /// Why.
        reason: CompactionReason,
        /// A generation waits for it.
        blocking: bool,
    },
    /// A compaction is over; whether it made a summary its task's outcome tells.
    CompactionEnd {
        /// Its task.
        task_id: TaskId,
        /// Why it was.
        reason: CompactionReason,
    },
}

/// What an observer begins with.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventSnapshot {
    /// The active transcript: an array of entry records.
    pub entries: Json,
    /// Who is being answered.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub run: Option<RunInputs>,
    /// The current attempt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub generation: Option<LiveGeneration>,
    /// The current tool round, in call order.
    pub tools: Vec<ToolSlot>,
    /// The live compactions.
    pub compactions: Vec<CompactionStatus>,
    /// What waits.
    pub inbox: Vec<Queued>,
    /// The configuration.
    pub config: ConversationConfig,
    /// What was spent.
    pub usage: UsageState,
}

impl EventSnapshot {
    /// The active transcript as records; costs its size.
    ///
    /// # Errors
    /// Why one is none: the two sides are not of one version.
    pub fn entries(&self) -> Result<Vec<EntryRecord>, String> {
        self.entries.to().map_err(|error| error.to_string())
    }
}

/// The inputs of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RunInputs {
    /// The inputs.
    pub inputs: Vec<SubmissionId>,
}

/// An item of the inbox, without what it says.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Queued {
    /// The submission.
    pub id: SubmissionId,
    /// `steer`, `followUp` or `write`.
    pub mode: String,
}

/// A change of the output that is retained of a tool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum OutputChange {
    /// It is another one.
    Set {
        /// The whole.
        set: String,
    },
    /// First something falls away at the front, then something comes at the end.
    #[serde(rename_all = "camelCase")]
    Slide {
        /// How many UTF-16 units fall away.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        trim_start: Option<usize>,
        /// What comes.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        append: Option<String>,
    },
}

/// One change of the message that is coming in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum MessageChange {
    /// A text block behind the others.
    TextStart {
        /// Its place.
        content_index: usize,
        /// The block.
        block: Json,
    },
    /// A thinking block behind the others.
    ThinkingStart {
        /// Its place.
        content_index: usize,
        /// The block.
        block: Json,
    },
    /// A tool call behind the others.
    ToolcallStart {
        /// Its place.
        content_index: usize,
        /// The block.
        block: Json,
    },
    /// More text.
    TextDelta {
        /// The block.
        content_index: usize,
        /// What comes.
        delta: String,
    },
    /// More thinking.
    ThinkingDelta {
        /// The block.
        content_index: usize,
        /// What comes.
        delta: String,
    },
    /// More of a text inside a call's arguments.
    ToolcallDelta {
        /// The block.
        content_index: usize,
        /// The text, from the arguments on.
        path: Vec<Segment>,
        /// What comes.
        delta: String,
    },
    /// A block as it is now.
    Block {
        /// Its place.
        content_index: usize,
        /// The block.
        block: Json,
    },
    /// The message as it is now.
    Message {
        /// The message.
        message: Json,
    },
}

#[cfg(test)]
mod tests;
