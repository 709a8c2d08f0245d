//! The events of the API as those of a stream.
//!
//! The decoder keeps the answer as it comes in. It ends where the body ends: what a server sends after the terminal response
//! event still counts, as it does in pi-ai.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;

use picofleet_delta::{Json, JsonRef};
use picofleet_session::Millis;
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, MessageDiagnostic, StopReason, TextContent, ThinkingContent, ToolCall, Usage,
};

use super::error::{MALFORMED, event_text, failure_text, http_text, with_hint};
use crate::arguments::{ArgumentsStream, Edges, Halves, Joined, decode, decode_with_halves};
use crate::http::{Decoder, HttpError, StreamEnd};
use crate::js;
use crate::model::{Model, ModelCost, calculate_cost};
use crate::provider::{BLOCKS_MAX, StreamEvent, empty_answer, too_many_blocks};
use crate::sse::SseMessage;

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

/// An output item that is open.
struct Slot {
    block: usize,
    kind: Kind,
    joined: Joined,
}

enum Kind {
    Text,
    Thinking,
    Call(ArgumentsStream),
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
            "response.function_call_arguments.delta" => {
                if let Some(Slot { block, kind: Kind::Call(arguments), joined }) = self.slots.get_mut(&index) {
                    let delta = joined.push(delta(), edges()).into_owned();
                    arguments.push(&delta);
                    out.push(StreamEvent::ToolCallDelta { index: *block, delta });
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(Slot { block, kind: Kind::Call(arguments), joined }) = self.slots.get_mut(&index) {
                    let whole = event.get("arguments").and_then(Json::as_str).unwrap_or_default();
                    *joined = Joined::default();
                    if let Some(delta) = replace(arguments, &whole) {
                        out.push(StreamEvent::ToolCallDelta { index: *block, delta });
                    }
                }
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

    /// Opens the block of an item; items of other kinds have none.
    fn open(&mut self, index: Option<i64>, item: &Json, out: &mut Vec<StreamEvent>) -> Result<(), Failure> {
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
    fn show_partial(&mut self, slot: Slot) {
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

    fn think(&mut self, index: Option<i64>, delta: &str, edges: Edges, out: &mut Vec<StreamEvent>) {
        if let Some(Slot { block, kind: Kind::Thinking, joined }) = self.slots.get_mut(&index)
            && let Some(AssistantBlock::Thinking(thinking)) = self.message.content.get_mut(*block)
        {
            let delta = joined.push(delta, edges).into_owned();
            thinking.thinking.push_str(&delta);
            out.push(StreamEvent::ThinkingDelta { index: *block, delta });
        }
    }

    fn say(&mut self, index: Option<i64>, delta: &str, edges: Edges, out: &mut Vec<StreamEvent>) {
        if let Some(Slot { block, kind: Kind::Text, joined }) = self.slots.get_mut(&index)
            && let Some(AssistantBlock::Text(text)) = self.message.content.get_mut(*block)
        {
            let delta = joined.push(delta, edges).into_owned();
            text.text.push_str(&delta);
            out.push(StreamEvent::TextDelta { index: *block, delta });
        }
    }

    /// Ends the block of an item with what the item says, which decides.
    fn close(&mut self, index: Option<i64>, item: &Json, out: &mut Vec<StreamEvent>) -> Result<(), Failure> {
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

    /// Takes the usage and the status of a response that came to its end.
    fn finish(&mut self, response: &Json) -> Result<(), Failure> {
        self.ended = true;
        self.backfill(response);
        self.note_removals(response);
        if let Some(id) = text(response, "id").filter(|id| !id.is_empty()) {
            self.message.response_id = Some(id);
        }
        if let Some(reported) = response.get("usage").filter(|usage| truthy(usage)) {
            self.message.usage = usage(reported);
        }
        self.message.usage.cost = calculate_cost(&self.cost, &self.message.usage);
        self.price_tier(text(response, "service_tier").as_deref());
        let status = response.get("status").filter(|status| truthy(status)).and_then(js::scalar_text);
        let reason = response.get("incomplete_details").and_then(|details| text(details, "reason")).filter(|reason| !reason.is_empty());
        let known = status.as_deref();
        self.message.raw_stop_reason = match (known, &reason) {
            (status, Some(reason)) => Some(format!("{}.{reason}", status.unwrap_or("undefined"))),
            (status, None) => status.map(str::to_owned),
        };
        (self.message.stop_reason, self.message.error_message) = match known {
            None | Some("completed" | "in_progress" | "queued") => (StopReason::Stop, None),
            Some("incomplete") if reason.as_deref() == Some("max_output_tokens") => (StopReason::Length, None),
            Some("incomplete") => {
                let text = reason.map_or_else(
                    || "Response incomplete without a provider reason".to_owned(),
                    |reason| format!("Response incomplete: {reason}"),
                );
                (StopReason::Error, Some(text))
            }
            Some("failed" | "cancelled") => (StopReason::Error, None),
            Some(other) => return Err(format!("Unhandled stop reason: {other}")),
        };
        let calls = self.message.content.iter().any(|block| matches!(block, AssistantBlock::ToolCall(_)));
        if calls && self.message.stop_reason == StopReason::Stop {
            self.message.stop_reason = StopReason::ToolUse;
        }
        Ok(())
    }

    /// Takes the status of a response that failed; gives why.
    fn fail(&mut self, response: &Json) -> Failure {
        self.message.raw_stop_reason = text(response, "status");
        failure_text(response)
    }

    /// Some servers tell the encrypted form of a thought only here.
    fn backfill(&mut self, response: &Json) {
        // Each thought once, whatever a server repeats: its stored form is read whole.
        if std::mem::replace(&mut self.backfilled, true) {
            return;
        }
        let mut seen = HashSet::new();
        let items = response.get("output").and_then(Json::as_array).into_iter().flatten();
        for item in items.filter(|item| text(item, "type").as_deref() == Some("reasoning")) {
            let Some(encrypted) = item.get("encrypted_content").filter(|content| truthy(content)) else { continue };
            let block = self.reasoning.get(&text(item, "id").unwrap_or_default()).copied().filter(|block| seen.insert(*block));
            let Some(AssistantBlock::Thinking(thinking)) = block.and_then(|block| self.message.content.get_mut(block)) else { continue };
            let stored = thinking.thinking_signature.as_deref().and_then(|signature| decode(signature).ok());
            let Some(stored) = stored.as_ref().and_then(Json::as_object) else { continue };
            if stored.get("encrypted_content").is_some_and(truthy) {
                continue;
            }
            let members = stored.iter().chain([("encrypted_content", encrypted)]).map(|(key, value)| (key, value.clone()));
            thinking.thinking_signature = Some(js::stringify(&Json::object(members)));
        }
    }

    /// Notes the thoughts that the server kept from the model. That it drops those of earlier turns is its usual way.
    fn note_removals(&mut self, response: &Json) {
        let all = response.get("input_transformations").and_then(Json::as_array).into_iter().flatten();
        let removed = all.filter(|one| {
            let word = |name: &str| text(one, name);
            word("type").as_deref() == Some("reasoning")
                && word("action").as_deref() == Some("removed")
                && word("reason").as_deref() != Some("turn_boundary")
        });
        let members = ["type", "id", "action", "reason"];
        let told: Vec<Json> =
            removed.map(|one| Json::object(members.into_iter().filter_map(|name| Some((name, one.get(name)?.clone()))))).collect();
        if !told.is_empty() {
            self.message.diagnostics.get_or_insert_default().push(MessageDiagnostic {
                r#type: "openai_input_transformations".to_owned(),
                timestamp: self.message.timestamp,
                error: None,
                details: Some(Json::object([("transformations", Json::array(told))])),
            });
        }
    }

    fn price_tier(&mut self, tier: Option<&str>) {
        let factor = match tier {
            Some("flex") => 0.5,
            Some("priority" | "fast") if self.message.model == "gpt-5.5" => 2.5,
            Some("priority" | "fast") => 2.0,
            _ => return,
        };
        let cost = &mut self.message.usage.cost;
        for part in [&mut cost.input, &mut cost.output, &mut cost.cache_read, &mut cost.cache_write] {
            *part *= factor;
        }
        cost.total = cost.input + cost.output + cost.cache_read + cost.cache_write;
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

    /// Takes a response that is there as a whole, as a stream of it would have brought it.
    pub(super) fn whole(&mut self, response: &Json, events: &mut Vec<StreamEvent>) {
        self.start(events);
        self.message.response_id = text(response, "id");
        for (index, item) in response.get("output").and_then(Json::as_array).into_iter().flatten().enumerate() {
            let before = events.len();
            if let Err(failure) = self.close(i64::try_from(index).ok(), item, events) {
                self.failure = Some(failure);
                return;
            }
            if let Some(delta) = events.get(before..).and_then(<[_]>::last).and_then(whole_delta) {
                events.insert(events.len() - 1, delta);
            }
        }
        let failed = text(response, "status").as_deref() == Some("failed");
        self.failure = if failed { Some(self.fail(response)) } else { self.finish(response).err() };
    }
}

/// The one delta of a block that came as a whole, by its end.
fn whole_delta(end: &StreamEvent) -> Option<StreamEvent> {
    match end {
        StreamEvent::TextEnd { index, content } => Some(StreamEvent::TextDelta { index: *index, delta: content.clone() }),
        StreamEvent::ThinkingEnd { index, content } => Some(StreamEvent::ThinkingDelta { index: *index, delta: content.clone() }),
        StreamEvent::ToolCallEnd { index, tool_call } => {
            Some(StreamEvent::ToolCallDelta { index: *index, delta: js::stringify(&tool_call.arguments) })
        }
        _ => None,
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

/// The tokens; the API counts cached ones as input.
fn usage(reported: &Json) -> Usage {
    let count = |value: Option<&Json>| {
        value.and_then(Json::as_f64).map_or(0, |count| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "what is out of range becomes the nearest count")]
            let count = count as u64;
            count
        })
    };
    let detail = |details: &str, name: &str| count(reported.get(details).and_then(|details| details.get(name)));
    let cache_read = detail("input_tokens_details", "cached_tokens");
    let cache_write = detail("input_tokens_details", "cache_write_tokens");
    Usage {
        input: count(reported.get("input_tokens")).saturating_sub(cache_read).saturating_sub(cache_write),
        output: count(reported.get("output_tokens")),
        cache_read,
        cache_write,
        cache_write_1h: None,
        reasoning: Some(detail("output_tokens_details", "reasoning_tokens")),
        total_tokens: count(reported.get("total_tokens")),
        ..Usage::default()
    }
}
