//! The stream of an answer: events of the server in, events of the answer out. Pure and synchronous.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::ControlFlow;

use picofleet_delta::{Json, JsonRef};
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason, TextContent, ThinkingContent, ToolCall};

use super::usage::Meter;
use crate::arguments::{ArgumentsStream, Halves, Joined, repair_with_halves};
use crate::http::{Decoder, HttpError, StatusError, StreamEnd, seconds};
use crate::js;
use crate::model::Model;
use crate::provider::{BLOCKS_MAX, StreamEvent, empty_answer, too_many_blocks};
use crate::sse::SseMessage;

/// Stands for thinking that the server does not show.
const REDACTED: &str = "[Reasoning redacted]";

/// What a refusal says when the server gives no reason.
const REFUSED: &str = "The model refused to complete the request";

/// What an error without a text says.
const UNKNOWN: &str = "An unknown error occurred";

/// Most bytes of an event that an error message quotes.
const QUOTE_MAX: usize = 16 << 10;

/// The events of the server that make up an answer. Others are ignored.
const EVENTS: [&str; 6] =
    ["message_start", "message_delta", "message_stop", "content_block_start", "content_block_delta", "content_block_stop"];

/// Why the answer ends early: the error message of the answer.
type Problem = String;

/// Decodes one answer.
pub struct AnthropicDecoder {
    answer: AssistantMessage,
    meter: Meter,
    /// By the server's index of a block.
    open: HashMap<Option<i64>, Open>,
    started: bool,
    stopped: bool,
    /// Why the answer broke off.
    problem: Option<Problem>,
}

/// A block whose end was not seen yet.
struct Open {
    /// Its place in the answer.
    index: usize,
    /// The argument text of a call.
    arguments: Option<ArgumentsStream>,
    /// Its text, thinking or argument text, as far as it waits for the rest of a character.
    joined: Joined,
}

impl AnthropicDecoder {
    /// Decodes an answer of `model` to a request that is made at `timestamp`.
    #[must_use]
    pub fn new(model: &Model, timestamp: Millis) -> Self {
        Self::with_meter(model, timestamp, Meter::new(model, 1.0))
    }

    pub(super) fn with_meter(model: &Model, timestamp: Millis, meter: Meter) -> Self {
        let answer = empty_answer(model, timestamp);
        Self { answer, meter, open: HashMap::new(), started: false, stopped: false, problem: None }
    }

    fn read(&mut self, sse: &SseMessage, out: &mut Vec<StreamEvent>) -> Result<(), Problem> {
        let name = sse.event.as_deref().unwrap_or_default();
        if name == "error" {
            return Err(quote(&sse.data));
        }
        if !EVENTS.contains(&name) {
            return Ok(());
        }
        let (event, halves) = repair_with_halves(&sse.data).map_err(|error| unreadable(name, &error.to_string(), &sse.data))?;
        self.event(&event, &halves, out)
    }

    /// Takes an event of the server, with the halves of characters in its texts.
    ///
    /// # Errors
    ///
    /// The answer ends here, with this error message.
    pub(super) fn event(&mut self, event: &Json, halves: &Halves, out: &mut Vec<StreamEvent>) -> Result<(), Problem> {
        match event.get("type").and_then(Json::as_str).as_deref() {
            Some("message_start") => self.message_start(event),
            Some("message_delta") => self.message_delta(event)?,
            Some("message_stop") => self.stopped = true,
            Some("content_block_start") => self.block_start(event, halves, out)?,
            Some("content_block_delta") => self.block_delta(event, halves, out),
            Some("content_block_stop") => self.block_stop(event, out),
            _ => {}
        }
        Ok(())
    }

    /// Ends the answer early, with this error message.
    pub(super) fn break_off(&mut self, problem: String) {
        self.problem = Some(problem);
    }

    /// Why an answer whose body is complete is a failure after all.
    fn incomplete(&mut self) -> Option<Problem> {
        if let Some(problem) = self.problem.take() {
            return Some(problem);
        }
        if self.started && !self.stopped {
            return Some("Anthropic stream ended before message_stop".to_owned());
        }
        match self.answer.stop_reason {
            StopReason::Pending => Some("Anthropic stream ended without a stop reason".to_owned()),
            StopReason::Error => Some(self.answer.error_message.take().unwrap_or_else(|| UNKNOWN.to_owned())),
            _ => None,
        }
    }

    /// Shows of open calls what their text shows.
    fn close_calls(&mut self) {
        for open in std::mem::take(&mut self.open).into_values() {
            if let (Some(stream), Some(AssistantBlock::ToolCall(call))) = (open.arguments, self.answer.content.get_mut(open.index))
                && !stream.text().is_empty()
            {
                call.arguments = stream.partial();
            }
        }
    }

    fn message_start(&mut self, event: &Json) {
        self.started = true;
        let Some(message) = event.get("message") else { return };
        self.answer.response_id = text(message, "id");
        self.answer.response_model = text(message, "model").filter(|model| *model != self.answer.model);
        if let Some(usage) = message.get("usage") {
            self.meter.start(usage, &mut self.answer.usage);
        }
    }

    fn message_delta(&mut self, event: &Json) -> Result<(), Problem> {
        if let Some(delta) = event.get("delta")
            && let Some(reason) = text(delta, "stop_reason").filter(|reason| !reason.is_empty())
        {
            let stop = map_stop_reason(&reason, delta.get("stop_details"));
            self.answer.raw_stop_reason = Some(reason);
            let (stop_reason, error) = stop?;
            self.answer.stop_reason = stop_reason;
            self.answer.error_message = error.or_else(|| self.answer.error_message.take());
        }
        self.meter.update(event.get("usage"), &mut self.answer.usage);
        Ok(())
    }

    fn block_start(&mut self, event: &Json, halves: &Halves, out: &mut Vec<StreamEvent>) -> Result<(), Problem> {
        let Some(block) = event.get("content_block") else { return Ok(()) };
        let index = self.answer.content.len();
        let mut joined = Joined::default();
        let mut begin = |member: &str| {
            let whole = text(block, member).unwrap_or_default();
            joined.push(whole, halves.at(format_args!("content_block/{member}"))).into_owned()
        };
        let (block, start, arguments) = match text(block, "type").as_deref() {
            Some("text") => {
                let text = TextContent::new(begin("text"));
                (AssistantBlock::Text(text), StreamEvent::TextStart { index }, None)
            }
            Some(kind @ ("thinking" | "redacted_thinking")) => {
                let thinking = thinking(block, begin("thinking"), kind == "redacted_thinking");
                (AssistantBlock::Thinking(thinking), StreamEvent::ThinkingStart { index }, None)
            }
            Some("tool_use") => {
                let call = tool_call(block);
                let start = StreamEvent::ToolCallStart { index, id: call.id.clone(), name: call.name.clone() };
                (AssistantBlock::ToolCall(call), start, Some(ArgumentsStream::default()))
            }
            _ => return Ok(()),
        };
        if index >= BLOCKS_MAX {
            return Err(too_many_blocks("Anthropic"));
        }
        self.answer.content.push(block);
        self.open.insert(block_key(event), Open { index, arguments, joined });
        out.push(start);
        Ok(())
    }

    fn block_delta(&mut self, event: &Json, halves: &Halves, out: &mut Vec<StreamEvent>) {
        let Some(open) = self.open.get_mut(&block_key(event)) else { return };
        let Some(delta) = event.get("delta") else { return };
        let index = open.index;
        let piece = |kind: &str, member: &str| text(delta, "type").filter(|own| own == kind).and_then(|_| text(delta, member));
        let joined = &mut open.joined;
        let mut next = |kind: &str, member: &str| {
            let edges = halves.at(format_args!("delta/{member}"));
            piece(kind, member).map(|more| joined.push(more, edges).into_owned())
        };
        match self.answer.content.get_mut(index) {
            Some(AssistantBlock::Text(block)) => {
                if let Some(delta) = next("text_delta", "text") {
                    block.text.push_str(&delta);
                    out.push(StreamEvent::TextDelta { index, delta });
                }
            }
            Some(AssistantBlock::Thinking(block)) => {
                if let Some(delta) = next("thinking_delta", "thinking") {
                    block.thinking.push_str(&delta);
                    out.push(StreamEvent::ThinkingDelta { index, delta });
                } else if let Some(signature) = piece("signature_delta", "signature") {
                    block.thinking_signature.get_or_insert_default().push_str(&signature);
                }
            }
            Some(AssistantBlock::ToolCall(_)) => {
                if let (Some(delta), Some(stream)) = (next("input_json_delta", "partial_json"), &mut open.arguments) {
                    stream.push(&delta);
                    out.push(StreamEvent::ToolCallDelta { index, delta });
                }
            }
            None => {}
        }
    }

    fn block_stop(&mut self, event: &Json, out: &mut Vec<StreamEvent>) {
        let Some(Open { index, arguments, .. }) = self.open.remove(&block_key(event)) else { return };
        out.extend(match self.answer.content.get_mut(index) {
            Some(AssistantBlock::Text(block)) => Some(StreamEvent::TextEnd { index, content: block.text.clone() }),
            Some(AssistantBlock::Thinking(block)) => Some(StreamEvent::ThinkingEnd { index, content: block.thinking.clone() }),
            Some(AssistantBlock::ToolCall(call)) => {
                let parsed = arguments.unwrap_or_default().finish();
                call.arguments = parsed.arguments;
                call.arguments_error = parsed.error;
                Some(StreamEvent::ToolCallEnd { index, tool_call: Box::new(call.clone()) })
            }
            None => None,
        });
    }
}

impl Decoder for AnthropicDecoder {
    fn start(&mut self, events: &mut Vec<StreamEvent>) {
        events.push(StreamEvent::Start { message: Box::new(self.answer.clone()) });
    }

    fn message(&mut self, message: SseMessage, events: &mut Vec<StreamEvent>) -> ControlFlow<()> {
        self.problem = self.read(&message, events).err();
        let complete = self.stopped && self.answer.stop_reason != StopReason::Pending;
        if complete || self.problem.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn end(mut self, end: StreamEnd, events: &mut Vec<StreamEvent>) {
        self.close_calls();
        let failure = match end {
            StreamEnd::Complete => self.incomplete().map(|problem| (StopReason::Error, problem)),
            StreamEnd::Failed(error) => Some((error.stop_reason(), error_text(&error))),
        };
        if let Some((reason, text)) = failure {
            self.answer.stop_reason = reason;
            self.answer.error_message = Some(text);
        }
        events.push(StreamEvent::terminal(self.answer));
    }
}

/// What a failed request says.
pub(super) fn error_text(error: &HttpError) -> String {
    match error {
        HttpError::Status(refusal) => refusal_text(refusal),
        HttpError::RetryDelay { asked, max, refusal } => {
            let (asked, max, refusal) = (seconds(asked), seconds(max), refusal_text(refusal));
            format!("Server requested {asked}s retry delay (max: {max}s). {refusal}")
        }
        other => other.to_string(),
    }
}

/// A body that is JSON is quoted whole, or its `message` where it has one at the top.
fn refusal_text(refusal: &StatusError) -> String {
    let truthy = |json: &Json| match json.as_ref() {
        JsonRef::Null | JsonRef::Bool(false) | JsonRef::Int(0) => false,
        JsonRef::String(text) => !text.to_cow().is_empty(),
        _ => true,
    };
    let Some(body) = refusal.json().filter(truthy) else { return refusal.to_string() };
    let said = body.get("message").filter(|message| truthy(message));
    let text = said.and_then(Json::as_str).map_or_else(|| js::stringify(said.unwrap_or(&body)), Cow::into_owned);
    format!("{} {text}", refusal.status)
}

/// The server's index of a block.
fn block_key(event: &Json) -> Option<i64> {
    event.get("index").and_then(Json::as_i64)
}

fn text(object: &Json, member: &str) -> Option<String> {
    Some(object.get(member)?.as_str()?.into_owned())
}

fn thinking(block: &Json, thinking: String, redacted: bool) -> ThinkingContent {
    if redacted {
        return ThinkingContent { thinking: REDACTED.to_owned(), thinking_signature: text(block, "data"), redacted: Some(true) };
    }
    let signature = text(block, "signature").unwrap_or_default();
    ThinkingContent { thinking, thinking_signature: Some(signature), redacted: None }
}

fn tool_call(block: &Json) -> ToolCall {
    let input = block.get("input").filter(|input| input.as_object().is_some());
    ToolCall {
        id: text(block, "id").unwrap_or_default(),
        name: text(block, "name").unwrap_or_default(),
        arguments: input.cloned().unwrap_or_else(|| Json::build_object().build()),
        thought_signature: None,
        namespace: None,
        arguments_error: None,
    }
}

/// Why an answer stopped, with the error message of one that failed; an error for a reason that nobody knows.
fn map_stop_reason(reason: &str, details: Option<&Json>) -> Result<(StopReason, Option<String>), Problem> {
    Ok(match reason {
        "end_turn" | "pause_turn" | "stop_sequence" => (StopReason::Stop, None),
        "max_tokens" => (StopReason::Length, None),
        "tool_use" => (StopReason::ToolUse, None),
        "refusal" => {
            let explanation = details.and_then(|details| text(details, "explanation")).filter(|text| !text.is_empty());
            (StopReason::Error, Some(explanation.unwrap_or_else(|| REFUSED.to_owned())))
        }
        "sensitive" => (StopReason::Error, Some("Provider stopped with: sensitive".to_owned())),
        other => return Err(format!("Unhandled stop reason: {other}")),
    })
}

fn unreadable(name: &str, problem: &str, data: &str) -> Problem {
    let data = quote(data);
    let raw = data.split('\n').map(|line| format!("data: {line}")).collect::<Vec<_>>().join("\\n");
    format!("Could not parse Anthropic SSE event {name}: {problem}; data={data}; raw=event: {name}\\n{raw}")
}

/// The text, cut where it would make an error message too long to store.
pub(super) fn quote(text: &str) -> String {
    if text.len() <= QUOTE_MAX {
        return text.to_owned();
    }
    let kept = text.floor_char_boundary(QUOTE_MAX);
    format!("{}... [truncated {} bytes]", &text[..kept], text.len() - kept)
}
