//! Stream events as operations on the shown message: an appended word costs a word, however long the message is.

use picofleet_models::provider::StreamEvent;
use picofleet_session::message::AssistantBlock;
use picofleet_session::{Json, Op, Segment};

/// Operations that were not sent yet. Appends to one text run together.
#[derive(Default)]
pub(super) struct PendingOps {
    ops: Vec<Op>,
    text: String,
    at: Option<(usize, &'static str)>,
    /// Only a start without content is pending: it is shown with what follows, so that a response that turns deferred shows nothing.
    bare: bool,
}

impl PendingOps {
    pub(super) fn is_empty(&self) -> bool {
        self.bare || (self.ops.is_empty() && self.at.is_none())
    }

    /// Takes what is pending.
    pub(super) fn take(&mut self) -> Vec<Op> {
        self.flush();
        std::mem::take(&mut self.ops)
    }

    /// Takes an event into account. Terminal ones carry the whole message and are not shown.
    pub(super) fn push(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Start { message } => {
                self.flush();
                // The tag is what makes it a message for who reads the document.
                if let Ok(value) = Json::from_serde(&picofleet_session::message::Message::from((**message).clone())) {
                    self.ops.push(Op::Replace(value));
                    self.bare = message.content.is_empty();
                }
            }
            StreamEvent::TextStart { index } => self.set(*index, Json::object([("type", "text"), ("text", "")])),
            StreamEvent::ThinkingStart { index } => self.set(*index, Json::object([("type", "thinking"), ("thinking", "")])),
            StreamEvent::ToolCallStart { index, id, name } => {
                let call = [
                    ("type", Json::from("toolCall")),
                    ("id", Json::from(id.as_str())),
                    ("name", Json::from(name.as_str())),
                    ("arguments", Json::object::<&str, Json>([])),
                ];
                self.set(*index, Json::object(call));
            }
            StreamEvent::TextDelta { index, delta } => self.append(*index, "text", delta),
            StreamEvent::ThinkingDelta { index, delta } => self.append(*index, "thinking", delta),
            StreamEvent::ToolCallEnd { index, tool_call } => {
                if let Ok(value) = Json::from_serde(&AssistantBlock::ToolCall((**tool_call).clone())) {
                    self.set(*index, value);
                }
            }
            StreamEvent::TextEnd { .. }
            | StreamEvent::ThinkingEnd { .. }
            | StreamEvent::ToolCallDelta { .. }
            | StreamEvent::Done { .. }
            | StreamEvent::Error { .. } => {}
        }
    }

    fn set(&mut self, index: usize, value: Json) {
        self.bare = false;
        self.flush();
        self.ops.push(Op::Set(vec![Segment::Key("content".into()), Segment::Index(index)], value));
    }

    fn append(&mut self, index: usize, key: &'static str, delta: &str) {
        self.bare = false;
        if self.at != Some((index, key)) {
            self.flush();
            self.at = Some((index, key));
        }
        self.text.push_str(delta);
    }

    fn flush(&mut self) {
        if let Some((index, key)) = self.at.take() {
            let path = vec![Segment::Key("content".into()), Segment::Index(index), Segment::Key(key.into())];
            self.ops.push(Op::Append(path, std::mem::take(&mut self.text).into()));
        }
    }
}
