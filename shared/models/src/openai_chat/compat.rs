//! How servers depart from the API of OpenAI: found by provider and URL, overruled by the model's `compat`.

use picofleet_delta::Json;

use crate::model::Model;
use crate::transcript::ToolSupport;

/// How a request tells the thinking level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ThinkingFormat {
    /// `reasoning_effort`
    OpenAi,
    /// `reasoning: {effort}`
    OpenRouter,
    /// `thinking: {type}` and `reasoning_effort`
    DeepSeek,
    /// The same, and the thinking stays in the context.
    Zai,
    /// `enable_thinking` and `reasoning_effort`
    Qwen,
    /// `chat_template_kwargs` that are always the same
    QwenChatTemplate,
    /// `chat_template_kwargs` of the model's configuration
    ChatTemplate,
    /// `chat_template_args` of the model's configuration and `reasoning_effort`
    Baseten,
    /// `reasoning: {effort}` for levels that the model names
    AntLing,
    /// `reasoning: {enabled}` and `reasoning_effort`
    Together,
    /// `thinking` with the level
    StringThinking,
}

impl ThinkingFormat {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "openai" => Self::OpenAi,
            "openrouter" => Self::OpenRouter,
            "deepseek" => Self::DeepSeek,
            "zai" => Self::Zai,
            "qwen" => Self::Qwen,
            "qwen-chat-template" => Self::QwenChatTemplate,
            "chat-template" => Self::ChatTemplate,
            "baseten" => Self::Baseten,
            "ant-ling" => Self::AntLing,
            "together" => Self::Together,
            "string-thinking" => Self::StringThinking,
            _ => return None,
        })
    }
}

/// Which headers tell the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionHeaders {
    /// None.
    None,
    /// `session_id`, `x-client-request-id` and `x-session-affinity`
    OpenAi,
    /// The same without `session_id`
    OpenAiNoSession,
    /// `x-session-id`
    OpenRouter,
}

/// What a server takes and gives.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the configuration that is independent of the others")]
pub(super) struct Compat {
    /// It takes `store`.
    pub(super) store: bool,
    /// Its system role is `developer`.
    pub(super) developer_role: bool,
    /// It takes `reasoning_effort`.
    pub(super) reasoning_effort: bool,
    /// It takes `stream_options`.
    pub(super) usage_in_streaming: bool,
    /// It says why an answer ends.
    pub(super) finish_reason: bool,
    /// The member with the output limit.
    pub(super) max_tokens_field: &'static str,
    /// Results of tools have the tool's name.
    pub(super) tool_result_name: bool,
    /// An answer must stand between results and a user message.
    pub(super) assistant_after_tool_result: bool,
    /// Answers without text have `""` instead of `null`.
    pub(super) non_null_assistant_content: bool,
    /// `tools` must be there when there are calls.
    pub(super) tools_with_tool_history: bool,
    /// Thinking goes back as text.
    pub(super) thinking_as_text: bool,
    /// Answers must have `reasoning_content`.
    pub(super) reasoning_content: bool,
    /// How the thinking level is told.
    pub(super) thinking_format: ThinkingFormat,
    /// Values of the chat template; an object.
    pub(super) chat_template_kwargs: Option<Json>,
    /// The same under the name that Baseten has.
    pub(super) chat_template_args: Option<Json>,
    /// `tool_stream` goes with tools.
    pub(super) tool_stream: bool,
    /// The member with the thinking budget.
    pub(super) thinking_budget_field: Option<&'static str>,
    /// It takes `strict` in tools.
    pub(super) strict_mode: bool,
    /// System messages stay where they are.
    pub(super) mid_convo_system_messages: bool,
    /// So do the tools that they add.
    pub(super) mid_convo_tool_additions: bool,
    /// It takes the cache markers of Anthropic.
    pub(super) cache_control: bool,
    /// How the session is told.
    pub(super) session_headers: SessionHeaders,
    /// Whether `prompt_cache_key` is sent: always, never, or as the cache retention says.
    pub(super) prompt_cache_key: Option<bool>,
    /// It keeps prompts for a day.
    pub(super) long_cache_retention: bool,
    /// The `priority` of requests.
    pub(super) priority: Option<Json>,
}

impl Compat {
    /// For a model.
    pub(super) fn of(model: &Model) -> Self {
        let server = Server::of(model);
        let option = |name: &str| model.compat.as_ref().and_then(|compat| compat.get(name)).filter(|value| !value.is_null());
        let flag = |name: &str, detected: bool| option(name).and_then(Json::as_bool).unwrap_or(detected);
        let word = |name: &str| option(name).and_then(Json::as_str);
        let object = |name: &str| option(name).filter(|value| value.as_object().is_some()).cloned();
        let max_tokens = word("maxTokensField").map_or_else(|| server.takes_max_tokens(), |field| field == "max_tokens");
        Self {
            store: flag("supportsStore", !server.is_nonstandard()),
            developer_role: flag("supportsDeveloperRole", server.openai),
            reasoning_effort: flag("supportsReasoningEffort", server.takes_reasoning_effort()),
            usage_in_streaming: flag("supportsUsageInStreaming", true),
            finish_reason: flag("supportsFinishReason", true),
            max_tokens_field: if max_tokens { "max_tokens" } else { "max_completion_tokens" },
            tool_result_name: flag("requiresToolResultName", false),
            assistant_after_tool_result: flag("requiresAssistantAfterToolResult", false),
            non_null_assistant_content: flag("requiresNonNullAssistantContent", false),
            tools_with_tool_history: flag("requiresToolsWithToolHistory", false),
            thinking_as_text: flag("requiresThinkingAsText", false),
            reasoning_content: flag("requiresReasoningContentOnAssistantMessages", server.deepseek),
            thinking_format: word("thinkingFormat")
                .map_or_else(|| server.thinking_format(), |name| ThinkingFormat::named(&name).unwrap_or(ThinkingFormat::OpenAi)),
            chat_template_kwargs: object("chatTemplateKwargs"),
            chat_template_args: object("chatTemplateArgs"),
            tool_stream: flag("zaiToolStream", false),
            thinking_budget_field: match word("thinkingTokenBudgetField").as_deref() {
                Some("thinking_budget") => Some("thinking_budget"),
                Some("thinking_budget_tokens") => Some("thinking_budget_tokens"),
                Some("thinking_token_budget") => Some("thinking_token_budget"),
                _ => flag("supportsThinkingTokenBudget", false).then_some("thinking_token_budget"),
            },
            strict_mode: flag("supportsStrictMode", false),
            mid_convo_system_messages: flag("supportsMidConvoSystemMessages", false),
            mid_convo_tool_additions: flag("supportsMidConvoToolAdditions", false),
            cache_control: word("cacheControlFormat")
                .map_or_else(|| model.provider == "openrouter" && model.id.starts_with("anthropic/"), |format| format == "anthropic"),
            session_headers: match word("sessionAffinityFormat").as_deref() {
                _ if !flag("sendSessionAffinityHeaders", server.openrouter) => SessionHeaders::None,
                Some("openrouter") => SessionHeaders::OpenRouter,
                Some("openai-nosession") => SessionHeaders::OpenAiNoSession,
                None if server.openrouter => SessionHeaders::OpenRouter,
                _ => SessionHeaders::OpenAi,
            },
            prompt_cache_key: match word("promptCacheKeyMode").as_deref() {
                Some("enabled") => Some(true),
                Some("disabled") => Some(false),
                _ => server.openai_url.then_some(true),
            },
            long_cache_retention: flag("supportsLongCacheRetention", server.keeps_prompts_long()),
            priority: option("vllmPriority").cloned(),
        }
    }

    /// What is sent in place of later system messages' tools.
    pub(super) fn tool_support(&self) -> ToolSupport {
        if self.mid_convo_system_messages && self.mid_convo_tool_additions { ToolSupport::Additions } else { ToolSupport::None }
    }
}

/// Whose server it is, by the provider's name or the URL.
#[expect(clippy::struct_excessive_bools, reason = "a gateway and the server behind it may both be known")]
struct Server {
    ant_ling: bool,
    cerebras: bool,
    chutes: bool,
    cloudflare_gateway: bool,
    cloudflare_workers: bool,
    deepseek: bool,
    moonshot: bool,
    nvidia: bool,
    openai: bool,
    openai_url: bool,
    opencode: bool,
    openrouter: bool,
    together: bool,
    xai: bool,
    zai: bool,
}

impl Server {
    fn of(model: &Model) -> Self {
        let is = |names: &[&str], parts: &[&str]| {
            names.contains(&model.provider.as_str()) || parts.iter().any(|part| model.base_url.contains(part))
        };
        Self {
            ant_ling: is(&["ant-ling"], &["api.ant-ling.com"]),
            cerebras: is(&["cerebras"], &["cerebras.ai"]),
            chutes: is(&[], &["chutes.ai"]),
            cloudflare_gateway: is(&["cloudflare-ai-gateway"], &["gateway.ai.cloudflare.com"]),
            cloudflare_workers: is(&["cloudflare-workers-ai"], &["api.cloudflare.com"]),
            deepseek: is(&["deepseek"], &[]) || model.base_url.to_ascii_lowercase().contains("deepseek.com"),
            moonshot: is(&["moonshotai", "moonshotai-cn"], &["api.moonshot."]),
            nvidia: is(&["nvidia"], &["integrate.api.nvidia.com"]),
            openai: is(&["openai"], &["api.openai.com"]),
            openai_url: is(&[], &["api.openai.com"]),
            opencode: is(&["opencode"], &["opencode.ai"]),
            openrouter: is(&["openrouter"], &["openrouter.ai"]),
            together: is(&["together"], &["api.together.ai", "api.together.xyz"]),
            xai: is(&["xai"], &["api.x.ai"]),
            zai: is(&["zai", "zai-coding-cn"], &["api.z.ai", "open.bigmodel.cn"]),
        }
    }

    fn is_nonstandard(&self) -> bool {
        self.nvidia
            || self.cerebras
            || self.xai
            || self.together
            || self.chutes
            || self.deepseek
            || self.zai
            || self.moonshot
            || self.opencode
            || self.cloudflare_workers
            || self.cloudflare_gateway
            || self.ant_ling
    }

    fn takes_max_tokens(&self) -> bool {
        self.chutes
            || self.deepseek
            || self.moonshot
            || self.cloudflare_gateway
            || self.together
            || self.nvidia
            || self.ant_ling
            || self.zai
    }

    fn takes_reasoning_effort(&self) -> bool {
        !(self.xai || self.zai || self.moonshot || self.together || self.cloudflare_gateway || self.nvidia || self.ant_ling)
    }

    fn keeps_prompts_long(&self) -> bool {
        !(self.together || self.cloudflare_workers || self.cloudflare_gateway || self.nvidia || self.ant_ling)
    }

    fn thinking_format(&self) -> ThinkingFormat {
        let known = [
            (self.deepseek, ThinkingFormat::DeepSeek),
            (self.zai, ThinkingFormat::Zai),
            (self.together, ThinkingFormat::Together),
            (self.ant_ling, ThinkingFormat::AntLing),
            (self.openrouter, ThinkingFormat::OpenRouter),
        ];
        known.into_iter().find_map(|(is, format)| is.then_some(format)).unwrap_or(ThinkingFormat::OpenAi)
    }
}
