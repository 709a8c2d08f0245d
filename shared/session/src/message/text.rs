//! What messages and entries say in words.

use super::{AssistantBlock, Message, SystemBlock, TextOrBlocks, UserBlock};
use crate::EntryRecord;

impl Message {
    /// Its text: that of its text blocks, each on a line of its own. Thinking, calls, images and sections are no text; a message without any
    /// has an empty one.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::System(message) => content(&message.content, |SystemBlock::Text(text)| Some(text.text.as_str())),
            Self::User(message) => content(&message.content, user),
            Self::Assistant(message) => joined(&message.content, assistant),
            Self::ToolResult(message) => joined(&message.content, user),
        }
    }
}

impl EntryRecord {
    /// The text of its first message, as [`Message::text`]: what was said where the entry is a user's or a model's. Empty where it has no
    /// message.
    #[must_use]
    pub fn text(&self) -> String {
        self.model.iter().flatten().next().map(Message::text).unwrap_or_default()
    }
}

fn content<B>(content: &TextOrBlocks<B>, text: fn(&B) -> Option<&str>) -> String {
    match content {
        TextOrBlocks::Text(text) => text.clone(),
        TextOrBlocks::Blocks(blocks) => joined(blocks, text),
    }
}

fn joined<B>(blocks: &[B], text: fn(&B) -> Option<&str>) -> String {
    blocks.iter().filter_map(text).collect::<Vec<_>>().join("\n")
}

fn user(block: &UserBlock) -> Option<&str> {
    if let UserBlock::Text(text) = block { Some(&text.text) } else { None }
}

fn assistant(block: &AssistantBlock) -> Option<&str> {
    if let AssistantBlock::Text(text) = block { Some(&text.text) } else { None }
}

#[cfg(test)]
mod tests {
    use picofleet_delta::Json;

    use super::*;

    #[test]
    fn the_text_of_a_message_is_that_of_its_text_blocks() {
        for (message, text) in [
            (r#"{"role":"user","content":"hello","timestamp":1}"#, "hello"),
            (r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"timestamp":1}"#, "a\nb"),
            (r#"{"role":"system","content":[{"type":"text","text":"be brief"}],"sections":{"x":"y"},"timestamp":1}"#, "be brief"),
            (r#"{"role":"user","content":[],"timestamp":1}"#, ""),
        ] {
            let message: Message = Json::parse(message.as_bytes()).unwrap().to().unwrap();
            assert_eq!(message.text(), text);
        }
    }
}
