//! Anthropic Messages (`anthropic-messages`), with deferred answers by message batches.
//!
//! # Streams
//!
//! Requests, events, final messages and error texts are pi-ai's, save these:
//!
//! - An answer is complete with its `message_stop`; what follows is not read. pi-ai waits for the end of the connection.
//! - A body of a refusal is quoted up to [`crate::http::ERROR_BODY_MAX`] bytes, an event up to 16 KiB, and an answer has at
//!   most 10,000 blocks.
//! - A token of a subscription or workload identity (`sk-ant-oat`) goes out as a bearer token with its beta. The request
//!   does not pose as another program: no further system prompt, and tools keep their names.
//! - Message threads, efforts that change within a conversation and fallback models are not used. They are switched on by
//!   members of `compat` (threads also by Anthropic's own host) that have no effect here. Neither have grammars of tools.
//!
//! A request that is refused because its strict tools are too many is made once more, without strict sampling for the tools
//! that only prefer it.
//!
//! # Deferred answers
//!
//! With [`StreamOptions::deferred`] an answer is the only request of a message batch. pi-ai has no mapping; this one is ours:
//!
//! | what | how |
//! | --- | --- |
//! | made | `POST /v1/messages/batches` with the body of the stream, without `stream`; tools that only prefer strict sampling go without it, since a refusal would come hours later |
//! | handle | `id` is the batch's id; `data` is not used, and nothing is kept in memory |
//! | poll interval | `pollAfterMs` is 60,000, as the API's documentation has it |
//! | expiry | `expiresAt` is the window (`15m`, `1h`, `24h`) after the request, 24 hours without one, which is when the server itself ends a batch. A fetch at or after it that finds the batch still at work cancels it and fails with `Anthropic message batch ID expired before it was answered`; the result `expired` says the same |
//! | fetch | `GET .../{id}`, and once that has ended `GET .../{id}/results`, at the configured host, whatever `results_url` says. The events are those of a stream with one delta for each block. While it is at work: again `deferred` with the same handle |
//! | a fetch that fails | no connection, a broken answer, 408, 409, 429 and 500 or more: before `expiresAt` again `deferred`, since it says nothing about the answer; otherwise the error of the request. An unknown id is the server's 404 |
//! | usage | as reported, at half the model's prices |
//! | errors | the result `errored` has its `error` object as the text, like an `error` event of a stream; `canceled` is `Anthropic message batch ID was cancelled` |
//! | cancel | `POST .../{id}/cancel`. It is no error that the batch is gone (404), has ended or is being cancelled. An answer that was complete by then can still be fetched |
//!
//! A batch whose creation is cancelled while its request is under way may exist nevertheless; it ends unread.

mod batch;
mod compat;
mod decoder;
mod messages;
mod request;
mod strict;
mod tools;
mod usage;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use picofleet_session::Millis;
use picofleet_session::message::{AssistantMessage, DeferredHandle};
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::deferred;
use crate::http::{self, Client, Request, RequestError};
use crate::model::Model;
use crate::provider::{CancelDeferredError, Context, Provider, StreamEvent, StreamOptions, failed};
use batch::Batches;
use request::{BuildOptions, Built};

pub use decoder::AnthropicDecoder;

/// The API of models that this provider answers for.
pub const API: &str = "anthropic-messages";

/// What the server says when strict tools are too many or too large.
const STRICT_LIMITS: [&str; 3] =
    ["The compiled grammar is too large", "Too many strict tools (", "Schemas contains too many parameters with union types ("];

/// A request cannot be made for a context.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    /// A tool demands what the model's server does not do.
    #[error("{0}")]
    Tool(String),
    /// The credential, the URL or a header is missing or wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
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
    let built = request::build(model, context, options, BuildOptions { now, relaxed: false }).map_err(BuildError::Tool)?;
    Ok(streaming(model, options, key, &built)?)
}

/// Answers requests for models of this API.
#[derive(Clone, Debug)]
pub struct Anthropic {
    client: Client,
    key: Option<SecretString>,
}

impl Anthropic {
    /// A provider that uses a client and a key. Without a key the model's or the request's headers must have a credential.
    #[must_use]
    pub fn new(client: Client, key: Option<SecretString>) -> Self {
        Self { client, key }
    }

    fn batches(&self, model: &Model, cancel: CancellationToken) -> Batches {
        Batches { client: self.client.clone(), key: self.key.clone(), model: model.clone(), cancel }
    }

    fn live(&self, model: &Model, options: &StreamOptions, built: &Built, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let request = streaming(model, options, self.key.as_ref(), built);
        http::stream(&self.client, request, AnthropicDecoder::new(model, self.client.clock().now()), cancel)
    }
}

impl Provider for Anthropic {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let now = self.client.clock().now();
        let wanted = options.deferred.as_ref().filter(|wanted| wanted.is_wanted());
        let window_ms = wanted.map(deferred::window_ms).transpose();
        let built = request::build(model, context, options, BuildOptions { now, relaxed: wanted.is_some() });
        let (built, window_ms) = match built.and_then(|built| window_ms.map(|window_ms| (built, window_ms))) {
            Ok(built) => built,
            Err(text) => return failed(model, now, text),
        };
        if let Some(window_ms) = window_ms {
            return self.batches(model, cancel).create(built, options.clone(), window_ms);
        }
        let live = self.live(model, options, &built, cancel.clone());
        if !built.may_relax {
            return live;
        }
        let (own, model, context, options) = (self.clone(), model.clone(), context.clone(), options.clone());
        let relaxed = move || {
            let built = request::build(&model, &context, &options, BuildOptions { now, relaxed: true }).ok()?;
            own.client.follows();
            Some(own.live(&model, &options, &built, cancel))
        };
        or_relaxed(live, relaxed)
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        self.batches(model, cancel).fetch(handle.clone())
    }

    fn cancel_deferred(&self, model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        self.batches(model, CancellationToken::new()).give_up(handle.clone()).boxed()
    }
}

/// The stream, unless the server refuses it for its strict tools: then the other one. No stream that began is given up.
fn or_relaxed(
    mut first: BoxStream<'static, StreamEvent>,
    relaxed: impl FnOnce() -> Option<BoxStream<'static, StreamEvent>> + Send + 'static,
) -> BoxStream<'static, StreamEvent> {
    let head = async move {
        let head = first.next().await;
        let refused = matches!(&head, Some(StreamEvent::Error { message }) if has_too_many_strict_tools(message));
        match refused.then(relaxed).flatten() {
            Some(second) => second,
            None => futures::stream::iter(head).chain(first).boxed(),
        }
    };
    futures::stream::once(head).flatten().boxed()
}

/// True for the refusal of a request whose strict tools are too many or too large.
fn has_too_many_strict_tools(answer: &AssistantMessage) -> bool {
    let text = answer.error_message.as_deref().unwrap_or_default();
    text.starts_with("400 ") && text.contains("invalid_request_error") && STRICT_LIMITS.iter().any(|limit| text.contains(limit))
}

fn streaming(model: &Model, options: &StreamOptions, key: Option<&SecretString>, built: &Built) -> Result<Request, RequestError> {
    request::finish(Request::post(model, "/v1/messages?beta=true", &built.body)?, model, options, key, &built.betas)
}
