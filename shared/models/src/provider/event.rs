//! The events of a stream.

use picofleet_delta::Json;
use picofleet_session::message::{AssistantMessage, StopReason, ToolCall};

/// What happens while an answer comes in.
///
/// Blocks are named by their index in the content of the answer; they may interleave, and on a failed stream an open one
/// may get no end. Events carry what is new and never the answer so far: [`super::Partial`] puts it together.
#[derive(Clone, PartialEq, Debug)]
pub enum StreamEvent {
    /// The request was accepted: what is known of the answer.
    Start {
        /// The answer with no content.
        message: Box<AssistantMessage>,
    },
    /// A text begins.
    TextStart {
        /// Its block.
        index: usize,
    },
    /// More of a text.
    TextDelta {
        /// Its block.
        index: usize,
        /// What follows.
        delta: String,
    },
    /// A text is complete.
    TextEnd {
        /// Its block.
        index: usize,
        /// All of it.
        content: String,
    },
    /// A thought begins.
    ThinkingStart {
        /// Its block.
        index: usize,
    },
    /// More of a thought.
    ThinkingDelta {
        /// Its block.
        index: usize,
        /// What follows.
        delta: String,
    },
    /// A thought is complete.
    ThinkingEnd {
        /// Its block.
        index: usize,
        /// All of it.
        content: String,
    },
    /// A tool call begins.
    ToolCallStart {
        /// Its block.
        index: usize,
        /// Its id; `""` when the provider has not told yet.
        id: String,
        /// Its tool; `""` when the provider has not told yet.
        name: String,
    },
    /// More of the argument text of a call.
    ToolCallDelta {
        /// Its block.
        index: usize,
        /// What follows.
        delta: String,
    },
    /// A tool call is complete.
    ToolCallEnd {
        /// Its block.
        index: usize,
        /// The call.
        tool_call: Box<ToolCall>,
    },
    /// The end of an answer that did not fail.
    Done {
        /// The answer; it stopped by itself, at its length, for tools, or to be fetched later.
        message: Box<AssistantMessage>,
    },
    /// The end of one that did.
    Error {
        /// The answer with what came in; its stop reason is `error` or `aborted`.
        message: Box<AssistantMessage>,
    },
}

impl StreamEvent {
    /// Its name on the wire of pi-ai.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "start",
            Self::TextStart { .. } => "text_start",
            Self::TextDelta { .. } => "text_delta",
            Self::TextEnd { .. } => "text_end",
            Self::ThinkingStart { .. } => "thinking_start",
            Self::ThinkingDelta { .. } => "thinking_delta",
            Self::ThinkingEnd { .. } => "thinking_end",
            Self::ToolCallStart { .. } => "toolcall_start",
            Self::ToolCallDelta { .. } => "toolcall_delta",
            Self::ToolCallEnd { .. } => "toolcall_end",
            Self::Done { .. } => "done",
            Self::Error { .. } => "error",
        }
    }

    /// The final message, if the event is terminal.
    #[must_use]
    pub fn final_message(&self) -> Option<&AssistantMessage> {
        match self {
            Self::Done { message } | Self::Error { message } => Some(message),
            _ => None,
        }
    }

    /// The terminal event of a message.
    #[must_use]
    pub fn terminal(message: AssistantMessage) -> Self {
        let message = Box::new(message);
        match message.stop_reason {
            StopReason::Error | StopReason::Aborted => Self::Error { message },
            _ => Self::Done { message },
        }
    }

    /// Its short form, as the vectors have it: `[name]`, `[name, index]`, `[name, index, text or call]`, `[name, reason]`.
    #[must_use]
    pub fn summary(&self) -> Json {
        let with = |index: &usize, what: Json| Json::array([Json::from(self.name()), Json::from(*index), what]);
        match self {
            Self::Start { .. } => Json::array([self.name()]),
            Self::TextStart { index } | Self::ThinkingStart { index } | Self::ToolCallStart { index, .. } => {
                Json::array([Json::from(self.name()), Json::from(*index)])
            }
            Self::TextDelta { index, delta } | Self::ThinkingDelta { index, delta } | Self::ToolCallDelta { index, delta } => {
                with(index, Json::from(delta))
            }
            Self::TextEnd { index, content } | Self::ThinkingEnd { index, content } => with(index, Json::from(content)),
            Self::ToolCallEnd { index, tool_call } => with(index, Json::from_serde(tool_call).unwrap_or_default()),
            Self::Done { message } | Self::Error { message } => {
                Json::array([Json::from(self.name()), Json::from_serde(&message.stop_reason).unwrap_or_default()])
            }
        }
    }
}
