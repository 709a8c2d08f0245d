//! The items of the output, each of which is a block of the answer.

use picofleet_delta::Json;
use picofleet_session::message::{AssistantBlock, StopReason, TextContent, ThinkingContent, ToolCall};

use super::{Failure, ResponsesDecoder, text, truthy};
use crate::arguments::{ArgumentsStream, Edges, Joined};
use crate::js;
use crate::provider::{BLOCKS_MAX, StreamEvent, too_many_blocks};

/// An output item that is open.
pub(super) struct Slot {
    block: usize,
    kind: Kind,
    joined: Joined,
}

enum Kind {
    Text,
    Thinking,
    Call(ArgumentsStream),
}

impl ResponsesDecoder {
    /// Opens the block of an item; items of other kinds have none.
    pub(super) fn open(&mut self, index: Option<i64>, item: &Json, out: &mut Vec<StreamEvent>) -> Result<(), Failure> {
        self.note_phase(item);
        let place = self.message.content.len();
        if place >= BLOCKS_MAX {
            return Err(too_many_blocks("OpenAI Responses"));
        }
        let (block, kind) = match text(item, "type").as_deref() {
            Some("reasoning") => {
                out.push(StreamEvent::ThinkingStart { index: place });
                (AssistantBlock::Thinking(ThinkingContent::default()), Kind::Thinking)
            }
            Some("message") => {
                out.push(StreamEvent::TextStart { index: place });
                (AssistantBlock::Text(TextContent::default()), Kind::Text)
            }
            Some("function_call") => {
                let (id, name) = (call_id(item), text(item, "name").unwrap_or_default());
                out.push(StreamEvent::ToolCallStart { index: place, id: id.clone(), name: name.clone() });
                let mut arguments = ArgumentsStream::default();
                arguments.push(&text(item, "arguments").unwrap_or_default());
                self.unfinished.insert(place);
                let call = ToolCall {
                    id,
                    name,
                    arguments: Json::build_object().build(),
                    thought_signature: None,
                    namespace: text(item, "namespace"),
                    arguments_error: None,
                };
                (AssistantBlock::ToolCall(call), Kind::Call(arguments))
            }
            _ => return Ok(()),
        };
        self.message.content.push(block);
        if let Some(lost) = self.slots.insert(index, Slot { block: place, kind, joined: Joined::default() }) {
            self.show_partial(lost);
        }
        Ok(())
    }

    /// Puts what came in of the arguments of an open call into its block.
    pub(super) fn show_partial(&mut self, slot: Slot) {
        if let (Kind::Call(arguments), Some(AssistantBlock::ToolCall(call))) = (slot.kind, self.message.content.get_mut(slot.block)) {
            let partial = arguments.partial();
            if partial.as_object().is_some() {
                call.arguments = partial;
            }
        }
    }

    /// An answer that is said to be final stops the turn, whatever the status said before.
    fn note_phase(&mut self, item: &Json) {
        if text(item, "type").as_deref() == Some("message") && text(item, "phase").as_deref() == Some("final_answer") {
            self.message.stop_reason = StopReason::Stop;
        }
    }

    pub(super) fn think(&mut self, index: Option<i64>, delta: &str, edges: Edges, out: &mut Vec<StreamEvent>) {
        if let Some(Slot { block, kind: Kind::Thinking, joined }) = self.slots.get_mut(&index)
            && let Some(AssistantBlock::Thinking(thinking)) = self.message.content.get_mut(*block)
        {
            let delta = joined.push(delta, edges).into_owned();
            thinking.thinking.push_str(&delta);
            out.push(StreamEvent::ThinkingDelta { index: *block, delta });
        }
    }

    pub(super) fn say(&mut self, index: Option<i64>, delta: &str, edges: Edges, out: &mut Vec<StreamEvent>) {
        if let Some(Slot { block, kind: Kind::Text, joined }) = self.slots.get_mut(&index)
            && let Some(AssistantBlock::Text(text)) = self.message.content.get_mut(*block)
        {
            let delta = joined.push(delta, edges).into_owned();
            text.text.push_str(&delta);
            out.push(StreamEvent::TextDelta { index: *block, delta });
        }
    }

    pub(super) fn argue(&mut self, index: Option<i64>, delta: &str, edges: Edges, out: &mut Vec<StreamEvent>) {
        if let Some(Slot { block, kind: Kind::Call(arguments), joined }) = self.slots.get_mut(&index) {
            let delta = joined.push(delta, edges).into_owned();
            arguments.push(&delta);
            out.push(StreamEvent::ToolCallDelta { index: *block, delta });
        }
    }

    /// Gives an open call the whole text of its arguments.
    pub(super) fn replace_arguments(&mut self, index: Option<i64>, whole: &str, out: &mut Vec<StreamEvent>) {
        if let Some(Slot { block, kind: Kind::Call(arguments), joined }) = self.slots.get_mut(&index) {
            *joined = Joined::default();
            if let Some(delta) = replace(arguments, whole) {
                out.push(StreamEvent::ToolCallDelta { index: *block, delta });
            }
        }
    }

    /// Ends the block of an item with what the item says, which decides.
    pub(super) fn close(&mut self, index: Option<i64>, item: &Json, out: &mut Vec<StreamEvent>) -> Result<(), Failure> {
        self.note_phase(item);
        if !self.slots.contains_key(&index) {
            self.open(index, item, out)?;
        }
        let Some(slot) = self.slots.get_mut(&index) else { return Ok(()) };
        let block = slot.block;
        match (&mut slot.kind, self.message.content.get_mut(block), text(item, "type").as_deref()) {
            (Kind::Thinking, Some(AssistantBlock::Thinking(thinking)), Some("reasoning")) => {
                let said = [texts(item, "summary", "\n\n", |_| "text"), texts(item, "content", "\n\n", |_| "text")];
                if let Some(said) = said.into_iter().find(|said| !said.is_empty()) {
                    thinking.thinking = said;
                }
                thinking.thinking_signature = Some(js::stringify(item));
                self.reasoning.insert(text(item, "id").unwrap_or_default(), block);
                out.push(StreamEvent::ThinkingEnd { index: block, content: thinking.thinking.clone() });
            }
            (Kind::Text, Some(AssistantBlock::Text(content)), Some("message")) => {
                let member = |part: &Json| if text(part, "type").as_deref() == Some("output_text") { "text" } else { "refusal" };
                content.text = texts(item, "content", "", member);
                let phase = item.get("phase").filter(|phase| truthy(phase)).cloned();
                let signature = Json::build_object().with("v", 1).with_some("id", item.get("id").cloned()).with_some("phase", phase);
                content.text_signature = Some(js::stringify(&signature.build()));
                out.push(StreamEvent::TextEnd { index: block, content: content.text.clone() });
            }
            (Kind::Call(arguments), Some(AssistantBlock::ToolCall(call)), Some("function_call")) => {
                if let Some(whole) = text(item, "arguments").filter(|whole| !whole.is_empty()) {
                    let _ = replace(arguments, &whole);
                }
                let parsed = arguments.finish();
                call.arguments = parsed.arguments;
                call.arguments_error = parsed.error;
                call.namespace = text(item, "namespace").or_else(|| call.namespace.take());
                self.unfinished.remove(&block);
                out.push(StreamEvent::ToolCallEnd { index: block, tool_call: Box::new(call.clone()) });
            }
            _ => return Ok(()),
        }
        self.slots.remove(&index);
        Ok(())
    }
}

fn call_id(item: &Json) -> String {
    let part = |name: &str| text(item, name).unwrap_or_else(|| "undefined".to_owned());
    format!("{}|{}", part("call_id"), part("id"))
}

/// The texts of the parts of an item, joined.
fn texts(item: &Json, parts: &str, separator: &str, member: impl Fn(&Json) -> &'static str) -> String {
    let parts = item.get(parts).and_then(Json::as_array).into_iter().flatten();
    parts.map(|part| text(part, member(part)).unwrap_or_default()).collect::<Vec<_>>().join(separator)
}

/// Gives the arguments their whole text; the piece that was missing, if it continues what came before.
fn replace(arguments: &mut ArgumentsStream, whole: &str) -> Option<String> {
    if let Some(rest) = whole.strip_prefix(arguments.text()) {
        let rest = rest.to_owned();
        arguments.push(&rest);
        return Some(rest).filter(|rest| !rest.is_empty());
    }
    *arguments = ArgumentsStream::default();
    arguments.push(whole);
    None
}
