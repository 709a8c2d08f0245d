//! What goes wrong with a request.

use std::time::Duration;

use http::{HeaderMap, StatusCode};
use picofleet_delta::Json;
use picofleet_session::Millis;
use picofleet_session::message::StopReason;

use super::request::RequestError;
use super::retry;
use crate::arguments;
use crate::sse::TooLarge;

/// What node says when the other side ends a connection.
const CLOSED: &str = "other side closed (UND_ERR_SOCKET)";

/// Why there is no answer or no end of it. The text is what pi-ai says where it says something; otherwise it is one that
/// [`crate::classify`] takes for a transient error when it is one.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HttpError {
    /// The caller cancelled.
    #[error("Request was aborted")]
    Aborted,
    /// The request cannot be made.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The server was not reached, or did not speak HTTP.
    #[error("Connection error.: {cause}")]
    Connect {
        /// The deepest cause, and where the request went.
        cause: String,
    },
    /// The answer did not begin in time.
    #[error("Request timed out.")]
    NoAnswer,
    /// The server refused.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// The server refused and asks for a longer delay before the next try than the request allows.
    #[error("Server requested {}s retry delay (max: {}s). {refusal}", seconds(.asked), seconds(.max))]
    RetryDelay {
        /// What it asks for.
        asked: Duration,
        /// What the request allows.
        max: Duration,
        /// The refusal.
        refusal: StatusError,
    },
    /// The answer broke off.
    #[error("terminated: {cause}")]
    Cut {
        /// The deepest cause.
        cause: String,
    },
    /// The answer stood still.
    #[error("terminated: timed out after {} s without data", .timeout.as_secs_f64())]
    Idle {
        /// The longest time that it may.
        timeout: Duration,
    },
    /// The server sends the request elsewhere.
    #[error("{status} redirect to {to}, which is not followed; set the base URL to where the API is")]
    Redirect {
        /// The status.
        status: u16,
        /// The host and the port.
        to: String,
    },
    /// The answer says that it is no stream of events, and it has none.
    #[error("Stream ended without an event: the answer has status {status}, {content_type} and {body}; check the base URL and the API")]
    NoEvents {
        /// The status.
        status: u16,
        /// What it says that it is.
        content_type: String,
        /// Its begin.
        body: String,
    },
    /// The answer is compressed, which was not asked for.
    #[error("The answer has the content encoding {encoding}; only identity is accepted")]
    Encoded {
        /// How.
        encoding: String,
    },
    /// The answer is larger than its bounds.
    #[error("Read the answer: {0}")]
    TooLarge(TooLarge),
}

impl HttpError {
    /// The stop reason of a message that ends with it.
    #[must_use]
    pub fn stop_reason(&self) -> StopReason {
        match self {
            Self::Aborted => StopReason::Aborted,
            _ => StopReason::Error,
        }
    }

    /// True when the same request may be answered well at another try: the server says so, or its status or the failed connection
    /// does. An answer that broke off after its begin is none of these.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::NoAnswer => true,
            Self::Status(refusal) => refusal.should_retry.unwrap_or(matches!(refusal.status, 408 | 409 | 429) || refusal.status >= 500),
            _ => false,
        }
    }
}

/// An answer with a status other than success. Its text is what the packages of OpenAI and Anthropic say where the body is
/// no JSON; adapters have their own texts for the others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatusError {
    /// The status.
    pub status: u16,
    /// The body, or the start of one that is longer than [`super::ERROR_BODY_MAX`], without the request's credentials.
    pub body: String,
    /// The provider's name of the request.
    pub request_id: Option<String>,
    /// How long to wait before the next try, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// What the server says about another try.
    pub should_retry: Option<bool>,
}

impl StatusError {
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, now: Millis) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            status: status.as_u16(),
            body: String::new(),
            request_id: text("x-request-id").or_else(|| text("request-id")).map(str::to_owned),
            retry_after_ms: retry::asked_delay_ms(text("retry-after-ms"), text("retry-after"), now),
            should_retry: match text("x-should-retry") {
                Some("true") => Some(true),
                Some("false") => Some(false),
                _ => None,
            },
        }
    }

    /// The body as JSON, if it is that.
    #[must_use]
    pub fn json(&self) -> Option<Json> {
        arguments::decode(&self.body).ok()
    }
}

impl std::error::Error for StatusError {}

impl std::fmt::Display for StatusError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.body.as_str() {
            "" => write!(f, "{} status code (no body)", self.status),
            body => write!(f, "{} {body}", self.status),
        }
    }
}

/// A time in whole seconds, rounded up.
pub(crate) fn seconds(time: &Duration) -> u64 {
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// The text of the last error in the chain, which says what happened. The first one would name the URL.
pub(super) fn deepest(error: &reqwest::Error) -> String {
    if super::sources(error).any(super::other_side_closed) {
        return CLOSED.to_owned();
    }
    super::sources(error).last().map_or_else(|| "the request failed".to_owned(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &str) -> StatusError {
        let mut refusal = StatusError::of(StatusCode::SERVICE_UNAVAILABLE, &HeaderMap::new(), Millis(0));
        refusal.body = body.to_owned();
        refusal
    }

    #[test]
    fn refusals_read_like_those_of_the_packages() {
        assert_eq!(HttpError::from(refusal("")).to_string(), "503 status code (no body)");
        assert_eq!(HttpError::from(refusal("upstream unavailable")).to_string(), "503 upstream unavailable");
        assert_eq!(refusal("{\"error\":{\"a\":1e2}}").json(), Some("{\"error\":{\"a\":100}}".parse().unwrap()));
        assert_eq!(refusal("<html>").json(), None);
    }
}
