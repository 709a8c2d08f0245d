//! The model's view of a transcript (section 2.1): pure functions of its entries.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use picofleet_delta::Json;

use crate::message::{AssistantBlock, AssistantMessage, Message, StopReason, TextContent, ToolResultMessage, UserBlock};
use crate::{EditAction, EntryId, EntryRecord, Millis};

/// The active transcript and what a model sees of it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ContextView {
    /// The newest entry with a head, where there is one.
    pub head: Option<Arc<EntryRecord>>,
    /// The head, then the other entries of the active range, oldest first.
    pub entries: Vec<Arc<EntryRecord>>,
    /// For each entry its messages after edits and rule 9, before rules 7 and 8.
    pub contributions: Contributions,
    /// What a model sees.
    pub messages: Vec<Message>,
}

/// What each of some entries contributes, in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Contributions {
    messages: Vec<Message>,
    /// For each entry where its messages end.
    ends: Vec<usize>,
}

impl Contributions {
    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// What the entries of a range contribute together. Nothing where there are no such entries.
    #[must_use]
    pub fn of(&self, entries: Range<usize>) -> &[Message] {
        let before = |entry: usize| entry.checked_sub(1).map_or(0, |last| self.ends.get(last).copied().unwrap_or(self.messages.len()));
        self.messages.get(before(entries.start)..before(entries.end)).unwrap_or_default()
    }

    /// What each entry contributes.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &[Message]> {
        (0..self.len()).map(|entry| self.of(entry..entry + 1))
    }
}

impl<M: IntoIterator<Item = Message>> FromIterator<M> for Contributions {
    fn from_iter<I: IntoIterator<Item = M>>(entries: I) -> Self {
        let mut all = Self::default();
        for messages in entries {
            all.messages.extend(messages);
            all.ends.push(all.messages.len());
        }
        all
    }
}

/// What a synthesized tool result says to the model.
const MISSING_RESULT: &str = "No result: the tool call was interrupted or its result is not part of this conversation.";

/// Derives the view from the entries of the active range, oldest first, and the marker that begins it (rules 4 to 9).
///
/// `range` holds every visible entry from the marker's `head` to the cutoff, the marker included.
#[must_use]
pub fn derive_context<E: Into<Arc<EntryRecord>>>(head: Option<E>, range: impl IntoIterator<Item = E>) -> ContextView {
    let (head, range): (Option<Arc<EntryRecord>>, Vec<Arc<EntryRecord>>) =
        (head.map(Into::into), range.into_iter().map(Into::into).collect());
    let edits = newest_edits(&range);
    let entries: Vec<Arc<EntryRecord>> = match &head {
        Some(marker) => std::iter::once(Arc::clone(marker)).chain(range.iter().filter(|entry| entry.head.is_none()).cloned()).collect(),
        None => range,
    };
    let contributions: Contributions = entries.iter().map(|entry| contribution(entry, &edits)).collect();
    let messages = order_messages(&contributions.messages);
    ContextView { head, entries, contributions, messages }
}

/// The newest edit of each target (rule 4). Entries come oldest first, so a later one takes the place of an earlier one.
fn newest_edits(range: &[Arc<EntryRecord>]) -> HashMap<EntryId, EditAction> {
    let edits = range.iter().flat_map(|entry| entry.edits.iter().flatten());
    edits.map(|edit| (edit.target, edit.action.clone())).collect()
}

/// What an entry contributes (rules 4 and 9).
fn contribution<'a>(entry: &'a EntryRecord, edits: &'a HashMap<EntryId, EditAction>) -> impl Iterator<Item = Message> + 'a {
    let messages = match edits.get(&entry.id) {
        Some(EditAction::Omit) => &[],
        Some(EditAction::Replace { messages }) => messages.as_slice(),
        None => entry.model.as_deref().unwrap_or_default(),
    };
    messages.iter().filter(|message| sendable(message)).cloned()
}

/// Whether a message may be part of a request (rule 9).
fn sendable(message: &Message) -> bool {
    match message {
        Message::Assistant(message) => !matches!(message.stop_reason, StopReason::Aborted | StopReason::Error | StopReason::Deferred),
        Message::System(_) | Message::User(_) | Message::ToolResult(_) => true,
    }
}

/// Puts each assistant's results right behind it, in the order of its calls, and makes those that are missing (rules 7 and 8).
///
/// Messages are the contributions of entries, or of a part of them.
#[must_use]
pub fn order_messages<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Vec<Message> {
    let mut ordered = Vec::new();
    let mut turn = Turn::default();
    for message in messages {
        match message {
            Message::Assistant(assistant) => {
                turn.finish(&mut ordered);
                turn = Turn { assistant: Some(assistant), ..Turn::default() };
            }
            Message::ToolResult(result) => turn.results.push(result),
            Message::System(_) | Message::User(_) => turn.others.push(message),
        }
    }
    turn.finish(&mut ordered);
    ordered
}

/// An assistant message with all that follows it before the next one.
#[derive(Default)]
struct Turn<'a> {
    assistant: Option<&'a Arc<AssistantMessage>>,
    results: Vec<&'a Arc<ToolResultMessage>>,
    others: Vec<&'a Message>,
}

impl Turn<'_> {
    fn finish(&mut self, ordered: &mut Vec<Message>) {
        if let Some(assistant) = self.assistant {
            ordered.push(Message::Assistant(Arc::clone(assistant)));
            for block in &assistant.content {
                let AssistantBlock::ToolCall(call) = block else { continue };
                let result = self.results.iter().find(|result| result.tool_call_id == call.id);
                ordered.push(match result {
                    Some(result) => Message::ToolResult(Arc::clone(result)),
                    None => missing_result(&call.id, &call.name, assistant.timestamp).into(),
                });
            }
        }
        ordered.extend(self.others.drain(..).cloned());
    }
}

/// The error result that stands for one that is not there (rule 8).
fn missing_result(call: &str, tool: &str, timestamp: Millis) -> ToolResultMessage {
    ToolResultMessage {
        tool_call_id: call.to_owned(),
        tool_name: tool.to_owned(),
        content: vec![UserBlock::Text(TextContent::new(MISSING_RESULT))],
        details: Some(Json::object([("reason", Json::from("missing_result"))])),
        usage: None,
        nested_calls: None,
        is_error: true,
        timestamp,
        duration_ms: None,
    }
}

#[cfg(test)]
mod tests;
