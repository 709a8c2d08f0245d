//! Getters and setters of a conversation's configuration (section 2.2). A getter never writes; a setter is one commit and starts nothing.

use picofleet_models::model::ThinkingLevel;
use picofleet_session::Json;

use super::call::once;
use super::{Conversation, HostError};
use crate::config::{CONFIG, CompactionPolicy, ConfigPatch, ConversationConfig, ModelRef, QueueMode, RetryPolicy, ToolExecution};
use crate::wire::HostCall;

/// Each of these fails with [`HostError::Unavailable`]; a setter with [`HostError::Invalid`] and the field's path, with
/// [`HostError::NotFound`] and with [`HostError::OutcomeUnknown`] too.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Conversation {
    /// The whole configuration as it is stored.
    pub async fn config(&self) -> Result<ConversationConfig, HostError> {
        self.state(CONFIG.kind).await
    }

    /// Changes several fields in one commit, with the rules of the setters.
    pub async fn update(&self, patch: ConfigPatch) -> Result<(), HostError> {
        let patch = patch.to_json()?;
        self.harness.caller.write(once(None, HostCall::Patch { conversation: self.id, patch })).await
    }

    /// The model.
    pub async fn model(&self) -> Result<Option<ModelRef>, HostError> {
        Ok(self.config().await?.model)
    }

    /// Sets the model; without one a run ends `no_model`.
    pub async fn set_model(&self, model: Option<ModelRef>) -> Result<(), HostError> {
        self.update(ConfigPatch { model: Some(model), ..ConfigPatch::default() }).await
    }

    /// How much the model thinks.
    pub async fn thinking_level(&self) -> Result<ThinkingLevel, HostError> {
        let level = self.config().await?.thinking_level;
        Json::from(level.as_str()).to().map_err(|error| HostError::Answer(error.to_string()))
    }

    /// Sets how much the model thinks.
    pub async fn set_thinking_level(&self, level: ThinkingLevel) -> Result<(), HostError> {
        let name = Json::from_serde(&level).ok().and_then(|name| name.as_str().map(std::borrow::Cow::into_owned));
        self.update(ConfigPatch { thinking_level: name, ..ConfigPatch::default() }).await
    }

    /// The active tools; names that are not registered now are among them.
    pub async fn active_tools(&self) -> Result<Vec<String>, HostError> {
        Ok(self.config().await?.active_tools)
    }

    /// Sets the active tools. A name that stands twice and one that is neither active already nor registered refuse the whole.
    pub async fn set_active_tools<S: Into<String>>(&self, names: impl IntoIterator<Item = S>) -> Result<(), HostError> {
        let names = names.into_iter().map(Into::into).collect();
        self.update(ConfigPatch { active_tools: Some(names), ..ConfigPatch::default() }).await
    }

    /// The options of every request; an empty object where none are set.
    pub async fn stream_options(&self) -> Result<Json, HostError> {
        Ok(self.config().await?.stream_options.unwrap_or_else(|| Json::object::<&str, Json>([])))
    }

    /// Sets the options of every request.
    pub async fn set_stream_options(&self, options: Json) -> Result<(), HostError> {
        self.update(ConfigPatch { stream_options: Some(Some(options)), ..ConfigPatch::default() }).await
    }

    /// The retries of whole attempts.
    pub async fn retry_policy(&self) -> Result<RetryPolicy, HostError> {
        Ok(self.config().await?.retry.unwrap_or_default())
    }

    /// Sets the retries of whole attempts; `None` for the default.
    pub async fn set_retry_policy(&self, policy: Option<RetryPolicy>) -> Result<(), HostError> {
        self.update(ConfigPatch { retry: Some(policy), ..ConfigPatch::default() }).await
    }

    /// How the calls of one answer run.
    pub async fn tool_execution(&self) -> Result<ToolExecution, HostError> {
        Ok(self.config().await?.tool_execution.unwrap_or_default())
    }

    /// Sets how the calls of one answer run; `None` for the default.
    pub async fn set_tool_execution(&self, mode: Option<ToolExecution>) -> Result<(), HostError> {
        self.update(ConfigPatch { tool_execution: Some(mode), ..ConfigPatch::default() }).await
    }

    /// How many queued steers a boundary takes.
    pub async fn steering_mode(&self) -> Result<QueueMode, HostError> {
        Ok(self.config().await?.steering_mode.unwrap_or_default())
    }

    /// Sets how many queued steers a boundary takes; `None` for the default.
    pub async fn set_steering_mode(&self, mode: Option<QueueMode>) -> Result<(), HostError> {
        self.update(ConfigPatch { steering_mode: Some(mode), ..ConfigPatch::default() }).await
    }

    /// How many queued follow-ups a final boundary takes.
    pub async fn follow_up_mode(&self) -> Result<QueueMode, HostError> {
        Ok(self.config().await?.follow_up_mode.unwrap_or_default())
    }

    /// Sets how many queued follow-ups a final boundary takes; `None` for the default.
    pub async fn set_follow_up_mode(&self, mode: Option<QueueMode>) -> Result<(), HostError> {
        self.update(ConfigPatch { follow_up_mode: Some(mode), ..ConfigPatch::default() }).await
    }

    /// When the context is compacted.
    pub async fn compaction(&self) -> Result<CompactionPolicy, HostError> {
        Ok(self.config().await?.compaction.unwrap_or_default())
    }

    /// Sets when the context is compacted; `None` for the default.
    pub async fn set_compaction(&self, policy: Option<CompactionPolicy>) -> Result<(), HostError> {
        self.update(ConfigPatch { compaction: Some(policy), ..ConfigPatch::default() }).await
    }
}
