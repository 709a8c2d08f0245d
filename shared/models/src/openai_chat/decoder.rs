//! Chunks of an answer as they come in.

use std::collections::HashMap;
use std::ops::ControlFlow;

use picofleet_delta::{Json, ObjectRef};
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason, TextContent, ThinkingContent, ToolCall};

use super::compat::Compat;
use super::details::Details;
use super::error::{chunk_text, http_text, truthy};
use super::usage::usage;
use crate::arguments::{ArgumentsStream, Edges, Halves, Joined, decode_with_halves};
use crate::http::{Decoder, StreamEnd};
use crate::model::Model;
use crate::provider::{BLOCKS_MAX, StreamEvent, empty_answer, too_many_blocks};
use crate::sse::SseMessage;

/// What ends a stream of chunks.
const DONE: &str = "[DONE]";

/// The fields in which servers give thinking, in the order in which the first that is not empty counts.
const REASONING_FIELDS: [&str; 3] = ["reasoning_content", "reasoning", "reasoning_text"];

/// What a chunk that is no JSON says.
const MALFORMED: &str = "Error reading response: malformed server-sent event JSON.";

/// What a stream without its end says.
const NO_FINISH_REASON: &str = "Stream ended without finish_reason";

/// Reads a stream of chat completion chunks.
///
/// There is one text and one thought, however often they go on, and each tool call. All ends come after the last chunk.
/// Fields that it does not know are ignored.
pub struct OpenAiChatDecoder {
    model: Model,
    needs_finish_reason: bool,
    message: AssistantMessage,
    text: Option<usize>,
    thinking: Option<usize>,
    joined_text: Joined,
    joined_thinking: Joined,
    details: Details,
    calls: Calls,
    finished: bool,
    failure: Option<String>,
}

/// The tool calls of an answer and how chunks name them.
#[derive(Default)]
struct Calls {
    all: Vec<Call>,
    /// By the bits of the first number that the server gives it.
    by_number: HashMap<u64, usize>,
    by_id: HashMap<String, usize>,
}

struct Call {
    /// Its block.
    index: usize,
    arguments: ArgumentsStream,
    joined: Joined,
    numbered: bool,
}

impl OpenAiChatDecoder {
    /// For an answer of a model to a request of a time.
    #[must_use]
    pub fn new(model: &Model, timestamp: Millis) -> Self {
        Self {
            model: model.clone(),
            needs_finish_reason: Compat::of(model).finish_reason,
            message: empty_answer(model, timestamp),
            text: None,
            thinking: None,
            joined_text: Joined::default(),
            joined_thinking: Joined::default(),
            details: Details::default(),
            calls: Calls::default(),
            finished: false,
            failure: None,
        }
    }

    fn chunk(&mut self, chunk: ObjectRef<'_>, halves: &Halves, events: &mut Vec<StreamEvent>) {
        let text = |name: &str| chunk.get(name).and_then(Json::as_str).filter(|text| !text.is_empty());
        if self.message.response_id.is_none() {
            self.message.response_id = text("id").map(Into::into);
        }
        if self.message.response_model.is_none() {
            self.message.response_model = text("model").filter(|model| **model != *self.model.id).map(Into::into);
        }
        let choice = chunk.get("choices").and_then(Json::as_array).and_then(|choices| choices.iter().next());
        let told = |usage: Option<&Json>| usage.filter(|usage| usage.as_object().is_some()).cloned();
        let tokens = told(chunk.get("usage")).or_else(|| told(choice.and_then(|choice| choice.get("usage"))));
        if let Some(tokens) = tokens {
            self.message.usage = usage(&tokens, &self.model);
        }
        let Some(choice) = choice else { return };
        if let Some(reason) = choice.get("finish_reason").and_then(Json::as_str).filter(|reason| !reason.is_empty()) {
            self.finish_reason(&reason);
        }
        if let Some(delta) = choice.get("delta").and_then(Json::as_object) {
            self.delta(delta, halves, events);
        }
    }

    fn finish_reason(&mut self, reason: &str) {
        self.finished = true;
        self.message.raw_stop_reason = Some(reason.to_owned());
        self.message.stop_reason = match reason {
            "stop" | "end" => StopReason::Stop,
            "length" => StopReason::Length,
            "tool_calls" | "function_call" => StopReason::ToolUse,
            _ => {
                self.message.error_message = Some(format!("Provider finish_reason: {reason}"));
                StopReason::Error
            }
        };
    }

    fn delta(&mut self, delta: ObjectRef<'_>, halves: &Halves, events: &mut Vec<StreamEvent>) {
        // Half a character is not empty, though nothing of it can be shown yet.
        let piece = |name: &str| {
            let edges = halves.at(format_args!("choices/0/delta/{name}"));
            let text = delta.get(name).and_then(Json::as_str)?;
            (!text.is_empty() || edges.any()).then_some((text, edges))
        };
        // Before the text: proxies put both into one chunk.
        if let Some((field, (more, edges))) = REASONING_FIELDS.into_iter().find_map(|field| Some((field, piece(field)?))) {
            let index = self.thinking_block(field, events);
            let more = self.joined_thinking.push(more, edges);
            if let Some(AssistantBlock::Thinking(block)) = self.message.content.get_mut(index) {
                block.thinking.push_str(&more);
            }
            events.push(StreamEvent::ThinkingDelta { index, delta: more.into_owned() });
        }
        let details = delta.get("reasoning_details").and_then(Json::as_array);
        for (place, detail) in details.into_iter().flat_map(|details| details.iter()).enumerate() {
            if self.details.push(detail, |member| halves.at(format_args!("choices/0/delta/reasoning_details/{place}/{member}"))) {
                self.thinking_block("", events);
            }
        }
        if let Some((more, edges)) = piece("content") {
            let index = self.text_block(events);
            let more = self.joined_text.push(more, edges);
            if let Some(AssistantBlock::Text(block)) = self.message.content.get_mut(index) {
                block.text.push_str(&more);
            }
            events.push(StreamEvent::TextDelta { index, delta: more.into_owned() });
        }
        let calls = delta.get("tool_calls").and_then(Json::as_array);
        for (place, call) in calls.into_iter().flat_map(|calls| calls.iter()).enumerate() {
            if let Some(call) = call.as_object() {
                self.call(call, halves.at(format_args!("choices/0/delta/tool_calls/{place}/function/arguments")), events);
            }
        }
    }

    fn text_block(&mut self, events: &mut Vec<StreamEvent>) -> usize {
        *self.text.get_or_insert_with(|| {
            let index = self.message.content.len();
            self.message.content.push(AssistantBlock::Text(TextContent::default()));
            events.push(StreamEvent::TextStart { index });
            index
        })
    }

    fn thinking_block(&mut self, signature: &str, events: &mut Vec<StreamEvent>) -> usize {
        *self.thinking.get_or_insert_with(|| {
            let index = self.message.content.len();
            let block = ThinkingContent { thinking_signature: Some(signature.to_owned()), ..ThinkingContent::default() };
            self.message.content.push(AssistantBlock::Thinking(block));
            events.push(StreamEvent::ThinkingStart { index });
            index
        })
    }

    fn call(&mut self, delta: ObjectRef<'_>, edges: Edges, events: &mut Vec<StreamEvent>) {
        let number = delta.get("index").and_then(Json::as_f64).map(f64::to_bits);
        let text = |value: Option<&Json>| value.and_then(Json::as_str).filter(|text| !text.is_empty()).map(String::from);
        let function = delta.get("function");
        let id = text(delta.get("id"));
        let name = text(function.and_then(|function| function.get("name")));
        let known = self.calls.find(number, id.as_deref());
        if known.is_none() && self.message.content.len() >= BLOCKS_MAX {
            self.failure = Some(too_many_blocks("OpenAI chat completions"));
            return;
        }
        let place = known.unwrap_or_else(|| self.begin_call(id.clone(), name.clone(), events));
        let Some(call) = self.calls.all.get_mut(place) else { return };
        if let Some(number) = number.filter(|_| !call.numbered) {
            call.numbered = true;
            self.calls.by_number.insert(number, place);
        }
        if let Some(id) = &id {
            self.calls.by_id.insert(id.clone(), place);
        }
        let more = text(function.and_then(|function| function.get("arguments"))).unwrap_or_default();
        let more = call.joined.push(more, edges).into_owned();
        call.arguments.push(&more);
        if let Some(AssistantBlock::ToolCall(block)) = self.message.content.get_mut(call.index) {
            for (own, told) in [(&mut block.id, id), (&mut block.name, name)] {
                if own.is_empty() {
                    *own = told.unwrap_or_default();
                }
            }
        }
        events.push(StreamEvent::ToolCallDelta { index: call.index, delta: more });
    }

    fn begin_call(&mut self, id: Option<String>, name: Option<String>, events: &mut Vec<StreamEvent>) -> usize {
        let index = self.message.content.len();
        let (id, name) = (id.unwrap_or_default(), name.unwrap_or_default());
        events.push(StreamEvent::ToolCallStart { index, id: id.clone(), name: name.clone() });
        let arguments = Json::build_object().build();
        let block = ToolCall { id, name, arguments, thought_signature: None, namespace: None, arguments_error: None };
        self.message.content.push(AssistantBlock::ToolCall(block));
        self.calls.all.push(Call { index, arguments: ArgumentsStream::default(), joined: Joined::default(), numbered: false });
        self.calls.all.len() - 1
    }

    /// Ends all blocks in their order.
    fn end_blocks(&mut self, events: &mut Vec<StreamEvent>) {
        for call in &self.calls.all {
            if let Some(AssistantBlock::ToolCall(block)) = self.message.content.get_mut(call.index) {
                let parsed = call.arguments.finish();
                (block.arguments, block.arguments_error) = (parsed.arguments, parsed.error);
            }
        }
        let end = |(index, block): (usize, &AssistantBlock)| match block {
            AssistantBlock::Text(text) => StreamEvent::TextEnd { index, content: text.text.clone() },
            AssistantBlock::Thinking(thinking) => StreamEvent::ThinkingEnd { index, content: thinking.thinking.clone() },
            AssistantBlock::ToolCall(call) => StreamEvent::ToolCallEnd { index, tool_call: Box::new(call.clone()) },
        };
        events.extend(self.message.content.iter().enumerate().map(end));
    }

    /// Leaves open calls with the arguments that their text shows so far.
    fn keep_partial_calls(&mut self) {
        for call in &self.calls.all {
            if let Some(AssistantBlock::ToolCall(block)) = self.message.content.get_mut(call.index) {
                let partial = call.arguments.partial();
                if partial.as_object().is_some() {
                    block.arguments = partial;
                }
            }
        }
    }

    /// What is wrong with an answer whose stream ended as it should, and its stop reason if it has none of its own.
    fn conclude(&mut self) -> Option<String> {
        if !self.finished && !self.needs_finish_reason {
            self.message.stop_reason = if self.calls.all.is_empty() { StopReason::Stop } else { StopReason::ToolUse };
        }
        match self.message.stop_reason {
            StopReason::Error => self.message.error_message.take(),
            StopReason::Pending => Some(NO_FINISH_REASON.to_owned()),
            _ => None,
        }
    }
}

impl Calls {
    /// The call that a chunk goes on with. One that has neither number nor id can only be the last one.
    fn find(&self, number: Option<u64>, id: Option<&str>) -> Option<usize> {
        match (number, id) {
            (None, None) => self.all.len().checked_sub(1),
            _ => number.and_then(|number| self.by_number.get(&number)).or_else(|| self.by_id.get(id?)).copied(),
        }
    }
}

impl Decoder for OpenAiChatDecoder {
    fn start(&mut self, events: &mut Vec<StreamEvent>) {
        events.push(StreamEvent::Start { message: Box::new(self.message.clone()) });
    }

    fn message(&mut self, message: SseMessage, events: &mut Vec<StreamEvent>) -> ControlFlow<()> {
        if message.data == DONE {
            return ControlFlow::Break(());
        }
        // An event that has no more than a name.
        if message.data.is_empty() {
            return ControlFlow::Continue(());
        }
        let Ok((chunk, halves)) = decode_with_halves(&message.data) else {
            self.failure = Some(MALFORMED.to_owned());
            return ControlFlow::Break(());
        };
        if let Some(error) = chunk.get("error").filter(|error| truthy(error)) {
            self.failure = Some(chunk_text(error));
            return ControlFlow::Break(());
        }
        if let Some(chunk) = chunk.as_object() {
            self.chunk(chunk, &halves, events);
        }
        if self.failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(mut self, end: StreamEnd, events: &mut Vec<StreamEvent>) {
        if let (Some(signature), Some(index)) = (self.details.signature(), self.thinking)
            && let Some(AssistantBlock::Thinking(block)) = self.message.content.get_mut(index)
        {
            block.thinking_signature = Some(signature);
        }
        let (reason, failure) = match (end, self.failure.take()) {
            (StreamEnd::Failed(error), _) => (error.stop_reason(), Some(http_text(&error))),
            (StreamEnd::Complete, Some(failure)) => (StopReason::Error, Some(failure)),
            (StreamEnd::Complete, None) => {
                self.end_blocks(events);
                let failure = self.conclude();
                events.push(finish(self.message, StopReason::Error, failure));
                return;
            }
        };
        self.keep_partial_calls();
        events.push(finish(self.message, reason, failure));
    }
}

fn finish(mut message: AssistantMessage, reason: StopReason, failure: Option<String>) -> StreamEvent {
    if failure.is_some() {
        message.stop_reason = reason;
        message.error_message = failure;
    }
    StreamEvent::terminal(message)
}
