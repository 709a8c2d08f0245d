//! Changes of a configuration, checked before they are written (section 2.2): known fields only, numbers finite and not negative.

use std::borrow::Cow;

use picofleet_models::model::ThinkingLevel;
use picofleet_session::Json;

use super::check::{boolean, count, field, known, milliseconds, object, text, word};
use super::{CompactionPolicy, ConversationConfig, ModelRef, QueueMode, RetryPolicy, ToolExecution};

/// Why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct InvalidConfig {
    /// The path of the field, such as `retry.baseDelayMs`.
    pub field: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

impl InvalidConfig {
    pub(super) fn new(field: impl Into<String>, why: impl Into<String>) -> Self {
        Self { field: field.into(), why: why.into() }
    }
}

/// A change of a configuration. `None` leaves a field as it is; `Some(None)` removes it, so that its default holds again.
///
/// As JSON: an absent field stays, `null` removes it.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ConfigPatch {
    /// The model.
    pub model: Option<Option<ModelRef>>,
    /// How much it thinks.
    pub thinking_level: Option<String>,
    /// The active tools.
    pub active_tools: Option<Vec<String>>,
    /// Options of every request.
    pub stream_options: Option<Option<Json>>,
    /// Retries of whole attempts.
    pub retry: Option<Option<RetryPolicy>>,
    /// How the calls of one answer run.
    pub tool_execution: Option<Option<ToolExecution>>,
    /// How many queued steers a boundary takes.
    pub steering_mode: Option<Option<QueueMode>>,
    /// How many queued follow-ups a final boundary takes.
    pub follow_up_mode: Option<Option<QueueMode>>,
    /// When contexts are compacted.
    pub compaction: Option<Option<CompactionPolicy>>,
}

const FIELDS: [&str; 9] =
    ["model", "thinkingLevel", "activeTools", "streamOptions", "retry", "toolExecution", "steeringMode", "followUpMode", "compaction"];

impl ConfigPatch {
    /// Reads and checks a change.
    ///
    /// # Errors
    /// [`InvalidConfig`] with the path of the first field that is not allowed.
    pub fn parse(json: &Json) -> Result<Self, InvalidConfig> {
        known(json, "", &FIELDS)?;
        Ok(Self {
            model: optional(json, "model", model)?,
            thinking_level: json.get("thinkingLevel").map(thinking_level).transpose()?,
            active_tools: json.get("activeTools").map(active_tools).transpose()?,
            stream_options: optional(json, "streamOptions", stream_options)?,
            retry: optional(json, "retry", retry)?,
            tool_execution: optional(json, "toolExecution", |value| word(value, "toolExecution", "parallel, sequential"))?,
            steering_mode: optional(json, "steeringMode", |value| word(value, "steeringMode", "all, one-at-a-time"))?,
            follow_up_mode: optional(json, "followUpMode", |value| word(value, "followUpMode", "all, one-at-a-time"))?,
            compaction: optional(json, "compaction", compaction)?,
        })
    }

    /// The JSON form.
    ///
    /// # Errors
    /// [`InvalidConfig`] for a number that JSON does not have.
    pub fn to_json(&self) -> Result<Json, InvalidConfig> {
        let mut fields = Vec::new();
        put(&mut fields, "model", self.model.as_ref())?;
        put(&mut fields, "thinkingLevel", self.thinking_level.as_ref())?;
        put(&mut fields, "activeTools", self.active_tools.as_ref())?;
        put(&mut fields, "streamOptions", self.stream_options.as_ref())?;
        put(&mut fields, "retry", self.retry.as_ref())?;
        put(&mut fields, "toolExecution", self.tool_execution.as_ref())?;
        put(&mut fields, "steeringMode", self.steering_mode.as_ref())?;
        put(&mut fields, "followUpMode", self.follow_up_mode.as_ref())?;
        put(&mut fields, "compaction", self.compaction.as_ref())?;
        Ok(Json::object(fields))
    }

    /// Checks the names that it would activate: none twice, and none that is neither active already nor registered (section 2.2).
    ///
    /// # Errors
    /// [`InvalidConfig`] for `activeTools`.
    pub fn check_tools(&self, active: &[String], registered: &[String]) -> Result<(), InvalidConfig> {
        let names = self.active_tools.as_deref().unwrap_or_default();
        for (index, name) in names.iter().enumerate() {
            let path = || format!("activeTools[{index}]");
            if names[..index].contains(name) {
                return Err(InvalidConfig::new(path(), format!("{name:?} stands there twice")));
            }
            if !active.contains(name) && !registered.contains(name) {
                return Err(InvalidConfig::new(path(), format!("no tool {name:?} is registered; there are: {}", registered.join(", "))));
            }
        }
        Ok(())
    }

    /// Changes a configuration.
    pub fn apply(self, config: &mut ConversationConfig) {
        set(&mut config.model, self.model);
        set(&mut config.thinking_level, self.thinking_level);
        set(&mut config.active_tools, self.active_tools);
        set(&mut config.stream_options, self.stream_options);
        set(&mut config.retry, self.retry);
        set(&mut config.tool_execution, self.tool_execution);
        set(&mut config.steering_mode, self.steering_mode);
        set(&mut config.follow_up_mode, self.follow_up_mode);
        set(&mut config.compaction, self.compaction);
    }
}

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

fn put<T: serde::Serialize>(fields: &mut Vec<(&'static str, Json)>, name: &'static str, value: Option<&T>) -> Result<(), InvalidConfig> {
    if let Some(value) = value {
        fields.push((name, Json::from_serde(value).map_err(|error| InvalidConfig::new(name, error.to_string()))?));
    }
    Ok(())
}

/// A field that `null` removes.
fn optional<T>(json: &Json, name: &str, read: impl FnOnce(&Json) -> Result<T, InvalidConfig>) -> Result<Option<Option<T>>, InvalidConfig> {
    json.get(name).map(|value| if value.is_null() { Ok(None) } else { read(value).map(Some) }).transpose()
}

fn model(value: &Json) -> Result<ModelRef, InvalidConfig> {
    known(value, "model", &["provider", "modelId"])?;
    let name = |key| field(value, "model", key).and_then(|(value, path)| text(value, &path).map(Cow::into_owned));
    Ok(ModelRef { provider: name("provider")?, model_id: name("modelId")? })
}

fn thinking_level(value: &Json) -> Result<String, InvalidConfig> {
    let level: ThinkingLevel = word(value, "thinkingLevel", "off, minimal, low, medium, high, xhigh, max")?;
    let level = Json::from_serde(&level).map_err(|error| InvalidConfig::new("thinkingLevel", error.to_string()))?;
    text(&level, "thinkingLevel").map(Cow::into_owned)
}

fn active_tools(value: &Json) -> Result<Vec<String>, InvalidConfig> {
    let names = value.as_array().ok_or_else(|| InvalidConfig::new("activeTools", "is no list of names"))?;
    names.iter().enumerate().map(|(index, name)| text(name, &format!("activeTools[{index}]")).map(Cow::into_owned)).collect()
}

fn retry(value: &Json) -> Result<RetryPolicy, InvalidConfig> {
    known(value, "retry", &["enabled", "maxRetries", "baseDelayMs", "maxAgentDelayMs"])?;
    let most = value.get("maxAgentDelayMs").map(|value| milliseconds(value, "retry.maxAgentDelayMs")).transpose()?;
    let (enabled, path) = field(value, "retry", "enabled")?;
    let enabled = boolean(enabled, &path)?;
    let (retries, path) = field(value, "retry", "maxRetries")?;
    let max_retries = count(retries, &path)?;
    let max_retries = u32::try_from(max_retries).map_err(|_| InvalidConfig::new(path, "is above 4294967295"))?;
    let (delay, path) = field(value, "retry", "baseDelayMs")?;
    Ok(RetryPolicy { enabled, max_retries, base_delay_ms: milliseconds(delay, &path)?, max_agent_delay_ms: most })
}

fn compaction(value: &Json) -> Result<CompactionPolicy, InvalidConfig> {
    known(value, "compaction", &["enabled", "reserveTokens", "keepRecentTokens", "backgroundTokens"])?;
    let tokens = |key| field(value, "compaction", key).and_then(|(value, path)| count(value, &path));
    let (enabled, path) = field(value, "compaction", "enabled")?;
    Ok(CompactionPolicy {
        enabled: boolean(enabled, &path)?,
        reserve_tokens: tokens("reserveTokens")?,
        keep_recent_tokens: tokens("keepRecentTokens")?,
        background_tokens: tokens("backgroundTokens")?,
    })
}

/// The curated options of the specification. They are kept as they came, so that a getter gives what a setter took.
fn stream_options(value: &Json) -> Result<Json, InvalidConfig> {
    const AT: &str = "streamOptions";
    const OPTIONS: [&str; 8] =
        ["transport", "timeoutMs", "maxRetries", "maxRetryDelayMs", "headers", "metadata", "cacheRetention", "deferred"];
    known(value, AT, &OPTIONS)?;
    for key in ["timeoutMs", "maxRetries", "maxRetryDelayMs"] {
        if let Some(number) = value.get(key) {
            count(number, &format!("{AT}.{key}"))?;
        }
    }
    if let Some(transport) = value.get("transport") {
        one_of(transport, "streamOptions.transport", &["sse", "websocket", "websocket-cached", "auto"])?;
    }
    if let Some(retention) = value.get("cacheRetention") {
        one_of(retention, "streamOptions.cacheRetention", &["none", "short", "long"])?;
    }
    if let Some(metadata) = value.get("metadata") {
        object(metadata, "streamOptions.metadata")?;
    }
    if let Some(headers) = value.get("headers") {
        for (name, header) in object(headers, "streamOptions.headers")?.iter() {
            text(header, &format!("streamOptions.headers.{name}"))?;
        }
    }
    if let Some(deferred) = value.get("deferred").filter(|deferred| deferred.as_bool().is_none()) {
        known(deferred, "streamOptions.deferred", &["window"])?;
        if let Some(window) = deferred.get("window") {
            one_of(window, "streamOptions.deferred.window", &["15m", "1h", "24h"])?;
        }
    }
    Ok(value.clone())
}

fn one_of(value: &Json, path: &str, words: &[&str]) -> Result<(), InvalidConfig> {
    let found = text(value, path)?;
    if words.contains(&&*found) {
        return Ok(());
    }
    Err(InvalidConfig::new(path, format!("{found:?} is none of {}", words.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ConfigPatch, InvalidConfig> {
        ConfigPatch::parse(&Json::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_refusal_names_the_field() {
        for (text, field) in [
            (r#"{"modle":null}"#, "modle"),
            (r"[]", ""),
            (r#"{"model":{"provider":"p"}}"#, "model.modelId"),
            (r#"{"thinkingLevel":"much"}"#, "thinkingLevel"),
            (r#"{"activeTools":["a",1]}"#, "activeTools[1]"),
            (r#"{"retry":{"enabled":true,"maxRetries":-1,"baseDelayMs":1}}"#, "retry.maxRetries"),
            (r#"{"retry":{"enabled":true,"maxRetries":1.5,"baseDelayMs":1}}"#, "retry.maxRetries"),
            (r#"{"retry":{"enabled":true,"maxRetries":1,"baseDelayMs":-0.5}}"#, "retry.baseDelayMs"),
            (r#"{"retry":{"enabled":true,"maxRetries":1,"baseDelayMs":1,"most":2}}"#, "retry.most"),
            (r#"{"retry":{"enabled":1,"maxRetries":1,"baseDelayMs":1}}"#, "retry.enabled"),
            (r#"{"compaction":{"enabled":true,"reserveTokens":1,"keepRecentTokens":2}}"#, "compaction.backgroundTokens"),
            (r#"{"steeringMode":"some"}"#, "steeringMode"),
            (r#"{"toolExecution":"both"}"#, "toolExecution"),
            (r#"{"streamOptions":{"temperature":1}}"#, "streamOptions.temperature"),
            (r#"{"streamOptions":{"timeoutMs":-1}}"#, "streamOptions.timeoutMs"),
            (r#"{"streamOptions":{"headers":{"a":1}}}"#, "streamOptions.headers.a"),
            (r#"{"streamOptions":{"deferred":{"window":"2h"}}}"#, "streamOptions.deferred.window"),
        ] {
            assert_eq!(parse(text).unwrap_err().field, field, "{text}");
        }
    }

    #[test]
    fn a_patch_keeps_sets_and_removes() {
        let mut config = ConversationConfig { retry: Some(RetryPolicy::default()), ..ConversationConfig::default() };
        let text = r#"{"retry":null,"steeringMode":"all","streamOptions":{"deferred":true},"thinkingLevel":"high"}"#;
        let patch = parse(text).unwrap();
        assert_eq!(ConfigPatch::parse(&patch.to_json().unwrap()).unwrap(), patch);
        patch.apply(&mut config);
        assert_eq!((config.retry, config.steering_mode, config.model), (None, Some(QueueMode::All), None));
        assert_eq!(config.thinking_level, "high");
        let nan = RetryPolicy { base_delay_ms: f64::NAN, ..RetryPolicy::default() };
        assert_eq!(ConfigPatch { retry: Some(Some(nan)), ..ConfigPatch::default() }.to_json().unwrap_err().field, "retry");
    }

    #[test]
    fn only_newly_activated_names_must_be_registered() {
        let patch = parse(r#"{"activeTools":["stale","known"]}"#).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(patch.check_tools(&names(&["stale"]), &names(&["known"])), Ok(()));
        assert_eq!(patch.check_tools(&[], &names(&["known"])).unwrap_err().field, "activeTools[0]");
        let twice = parse(r#"{"activeTools":["known","known"]}"#).unwrap();
        assert_eq!(twice.check_tools(&names(&["known"]), &names(&["known"])).unwrap_err().field, "activeTools[1]");
    }
}
