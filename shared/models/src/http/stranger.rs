//! Answers that are none of the API: redirects, and those that say that they are no stream of events.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use http::HeaderMap;
use reqwest::Url;

use super::credential::Credentials;
use super::{HttpError, Messages};

/// Most bytes that are kept of the begin, and most characters of it and of a content type that are told.
const KEPT_MAX: usize = 4 << 10;
const TOLD_MAX: usize = 200;

/// An answer that says that it is no stream of events. Some servers say so and send one all the same.
pub(super) struct Stranger {
    status: u16,
    content_type: Option<String>,
    begin: Arc<Mutex<Vec<u8>>>,
    credentials: Credentials,
}

impl Stranger {
    /// `None` for one that says that it is a stream of events.
    pub(super) fn of(response: &reqwest::Response, credentials: Credentials) -> Option<Self> {
        let content_type = response.headers().get(http::header::CONTENT_TYPE);
        let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        if content_type.as_ref().is_some_and(|name| name.trim_start().to_ascii_lowercase().starts_with("text/event-stream")) {
            return None;
        }
        Some(Self { status: response.status().as_u16(), content_type, begin: Arc::default(), credentials })
    }

    /// Keeps the begin of the body as it passes.
    pub(super) fn watch(&self, bytes: BoxStream<'static, Result<Bytes, HttpError>>) -> BoxStream<'static, Result<Bytes, HttpError>> {
        let begin = Arc::clone(&self.begin);
        let keep = move |chunk: &Bytes| {
            let mut begin = begin.lock().unwrap_or_else(PoisonError::into_inner);
            let room = KEPT_MAX - begin.len();
            begin.extend_from_slice(&chunk[..chunk.len().min(room)]);
        };
        bytes.inspect_ok(keep).boxed()
    }

    /// The same messages, and an error in place of none at all.
    pub(super) fn or_error(self, messages: Messages) -> Messages {
        let next = |(mut messages, stranger): (Messages, Option<Self>)| async move {
            match (messages.next().await, stranger) {
                (Some(message), _) => Some((message, (messages, None))),
                (None, Some(stranger)) => Some((Err(stranger.error()), (messages, None))),
                (None, None) => None,
            }
        };
        futures::stream::unfold((messages, Some(self)), next).boxed()
    }

    fn error(self) -> HttpError {
        let begin = self.begin.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&begin);
        // What is cut may be cut within a credential, so the whole loses them first.
        let text = if begin.len() == KEPT_MAX { self.credentials.redact_begin(&text) } else { self.credentials.redact(&text) };
        let content_type = self.content_type.map_or_else(
            || "no content type".to_owned(),
            |name| format!("the content type {}", self.credentials.redact(&name).chars().take(TOLD_MAX).collect::<String>()),
        );
        let text: String = text.chars().take(TOLD_MAX).collect();
        let body = if text.is_empty() { "no body".to_owned() } else { format!("a body that begins with {text:?}") };
        HttpError::NoEvents { status: self.status, content_type, body }
    }
}

/// The host and the port where a redirect leads; never more of its URL, which may have credentials.
pub(super) fn redirect_target(from: &Url, headers: &HeaderMap) -> Option<String> {
    let location = headers.get(http::header::LOCATION)?.to_str().ok()?;
    from.join(location).ok().as_ref().and_then(place)
}

/// The host and the port of a URL.
pub(super) fn place(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}
