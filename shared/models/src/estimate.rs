//! Token estimates: 3.5 UTF-16 units of text are a token.

use std::borrow::Borrow;

use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, SystemMessage, TextOrBlocks, Usage, UserBlock};
use serde::{Deserialize, Serialize};

use crate::js;
use crate::transcript::get_system_message_text;

/// UTF-16 units that an image counts for.
const IMAGE_UNITS: usize = 4800;

/// How full a context is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextEstimate {
    /// All tokens: the two below together.
    pub tokens: u64,
    /// Tokens that a provider reported, up to the message that reports them.
    pub usage_tokens: u64,
    /// Estimated tokens of the messages after it.
    pub trailing_tokens: u64,
    /// The index of the message that reports them; `None` when none can be trusted.
    pub last_usage_index: Option<usize>,
}

/// Tokens of a text.
#[must_use]
pub fn estimate_text_tokens(text: &str) -> u64 {
    tokens_of(js::utf16_len(text))
}

#[expect(clippy::cast_precision_loss, reason = "texts are far below 2^53 units")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and not negative")]
fn tokens_of(units: usize) -> u64 {
    (units as f64 / 3.5).ceil() as u64
}

/// Tokens of a message. Thinking counts, signatures do not; a system message counts its text and both tool lists.
#[must_use]
pub fn estimate_message_tokens(message: &Message) -> u64 {
    match message {
        Message::System(message) => system_tokens(message),
        Message::User(message) => match &message.content {
            TextOrBlocks::Text(text) => estimate_text_tokens(text),
            TextOrBlocks::Blocks(blocks) => blocks_tokens(blocks),
        },
        Message::Assistant(message) => tokens_of(message.content.iter().map(assistant_units).sum()),
        Message::ToolResult(message) => blocks_tokens(&message.content),
    }
}

fn blocks_tokens(blocks: &[UserBlock]) -> u64 {
    tokens_of(
        blocks
            .iter()
            .map(|block| match block {
                UserBlock::Text(text) => js::utf16_len(&text.text),
                UserBlock::Image(_) => IMAGE_UNITS,
            })
            .sum(),
    )
}

fn assistant_units(block: &AssistantBlock) -> usize {
    match block {
        AssistantBlock::Text(text) => js::utf16_len(&text.text),
        AssistantBlock::Thinking(thinking) => js::utf16_len(&thinking.thinking),
        AssistantBlock::ToolCall(call) => js::utf16_len(&call.name) + js::stringify_len(&call.arguments),
    }
}

fn system_tokens(message: &SystemMessage) -> u64 {
    estimate_text_tokens(&get_system_message_text(message))
        + list_tokens(message.tools_added.as_deref())
        + list_tokens(message.tools_removed.as_deref())
}

/// Tokens of the JSON text of a list; an empty one counts nothing.
fn list_tokens<T: Serialize>(list: Option<&[T]>) -> u64 {
    match list {
        // A declaration that nests too deeply for a JSON value cannot be sent either, so it counts nothing.
        Some(list) if !list.is_empty() => Json::from_serde(list).map_or(0, |json| tokens_of(js::stringify_len(&json))),
        _ => 0,
    }
}

/// Tokens of the context that a usage speaks of: its total, or its parts together where a provider gives no total.
#[must_use]
pub fn calculate_context_tokens(usage: &Usage) -> u64 {
    if usage.total_tokens != 0 {
        return usage.total_tokens;
    }
    [usage.output, usage.cache_read, usage.cache_write].into_iter().fold(usage.input, u64::saturating_add)
}

/// Tokens of a transcript: what the last trustworthy answer reports, and the estimates of what follows it.
///
/// An answer is trusted when it did not fail, reports tokens, and is no older than every message before it: a message
/// that was placed before it but made later was not part of its request.
#[must_use]
pub fn estimate_context_tokens<M: Borrow<Message>>(messages: &[M]) -> ContextEstimate {
    let mut newest = Millis(i64::MIN);
    let mut last = None;
    for (index, message) in messages.iter().enumerate() {
        let message = message.borrow();
        if let Message::Assistant(answer) = message
            && let Some(tokens) = reported(answer)
            && answer.timestamp >= newest
        {
            last = Some((index, tokens));
        }
        newest = newest.max(timestamp(message));
    }
    let after = last.map_or(0, |(index, _)| index + 1);
    let trailing_tokens =
        messages[after..].iter().fold(0, |sum: u64, message| sum.saturating_add(estimate_message_tokens(message.borrow())));
    let usage_tokens = last.map_or(0, |(_, tokens)| tokens);
    let last_usage_index = last.map(|(index, _)| index);
    ContextEstimate { tokens: usage_tokens.saturating_add(trailing_tokens), usage_tokens, trailing_tokens, last_usage_index }
}

fn reported(answer: &AssistantMessage) -> Option<u64> {
    let failed = matches!(answer.stop_reason, StopReason::Error | StopReason::Aborted);
    let tokens = calculate_context_tokens(&answer.usage);
    (!failed && tokens > 0).then_some(tokens)
}

fn timestamp(message: &Message) -> Millis {
    match message {
        Message::System(message) => message.timestamp,
        Message::User(message) => message.timestamp,
        Message::Assistant(message) => message.timestamp,
        Message::ToolResult(message) => message.timestamp,
    }
}
