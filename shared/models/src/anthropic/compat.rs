//! How a server departs from the API: the members of a model's `compat`.

use crate::model::Model;

/// What a server can do. Absent members have the values of Anthropic's own endpoint, save where a default is named.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches of a configuration")]
pub(super) struct Compat {
    /// `supportsEagerToolInputStreaming`: tools are marked for it; else a beta header asks for it.
    pub(super) eager_tool_input: bool,
    /// `supportsLongCacheRetention`: a cache can be kept for an hour.
    pub(super) long_cache: bool,
    /// `supportsCacheControlOnTools`
    pub(super) cache_on_tools: bool,
    /// `supportsTemperature`
    pub(super) temperature: bool,
    /// `allowEmptySignature`, default false: thinking without a signature goes back as thinking.
    pub(super) empty_signature: bool,
    /// `supportsStrictTools`, default false.
    pub(super) strict_tools: bool,
    /// `supportsMidConvoSystemMessages`, default false.
    pub(super) system_in_place: bool,
    /// `supportsMidConvoToolChanges`, default false; counts only with the one before.
    pub(super) tools_in_place: bool,
    /// `forceAdaptiveThinking`, default false: the model takes an effort instead of a budget.
    pub(super) adaptive_thinking: bool,
    /// The header that carries the session's id; from `sendSessionAffinityHeaders` and `sessionAffinityFormat`.
    pub(super) session_header: Option<&'static str>,
}

impl Compat {
    pub(super) fn of(model: &Model) -> Self {
        let member = |name: &str| model.compat.as_ref().and_then(|compat| compat.get(name));
        let flag = |name: &str, default: bool| member(name).and_then(picofleet_delta::Json::as_bool).unwrap_or(default);
        let open_router = is_open_router(model);
        let format = member("sessionAffinityFormat").and_then(picofleet_delta::Json::as_str);
        let for_open_router = format.map_or(open_router, |format| format == "openrouter");
        let session_header = if for_open_router { "x-session-id" } else { "x-session-affinity" };
        Self {
            eager_tool_input: flag("supportsEagerToolInputStreaming", true),
            long_cache: flag("supportsLongCacheRetention", true),
            cache_on_tools: flag("supportsCacheControlOnTools", true),
            temperature: flag("supportsTemperature", true),
            empty_signature: flag("allowEmptySignature", false),
            strict_tools: flag("supportsStrictTools", false),
            system_in_place: flag("supportsMidConvoSystemMessages", false),
            tools_in_place: flag("supportsMidConvoToolChanges", false),
            adaptive_thinking: flag("forceAdaptiveThinking", false),
            session_header: flag("sendSessionAffinityHeaders", open_router).then_some(session_header),
        }
    }
}

/// True for models that are reached over OpenRouter, which reports prices and has its own session header.
pub(super) fn is_open_router(model: &Model) -> bool {
    model.provider == "openrouter" || model.base_url.contains("openrouter.ai")
}
