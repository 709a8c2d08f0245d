//! Which part of a context is compacted (section 8.7): a pure function of the view and of how much stays, and how full a context is.

use std::sync::Arc;

use picofleet_models::estimate::{calculate_context_tokens, estimate_message_tokens};
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, SystemMessage};
use picofleet_session::{ContextView, EntryId, EntryRecord, order_messages};

use crate::kinds::COMPACTED;

#[cfg(test)]
mod tests;

/// A cut through a context: what is before it is summarized, what is behind it stays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cut {
    index: usize,
}

impl Cut {
    /// The newest cut that keeps about `keep_recent_tokens`; `None` where there is nothing to compact.
    ///
    /// Tokens are estimates. The walk goes from the newest entry to the first one where the sum reaches `keep_recent_tokens`; the cut is the
    /// first candidate from there on, or the newest candidate where none follows.
    #[must_use]
    pub fn select(view: &ContextView, keep_recent_tokens: i64) -> Option<Self> {
        let begin = begin(view);
        let keep = u64::try_from(keep_recent_tokens).unwrap_or(0);
        let mut sum = 0_u64;
        let reached = (begin..view.contributions.len()).rev().find(|index| {
            sum = sum.saturating_add(tokens(view.contributions.of(*index..*index + 1)));
            sum >= keep
        })?;
        let candidate = |index: &usize| is_candidate(view, *index);
        let index = (reached..view.contributions.len()).find(candidate).or_else(|| (begin..reached).rev().find(candidate))?;
        let contributes = !view.contributions.of(begin..index).is_empty();
        contributes.then_some(Self { index })
    }

    /// Whether a summary of this can make room by itself: what came since the last summary is more than that one. A summary that shrinks
    /// little, beside a prompt that fills the window, would else be made anew before every request.
    #[must_use]
    pub fn gains(self, view: &ContextView) -> bool {
        let summary = view.head.as_ref().filter(|head| head.kind == COMPACTED.kind);
        let since = tokens(view.contributions.of(begin(view)..self.index));
        summary.is_none() || since > tokens(view.contributions.of(0..1))
    }

    /// The cut in front of an entry; `None` where the view does not have it.
    #[must_use]
    pub fn before(view: &ContextView, first_kept: EntryId) -> Option<Self> {
        let index = (begin(view)..view.entries.len()).find(|index| view.entries[*index].id == first_kept)?;
        Some(Self { index })
    }

    /// The first entry that stays.
    #[must_use]
    pub fn first_kept(self, view: &ContextView) -> Option<EntryId> {
        view.entries.get(self.index).map(|entry| entry.id)
    }

    /// The entries that are summarized: the head marker, then the others before the cut.
    #[must_use]
    pub fn entries(self, view: &ContextView) -> &[Arc<EntryRecord>] {
        &view.entries[..self.index]
    }

    /// What a model sees of them, results behind their calls.
    #[must_use]
    pub fn messages(self, view: &ContextView) -> Vec<Message> {
        order_messages(view.contributions.of(0..self.index))
    }
}

/// Where the entries behind the head marker begin.
fn begin(view: &ContextView) -> usize {
    usize::from(view.head.is_some())
}

fn tokens(messages: &[Message]) -> u64 {
    messages.iter().map(estimate_message_tokens).fold(0, u64::saturating_add)
}

/// Whether a cut in front of this entry leaves every result with its call.
fn is_candidate(view: &ContextView, index: usize) -> bool {
    match view.contributions.of(index..index + 1).first() {
        Some(Message::Assistant(_)) => true,
        Some(Message::User(_)) => !parts_results(view, index),
        _ => false,
    }
}

/// Whether results for calls of the assistant before an entry follow it, before the next assistant.
fn parts_results(view: &ContextView, index: usize) -> bool {
    let (before, behind) = (view.contributions.of(0..index), view.contributions.of(index..view.contributions.len()));
    let assistant = before.iter().rev().find_map(as_assistant);
    let Some(assistant) = assistant else { return false };
    let turn = behind.iter().take_while(|message| as_assistant(message).is_none());
    let mut results = turn.filter_map(|message| if let Message::ToolResult(result) = message { Some(&result.tool_call_id) } else { None });
    results.any(|id| assistant.content.iter().any(|block| matches!(block, AssistantBlock::ToolCall(call) if call.id == *id)))
}

fn as_assistant(message: &Message) -> Option<&AssistantMessage> {
    if let Message::Assistant(assistant) = message { Some(assistant) } else { None }
}

/// About how many tokens a request has (section 8.3): what the newest answer behind the head marker reports, and estimates of what
/// follows it and of the system messages that are planned. Without such an answer all of it is estimated.
#[must_use]
pub fn context_tokens<'a>(view: &ContextView, planned: impl IntoIterator<Item = &'a SystemMessage>) -> u64 {
    let planned = planned.into_iter().map(|message| estimate_message_tokens(&Message::from(message.clone()))).fold(0, u64::saturating_add);
    let (reported, behind) = reported(view).map_or((0, 0), |(tokens, index)| (tokens, index + 1));
    reported.saturating_add(tokens(&view.messages[behind..])).saturating_add(planned)
}

/// What the newest answer behind the head marker reports, and its place among the messages of the context.
fn reported(view: &ContextView) -> Option<(u64, usize)> {
    let marker = view.head.as_ref().map(|head| head.id);
    let by_entry = view.entries.iter().zip(view.contributions.iter());
    let answers = by_entry.flat_map(|(entry, messages)| messages.iter().filter_map(as_assistant).map(move |answer| (entry.id, answer)));
    // Ordering results moves no answer past another, so that the n-th contributed one is the n-th of the context.
    let counted = answers.enumerate().filter_map(|(number, (entry, answer))| {
        let tokens = calculate_context_tokens(&answer.usage);
        (tokens > 0 && marker.is_none_or(|marker| entry > marker)).then_some((number, tokens))
    });
    let (number, tokens) = counted.last()?;
    let index = view.messages.iter().enumerate().filter(|(_, message)| as_assistant(message).is_some()).nth(number)?.0;
    Some((tokens, index))
}
