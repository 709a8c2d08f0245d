//! OpenAI-compatible chat completions (`openai-completions`), as pi-ai speaks it.
//!
//! Not built: tools that are sampled by a grammar (they are sent as functions), and the headers of GitHub Copilot.

mod body;
mod cache;
mod compat;
mod decoder;
mod details;
mod error;
mod messages;
mod thinking;
mod tools;
mod usage;

use futures::stream::BoxStream;
use picofleet_session::Millis;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;

use crate::http::{self, Client, Request, RequestError};
use crate::model::Model;
use crate::provider::{CacheRetention, Context, Provider, StreamEvent, StreamOptions, failed};
use crate::strict::UnmetWish;
use compat::{Compat, SessionHeaders};

pub use decoder::OpenAiChatDecoder;

/// The API of models that this provider answers for.
pub const API: &str = "openai-completions";

/// A request cannot be made for a context.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// A tool demands strict sampling that its schema or server does not allow.
    #[error("Tool \"{tool}\" requires JSON-schema constrained sampling, but {problem}.")]
    Strict {
        /// The tool.
        tool: String,
        /// Why it cannot have it.
        problem: String,
    },
    /// The credential, the URL or a header is missing or wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl From<UnmetWish> for BuildError {
    fn from(UnmetWish { tool, problem }: UnmetWish) -> Self {
        Self::Strict { tool, problem }
    }
}

/// The request for a context. `now` is the time of results that stand for missing ones.
///
/// # Errors
///
/// A tool, the credential, the URL or a header is wrong; the text is the error message of the answer.
pub fn request(
    model: &Model,
    context: &Context,
    options: &StreamOptions,
    key: Option<&SecretString>,
    now: Millis,
) -> Result<Request, BuildError> {
    let compat = Compat::of(model);
    let body = body::body(model, context, options, &compat, now)?;
    let mut request = Request::post(model, "/chat/completions", &body)?;
    for name in session_headers(&compat, options) {
        request = request.header(name, options.session_id.as_deref().unwrap_or_default())?;
    }
    if let Some(key) = key {
        request = request.header("authorization", &format!("Bearer {}", key.expose_secret()))?;
    }
    Ok(request.with_options(model, options)?.require_key(model)?)
}

fn session_headers(compat: &Compat, options: &StreamOptions) -> &'static [&'static str] {
    if options.session_id.as_ref().is_none_or(String::is_empty) || options.cache_retention == Some(CacheRetention::None) {
        return &[];
    }
    match compat.session_headers {
        SessionHeaders::None => &[],
        SessionHeaders::OpenAi => &["session_id", "x-client-request-id", "x-session-affinity"],
        SessionHeaders::OpenAiNoSession => &["x-client-request-id", "x-session-affinity"],
        SessionHeaders::OpenRouter => &["x-session-id"],
    }
}

/// Answers requests for models of this API.
#[derive(Clone, Debug)]
pub struct OpenAiChat {
    client: Client,
    key: Option<SecretString>,
}

impl OpenAiChat {
    /// A provider that uses a client and a key. Without a key the model's or the request's headers must have a credential.
    #[must_use]
    pub fn new(client: Client, key: Option<SecretString>) -> Self {
        Self { client, key }
    }
}

impl Provider for OpenAiChat {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let now = self.client.clock().now();
        match request(model, context, options, self.key.as_ref(), now) {
            Ok(request) => http::stream(&self.client, Ok(request), OpenAiChatDecoder::new(model, now), cancel),
            Err(error) => failed(model, now, error),
        }
    }
}
