//! The script: what is answered, and when.

use picofleet_delta::{Json, JsonError};
use picofleet_session::message::{Message, StopReason, TextOrBlocks, Usage, UserBlock};
use serde::{Deserialize, Serialize};

/// What the provider plays. As TOML:
///
/// ```toml
/// [[turns]]                          # answers the first request of a conversation
/// [[turns.blocks]]
/// type = "text"
/// chunks = ["Let me ", "look."]
/// [[turns.blocks]]
/// type = "toolCall"
/// name = "read"
/// arguments = { path = "a.txt" }
///
/// [[turns]]                          # answers whenever the last user text has the word
/// when = { user = "fail" }
/// error = "503 overloaded"
/// times = 2                          # two requests fail; the third is answered
/// blocks = [{ type = "text", chunks = ["at last"] }]
/// ```
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Script {
    /// The turns. The first one that matches a request answers it.
    pub turns: Vec<Turn>,
    /// What deferred handles say about the time between fetches, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub poll_after_ms: Option<u64>,
}

/// One answer.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Turn {
    /// Which requests it answers. Without it, the one whose number is this turn's place among those without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// What it says, in order.
    pub blocks: Vec<Block>,
    /// What the request fails with, after the blocks. An empty list of blocks makes it fail at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How many requests fail with `error`, at once and without the blocks; after them the blocks are the answer. Without it
    /// every request fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub times: Option<u32>,
    /// Why it stops; else `toolUse` with a call and `stop` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// Its usage; else estimates. The price is computed from the model where it is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Fetches that find a deferred answer pending.
    pub pending_fetches: u32,
    /// The stream ends without a terminal event, as no provider may: for tests of what reads streams.
    pub cut: bool,
}

/// Which requests a turn answers; all that is set must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct When {
    /// The number of the request: how many answers of models the context has. 0 for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<usize>,
    /// What the last user message has in its text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// A step of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Block {
    /// Text.
    Text {
        /// Its deltas.
        chunks: Vec<String>,
    },
    /// Thinking.
    Thinking {
        /// Its deltas.
        chunks: Vec<String>,
        /// What a provider would need to have it back.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        signature: Option<String>,
    },
    /// A tool call.
    ToolCall {
        /// Its id; else one that the number of the request and of the block give.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        id: Option<String>,
        /// The tool.
        name: String,
        /// Its arguments, in one delta.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        arguments: Option<Json>,
        /// Its argument text in deltas, which need not be JSON; instead of `arguments`.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        chunks: Option<Vec<String>>,
    },
    /// Nothing, for a time.
    Delay {
        /// How long, in milliseconds.
        ms: u64,
    },
}

/// A script could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It is no TOML, or not of this form.
    #[error("read script as TOML; see the documentation of `Script` for its form")]
    Toml(#[source] toml::de::Error),
    /// It is no JSON, or not of this form.
    #[error("read script as JSON; see the documentation of `Script` for its form")]
    Json(#[source] JsonError),
}

impl Script {
    /// Reads a script in TOML.
    ///
    /// # Errors
    ///
    /// The text is no TOML, or not of this form; the source names the line.
    pub fn from_toml(text: &str) -> Result<Self, ScriptError> {
        toml::from_str(text).map_err(ScriptError::Toml)
    }

    /// Reads a script in JSON.
    ///
    /// # Errors
    ///
    /// The text is no JSON, or not of this form.
    pub fn from_json(text: &str) -> Result<Self, ScriptError> {
        text.parse::<Json>().and_then(|json| json.to()).map_err(ScriptError::Json)
    }

    /// The turn that answers a transcript, with its place.
    #[must_use]
    pub fn turn(&self, messages: &[Message]) -> Option<(usize, &Turn)> {
        let number = request_number(messages);
        let user = last_user_text(messages);
        let mut place = 0;
        self.turns.iter().enumerate().find(|(_, turn)| match &turn.when {
            Some(when) => {
                when.turn.is_none_or(|turn| turn == number)
                    && when.user.as_ref().is_none_or(|part| user.as_ref().is_some_and(|text| text.contains(part)))
            }
            None => {
                place += 1;
                place - 1 == number
            }
        })
    }
}

/// How many answers a transcript has that did not fail.
pub(super) fn request_number(messages: &[Message]) -> usize {
    let failed = |reason| matches!(reason, StopReason::Error | StopReason::Aborted);
    messages.iter().filter(|message| matches!(message, Message::Assistant(answer) if !failed(answer.stop_reason))).count()
}

fn last_user_text(messages: &[Message]) -> Option<String> {
    messages.iter().rev().find_map(|message| match message {
        Message::User(user) => Some(match &user.content {
            TextOrBlocks::Text(text) => text.clone(),
            TextOrBlocks::Blocks(blocks) => {
                let texts = blocks.iter().filter_map(|block| match block {
                    UserBlock::Text(text) => Some(text.text.as_str()),
                    UserBlock::Image(_) => None,
                });
                texts.collect::<Vec<_>>().join("\n")
            }
        }),
        _ => None,
    })
}
