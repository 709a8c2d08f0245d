//! Deferred answers by message batches: one batch of one request for each. The module above states the mapping.

use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::DeferredHandle;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use super::decoder::{AnthropicDecoder, error_text, quote};
use super::request::{Built, finish};
use super::usage::Meter;
use crate::arguments::{Halves, decode};
use crate::deferred::{Failure, LIFETIME_MS, call, is_id, is_transient, pending, told};
use crate::http::{Client, Decoder as _, HttpError, Request, StreamEnd};
use crate::js;
use crate::model::Model;
use crate::provider::{CancelDeferredError, StreamEvent, StreamOptions};

const PATH: &str = "/v1/messages/batches";

/// The name of the only request of a batch.
const CUSTOM_ID: &str = "answer";

/// What the documentation of the API polls with, in milliseconds.
const POLL_AFTER_MS: u64 = 60_000;

/// The share of the usual price that a batch costs.
const PRICE_SHARE: f64 = 0.5;

/// What is needed to talk about batches.
#[derive(Clone)]
pub(super) struct Batches {
    pub(super) client: Client,
    pub(super) key: Option<SecretString>,
    pub(super) model: Model,
    pub(super) cancel: CancellationToken,
}

/// How far a batch is.
enum Progress {
    Pending,
    Ended(Vec<StreamEvent>),
}

impl Batches {
    /// Makes a batch; the stream ends with its handle.
    pub(super) fn create(self, built: Built, options: StreamOptions, window_ms: i64) -> BoxStream<'static, StreamEvent> {
        let own = self.clone();
        self.told(async move {
            let handle = own.make(&built, &options, window_ms).await?;
            Ok(pending(&own.model, own.now(), handle))
        })
    }

    /// Asks for the answer of a batch.
    pub(super) fn fetch(self, handle: DeferredHandle) -> BoxStream<'static, StreamEvent> {
        let own = self.clone();
        self.told(async move { own.fetched(&handle).await })
    }

    /// Gives up a batch. It is no error that it is gone or has ended.
    pub(super) async fn give_up(self, handle: DeferredHandle) -> Result<(), CancelDeferredError> {
        let refused = |failure: Failure| CancelDeferredError::Refused(self.text(&failure));
        let path = batch_path(&handle.id).map_err(refused)?;
        let failure = match self.post_cancel(&path).await {
            Ok(_) => return Ok(()),
            Err(Failure::Http(HttpError::Status(refusal))) if refusal.status == 404 => return Ok(()),
            Err(failure) => failure,
        };
        match self.status(&path).await {
            Ok(status) if status == "ended" || status == "canceling" => Ok(()),
            _ => Err(refused(failure)),
        }
    }

    async fn make(&self, built: &Built, options: &StreamOptions, window_ms: i64) -> Result<DeferredHandle, Failure> {
        let params = built.body.as_object().into_iter().flat_map(|body| body.iter()).filter(|(name, _)| *name != "stream");
        let one = Json::build_object().with("custom_id", CUSTOM_ID).with("params", Json::object(params));
        let body = Json::build_object().with("requests", Json::array([one])).build();
        let request = finish(Request::post(&self.model, PATH, &body)?, &self.model, options, self.key.as_ref(), &built.betas)?;
        let text = self.call(request).await?;
        let batch = decode(&text).ok();
        let id = batch.as_ref().and_then(|batch| batch.get("id")).and_then(Json::as_str).filter(|id| is_id(id));
        let Some(id) = id else {
            return Err(Failure::Text(format!("Anthropic made a message batch without a usable id: {}", quote(&text))));
        };
        Ok(DeferredHandle {
            provider: self.model.provider.clone(),
            model_id: self.model.id.clone(),
            api: self.model.api.clone(),
            id: id.into_owned(),
            expires_at: Some(Millis(self.now().0.saturating_add(window_ms.min(LIFETIME_MS)))),
            poll_after_ms: Some(POLL_AFTER_MS),
            data: None,
        })
    }

    async fn fetched(&self, handle: &DeferredHandle) -> Result<Vec<StreamEvent>, Failure> {
        let path = batch_path(&handle.id)?;
        let late = handle.expires_at.is_none_or(|end| self.now() >= end);
        match self.progress(&path, &handle.id).await {
            Ok(Progress::Ended(events)) => Ok(events),
            // The answer may still come, so a call that did not get through says nothing about it.
            Err(Failure::Http(error)) if is_transient(&error) && !late => Ok(pending(&self.model, self.now(), handle.clone())),
            Err(failure) => Err(failure),
            Ok(Progress::Pending) if late => {
                // Best effort: the server ends it by itself, too.
                let _ = self.post_cancel(&path).await;
                Err(Failure::Text(expired(&handle.id)))
            }
            Ok(Progress::Pending) => Ok(pending(&self.model, self.now(), handle.clone())),
        }
    }

    async fn progress(&self, path: &str, id: &str) -> Result<Progress, Failure> {
        if self.status(path).await? != "ended" {
            return Ok(Progress::Pending);
        }
        // Not the URL that the server tells: the key goes to the configured host only.
        let request = self.get(&format!("{path}/results"))?;
        self.client.follows();
        let text = self.call(request).await?;
        let of_ours = |line: &Json| line.get("custom_id").is_some_and(|name| *name == CUSTOM_ID);
        let line = text.lines().filter_map(|line| decode(line).ok()).find(of_ours);
        let result = line.as_ref().and_then(|line| line.get("result"));
        let result = result.ok_or_else(|| Failure::Text(format!("Anthropic message batch {id} has no result")))?;
        let kind = result.get("type").and_then(Json::as_str).unwrap_or_default();
        match (&*kind, result.get("message"), result.get("error")) {
            ("succeeded", Some(message), _) => Ok(Progress::Ended(self.answer(message))),
            ("errored", _, Some(error)) => Err(Failure::Text(quote(&js::stringify(error)))),
            ("canceled", ..) => Err(Failure::Text(format!("Anthropic message batch {id} was cancelled"))),
            ("expired", ..) => Err(Failure::Text(expired(id))),
            _ => Err(Failure::Text(format!("Anthropic message batch {id} has a result that cannot be read: {}", quote(&text)))),
        }
    }

    /// What `processing_status` says.
    async fn status(&self, path: &str) -> Result<String, Failure> {
        let text = self.call(self.get(path)?).await?;
        let batch = decode(&text).ok();
        let status = batch.as_ref().and_then(|batch| batch.get("processing_status")).and_then(Json::as_str);
        let unreadable = || Failure::Text(format!("Anthropic told no status of a message batch: {}", quote(&text)));
        status.map(std::borrow::Cow::into_owned).ok_or_else(unreadable)
    }

    async fn post_cancel(&self, path: &str) -> Result<String, Failure> {
        let nothing = Json::build_object().build();
        self.client.follows();
        self.call(self.finished(Request::post(&self.model, &format!("{path}/cancel"), &nothing)?)?).await
    }

    fn get(&self, path: &str) -> Result<Request, Failure> {
        self.finished(Request::get(&self.model, path)?)
    }

    fn finished(&self, request: Request) -> Result<Request, Failure> {
        Ok(finish(request, &self.model, &StreamOptions::default(), self.key.as_ref(), &[])?)
    }

    async fn call(&self, request: Request) -> Result<String, Failure> {
        Ok(call(&self.client, &request, &self.cancel).await?)
    }

    fn now(&self) -> Millis {
        self.client.clock().now()
    }

    /// The events of an answer that is here, as if it had been streamed.
    fn answer(&self, message: &Json) -> Vec<StreamEvent> {
        let mut events = Vec::new();
        let mut decoder = AnthropicDecoder::with_meter(&self.model, self.now(), Meter::new(&self.model, PRICE_SHARE));
        decoder.start(&mut events);
        for event in as_stream(message) {
            if let Err(problem) = decoder.event(&event, &Halves::default(), &mut events) {
                decoder.break_off(problem);
                break;
            }
        }
        decoder.end(StreamEnd::Complete, &mut events);
        events
    }

    /// The events that come of some work, or the one of its failure.
    fn told(self, work: impl Future<Output = Result<Vec<StreamEvent>, Failure>> + Send + 'static) -> BoxStream<'static, StreamEvent> {
        told(work, move |failure| failure.event(&self.model, self.now(), self.text(failure)))
    }

    fn text(&self, failure: &Failure) -> String {
        failure.text(self.key.as_ref(), error_text)
    }
}

fn expired(id: &str) -> String {
    format!("Anthropic message batch {id} expired before it was answered")
}

fn batch_path(id: &str) -> Result<String, Failure> {
    if is_id(id) { Ok(format!("{PATH}/{id}")) } else { Err(Failure::Text(format!("Unknown Anthropic message batch: {}", quote(id)))) }
}

/// The events that would have streamed a message.
fn as_stream(message: &Json) -> Vec<Json> {
    let typed = |kind: &str| Json::build_object().with("type", kind);
    let mut events = vec![typed("message_start").with("message", message).build()];
    for (index, block) in message.get("content").and_then(Json::as_array).into_iter().flat_map(|blocks| blocks.iter()).enumerate() {
        let kind = block.get("type").and_then(Json::as_str).unwrap_or_default();
        let whole = |member: &str| block.get(member).and_then(Json::as_str).map(std::borrow::Cow::into_owned);
        let (member, delta) = match &*kind {
            "text" => ("text", whole("text").map(|text| typed("text_delta").with("text", text))),
            "thinking" => ("thinking", whole("thinking").map(|text| typed("thinking_delta").with("thinking", text))),
            "tool_use" => {
                let input = block.get("input").map(js::stringify);
                ("input", input.map(|text| typed("input_json_delta").with("partial_json", text)))
            }
            _ => ("", None),
        };
        let start = Json::object(block.as_object().into_iter().flat_map(|block| block.iter()).filter(|(name, _)| *name != member));
        events.push(typed("content_block_start").with("index", index).with("content_block", start).build());
        events.extend(delta.map(|delta| typed("content_block_delta").with("index", index).with("delta", delta).build()));
        events.push(typed("content_block_stop").with("index", index).build());
    }
    let delta =
        Json::build_object().with_some("stop_reason", message.get("stop_reason")).with_some("stop_details", message.get("stop_details"));
    events.push(typed("message_delta").with("delta", delta).with_some("usage", message.get("usage")).build());
    events.push(typed("message_stop").build());
    events
}
