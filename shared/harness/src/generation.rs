//! The generation task, line half (section 8.3): its checkpoints and decisions. What a worker computes before is in the worker half.

mod apply;
mod prepared;
mod responded;
mod rounds;

use picofleet_session::message::{AssistantMessage, DeferredHandle, SystemMessage, UserInput};
use picofleet_session::{EntryId, Json, Millis, Op, TaskId};
use serde::{Deserialize, Serialize};

use crate::config::{ConversationConfig, ModelRef, ToolExecution};

pub use apply::apply;
pub(crate) use apply::{failed, salvage};
pub(crate) use rounds::calls;

/// The version of [`Decision`]; a line reads this one and the one before.
pub const DECISION_VERSION: u32 = 1;

/// Where a generation is (section 8.3).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum Checkpoint {
    /// It plans the prompt and pins the request.
    Prepare {
        /// Which attempt, from 1.
        attempt: u32,
        /// The compaction that it waited for; it starts no other one.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        compacted: Option<TaskId>,
        /// What the provider said when the request did not fit, where that is why it waited: looked at once, when it goes on.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        overflow: Option<String>,
    },
    /// It asks the model.
    Request(Box<Pinned>),
    /// It waits for its next attempt.
    Retry {
        /// The attempt that failed.
        attempt: u32,
        /// The compaction that the generation waited for.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        compacted: Option<TaskId>,
        /// When the next one begins.
        until: Millis,
    },
    /// It waits for a deferred response.
    #[serde(rename_all = "camelCase")]
    Poll {
        /// What the request was pinned to.
        #[serde(flatten)]
        pinned: Box<Pinned>,
        /// The provider's handle.
        handle: Box<DeferredHandle>,
        /// When it asks again.
        poll_at: Millis,
    },
    /// It waits for its tools.
    Tools(Round),
}

/// What a request is pinned to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pinned {
    /// Which attempt, from 1.
    pub attempt: u32,
    /// The compaction that the generation waited for.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compacted: Option<TaskId>,
    /// The model.
    pub model: ModelRef,
    /// How much it thinks.
    pub thinking_level: String,
    /// Options of the request.
    pub stream_options: Json,
    /// How its calls run.
    pub tool_execution: ToolExecution,
    /// The newest entry that it includes.
    pub cutoff: EntryId,
}

/// A tool round.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Round {
    /// The answer that calls.
    pub assistant: EntryId,
    /// The tasks that were started.
    pub tools: Vec<TaskId>,
    /// Calls of a sequential round that were not started, in call order.
    pub pending: Vec<String>,
}

/// The first checkpoint of a generation.
#[must_use]
pub fn initial_checkpoint() -> Json {
    Json::object([("phase", Json::from("prepare")), ("attempt", Json::from(1))])
}

/// What a generation's worker decided. A value: it holds no closure and no storage write.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Decision {
    /// The request is planned.
    Prepared(Box<Prepare>),
    /// The context is too full for a request: it waits for a compaction.
    Block {
        /// The tail that was looked at; another one makes the decision stale.
        tail: Option<EntryId>,
        /// The configuration that was looked at; another one makes the decision stale.
        config: Box<ConversationConfig>,
    },
    /// The run can't go on: `no_model`, or `model_error` with its text.
    Fail {
        /// Why, as a stable word.
        reason: String,
        /// More about it.
        detail: Option<Json>,
    },
    /// A request begins again: what an earlier attempt left becomes an aborted entry.
    Salvage,
    /// A part of the response, as operations relative to `generation.message`.
    Partial {
        /// The operations.
        ops: Vec<Op>,
    },
    /// The response is complete.
    Responded(Box<Response>),
    /// The pause before the next attempt is over.
    Due,
    /// The next call of a sequential round may start.
    NextCall,
    /// All tools of the round are over.
    RoundDone,
    /// The abort handler.
    Aborted,
}

/// A planned request.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Prepare {
    /// The tail that the plan was made on; another one makes the decision stale.
    pub tail: Option<EntryId>,
    /// The configuration that the plan was made with and that the request is pinned to; another one makes the decision stale.
    pub config: ConversationConfig,
    /// The system messages to append, with the retained system entries that each hides.
    pub system: Vec<PlannedSystem>,
    /// The context is so full that a compaction is to run beside the request, and there is something to compact. Only where none runs.
    #[serde(default)]
    pub background: bool,
}

/// A system message to append.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PlannedSystem {
    /// The message; the line sets its time.
    pub message: SystemMessage,
    /// Entries whose messages it hides.
    pub omits: Vec<EntryId>,
}

/// A complete response with what the line can't know by itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Response {
    /// The message.
    pub message: AssistantMessage,
    /// For each call, in order: whether its request offered the tool, and whether the tool wants to run alone.
    pub calls: Vec<CallFacts>,
    /// What the run goes on with instead of ending, as a hook says.
    pub then: Option<UserInput>,
    /// An error that may pass: another attempt can help.
    pub retryable: bool,
    /// An error that says that the request did not fit.
    #[serde(default)]
    pub overflow: Option<Overflow>,
}

/// A request that did not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Overflow {
    /// The context has something to compact.
    pub cut: bool,
}

/// What a worker knows about one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CallFacts {
    /// The request offered the tool.
    pub offered: bool,
    /// The tool wants to run alone.
    pub sequential: bool,
}

/// What a decision does with its task.
pub type Then = crate::task::Then<Checkpoint>;
