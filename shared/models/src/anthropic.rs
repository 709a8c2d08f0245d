//! Anthropic Messages (`anthropic-messages`; `facts/pi-ai.md` 11).

mod compat;
mod decoder;
mod messages;
mod request;
mod strict;
mod tools;
mod usage;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use picofleet_session::Millis;
use picofleet_session::message::AssistantMessage;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::http::{self, Client, Request, RequestError};
use crate::model::Model;
use crate::provider::{Context, Provider, StreamEvent, StreamOptions, empty_answer, failed};
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
        let built = match request::build(model, context, options, BuildOptions { now, relaxed: false }) {
            Ok(built) => built,
            Err(text) => return failed(AssistantMessage { error_message: Some(text), ..empty_answer(model, now) }),
        };
        let live = self.live(model, options, &built, cancel.clone());
        if !built.may_relax {
            return live;
        }
        let (own, model, context, options) = (self.clone(), model.clone(), context.clone(), options.clone());
        let relaxed = move || {
            let built = request::build(&model, &context, &options, BuildOptions { now, relaxed: true }).ok()?;
            Some(own.live(&model, &options, &built, cancel))
        };
        or_relaxed(live, relaxed)
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
