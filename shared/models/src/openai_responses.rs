//! The adapter for OpenAI Responses (`openai-responses`), as pi-ai speaks it.
//!
//! Not built: tools that are sampled by a grammar; they are sent as functions.
//!
//! # Deferred answers
//!
//! pi-ai has none for this API. Here they are background responses:
//!
//! | ours | the API |
//! | --- | --- |
//! | [`Provider::stream`] with `deferred` | `POST /responses` with `background` and `store`, without `stream` |
//! | the handle's `id` | the id of the response |
//! | the handle's `expiresAt` | now and the window (`15m`, `1h`, `24h`), a day without one; the API has no such limit |
//! | the handle's `pollAfterMs` | five seconds |
//! | [`Provider::fetch_deferred`] | `GET /responses/ID`: `queued` and `in_progress` are pending, all else is the answer |
//! | [`Provider::cancel_deferred`] | `POST /responses/ID/cancel`; a response that is gone or has ended is no error |
//!
//! The answer is decoded as a stream of it would be, each block in one delta; usage and price are those of the response. A
//! fetch that does not get through finds the answer pending until the handle expires. One that finds it pending after that
//! cancels it and fails. A response that the server has forgotten is its error 404.

mod compat;
mod decoder;
mod deferred;
mod error;
mod input;
mod request;
mod tools;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_session::message::DeferredHandle;
use secrecy::{ExposeSecret as _, SecretString};
use tokio_util::sync::CancellationToken;

use crate::arguments::DecodeError;
use crate::http::{self, Client, Request, RequestError};
use crate::model::Model;
use crate::provider::{CancelDeferredError, Context, DeferredRequest, Provider, StreamEvent, StreamOptions, failed};
use crate::strict::UnmetWish;
use deferred::Background;

pub use decoder::ResponsesDecoder;

/// The API of models that this provider answers for.
pub const API: &str = "openai-responses";

/// A request cannot be made of what the caller asks.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum BuildError {
    /// A tool must be sampled by its schema and cannot be.
    #[error("Tool \"{tool}\" requires JSON-schema constrained sampling, but {problem}.")]
    Strict {
        /// The tool.
        tool: String,
        /// Why not.
        problem: String,
    },
    /// A thought of this model has a signature that it cannot have given.
    #[error("read a reasoning item: the signature of a thought is not JSON; drop the thought from the conversation")]
    ThinkingSignature(#[source] DecodeError),
    /// The credential, the URL or a header is missing or wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
}

impl From<UnmetWish> for BuildError {
    fn from(UnmetWish { tool, problem }: UnmetWish) -> Self {
        Self::Strict { tool, problem }
    }
}

/// The request for a context.
///
/// # Errors
///
/// A tool demands strict sampling that its schema or provider does not allow, a thought has a damaged signature, or the
/// credential, the URL or a header is wrong.
pub fn request(model: &Model, context: &Context, options: &StreamOptions, key: Option<&SecretString>) -> Result<Request, BuildError> {
    let body = request::body(model, context, options)?;
    Ok(addressed(Request::post(model, "/responses", &body)?, model, options, key)?)
}

/// Adds the credential and what model and caller say.
fn addressed(request: Request, model: &Model, options: &StreamOptions, key: Option<&SecretString>) -> Result<Request, RequestError> {
    let mut request = request;
    if let Some(key) = key {
        request = request.header("authorization", &format!("Bearer {}", key.expose_secret()))?;
    }
    for (name, value) in request::session_headers(model, options) {
        request = request.header(name, value)?;
    }
    request.with_options(model, options)?.require_key(model)
}

/// Answers for models of the API with one credential.
#[derive(Clone)]
pub struct OpenAiResponses {
    client: Client,
    key: Option<SecretString>,
}

impl OpenAiResponses {
    /// A provider with its client and credential. Without one, the headers of the model or the caller must have it.
    #[must_use]
    pub fn new(client: Client, key: Option<SecretString>) -> Self {
        Self { client, key }
    }

    fn background(&self, model: &Model, cancel: CancellationToken) -> Background {
        Background { client: self.client.clone(), key: self.key.clone(), model: model.clone(), cancel }
    }
}

impl Provider for OpenAiResponses {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        if let Some(wanted) = options.deferred.as_ref().filter(|wanted| DeferredRequest::is_wanted(wanted)) {
            return self.background(model, cancel).create(context, options.clone(), wanted);
        }
        let now = self.client.clock().now();
        match request(model, context, options, self.key.as_ref()) {
            Ok(request) => http::stream(&self.client, Ok(request), ResponsesDecoder::new(model, now), cancel),
            Err(error) => failed(model, now, error),
        }
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        self.background(model, cancel).fetch(handle.clone())
    }

    fn cancel_deferred(&self, model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        self.background(model, CancellationToken::new()).give_up(handle.clone()).boxed()
    }
}
