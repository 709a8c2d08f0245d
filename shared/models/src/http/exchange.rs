//! Requests whose answer is read whole: what adapters ask beside the stream of an answer.

use bytes::Bytes;
use futures::StreamExt as _;
use picofleet_delta::Json;

use super::{Client, HttpError, Request, RequestError, encoding, error, retry};
use crate::model::Model;
use crate::sse::TooLarge;

impl Request {
    /// A request for what is at a path, with the usual headers; see [`Request::post`].
    ///
    /// # Errors
    ///
    /// The base URL is none.
    pub fn get(model: &Model, path: &str) -> Result<Self, RequestError> {
        let mut request = Self::post(model, path, &Json::null())?;
        request.headers.remove(http::header::CONTENT_TYPE);
        request.body = Bytes::new();
        Ok(request)
    }
}

impl Client {
    /// Makes a request, as often as it allows, and reads its whole answer, which is no larger than the body of a stream may
    /// be. A request without a body is a `GET`.
    pub(crate) async fn fetch(&self, request: &Request) -> Result<Vec<u8>, HttpError> {
        let mut tries = 0;
        loop {
            let error = match self.fetch_once(request).await {
                Ok(body) => return Ok(body),
                Err(error) => error,
            };
            let delay = retry::delay(error, request, tries, retry::random())?;
            tries += 1;
            tokio::time::sleep(delay).await;
            self.follows();
        }
    }

    async fn fetch_once(&self, request: &Request) -> Result<Vec<u8>, HttpError> {
        let url = request.url.clone();
        let call = if request.body.is_empty() { self.http.get(url) } else { self.http.post(url).body(request.body.clone()) };
        let limit = request.first_byte_timeout.unwrap_or(self.options.first_byte_timeout);
        let sent = tokio::time::timeout(limit, call.headers(request.headers.clone()).send()).await;
        let response = sent.map_err(|_| HttpError::NoAnswer)?.map_err(|error| HttpError::Connect { cause: error::deepest(&error) })?;
        if !response.status().is_success() {
            return Err(HttpError::Status(self.refusal(response, request).await));
        }
        if let Some(encoding) = encoding(response.headers()) {
            return Err(HttpError::Encoded { encoding: request.redact(&encoding) });
        }
        let most = self.options.limits.body;
        let mut bytes = self.body(response);
        let mut body = Vec::new();
        while let Some(chunk) = bytes.next().await {
            body.extend_from_slice(&chunk?);
            if body.len() > most {
                return Err(HttpError::TooLarge(TooLarge::Body(most)));
            }
        }
        Ok(body)
    }
}
