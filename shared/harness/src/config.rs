//! The configuration document of a conversation (section 2.2). Absent fields have the defaults that the getters give.

mod check;
mod patch;

use picofleet_session::{AsOf, DocDefinition, DocToken, Json, Rewindable};
use serde::{Deserialize, Serialize};

pub use patch::{ConfigPatch, InvalidConfig};

/// Kind `pi.conversation.config`, version 1, rewindable, forked as of; a complete base on every change.
pub static CONFIG: DocToken<ConversationConfig, Rewindable<AsOf>> = DocToken::new("pi.conversation.config", 1, || DocDefinition {
    initial: ConversationConfig::default,
    migrate: None,
    checkpoint_when: |_, _, _| true,
});

/// What a conversation is configured to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationConfig {
    /// The model; without one a run ends `no_model`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<ModelRef>,
    /// How much the model thinks: `off`, `minimal`, `low`, `medium`, `high`, `xhigh`, `max`.
    pub thinking_level: String,
    /// The tools that are offered where they are registered, in this order.
    pub active_tools: Vec<String>,
    /// Forwarded to every request.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub stream_options: Option<Json>,
    /// Retries of whole attempts.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub retry: Option<RetryPolicy>,
    /// How the calls of one answer run.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tool_execution: Option<ToolExecution>,
    /// How many queued steers a boundary takes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub steering_mode: Option<QueueMode>,
    /// How many queued follow-ups a final boundary takes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub follow_up_mode: Option<QueueMode>,
    /// When contexts are compacted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compaction: Option<CompactionPolicy>,
}

impl Default for ConversationConfig {
    fn default() -> Self {
        Self {
            model: None,
            thinking_level: "off".to_owned(),
            active_tools: Vec::new(),
            stream_options: None,
            retry: None,
            tool_execution: None,
            steering_mode: None,
            follow_up_mode: None,
            compaction: None,
        }
    }
}

/// Names a model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelRef {
    /// The provider.
    pub provider: String,
    /// The provider's name of the model.
    pub model_id: String,
}

/// Retries of whole attempts (section 2.2).
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// Whether there are any.
    pub enabled: bool,
    /// Attempts after the first.
    pub max_retries: u32,
    /// The first pause, in milliseconds; it doubles.
    pub base_delay_ms: f64,
    /// The longest pause, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_agent_delay_ms: Option<f64>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { enabled: true, max_retries: 3, base_delay_ms: 2_000.0, max_agent_delay_ms: Some(60_000.0) }
    }
}

impl RetryPolicy {
    /// How long to wait behind a failed attempt, in milliseconds: the first pause doubles with each attempt, up to the longest one.
    #[must_use]
    pub fn delay_ms(&self, attempt: u32) -> i64 {
        let delay = self.base_delay_ms * 2_f64.powi(i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX));
        let delay = self.max_agent_delay_ms.map_or(delay, |most| delay.min(most));
        // A float beyond the range of i64 becomes its end, NaN becomes 0.
        delay.max(0.0) as i64
    }
}

/// When contexts are compacted (section 8.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompactionPolicy {
    /// By threshold and overflow; manual compaction does not look at it.
    pub enabled: bool,
    /// Tokens kept free for the answer.
    pub reserve_tokens: i64,
    /// About how many tokens of recent context a summary keeps verbatim.
    pub keep_recent_tokens: i64,
    /// How far below the blocking threshold background compaction starts; 0 for never.
    pub background_tokens: i64,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self { enabled: true, reserve_tokens: 16_384, keep_recent_tokens: 20_000, background_tokens: 32_768 }
    }
}

/// How the calls of one answer run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolExecution {
    /// All at once.
    #[default]
    Parallel,
    /// One after the other.
    Sequential,
}

/// How many queued items of one mode a boundary takes (section 6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueMode {
    /// Every one.
    All,
    /// The first.
    #[default]
    OneAtATime,
}
