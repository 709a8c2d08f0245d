//! Requests whose answer is read whole: what adapters ask beside the stream of an answer.

use bytes::Bytes;
use futures::StreamExt as _;
use picofleet_delta::Json;

use super::{Client, HttpError, Request, RequestError};
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
        let response = self.answered(request).await?;
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
