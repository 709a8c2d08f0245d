//! The events of the API as those of a stream.
//!
//! The decoder keeps the answer as it comes in. It ends where the body ends: what a server sends after the terminal response
//! event still counts, as it does in pi-ai.

mod item;
mod response;

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;

use picofleet_delta::{Json, JsonRef};
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason};

use super::error::{MALFORMED, event_text, http_text, with_hint};
use crate::arguments::{Edges, Halves, decode_with_halves};
use crate::http::{Decoder, HttpError, StreamEnd};
use crate::js;
use crate::model::{Model, ModelCost};
use crate::provider::{StreamEvent, empty_answer};
use crate::sse::SseMessage;
use item::Slot;

/// What an answer that failed without a reason says.
const UNKNOWN: &str = "An unknown error occurred";

/// The answer and what is open in it.
pub struct ResponsesDecoder {
    message: AssistantMessage,
    cost: ModelCost,
    slots: HashMap<Option<i64>, Slot>,
    /// Calls whose end did not come, by block.
    unfinished: BTreeSet<usize>,
    /// The blocks of reasoning items, by the id of the item.
    reasoning: HashMap<String, usize>,
    /// The encrypted forms that came with the end of the response were taken.
    backfilled: bool,
    /// A terminal response event came in.
    ended: bool,
    /// Why it failed, in words.
    failure: Option<String>,
}

/// Why an answer fails, in words.
type Failure = String;

impl Decoder for ResponsesDecoder {
    fn start(&mut self, events: &mut Vec<StreamEvent>) {
        events.push(StreamEvent::Start { message: Box::new(self.message.clone()) });
    }

    fn message(&mut self, message: SseMessage, events: &mut Vec<StreamEvent>) -> ControlFlow<()> {
        let (event, data) = (message.event.as_deref(), message.data.as_str());
        if data == "[DONE]" {
            return ControlFlow::Break(());
        }
        match self.take(event, data, events) {
            Ok(()) => ControlFlow::Continue(()),
            Err(failure) => {
                self.failure = Some(failure);
                ControlFlow::Break(())
            }
        }
    }

    fn end(self, end: StreamEnd, events: &mut Vec<StreamEvent>) {
        events.push(StreamEvent::terminal(match end {
            StreamEnd::Complete => self.complete(),
            StreamEnd::Failed(error) => self.broken(&error),
        }));
    }
}

impl ResponsesDecoder {
    /// A decoder for one answer of a model; the time is that of the request.
    #[must_use]
    pub fn new(model: &Model, timestamp: Millis) -> Self {
        Self {
            message: empty_answer(model, timestamp),
            cost: model.cost.clone(),
            slots: HashMap::new(),
            unfinished: BTreeSet::new(),
            reasoning: HashMap::new(),
            backfilled: false,
            ended: false,
            failure: None,
        }
    }

    fn take(&mut self, event: Option<&str>, data: &str, out: &mut Vec<StreamEvent>) -> Result<(), Failure> {
        let (data, halves) = decode_with_halves(data).map_err(|_| MALFORMED.to_owned())?;
        let error = data.get("error").filter(|error| truthy(error));
        if event == Some("error") {
            // A member that is there counts, unless it is `null`.
            return Err(event_text(data.get("error").filter(|error| !error.is_null()).unwrap_or(&data)));
        }
        match error {
            Some(error) => Err(event_text(error)),
            None => self.take_event(&data, &halves, out),
        }
    }

    fn take_event(&mut self, event: &Json, halves: &Halves, out: &mut Vec<StreamEvent>) -> Result<(), Failure> {
        let response = event.get("response");
        let delta = || event.get("delta").and_then(Json::as_str).unwrap_or_default();
        let edges = || halves.at(format_args!("delta"));
        let index = event.get("output_index").and_then(Json::as_i64);
        match event.get("type").and_then(Json::as_str).unwrap_or_default().as_ref() {
            "response.created" => self.message.response_id = response.and_then(|response| text(response, "id")),
            "response.output_item.added" => {
                if let Some(item) = event.get("item") {
                    self.open(index, item, out)?;
                }
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => self.think(index, &delta(), edges(), out),
            "response.reasoning_summary_part.done" => self.think(index, "\n\n", Edges::default(), out),
            "response.output_text.delta" | "response.refusal.delta" => self.say(index, &delta(), edges(), out),
            "response.function_call_arguments.delta" => self.argue(index, &delta(), edges(), out),
            "response.function_call_arguments.done" => {
                self.replace_arguments(index, &event.get("arguments").and_then(Json::as_str).unwrap_or_default(), out);
            }
            "response.output_item.done" => {
                if let Some(item) = event.get("item") {
                    self.close(index, item, out)?;
                }
            }
            "response.completed" | "response.incomplete" => self.finish(response.unwrap_or(&Json::null()))?,
            "error" => {
                let word = |name: &str| event.get(name).and_then(js::scalar_text).unwrap_or_else(|| "undefined".into());
                return Err(format!("Error Code {}: {}", word("code"), word("message")));
            }
            "response.failed" => return Err(self.fail(response.unwrap_or(&Json::null()))),
            _ => {}
        }
        Ok(())
    }

    /// The answer, now that the body came to its end.
    fn complete(mut self) -> AssistantMessage {
        let unfinished = self.unfinished_call().filter(|_| self.message.stop_reason == StopReason::ToolUse);
        let failure = match self.failure.take() {
            Some(failure) => Some(failure),
            None if !self.ended => Some("OpenAI Responses stream ended before a terminal response event".to_owned()),
            None if self.message.stop_reason == StopReason::Error => {
                Some(self.message.error_message.take().unwrap_or_else(|| UNKNOWN.to_owned()))
            }
            None => unfinished.map(|call| format!("OpenAI Responses stream completed with an unfinished tool call: {call}")),
        };
        match failure {
            Some(failure) => self.failed(StopReason::Error, failure),
            None => self.message,
        }
    }

    /// The answer as far as it came when the connection failed.
    fn broken(self, error: &HttpError) -> AssistantMessage {
        let text = http_text(&self.message.provider, error);
        self.failed(error.stop_reason(), text)
    }

    fn unfinished_call(&self) -> Option<String> {
        match self.message.content.get(*self.unfinished.first()?)? {
            AssistantBlock::ToolCall(call) => Some(format!("{} ({})", call.name, call.id)),
            _ => None,
        }
    }

    fn failed(mut self, stop_reason: StopReason, text: String) -> AssistantMessage {
        for slot in std::mem::take(&mut self.slots).into_values() {
            self.show_partial(slot);
        }
        self.message.stop_reason = stop_reason;
        self.message.error_message = Some(with_hint(text));
        self.message
    }
}

/// What JavaScript takes for true.
pub(super) fn truthy(value: &Json) -> bool {
    match value.as_ref() {
        JsonRef::Null => false,
        JsonRef::Bool(value) => value,
        JsonRef::Int(value) => value != 0,
        JsonRef::Float(value) => value != 0.0,
        JsonRef::String(text) => !text.is_empty(),
        JsonRef::Array(_) | JsonRef::Object(_) => true,
    }
}

pub(super) fn text(value: &Json, name: &str) -> Option<String> {
    value.get(name).and_then(Json::as_str).map(Into::into)
}
