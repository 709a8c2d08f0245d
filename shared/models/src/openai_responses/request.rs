//! What is sent: the body and the headers.

use picofleet_delta::Json;
use picofleet_session::message::Message;

use super::BuildError;
use super::compat::{Compat, SessionAffinity};
use super::input::input;
use super::tools::tools;
use crate::estimate::estimate_context_tokens;
use crate::js;
use crate::model::{Model, ThinkingLevel, clamp_max_tokens_to_context, clamp_thinking_level};
use crate::provider::{CacheRetention, Context, StreamOptions, ToolChoice};
use crate::transcript::{collapse_system_messages, normalize_context, resolve_transcript_tools};

/// The fewest output tokens that the API takes.
const OUTPUT_TOKENS_MIN: u64 = 16;

/// The longest cache key that the API takes, in characters.
const CACHE_KEY_MAX: usize = 64;

/// The body for `POST {base}/responses`, streaming.
///
/// # Errors
///
/// A tool demands strict sampling that its schema or provider does not allow, or a thought has a damaged signature.
pub(super) fn body(model: &Model, context: &Context, options: &StreamOptions) -> Result<Json, BuildError> {
    let messages = normalize_context(context.clone());
    let estimate = estimate_context_tokens(&messages).tokens;
    let compat = Compat::of(model);
    let messages = if compat.mid_convo_system_messages { messages } else { collapse_system_messages(&messages) };
    let mut body = Body(Vec::new());
    body.set("model", model.id.as_str());
    body.set("input", Json::array(input(model, &messages, compat)?));
    body.set("stream", true);
    body.cache(options, compat);
    body.set("store", false);
    let desired = options.max_tokens.unwrap_or(model.max_tokens);
    let limit = clamp_max_tokens_to_context(model, estimate, desired);
    if compat.max_output_tokens && limit > 0 {
        body.set("max_output_tokens", limit.max(OUTPUT_TOKENS_MIN));
    }
    if let Some(temperature) = options.temperature.and_then(|temperature| Json::try_from(temperature).ok()) {
        body.set("temperature", temperature);
    }
    body.tools(&messages, options, compat)?;
    body.reasoning(model, options);
    body.sampling(model, options);
    Ok(Json::object(body.0))
}

struct Body(Vec<(String, Json)>);

impl Body {
    fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.0.push((key.to_owned(), value.into()));
    }

    fn cache(&mut self, options: &StreamOptions, compat: Compat) {
        let retention = options.cache_retention.unwrap_or_default();
        if let Some(session) = options.session_id.as_ref().filter(|_| retention != CacheRetention::None && compat.prompt_cache_key) {
            self.set("prompt_cache_key", session.chars().take(CACHE_KEY_MAX).collect::<String>());
        }
        let long = retention == CacheRetention::Long && compat.long_cache_retention;
        match (compat.explicit_prompt_cache_mode, retention) {
            (false, _) if long => self.set("prompt_cache_retention", "24h"),
            (true, CacheRetention::None) => self.set("prompt_cache_options", Json::object([("mode", "explicit")])),
            (true, _) if long => self.set("prompt_cache_options", Json::object([("ttl", "30m")])),
            _ => {}
        }
    }

    fn tools(&mut self, messages: &[Message], options: &StreamOptions, compat: Compat) -> Result<(), BuildError> {
        let declared = resolve_transcript_tools(messages, compat.tool_support()).request_tools;
        if !declared.is_empty() {
            self.set("tools", tools(&declared, compat, false)?);
        }
        if let Some(choice) = options.tool_choice {
            self.set(
                "tool_choice",
                match choice {
                    ToolChoice::Auto => "auto",
                    ToolChoice::None => "none",
                },
            );
        }
        Ok(())
    }

    fn reasoning(&mut self, model: &Model, options: &StreamOptions) {
        if !model.reasoning {
            return;
        }
        let mapped = |level: ThinkingLevel| model.thinking_level_map.as_ref().and_then(|map| map.get(&level));
        let level = options.reasoning.map_or(ThinkingLevel::Off, |level| clamp_thinking_level(model, level));
        if level != ThinkingLevel::Off {
            let effort = mapped(level).and_then(Option::as_deref).unwrap_or(level.as_str());
            self.set("reasoning", Json::object([("effort", effort), ("summary", "auto")]));
            self.set("include", encrypted());
            return;
        }
        match mapped(ThinkingLevel::Off) {
            Some(None) => {}
            Some(Some(off)) => self.set("reasoning", Json::object([("effort", off.as_str())])),
            None => self.set("reasoning", Json::object([("effort", "none")])),
        }
        if model.provider == "xai" {
            self.set("include", encrypted());
        }
    }

    /// What models, levels and callers add; it replaces what stands there.
    fn sampling(&mut self, model: &Model, options: &StreamOptions) {
        let level = clamp_thinking_level(model, options.reasoning.unwrap_or(ThinkingLevel::Off));
        let by_level = model.sampling_params_by_thinking_level.as_ref().and_then(|map| map.get(&level));
        for params in [model.sampling_params.as_ref(), by_level, options.sampling_params.as_ref()].into_iter().flatten() {
            let members = params.as_object().into_iter().flat_map(js::entries);
            self.0.extend(members.map(|(key, value)| (key.to_owned(), value.clone())));
        }
    }
}

fn encrypted() -> Json {
    Json::array(["reasoning.encrypted_content"])
}

/// The headers that group the requests of a session, by name.
pub(super) fn session_headers<'a>(model: &Model, options: &'a StreamOptions) -> impl Iterator<Item = (&'static str, &'a str)> {
    let cached = options.cache_retention != Some(CacheRetention::None);
    let session = options.session_id.as_deref().filter(|session| cached && !session.is_empty());
    let names: &[&str] = match Compat::of(model).session_affinity {
        SessionAffinity::OpenAi => &["session-id", "x-client-request-id"],
        SessionAffinity::OpenRouter => &["x-session-id"],
        SessionAffinity::RequestId => &["x-client-request-id"],
    };
    session.into_iter().flat_map(|session| names.iter().map(move |name| (*name, session)))
}
