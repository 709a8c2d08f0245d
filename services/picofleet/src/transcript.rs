//! Entries as lines for people.

use picofleet_session::EntryRecord;
use picofleet_session::message::{AssistantBlock, Message};

/// An entry as one line: who said it, and what. `None` for an entry that only the model needs, such as a change of the prompt, and for
/// one that no model sees.
#[must_use]
pub fn transcript_line(entry: &EntryRecord) -> Option<String> {
    let first = entry.model.as_ref()?.first()?;
    let who = match first {
        Message::System(_) => return None,
        Message::User(_) => "user",
        Message::Assistant(_) => "model",
        Message::ToolResult(result) => &result.tool_name,
    };
    let mut said = vec![first.text().split_whitespace().collect::<Vec<_>>().join(" ")];
    if let Message::Assistant(answer) = first {
        said.extend(answer.content.iter().filter_map(|block| match block {
            AssistantBlock::ToolCall(call) => Some(format!("[calls {}]", call.name)),
            AssistantBlock::Text(_) | AssistantBlock::Thinking(_) => None,
        }));
    }
    said.retain(|part| !part.is_empty());
    Some(format!("{:<7} {}", format!("{who}:"), said.join(" ")))
}
