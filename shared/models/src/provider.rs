//! A request to a model and the stream of events that answers it.

mod event;
mod partial;

use std::collections::BTreeMap;

use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::{AssistantMessage, DeferredHandle, StopReason, Usage};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::model::{Headers, Model, ThinkingLevel};

pub use crate::transcript::Context;
pub use event::StreamEvent;
pub use partial::Partial;

/// What a caller may set for one request. Every member is optional; absent ones have the provider's defaults.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamOptions {
    /// The thinking level; absent is the same as `off`. Clamp it first: [`crate::model::clamp_thinking_level`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ThinkingLevel>,
    /// Whether tools may be called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoice>,
    /// Most tokens of output; the model's own limit when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// The sampling temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// More members of the request body, over those of the model: a JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling_params: Option<Json>,
    /// How long the provider may keep the prompt; short when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_retention: Option<CacheRetention>,
    /// Groups requests of one session for the provider's caches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    /// Headers of this request; `null` removes a default one.
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub headers: Headers,
    /// What the provider is told about the request: a JSON object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Json>,
    /// Longest time from the start of one HTTP request to the head of its answer, in milliseconds; the client's own when
    /// absent. It does not bound the answer itself, which may take as long as it does not stand still.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// HTTP requests after the first one; 0 when absent, since whole requests are retried by the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// Longest delay that a server may ask for before such a request, in milliseconds; 60000 when absent, 0 for no bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_retry_delay_ms: Option<u64>,
    /// Tokens of thinking by level, for providers that take a number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_budgets: Option<BTreeMap<ThinkingLevel, u64>>,
    /// The answer may come later: the stream may end with a handle for [`Provider::fetch_deferred`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deferred: Option<DeferredRequest>,
}

/// Whether a model may call tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ToolChoice {
    /// As it sees fit.
    Auto,
    /// Not at all.
    None,
}

/// How long a provider may keep a prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum CacheRetention {
    /// Not at all.
    None,
    /// Minutes.
    #[default]
    Short,
    /// An hour or a day, as the provider has it.
    Long,
}

/// Asks for a deferred answer: `true`, or an object with the time within which it must come.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeferredRequest {
    /// Whether it may be deferred.
    Flag(bool),
    /// It may be deferred for a time.
    Within {
        /// `15m`, `1h` or `24h`; the provider's own when absent.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        window: Option<String>,
    },
}

impl DeferredRequest {
    /// True unless it is `false`.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        *self != Self::Flag(false)
    }
}

/// A deferred answer could not be cancelled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CancelDeferredError {
    /// The provider defers nothing.
    #[error("Provider {provider} does not support deferred responses")]
    Unsupported {
        /// The provider.
        provider: String,
    },
    /// The provider refused; the text is what it says.
    #[error("{0}")]
    Refused(String),
}

/// Answers requests.
///
/// Invariant: a stream ends with exactly one terminal event ([`StreamEvent::Done`] or [`StreamEvent::Error`]) and yields
/// nothing after it. Every failure is such an event, also one before the request could be made. When `cancel` fires, the
/// stream ends with an error of the reason `aborted` and what came in so far.
///
/// A dropped stream ends the request. Providers do not retry whole requests, store nothing and never log a credential.
pub trait Provider: Send + Sync {
    /// Streams the answer to a context. The context is normalized by the provider.
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent>;

    /// Streams a deferred answer: again with the reason `deferred` and the handle while it is pending, else as
    /// [`Provider::stream`] would have. An unknown handle is an error event.
    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let _ = cancel;
        let _ = handle;
        failed(model, Millis(0), CancelDeferredError::Unsupported { provider: model.provider.clone() })
    }

    /// Gives up a deferred answer. One that is gone already is no error.
    fn cancel_deferred(&self, model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        let _ = handle;
        let provider = model.provider.clone();
        async move { Err(CancelDeferredError::Unsupported { provider }) }.boxed()
    }
}

/// Most blocks of one answer: far above what models send, so that a server cannot fill the memory with empty ones.
pub(crate) const BLOCKS_MAX: usize = 10_000;

/// What an answer with more blocks says.
pub(crate) fn too_many_blocks(api: &str) -> String {
    format!("{api} stream has more than {BLOCKS_MAX} content blocks")
}

/// A message of a model before anything came in.
#[must_use]
pub fn empty_answer(model: &Model, timestamp: Millis) -> AssistantMessage {
    AssistantMessage {
        content: Vec::new(),
        api: model.api.clone(),
        provider: model.provider.clone(),
        model: model.id.clone(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage::default(),
        stop_reason: StopReason::Pending,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp,
        duration_ms: None,
    }
}

/// A stream of one error, for a request that cannot be made.
pub(crate) fn failed(model: &Model, timestamp: Millis, error: impl ToString) -> BoxStream<'static, StreamEvent> {
    let error_message = Some(error.to_string());
    let message = AssistantMessage { stop_reason: StopReason::Error, error_message, ..empty_answer(model, timestamp) };
    futures::stream::iter([StreamEvent::Error { message: Box::new(message) }]).boxed()
}
