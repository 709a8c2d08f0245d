//! Deferred answers by background responses. The module above states the mapping.

use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::DeferredHandle;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use super::decoder::{ResponsesDecoder, text};
use super::error::{http_text, with_hint};
use super::{BuildError, addressed, request};
use crate::arguments::decode;
use crate::deferred::{Failure, call, is_id, is_transient, pending, told, window_ms};
use crate::http::{Client, Decoder as _, HttpError, Request, StreamEnd};
use crate::model::Model;
use crate::provider::{CancelDeferredError, Context, DeferredRequest, StreamEvent, StreamOptions};

const PATH: &str = "/responses";

/// How long to wait between fetches, in milliseconds. Background responses take seconds to minutes.
const POLL_AFTER_MS: u64 = 5_000;

impl From<BuildError> for Failure {
    fn from(error: BuildError) -> Self {
        Self::Text(error.to_string())
    }
}

/// What is needed to talk about background responses of a model.
#[derive(Clone)]
pub(super) struct Background {
    pub(super) client: Client,
    pub(super) key: Option<SecretString>,
    pub(super) model: Model,
    pub(super) cancel: CancellationToken,
}

impl Background {
    /// Makes a background response; the stream ends with its handle, or with the answer if that is there at once.
    pub(super) fn create(self, context: &Context, options: StreamOptions, wanted: &DeferredRequest) -> BoxStream<'static, StreamEvent> {
        let body = request::body(&self.model, context, &options).map(|body| in_background(&body));
        let window = window_ms(wanted);
        let own = self.clone();
        self.told(async move { own.created(&body?, &options, window.map_err(Failure::Text)?).await })
    }

    /// Asks for the answer.
    pub(super) fn fetch(self, handle: DeferredHandle) -> BoxStream<'static, StreamEvent> {
        let own = self.clone();
        self.told(async move { own.fetched(handle).await })
    }

    async fn created(&self, body: &Json, options: &StreamOptions, window_ms: i64) -> Result<Vec<StreamEvent>, Failure> {
        let request = addressed(Request::post(&self.model, PATH, body)?, &self.model, options, self.key.as_ref())?;
        let response = self.call(request).await?;
        self.events(&response, |id| DeferredHandle {
            provider: self.model.provider.clone(),
            model_id: self.model.id.clone(),
            api: self.model.api.clone(),
            id,
            expires_at: Some(Millis(self.now().0.saturating_add(window_ms))),
            poll_after_ms: Some(POLL_AFTER_MS),
            data: None,
        })
    }

    async fn fetched(&self, handle: DeferredHandle) -> Result<Vec<StreamEvent>, Failure> {
        let path = response_path(&handle.id)?;
        let late = handle.expires_at.is_some_and(|end| self.now() >= end);
        let response = match self.get(&path).await {
            Ok(response) => response,
            // The answer may still come, so a call that did not get through says nothing about it.
            Err(Failure::Http(error)) if is_transient(&error) && !late => return Ok(pending(&self.model, self.now(), handle)),
            Err(failure) => return Err(failure),
        };
        if late && is_pending(&response) {
            // Best effort: nobody asks for it again.
            let _ = self.post_cancel(&path).await;
            return Err(Failure::Text(format!("OpenAI background response {} expired before it was answered", handle.id)));
        }
        self.events(&response, |_| handle)
    }

    /// Gives the response up. It is no error that it is gone or has ended.
    pub(super) async fn give_up(self, handle: DeferredHandle) -> Result<(), CancelDeferredError> {
        let refused = |failure: Failure| CancelDeferredError::Refused(self.text(&failure));
        let path = response_path(&handle.id).map_err(refused)?;
        let failure = match self.post_cancel(&path).await {
            Ok(_) => return Ok(()),
            Err(Failure::Http(HttpError::Status(refusal))) if refusal.status == 404 => return Ok(()),
            Err(failure) => failure,
        };
        self.client.follows();
        match self.get(&path).await {
            Ok(response) if !is_pending(&response) => Ok(()),
            _ => Err(refused(failure)),
        }
    }

    async fn get(&self, path: &str) -> Result<Json, Failure> {
        let request = Request::get(&self.model, path)?;
        self.call(addressed(request, &self.model, &StreamOptions::default(), self.key.as_ref())?).await
    }

    async fn post_cancel(&self, path: &str) -> Result<Json, Failure> {
        let request = Request::post(&self.model, &format!("{path}/cancel"), &Json::build_object().build())?;
        self.client.follows();
        self.call(addressed(request, &self.model, &StreamOptions::default(), self.key.as_ref())?).await
    }

    async fn call(&self, request: Request) -> Result<Json, Failure> {
        let answer = call(&self.client, &request, &self.cancel).await?;
        let unreadable = |_| Failure::Text("The provider's answer about a background response is not JSON".to_owned());
        decode(&answer).map_err(unreadable)
    }

    fn now(&self) -> Millis {
        self.client.clock().now()
    }

    /// The events of a response: those of its answer, or of the handle for its id while it is pending.
    fn events(&self, response: &Json, handle: impl FnOnce(String) -> DeferredHandle) -> Result<Vec<StreamEvent>, Failure> {
        if is_pending(response) {
            let id = text(response, "id").filter(|id| is_id(id));
            let id = id.ok_or_else(|| Failure::Text("The provider made a background response without a usable id".to_owned()))?;
            return Ok(pending(&self.model, self.now(), handle(id)));
        }
        let mut events = Vec::new();
        let mut decoder = ResponsesDecoder::new(&self.model, self.now());
        decoder.whole(response, &mut events);
        decoder.end(StreamEnd::Complete, &mut events);
        Ok(events)
    }

    /// The events that come of some work, or the one of its failure.
    fn told(self, work: impl Future<Output = Result<Vec<StreamEvent>, Failure>> + Send + 'static) -> BoxStream<'static, StreamEvent> {
        told(work, move |failure| failure.event(&self.model, self.now(), self.text(failure)))
    }

    fn text(&self, failure: &Failure) -> String {
        failure.text(self.key.as_ref(), |error| with_hint(http_text(&self.model.provider, error)))
    }
}

/// The body of a request that is answered in the background. Only a stored response can be asked for later.
fn in_background(body: &Json) -> Json {
    let members = body.as_object().into_iter().flatten().filter(|(name, _)| *name != "stream");
    let own = [("store", Json::from(true)), ("background", Json::from(true))];
    Json::object(members.map(|(name, value)| (name, value.clone())).chain(own))
}

fn is_pending(response: &Json) -> bool {
    matches!(text(response, "status").as_deref(), Some("queued" | "in_progress"))
}

fn response_path(id: &str) -> Result<String, Failure> {
    if is_id(id) { Ok(format!("{PATH}/{id}")) } else { Err(Failure::Text(format!("Unknown OpenAI background response: {id:?}"))) }
}
