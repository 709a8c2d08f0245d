//! The response as a whole: its end, its price, and all of it at once.

use std::collections::HashSet;

use picofleet_delta::Json;
use picofleet_session::message::{AssistantBlock, MessageDiagnostic, StopReason, Usage};

use super::{Failure, ResponsesDecoder, text, truthy};
use crate::arguments::decode;
use crate::http::Decoder as _;
use crate::js;
use crate::model::calculate_cost;
use crate::openai_responses::error::failure_text;
use crate::provider::StreamEvent;

impl ResponsesDecoder {
    /// Takes the usage and the status of a response that came to its end.
    pub(super) fn finish(&mut self, response: &Json) -> Result<(), Failure> {
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
    pub(super) fn fail(&mut self, response: &Json) -> Failure {
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

    /// Takes a response that is there as a whole, as a stream of it would have brought it.
    pub(in crate::openai_responses) fn whole(&mut self, response: &Json, events: &mut Vec<StreamEvent>) {
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
