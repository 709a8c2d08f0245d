//! A request as it is sent. Pure: time and credential come in as arguments.

use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::{Message, SystemMessage};
use secrecy::{ExposeSecret as _, SecretString};

use super::compat::Compat;
use super::messages::{Conversation, call_id, text_block, with_member};
use super::tools::{Tools, placeholder};
use crate::estimate::estimate_context_tokens;
use crate::http::{Request, RequestError};
use crate::model::{Model, ThinkingLevel, clamp_max_tokens_to_context};
use crate::provider::{CacheRetention, Context, StreamOptions, ToolChoice};
use crate::transcript::{collapse_system_messages, get_current_tools, get_system_message_text, normalize_context};
use crate::transform::transform_messages;

const FINE_GRAINED_TOOLS: &str = "fine-grained-tool-streaming-2025-05-14";
const INTERLEAVED_THINKING: &str = "interleaved-thinking-2025-05-14";
const INLINE_TOOLS: &str = "inline-tools-2026-09-15";

/// Tokens that stay for the answer beside the thinking.
const ANSWER_MIN: u64 = 1024;

/// A budget of nothing is sent as this, the least that the server takes.
const BUDGET_MIN: u64 = 1024;

/// The header that switches features on.
const BETA_HEADER: &str = "anthropic-beta";

/// The header of an API key.
const KEY_HEADER: &str = "x-api-key";

/// What tokens of a subscription or of a workload identity have in them; they go out as bearer tokens.
const TOKEN_MARK: &str = "sk-ant-oat";
const TOKENS: &str = "oauth-2025-04-20";

/// A gateway's own header for a credential.
const GATEWAY_KEY: &str = "cf-aig-authorization";

/// What a request says, before it has a receiver.
pub(super) struct Built {
    /// The body.
    pub(super) body: Json,
    /// What the server must switch on for it.
    pub(super) betas: Vec<&'static str>,
    /// Some tools were sent strict that only prefer it: a server that refuses so many of them may take the request without.
    pub(super) may_relax: bool,
}

/// How a request is built beside its context and options.
#[derive(Clone, Copy)]
pub(super) struct BuildOptions {
    /// The time of results that stand for missing ones.
    pub(super) now: Millis,
    /// Send tools that only prefer strict sampling without it.
    pub(super) relaxed: bool,
}

/// Builds what is sent for a context.
///
/// # Errors
///
/// A tool requires what it cannot have; the text is the error message of the answer.
pub(super) fn build(model: &Model, context: &Context, options: &StreamOptions, how: BuildOptions) -> Result<Built, String> {
    let compat = Compat::of(model);
    let messages = normalize_context(context.clone());
    let limits = Limits::of(model, &messages, options, &compat);
    let messages = if compat.system_in_place { messages } else { collapse_system_messages(&messages) };
    let initial = match messages.first() {
        Some(Message::System(system)) => Some(system),
        _ => None,
    };
    let cache_control = cache_control(options.cache_retention.unwrap_or_default(), &compat);
    let first_tools = initial.and_then(|system| system.tools_added.as_deref()).unwrap_or_default();
    let in_place = compat.system_in_place && compat.tools_in_place && !first_tools.is_empty();
    let current_tools = get_current_tools(&messages);
    let tools = Tools::new(&compat, how.relaxed);

    let fitted = transform_messages(&messages, model, how.now, |id, _| call_id(id));
    let after_initial = if initial.is_some() { fitted.get(1..).unwrap_or_default() } else { &fitted[..] };
    let conversation = Conversation {
        empty_signature: compat.empty_signature,
        tools_in_place: in_place.then_some(&tools),
        cache_control: cache_control.as_ref(),
    };
    let listed = if in_place { first_tools } else { &current_tools };
    let mut definitions = tools.convert(listed, cache_control.as_ref().filter(|_| compat.cache_on_tools))?;
    definitions.extend(in_place.then(placeholder));
    let temperature = options.temperature.filter(|_| limits.level.is_none() && compat.temperature);
    let typed = |kind: &str| Json::build_object().with("type", kind);
    let body = Json::build_object()
        .with("model", &model.id)
        .with("messages", conversation.convert(after_initial)?)
        .with("max_tokens", limits.max_tokens)
        .with("stream", true)
        .with_some("system", initial.and_then(|system| system_blocks(system, cache_control.as_ref())))
        .with_some("temperature", temperature.and_then(|value| Json::try_from(value).ok()))
        .with_some("tools", (!definitions.is_empty()).then_some(definitions))
        .with_some("thinking", limits.thinking)
        .with_some("output_config", limits.effort.map(|effort| Json::build_object().with("effort", effort)))
        .with_some("metadata", metadata(options))
        .with_some("tool_choice", options.tool_choice.map(|choice| typed(tool_choice(choice))));
    let fine_grained = !compat.eager_tool_input && !current_tools.is_empty();
    let interleaved = model.reasoning && limits.level.is_some() && !compat.adaptive_thinking;
    let betas = [(fine_grained, FINE_GRAINED_TOOLS), (interleaved, INTERLEAVED_THINKING), (in_place, INLINE_TOOLS)];
    let betas = betas.into_iter().filter_map(|(wanted, beta)| wanted.then_some(beta)).collect();
    Ok(Built { body: body.build(), betas, may_relax: tools.may_relax() })
}

/// Adds the headers of the API: the credential, the version, what is switched on, the session; then those of the model and
/// of the caller, which win.
///
/// # Errors
///
/// There is no credential, or a header has characters that no header may have.
pub(super) fn finish(
    mut request: Request,
    model: &Model,
    options: &StreamOptions,
    key: Option<&SecretString>,
    betas: &[&'static str],
) -> Result<Request, RequestError> {
    let mut betas = betas.to_vec();
    if let Some(key) = key.map(SecretString::expose_secret).filter(|key| !key.is_empty()) {
        if key.contains(TOKEN_MARK) {
            betas.insert(0, TOKENS);
            request = request.header("authorization", &format!("Bearer {key}"))?;
        } else {
            request = request.header(KEY_HEADER, key)?;
        }
    }
    request = request.header("anthropic-version", "2023-06-01")?.header("anthropic-dangerous-direct-browser-access", "true")?;
    if !betas.is_empty() {
        request = request.header(BETA_HEADER, &betas.join(","))?;
    }
    let keeps = options.cache_retention != Some(CacheRetention::None);
    if let (Some(name), Some(session), true) = (Compat::of(model).session_header, &options.session_id, keeps) {
        request = request.header(name, session)?;
    }
    let mut request = request.with_options(model, options)?;
    if let Some(betas) = request.headers().get(BETA_HEADER).and_then(|value| value.to_str().ok()).map(tidy_list) {
        request = request.header(BETA_HEADER, &betas)?;
    }
    if request.headers().contains_key(GATEWAY_KEY) { Ok(request) } else { request.require_key(model) }
}

/// A list as people write it: trimmed, each name once.
fn tidy_list(value: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in value.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(",")
}

fn cache_control(retention: CacheRetention, compat: &Compat) -> Option<Json> {
    let ttl = (retention == CacheRetention::Long && compat.long_cache).then_some("1h");
    let kept = Json::build_object().with("type", "ephemeral").with_some("ttl", ttl);
    (retention != CacheRetention::None).then(|| kept.build())
}

fn system_blocks(system: &SystemMessage, cache_control: Option<&Json>) -> Option<Json> {
    let text = get_system_message_text(system);
    let block = text_block(&text);
    let block = cache_control.map_or_else(|| block.clone(), |cache_control| with_member(&block, "cache_control", cache_control));
    (!text.is_empty()).then(|| Json::array([block]))
}

fn metadata(options: &StreamOptions) -> Option<Json> {
    let user = options.metadata.as_ref()?.get("user_id").filter(|user| user.as_text().is_some())?;
    Some(Json::build_object().with("user_id", user).build())
}

fn tool_choice(choice: ToolChoice) -> &'static str {
    match choice {
        ToolChoice::Auto => "auto",
        ToolChoice::None => "none",
    }
}

/// How much may be thought and said.
struct Limits {
    /// The level, unless it is `off`.
    level: Option<ThinkingLevel>,
    max_tokens: u64,
    thinking: Option<Json>,
    effort: Option<String>,
}

impl Limits {
    fn of(model: &Model, messages: &[Message], options: &StreamOptions, compat: &Compat) -> Self {
        let level = options.reasoning.filter(|level| *level != ThinkingLevel::Off);
        let context = estimate_context_tokens(messages).tokens;
        let max_tokens = clamp_max_tokens_to_context(model, context, options.max_tokens.unwrap_or(model.max_tokens));
        let kind = |kind: &str| Json::build_object().with("type", kind);
        let Some(wanted) = level else {
            let off = model.thinking_level_map.as_ref().and_then(|map| map.get(&ThinkingLevel::Off));
            let can_be_off = model.reasoning && off != Some(&None);
            return Self { level, max_tokens, thinking: can_be_off.then(|| kind("disabled").build()), effort: None };
        };
        if compat.adaptive_thinking {
            let thinking = model.reasoning.then(|| kind("adaptive").with("display", "summarized").build());
            return Self { level, max_tokens, thinking, effort: model.reasoning.then(|| effort(model, wanted)) };
        }
        let budget = budget(wanted, options);
        let max_tokens = max_tokens.saturating_add(budget).min(model.max_tokens);
        let budget = if max_tokens <= budget { budget.min(max_tokens.saturating_sub(ANSWER_MIN)) } else { budget };
        let max_tokens = clamp_max_tokens_to_context(model, context, max_tokens);
        let budget = budget.min(max_tokens.saturating_sub(ANSWER_MIN));
        let budget = if budget == 0 { BUDGET_MIN } else { budget };
        let thinking = kind("enabled").with("budget_tokens", budget).with("display", "summarized");
        Self { level, max_tokens, thinking: model.reasoning.then(|| thinking.build()), effort: None }
    }
}

/// Tokens of thinking for a level.
fn budget(level: ThinkingLevel, options: &StreamOptions) -> u64 {
    let level = level.min(ThinkingLevel::High);
    let own = options.thinking_budgets.as_ref().and_then(|budgets| budgets.get(&level));
    own.copied().unwrap_or(match level {
        ThinkingLevel::Off | ThinkingLevel::Minimal => 1024,
        ThinkingLevel::Low => 2048,
        ThinkingLevel::Medium => 8192,
        ThinkingLevel::High | ThinkingLevel::XHigh | ThinkingLevel::Max => 16384,
    })
}

fn effort(model: &Model, level: ThinkingLevel) -> String {
    let mapped = model.thinking_level_map.as_ref().and_then(|map| map.get(&level)).cloned().flatten();
    mapped.unwrap_or_else(|| {
        let word = match level {
            ThinkingLevel::Off | ThinkingLevel::Minimal | ThinkingLevel::Low => "low",
            ThinkingLevel::Medium => "medium",
            ThinkingLevel::High | ThinkingLevel::XHigh | ThinkingLevel::Max => "high",
        };
        word.to_owned()
    })
}
