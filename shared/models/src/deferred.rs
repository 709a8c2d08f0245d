//! What the mappings of deferred answers share: names of windows, ids in paths, calls, and what a failed one says.

use futures::StreamExt as _;
use futures::stream::BoxStream;
use picofleet_session::Millis;
use picofleet_session::message::{AssistantMessage, DeferredHandle, StopReason};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::{Client, HttpError, Request, RequestError};
use crate::model::Model;
use crate::provider::{CancelDeferredError, DeferredRequest, StreamEvent, empty_answer};

/// How long an answer may take when the caller names no window, in milliseconds.
pub(crate) const LIFETIME_MS: i64 = 24 * 60 * 60 * 1000;

/// Longest id of an answer; it becomes a part of a path.
const ID_MAX: usize = 256;

/// What went wrong: a call, or what its answer says.
pub(crate) enum Failure {
    Http(HttpError),
    Text(String),
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Self {
        Self::Http(error)
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Self {
        Self::Http(HttpError::Request(error))
    }
}

impl Failure {
    /// What it says. An API has its own words for a call that failed.
    pub(crate) fn text(&self, http_text: impl FnOnce(&HttpError) -> String) -> String {
        match self {
            Self::Http(error) => http_text(error),
            Self::Text(text) => text.clone(),
        }
    }

    /// The event of an answer that has come to nothing because of it.
    fn event(&self, model: &Model, now: Millis, http_text: impl FnOnce(&HttpError) -> String) -> StreamEvent {
        let stop_reason = match self {
            Self::Http(error) => error.stop_reason(),
            Self::Text(_) => StopReason::Error,
        };
        let text = self.text(http_text);
        StreamEvent::terminal(AssistantMessage { stop_reason, error_message: Some(text), ..empty_answer(model, now) })
    }
}

/// The time within which an answer must come, in milliseconds.
///
/// # Errors
///
/// The window has a name that nobody knows; the text is the error message of the answer.
pub(crate) fn window_ms(wanted: &DeferredRequest) -> Result<i64, String> {
    let DeferredRequest::Within { window: Some(window) } = wanted else { return Ok(LIFETIME_MS) };
    match window.as_str() {
        "15m" => Ok(15 * 60 * 1000),
        "1h" => Ok(60 * 60 * 1000),
        "24h" => Ok(LIFETIME_MS),
        other => Err(format!("Unknown window {other:?} for a deferred response; use 15m, 1h or 24h")),
    }
}

/// True for an id that can stand in a path as it is.
pub(crate) fn is_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= ID_MAX && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

/// True for what may go well at the next fetch.
pub(crate) fn is_transient(error: &HttpError) -> bool {
    error.is_transient() || matches!(error, HttpError::Cut { .. } | HttpError::Idle { .. })
}

/// The events of an answer that is still to come.
pub(crate) fn pending(model: &Model, now: Millis, handle: DeferredHandle) -> Vec<StreamEvent> {
    let empty = empty_answer(model, now);
    let message = AssistantMessage { stop_reason: StopReason::Deferred, deferred: Some(handle), ..empty.clone() };
    vec![StreamEvent::Start { message: Box::new(empty) }, StreamEvent::terminal(message)]
}

/// The text that a call answers with.
///
/// # Errors
///
/// The call failed or was cancelled.
pub(crate) async fn call(client: &Client, request: &Request, cancel: &CancellationToken) -> Result<String, HttpError> {
    let bytes = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(HttpError::Aborted),
        bytes = client.fetch(request) => bytes?,
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// What an adapter says about the deferred answers of a model.
pub(crate) struct Voice {
    pub(crate) client: Client,
    pub(crate) model: Model,
    /// What goes out with each call, for the credentials in it. Without one that can be made nothing goes out.
    pub(crate) request: Result<Request, RequestError>,
    pub(crate) http_text: fn(&Model, &HttpError) -> String,
}

impl Voice {
    /// A text that may quote the server, without credentials.
    fn redact(&self, text: &str) -> String {
        self.request.as_ref().map_or_else(|_| text.to_owned(), |request| self.client.redact(request, text))
    }

    /// That a deferred answer could not be cancelled.
    pub(crate) fn refused(&self, failure: &Failure) -> CancelDeferredError {
        CancelDeferredError::Refused(self.redact(&failure.text(|error| (self.http_text)(&self.model, error))))
    }
}

/// The events that come of some work, or the one of its failure. The last one is told how long it took, and its text loses
/// credentials, as in streams.
pub(crate) fn told(
    work: impl Future<Output = Result<Vec<StreamEvent>, Failure>> + Send + 'static,
    voice: Voice,
) -> BoxStream<'static, StreamEvent> {
    let later = async move {
        let started = Instant::now();
        let event =
            |failure: &Failure| failure.event(&voice.model, voice.client.clock().now(), |error| (voice.http_text)(&voice.model, error));
        let mut events = work.await.unwrap_or_else(|failure| vec![event(&failure)]);
        if let Some(StreamEvent::Done { message } | StreamEvent::Error { message }) = events.last_mut() {
            message.duration_ms = u32::try_from(started.elapsed().as_millis()).ok().map(f64::from);
            message.error_message = message.error_message.as_deref().map(|text| voice.redact(text));
        }
        futures::stream::iter(events)
    };
    futures::stream::once(later).flatten().boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_names() {
        let within = |window: Option<&str>| window_ms(&DeferredRequest::Within { window: window.map(str::to_owned) });
        assert_eq!(within(Some("15m")), Ok(900_000));
        assert_eq!(within(Some("1h")), Ok(3_600_000));
        assert_eq!(
            (within(Some("24h")), within(None), window_ms(&DeferredRequest::Flag(true))),
            (Ok(LIFETIME_MS), Ok(LIFETIME_MS), Ok(LIFETIME_MS))
        );
        assert_eq!(within(Some("2h")).unwrap_err(), "Unknown window \"2h\" for a deferred response; use 15m, 1h or 24h");
    }

    #[test]
    fn ids_lead_to_no_other_path() {
        assert!(is_id("msgbatch_01-A"));
        for bad in ["", "a/b", "..", "a?b", "a b", "é", &"a".repeat(ID_MAX + 1)] {
            assert!(!is_id(bad), "{bad}");
        }
    }
}
