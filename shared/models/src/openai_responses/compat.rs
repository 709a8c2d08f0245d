//! How a provider departs from the API, as the `compat` of its models says.

use picofleet_delta::Json;

use crate::model::Model;
use crate::transcript::ToolSupport;

/// Which headers group the requests of one session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SessionAffinity {
    /// `session-id` and `x-client-request-id`.
    OpenAi,
    /// `x-session-id`.
    OpenRouter,
    /// `x-client-request-id` alone.
    RequestId,
}

/// The members of `compat` that this API knows, with their defaults.
#[expect(clippy::struct_excessive_bools, reason = "each is a member of a configured object")]
#[derive(Clone, Copy, Debug)]
pub(super) struct Compat {
    pub(super) developer_role: bool,
    pub(super) mid_convo_system_messages: bool,
    pub(super) session_affinity: SessionAffinity,
    pub(super) prompt_cache_key: bool,
    pub(super) long_cache_retention: bool,
    pub(super) strict_mode: bool,
    pub(super) additional_tools: bool,
    pub(super) tool_search: bool,
    pub(super) explicit_prompt_cache_mode: bool,
    pub(super) max_output_tokens: bool,
}

impl Compat {
    pub(super) fn of(model: &Model) -> Self {
        let member = |name: &str| model.compat.as_ref().and_then(|compat| compat.get(name));
        let flag = |name: &str, default: bool| member(name).and_then(Json::as_bool).unwrap_or(default);
        let word = |name: &str| member(name).and_then(Json::as_str);
        let openrouter = model.provider == "openrouter" || model.base_url.contains("openrouter.ai");
        let session_affinity = match word("sessionAffinityFormat").as_deref() {
            None if openrouter => SessionAffinity::OpenRouter,
            None | Some("openai") => SessionAffinity::OpenAi,
            Some("openrouter") => SessionAffinity::OpenRouter,
            Some(_) => SessionAffinity::RequestId,
        };
        Self {
            developer_role: flag("supportsDeveloperRole", true),
            mid_convo_system_messages: flag("supportsMidConvoSystemMessages", false),
            session_affinity,
            prompt_cache_key: word("promptCacheKeyMode").as_deref() != Some("disabled"),
            long_cache_retention: flag("supportsLongCacheRetention", true),
            strict_mode: flag("supportsStrictMode", false),
            additional_tools: flag("supportsAdditionalTools", false),
            tool_search: flag("supportsToolSearch", false),
            explicit_prompt_cache_mode: flag("supportsExplicitPromptCacheMode", false),
            max_output_tokens: flag("supportsMaxOutputTokens", true),
        }
    }

    /// How tools that change within a conversation are told. Without system messages in place there is nothing that could
    /// carry a removal.
    pub(super) fn tool_support(self) -> ToolSupport {
        if self.mid_convo_system_messages && self.additional_tools {
            ToolSupport::Changes
        } else if self.tool_search {
            ToolSupport::Additions
        } else {
            ToolSupport::None
        }
    }
}
