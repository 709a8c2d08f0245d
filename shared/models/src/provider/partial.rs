//! The answer so far.

use picofleet_session::message::{AssistantBlock, AssistantMessage, TextContent, ThinkingContent, ToolCall};

use super::StreamEvent;
use crate::arguments::ArgumentsStream;

/// Puts the events of a stream together. Taking an event costs the event; [`Partial::message`] costs the answer so far.
#[derive(Default)]
pub struct Partial {
    message: Option<Box<AssistantMessage>>,
    /// By block: the argument text of a call that is open.
    arguments: Vec<Option<ArgumentsStream>>,
}

impl Partial {
    /// Takes an event. One that does not fit those before it changes nothing.
    pub fn apply(&mut self, event: &StreamEvent) {
        match event {
            StreamEvent::Start { message } | StreamEvent::Done { message } | StreamEvent::Error { message } => {
                self.message = Some(message.clone());
                self.arguments.clear();
            }
            StreamEvent::TextStart { index } => self.begin(*index, AssistantBlock::Text(TextContent::default()), None),
            StreamEvent::ThinkingStart { index } => self.begin(*index, AssistantBlock::Thinking(ThinkingContent::default()), None),
            StreamEvent::ToolCallStart { index, id, name } => {
                let stream = ArgumentsStream::default();
                let call = ToolCall {
                    id: id.clone(),
                    name: name.clone(),
                    arguments: stream.partial(),
                    thought_signature: None,
                    namespace: None,
                    arguments_error: None,
                };
                self.begin(*index, AssistantBlock::ToolCall(call), Some(stream));
            }
            StreamEvent::TextDelta { index, delta } => {
                if let Some(AssistantBlock::Text(text)) = self.block(*index) {
                    text.text.push_str(delta);
                }
            }
            StreamEvent::ThinkingDelta { index, delta } => {
                if let Some(AssistantBlock::Thinking(thinking)) = self.block(*index) {
                    thinking.thinking.push_str(delta);
                }
            }
            StreamEvent::ToolCallDelta { index, delta } => {
                if let Some(Some(stream)) = self.arguments.get_mut(*index) {
                    stream.push(delta);
                }
            }
            StreamEvent::TextEnd { index, content } => {
                if let Some(AssistantBlock::Text(text)) = self.block(*index) {
                    text.text.clone_from(content);
                }
            }
            StreamEvent::ThinkingEnd { index, content } => {
                if let Some(AssistantBlock::Thinking(thinking)) = self.block(*index) {
                    thinking.thinking.clone_from(content);
                }
            }
            StreamEvent::ToolCallEnd { index, tool_call } => {
                if let Some(AssistantBlock::ToolCall(call)) = self.block(*index) {
                    call.clone_from(tool_call);
                    self.arguments[*index] = None;
                }
            }
        }
    }

    /// The answer so far: open calls have the arguments that their text shows. `None` before the first event.
    #[must_use]
    pub fn message(&self) -> Option<AssistantMessage> {
        let mut message = AssistantMessage::clone(self.message.as_ref()?);
        for (block, stream) in message.content.iter_mut().zip(&self.arguments) {
            if let (AssistantBlock::ToolCall(call), Some(stream)) = (block, stream) {
                call.arguments = stream.partial();
            }
        }
        Some(message)
    }

    fn begin(&mut self, index: usize, block: AssistantBlock, arguments: Option<ArgumentsStream>) {
        if let Some(message) = &mut self.message
            && message.content.len() == index
        {
            message.content.push(block);
            self.arguments.push(arguments);
        }
    }

    fn block(&mut self, index: usize) -> Option<&mut AssistantBlock> {
        self.message.as_mut()?.content.get_mut(index)
    }
}
