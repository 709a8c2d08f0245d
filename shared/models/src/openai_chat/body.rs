//! The body of a request. Pure: the time comes in as an argument.

use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, Message};

use super::BuildError;
use super::cache::Marker;
use super::compat::Compat;
use super::messages::messages;
use super::thinking;
use super::tools::tools;
use crate::estimate::estimate_context_tokens;
use crate::js;
use crate::model::{Model, ThinkingLevel, clamp_max_tokens_to_context, clamp_thinking_level};
use crate::provider::{CacheRetention, Context, StreamOptions, ToolChoice};
use crate::transcript::{collapse_system_messages, normalize_context, resolve_transcript_tools};

/// The longest cache key that the API takes, in characters.
const CACHE_KEY_MAX: usize = 64;

/// Members in the order of their setting; the last of a name counts.
#[derive(Default)]
pub(super) struct Body(Vec<(String, Json)>);

impl Body {
    pub(super) fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.0.push((key.to_owned(), value.into()));
    }

    fn set_all(&mut self, members: Option<&Json>) {
        for (key, value) in members.and_then(Json::as_object).into_iter().flat_map(js::entries) {
            self.set(key, value);
        }
    }
}

/// What is sent for a context.
///
/// # Errors
///
/// A tool demands strict sampling that its schema or server does not allow.
pub(super) fn body(model: &Model, context: &Context, options: &StreamOptions, compat: &Compat, now: Millis) -> Result<Json, BuildError> {
    let transcript = normalize_context(context.clone());
    let input_tokens = estimate_context_tokens(&transcript).tokens;
    let transcript = if compat.mid_convo_system_messages { transcript } else { collapse_system_messages(&transcript) };
    let mut sent = messages(model, &transcript, compat, now)?;
    let offered = resolve_transcript_tools(&transcript, compat.tool_support()).request_tools;
    let mut offered_json = tools(&offered, compat)?;
    if let Some(marker) = Marker::of(compat, options) {
        marker.mark(&mut sent, &mut offered_json);
    }

    let mut body = Body::default();
    body.set("model", &*model.id);
    body.set("messages", Json::array(sent));
    body.set("stream", true);
    set_cache(&mut body, options, compat);
    if compat.usage_in_streaming {
        body.set("stream_options", Json::object([("include_usage", true)]));
    }
    if compat.store {
        body.set("store", false);
    }
    let desired = options.max_tokens.unwrap_or(model.max_tokens);
    let output_max = (desired > 0).then(|| clamp_max_tokens_to_context(model, input_tokens, desired));
    if let Some(max) = output_max {
        body.set(compat.max_tokens_field, max);
    }
    if let Some(temperature) = options.temperature.and_then(|temperature| Json::try_from(temperature).ok()) {
        body.set("temperature", temperature);
    }
    if !offered_json.is_empty() {
        body.set("tools", Json::array(offered_json));
        if compat.tool_stream {
            body.set("tool_stream", true);
        }
    } else if compat.tools_with_tool_history && has_calls(&transcript) {
        body.set("tools", Json::array::<Json>([]));
    }
    if let Some(choice) = options.tool_choice {
        let word = match choice {
            ToolChoice::Auto => "auto",
            ToolChoice::None => "none",
        };
        body.set("tool_choice", word);
    }
    if let Some(priority) = &compat.priority {
        body.set("priority", priority);
    }
    let level = options.reasoning.map(|level| clamp_thinking_level(model, level)).filter(|level| *level != ThinkingLevel::Off);
    thinking::set(&mut body, model, options, compat, level, output_max.unwrap_or(model.max_tokens));
    set_routing(&mut body, model);
    set_sampling(&mut body, model, options, level);
    Ok(Json::object(body.0))
}

fn set_cache(body: &mut Body, options: &StreamOptions, compat: &Compat) {
    let retention = options.cache_retention.unwrap_or_default();
    let long = retention == CacheRetention::Long && compat.long_cache_retention;
    if let Some(session) = &options.session_id
        && retention != CacheRetention::None
        && compat.prompt_cache_key.unwrap_or(long)
    {
        body.set("prompt_cache_key", session.chars().take(CACHE_KEY_MAX).collect::<String>());
    }
    if long {
        body.set("prompt_cache_retention", "24h");
    }
}

fn has_calls(transcript: &[Message]) -> bool {
    transcript.iter().any(|message| match message {
        Message::ToolResult(_) => true,
        Message::Assistant(answer) => answer.content.iter().any(|block| matches!(block, AssistantBlock::ToolCall(_))),
        _ => false,
    })
}

/// Where a gateway sends the request.
fn set_routing(body: &mut Body, model: &Model) {
    let option = |name: &str| model.compat.as_ref().and_then(|compat| compat.get(name)).filter(|value| value.as_object().is_some());
    if let Some(routing) = option("openRouterRouting") {
        body.set("provider", routing);
    }
    if let Some(routing) = option("vercelGatewayRouting") {
        let known = ["only", "order"].into_iter().filter_map(|name| Some((name, routing.get(name)?)));
        let gateway: Vec<(&str, &Json)> = known.collect();
        if !gateway.is_empty() {
            body.set("providerOptions", Json::object([("gateway", Json::object(gateway))]));
        }
    }
}

fn set_sampling(body: &mut Body, model: &Model, options: &StreamOptions, level: Option<ThinkingLevel>) {
    let level = clamp_thinking_level(model, level.unwrap_or(ThinkingLevel::Off));
    body.set_all(model.sampling_params.as_ref());
    body.set_all(model.sampling_params_by_thinking_level.as_ref().and_then(|levels| levels.get(&level)));
    body.set_all(options.sampling_params.as_ref());
}
