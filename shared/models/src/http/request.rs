//! A request before it is sent.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use picofleet_delta::Json;
use reqwest::Url;

use super::credential::{Credentials, is_credential};
use crate::model::{Headers, Model};
use crate::provider::StreamOptions;

/// Longest delay that a server may ask for when the caller sets none, in milliseconds.
const RETRY_DELAY_MAX_MS: u64 = 60_000;

/// A request cannot be made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// There is no credential for the provider, and the model does not say that it takes none.
    #[error("No API key for provider: {provider}")]
    NoKey {
        /// The provider.
        provider: String,
    },
    /// The model's base URL is none.
    #[error("The base URL {url:?} is not a URL: {reason}; correct it in the configuration of the model")]
    Url {
        /// The text.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A header has characters that no header may have. Its value may be a credential, so it is not told.
    #[error("The header {name:?} cannot be sent; correct its name or value in the configuration")]
    Header {
        /// Its name.
        name: String,
    },
}

/// A JSON text to post, with headers, retries and credentials.
#[derive(Clone)]
pub struct Request {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) first_byte_timeout: Option<Duration>,
    pub(super) max_retries: u32,
    /// `None` when there is no bound.
    pub(super) max_retry_delay: Option<Duration>,
    credentials: Credentials,
}

impl Request {
    /// A post of a JSON value with the usual headers. `path` follows the model's base URL; it begins with a slash.
    ///
    /// # Errors
    ///
    /// The base URL is none.
    pub fn post(model: &Model, path: &str, body: &Json) -> Result<Self, RequestError> {
        let text = format!("{}{path}", model.base_url.trim_end_matches('/'));
        let url = Url::parse(&text).map_err(|error| RequestError::Url { url: without_user(&model.base_url), reason: error.to_string() })?;
        let usual = [("content-type", "application/json"), ("accept", "application/json"), ("accept-encoding", "identity")];
        let headers = usual.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        Ok(Self {
            url,
            headers: headers.into_iter().collect(),
            body: body.to_vec().into(),
            first_byte_timeout: None,
            max_retries: 0,
            max_retry_delay: Some(Duration::from_millis(RETRY_DELAY_MAX_MS)),
            credentials: Credentials::default(),
        })
    }

    /// Sets a header. Where its name says that it holds a credential, its value is sent as sensitive and taken out of texts from outside.
    ///
    /// # Errors
    ///
    /// It has characters that no header may have.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, RequestError> {
        let bad = || RequestError::Header { name: name.to_owned() };
        let key = HeaderName::try_from(name).map_err(|_| bad())?;
        let mut header = HeaderValue::from_str(value).map_err(|_| bad())?;
        if is_credential(key.as_str()) {
            header.set_sensitive(true);
            self.credentials.add(value);
        }
        self.headers.insert(key, header);
        Ok(self)
    }

    /// Sets what the model and the caller say: their headers, in this order, retries and times. Call it last.
    ///
    /// # Errors
    ///
    /// A header has characters that no header may have.
    pub fn with_options(mut self, model: &Model, options: &StreamOptions) -> Result<Self, RequestError> {
        for headers in [model.headers.as_ref(), Some(&options.headers)].into_iter().flatten() {
            self = self.with_headers(headers)?;
        }
        self.first_byte_timeout = options.timeout_ms.map(Duration::from_millis);
        self.max_retries = options.max_retries.unwrap_or(0);
        let delay = options.max_retry_delay_ms.unwrap_or(RETRY_DELAY_MAX_MS);
        self.max_retry_delay = (delay > 0).then(|| Duration::from_millis(delay));
        Ok(self)
    }

    fn with_headers(mut self, headers: &Headers) -> Result<Self, RequestError> {
        for (name, value) in headers.iter() {
            self = match value {
                Some(value) => self.header(name, value)?,
                None => {
                    self.headers.remove(name);
                    self
                }
            };
        }
        Ok(self)
    }

    /// Checks that a credential goes out: one of the headers for it is there. A model whose headers remove such a header is one of a
    /// provider that takes none.
    ///
    /// # Errors
    ///
    /// None is.
    pub fn require_key(self, model: &Model) -> Result<Self, RequestError> {
        let sent = self.headers.keys().any(|name| is_credential(name.as_str()));
        let takes_none =
            || model.headers.iter().flat_map(|headers| headers.iter()).any(|(name, value)| value.is_none() && is_credential(name));
        if sent || takes_none() {
            return Ok(self);
        }
        Err(RequestError::NoKey { provider: model.provider.clone() })
    }

    /// Where it goes: the path and the query.
    #[must_use]
    pub fn path(&self) -> String {
        self.url.query().map_or_else(|| self.url.path().to_owned(), |query| format!("{}?{query}", self.url.path()))
    }

    /// Its headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Its body, a JSON text.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// A text from outside without the request's credentials and others.
    pub(super) fn redact(&self, text: &str, others: &Credentials) -> String {
        self.credentials.with(others).redact(text)
    }

    /// Its credentials and others.
    pub(super) fn credentials_with(&self, others: &Credentials) -> Credentials {
        self.credentials.with(others)
    }

    /// The same for a text that was cut.
    pub(super) fn redact_begin(&self, text: &str, others: &Credentials) -> String {
        self.credentials.with(others).redact_begin(text)
    }
}

/// A text that should be a URL, without what may be a user and a password in it.
fn without_user(text: &str) -> String {
    let begin = text.find("//").map_or(0, |slashes| slashes + 2);
    match text.rfind('@') {
        Some(end) if end >= begin => format!("{}[redacted]{}", &text[..begin], &text[end..]),
        _ => text.to_owned(),
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Custom headers and queries may hold credentials, too.
        let names: Vec<_> = self.headers.keys().collect();
        f.debug_struct("Request").field("host", &self.url.host_str()).field("path", &self.url.path()).field("headers", &names).finish()
    }
}
