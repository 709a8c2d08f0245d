//! A provider behind its limiter and its breaker.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_session::Clock;
use picofleet_session::message::{AssistantMessage, DeferredHandle, StopReason};
use tokio_util::sync::CancellationToken;

use crate::breaker::{Breaker, Pass};
use crate::estimate::estimate_context_tokens;
use crate::http::HttpError;
use crate::limiter::{Limiter, Permit};
use crate::model::Model;
use crate::provider::{CancelDeferredError, Context, Provider, StreamEvent, StreamOptions, empty_answer};
use crate::transcript::normalize_context;

/// Lets requests to a provider out when its limits allow it and it can be reached.
///
/// Its client tells the breaker whether the provider was reached, so it must have been given the same breaker.
///
/// A request counts with the estimate of its input until its answer tells the tokens. A deferred answer counts when it is
/// asked for; giving one up never waits. Its client counts what follows in the same turn: retries, and what is asked in two steps.
pub(super) struct Guarded {
    pub(super) inner: Arc<dyn Provider>,
    pub(super) limiter: Limiter,
    pub(super) breaker: Breaker,
    pub(super) clock: Clock,
}

type Events = BoxStream<'static, StreamEvent>;

impl Provider for Guarded {
    fn stream(&self, model: &Model, context: &Context, options: &StreamOptions, cancel: CancellationToken) -> Events {
        let tokens = estimate_context_tokens(&normalize_context(context.clone())).tokens;
        let (inner, context, options) = (Arc::clone(&self.inner), context.clone(), options.clone());
        self.guard(model, tokens, cancel, move |model, cancel| inner.stream(model, &context, &options, cancel))
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> Events {
        let (inner, handle) = (Arc::clone(&self.inner), handle.clone());
        self.guard(model, 0, cancel, move |model, cancel| inner.fetch_deferred(model, &handle, cancel))
    }

    fn cancel_deferred(&self, model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        self.inner.cancel_deferred(model, handle)
    }
}

impl Guarded {
    fn guard(
        &self,
        model: &Model,
        tokens: u64,
        cancel: CancellationToken,
        start: impl FnOnce(&Model, CancellationToken) -> Events + Send + 'static,
    ) -> Events {
        let gate = Gate { limiter: self.limiter.clone(), breaker: self.breaker.clone(), clock: self.clock.clone(), model: model.clone() };
        let events = async move {
            match gate.enter(tokens, &cancel).await {
                Ok((permit, pass)) => watch(start(&gate.model, cancel), permit, pass),
                Err(refused) => futures::stream::iter([refused]).boxed(),
            }
        };
        futures::stream::once(events).flatten().boxed()
    }
}

struct Gate {
    limiter: Limiter,
    breaker: Breaker,
    clock: Clock,
    model: Model,
}

impl Gate {
    async fn enter(&self, tokens: u64, cancel: &CancellationToken) -> Result<(Permit, Pass), StreamEvent> {
        let refuse = |text: String| self.ended(StopReason::Error, text);
        // Before the wait, so that requests do not queue up for a provider that is away.
        drop(self.breaker.pass().map_err(|error| refuse(error.to_string()))?);
        let permit = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(self.ended(StopReason::Aborted, HttpError::Aborted.to_string())),
            permit = self.limiter.acquire(tokens) => permit.map_err(|error| refuse(error.to_string()))?,
        };
        match self.breaker.pass() {
            Ok(pass) => Ok((permit, pass)),
            Err(error) => {
                permit.settle(0);
                Err(refuse(error.to_string()))
            }
        }
    }

    fn ended(&self, stop_reason: StopReason, text: String) -> StreamEvent {
        let empty = empty_answer(&self.model, self.clock.now());
        StreamEvent::terminal(AssistantMessage { stop_reason, error_message: Some(text), ..empty })
    }
}

/// The events of a request that is out. With its first one its client has told whether the provider was reached; its last
/// one tells the tokens.
fn watch(events: Events, permit: Permit, pass: Pass) -> Events {
    let state = (events, Some(permit), Some(pass));
    let next = |(mut events, mut permit, mut pass): (Events, Option<Permit>, Option<Pass>)| async move {
        let event = events.next().await?;
        drop(pass.take());
        if let Some(message) = event.final_message()
            && let Some(permit) = permit.take()
            && message.usage.total_tokens > 0
        {
            permit.settle(message.usage.total_tokens);
        }
        Some((event, (events, permit, pass)))
    };
    futures::stream::unfold(state, next).boxed()
}
