//! The tool task, line half (section 8.4): its checkpoints, its decisions, and the results that the harness writes itself.

mod apply;
mod results;

use picofleet_session::message::{Usage, UserBlock};
use picofleet_session::{EntryId, Json, Op};
use serde::{Deserialize, Serialize};

use crate::live::ToolDiagnostic;

pub use apply::{Then, apply};
pub(crate) use results::append_error_result;
pub use results::{ToolCode, diagnostics_block};

/// The version of [`Decision`].
pub const DECISION_VERSION: u32 = 1;

/// What a tool task works on: the call is read from the answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Input {
    /// The answer that calls.
    pub assistant: EntryId,
    /// The provider's name of the call.
    pub call_id: String,
}

/// Where a tool task is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum Checkpoint {
    /// It resolves, validates and asks hooks.
    Call,
    /// It may have executed.
    Execute {
        /// The final arguments.
        arguments: Json,
        /// What the tool allowed when it was started.
        replay: Replay,
    },
}

/// Whether a tool may execute again after a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Replay {
    /// It may.
    Safe,
    /// It must not.
    #[default]
    Unsafe,
}

/// What a result asks of the run (section 7.3).
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Control {
    /// Tools to offer from the next request on.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub add_tools: Option<Vec<String>>,
    /// End the run, if every result of the round asks for it; `false` asks for nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub terminate: Option<bool>,
    /// End the run and begin a new context with this text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub handoff: Option<String>,
}

/// What a tool's worker decided.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Decision {
    /// It is about to execute.
    Intent {
        /// The final arguments.
        arguments: Json,
        /// What the tool allows.
        replay: Replay,
    },
    /// Running output, details and diagnostics, as operations relative to the slot.
    Progress {
        /// The operations.
        ops: Vec<Op>,
    },
    /// It executed.
    Settled(Box<Settled>),
    /// The harness answers for it: not available, invalid arguments, blocked.
    Refused {
        /// Why.
        code: ToolCode,
        /// In words.
        text: String,
    },
    /// It may have executed before a crash and must not again.
    Interrupted,
    /// The abort handler.
    Aborted,
}

/// A bounded result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settled {
    /// What the model sees, without the diagnostics.
    pub content: Vec<UserBlock>,
    /// It failed.
    pub is_error: bool,
    /// What programs see.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub details: Option<Json>,
    /// All diagnostics, in their order.
    pub diagnostics: Vec<ToolDiagnostic>,
    /// What the tool spent itself.
    pub usage: Option<Usage>,
    /// What it asks of the run.
    pub control: Option<Control>,
    /// It threw: the task ends failed, which also stops what it owns.
    pub threw: bool,
    /// How long it took, in milliseconds.
    pub duration_ms: Option<f64>,
}
