//! What the adapters share of HTTP: a client with its bounds, a request, its failures, and the driver that turns the answer
//! and a [`Decoder`] into the stream of a provider.
//!
//! An adapter makes a [`Request`] and a decoder and gives both to [`stream`]. Invariants:
//!
//! - Credentials are in no error and in no `Debug` text. What counts as one is the value of a header whose name says so, and what
//!   proxies of the environment are told; texts of servers lose it wherever it came from, if it has 6 bytes or more.
//! - What is read is bounded by the client's limits, whatever a server sends, and memory by a multiple of it that the decoder gives. Answers
//!   are never decompressed.
//! - HTTP/1 answers with a status 1xx, which precede the answer proper, are the exception: the HTTP client drops them without a bound of
//!   their number and tells nobody. A flood of them costs no memory and ends with the request: its time limit or its cancelling closes the
//!   connection. But one poll of the connection takes as many as come in until tokio makes it yield, 128 reads of at most about 400 KiB.
//!   For that time the thread of the runtime does nothing else, so timers of that thread may be late, and so may the end of the
//!   runtime: by half a second as measured, without optimization by 10 to 20 seconds.
//! - Redirects are not followed: they would carry the key to another host.
//! - A dropped stream closes its connection, over HTTP/2 its stream; nothing goes on in the background. So does a cancelled one
//!   once it is polled: nobody watches the token while nobody asks for the next event.

mod credential;
mod driver;
mod error;
mod exchange;
mod proxies;
mod request;
mod retry;
mod stranger;

use std::error::Error as _;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt as _, TryStreamExt as _};
use picofleet_session::Clock;

use crate::breaker::Breaker;
use crate::limiter::Limiter;
use crate::sse::{self, Limits, SseError, SseMessage};

use proxies::Proxies;
use stranger::Stranger;

pub(crate) use credential::is_credential;
pub use driver::{Decoder, StreamEnd, stream};
pub(crate) use error::seconds;
pub use error::{HttpError, StatusError};
pub use request::{Request, RequestError};

/// Most bytes of an error answer that are read.
pub const ERROR_BODY_MAX: usize = 64 << 10;

/// Longest time that the body of an error answer is read: it tells no more than the status, which is here already.
const ERROR_BODY_TIME: Duration = Duration::from_secs(10);

/// Most header lines of an answer, and most bytes of them in HTTP/2. HTTP/1 takes 400 KiB.
const HEADERS_MAX: usize = 100;
const HEADER_BYTES_MAX: u32 = 64 << 10;

/// How a client connects and how long it waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientOptions {
    /// Longest time to connect, TLS included.
    pub connect_timeout: Duration,
    /// Longest time from the start of a request to the head of its answer, unless the request has its own.
    pub first_byte_timeout: Duration,
    /// Longest time without a byte while an answer comes in.
    pub idle_timeout: Duration,
    /// How long an unused connection stays open.
    pub keep_alive: Duration,
    /// Certificates of authorities in PEM form that are trusted beside those of the system; empty for none.
    pub authorities: Bytes,
    /// Takes proxies from `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY`, also in small letters.
    pub environment_proxies: bool,
    /// Sizes of a stream of events.
    pub limits: Limits,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(10),
            first_byte_timeout: Duration::from_secs(600),
            idle_timeout: Duration::from_secs(300),
            keep_alive: Duration::from_secs(90),
            authorities: Bytes::new(),
            environment_proxies: true,
            limits: Limits::default(),
        }
    }
}

/// A client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// TLS could not be set up, for example since the system has no certificates to trust.
    #[error("set up the HTTP client; install the system's CA certificates if there are none")]
    Setup(#[source] reqwest::Error),
    /// The certificates of further authorities cannot be read.
    #[error("read the certificates of further authorities; they must be certificates in PEM form")]
    Authorities(#[source] reqwest::Error),
    /// There are none where some were given.
    #[error("read the certificates of further authorities: there is none in PEM form; check the file")]
    NoAuthorities,
    /// The environment names a proxy that cannot be used. The value may have a password in it, so it is not told.
    #[error(
        "read the proxy in the environment variable {variable}: it must be a URL such as http://host:port; correct it, or set \
         environment_proxies = false in http of the provider"
    )]
    Proxy {
        /// The variable.
        variable: &'static str,
    },
}

/// Makes requests and keeps their connections for later ones. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    options: ClientOptions,
    proxies: Proxies,
    clock: Clock,
    limiter: Option<Limiter>,
    breaker: Option<Breaker>,
}

/// The events of an answer that began well.
pub(crate) type Messages = BoxStream<'static, Result<SseMessage, HttpError>>;

impl Client {
    /// A client; the clock gives the time of messages and reads the dates in `retry-after`.
    ///
    /// # Errors
    ///
    /// TLS could not be set up, the certificates in the options are none, or a proxy of the environment cannot be used.
    pub fn new(options: ClientOptions, clock: Clock) -> Result<Self, ClientError> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("picofleet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(options.connect_timeout)
            .pool_idle_timeout(options.keep_alive)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .http1_max_headers(HEADERS_MAX)
            .http2_max_header_list_size(HEADER_BYTES_MAX);
        let proxies = if options.environment_proxies && !no_proxy_for_any() {
            Proxies::from_environment()?
        } else {
            builder = builder.no_proxy();
            Proxies::default()
        };
        if !options.authorities.is_empty() {
            let authorities = reqwest::Certificate::from_pem_bundle(&options.authorities).map_err(ClientError::Authorities)?;
            if authorities.is_empty() {
                return Err(ClientError::NoAuthorities);
            }
            builder = builder.tls_certs_merge(authorities);
        }
        Ok(Self { http: builder.build().map_err(ClientError::Setup)?, options, proxies, clock, limiter: None, breaker: None })
    }

    /// The same, which tells a limiter of the requests that follow the first one of a turn.
    #[must_use]
    pub fn with_limiter(mut self, limiter: Limiter) -> Self {
        self.limiter = Some(limiter);
        self
    }

    /// The same, which tells a breaker of each request whether it reached the provider. Tries of one request count once.
    #[must_use]
    pub fn with_breaker(mut self, breaker: Breaker) -> Self {
        self.breaker = Some(breaker);
        self
    }

    /// A request follows another one of the same turn.
    pub(crate) fn follows(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.count_request();
        }
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// A text from outside without the credentials of a request and those of the proxies.
    pub(crate) fn redact(&self, request: &Request, text: &str) -> String {
        request.redact(text, &self.proxies.credentials)
    }

    /// Makes a request and reads its answer as a stream of events.
    pub(crate) async fn open(&self, request: &Request) -> Result<Messages, HttpError> {
        let response = self.answered(request).await?;
        let stranger = Stranger::of(&response, request.credentials_with(&self.proxies.credentials));
        let bytes = self.body(response);
        let bytes = match &stranger {
            Some(stranger) => stranger.watch(bytes),
            None => bytes,
        };
        let messages = sse::messages(bytes, self.options.limits);
        let messages = messages.map_err(|error| match error {
            SseError::Read(error) => error,
            SseError::TooLarge(error) => HttpError::TooLarge(error),
        });
        Ok(match stranger {
            Some(stranger) => stranger.or_error(messages.boxed()),
            None => messages.boxed(),
        })
    }

    /// Makes a request and tells the breaker whether the provider was reached.
    async fn answered(&self, request: &Request) -> Result<reqwest::Response, HttpError> {
        let trip = self.breaker.as_ref().map(Breaker::trip);
        let answer = self.tried(request).await;
        match (trip, &answer) {
            (Some(trip), Err(HttpError::Connect { .. } | HttpError::NoAnswer)) => trip.not_reached(),
            (Some(trip), _) => trip.reached(),
            (None, _) => {}
        }
        answer
    }

    /// Makes a request until it is answered well or may not be tried again.
    async fn tried(&self, request: &Request) -> Result<reqwest::Response, HttpError> {
        let mut tries = 0;
        loop {
            let error = match self.sent(request).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let delay = retry::delay(error, request, tries, retry::random())?;
            tries += 1;
            tokio::time::sleep(delay).await;
            self.follows();
        }
    }

    /// The answer to a request, if it began well. A request without a body is a `GET`.
    async fn sent(&self, request: &Request) -> Result<reqwest::Response, HttpError> {
        let url = request.url.clone();
        let call = if request.body.is_empty() { self.http.get(url) } else { self.http.post(url).body(request.body.clone()) };
        let limit = request.first_byte_timeout.unwrap_or(self.options.first_byte_timeout);
        let sent = tokio::time::timeout(limit, call.headers(request.headers.clone()).send()).await;
        let response = sent.map_err(|_| HttpError::NoAnswer)?.map_err(|error| self.not_connected(&error, request))?;
        if response.status().is_redirection()
            && let Some(to) = stranger::redirect_target(&request.url, response.headers())
        {
            return Err(HttpError::Redirect { status: response.status().as_u16(), to: self.redact(request, &to) });
        }
        if !response.status().is_success() {
            return Err(HttpError::Status(self.refusal(response, request).await));
        }
        match encoding(response.headers()) {
            Some(encoding) => Err(HttpError::Encoded { encoding: self.redact(request, &encoding) }),
            None => Ok(response),
        }
    }

    /// Names the host and the proxy, never more of their URLs.
    fn not_connected(&self, error: &reqwest::Error, request: &Request) -> HttpError {
        let host = stranger::place(&request.url).unwrap_or_else(|| "no host".to_owned());
        let way = self.proxies.of(&request.url).map_or_else(|| host.clone(), |proxy| format!("{host} by the proxy {proxy}"));
        HttpError::Connect { cause: format!("{} ({way})", error::deepest(error)) }
    }

    /// The bytes of an answer. It fails when none come for too long.
    fn body(&self, response: reqwest::Response) -> BoxStream<'static, Result<Bytes, HttpError>> {
        let idle = self.options.idle_timeout;
        let next = move |mut bytes: BoxStream<'static, reqwest::Result<Bytes>>| async move {
            match tokio::time::timeout(idle, bytes.next()).await {
                Ok(Some(Ok(chunk))) => Ok(Some((chunk, bytes))),
                Ok(Some(Err(error))) => Err(HttpError::Cut { cause: error::deepest(&error) }),
                Ok(None) => Ok(None),
                Err(_) => Err(HttpError::Idle { timeout: idle }),
            }
        };
        futures::stream::try_unfold(response.bytes_stream().boxed(), next).boxed()
    }

    async fn refusal(&self, response: reqwest::Response, request: &Request) -> StatusError {
        let mut refusal = StatusError::of(response.status(), response.headers(), self.clock.now());
        refusal.request_id = refusal.request_id.map(|id| self.redact(request, &id));
        let mut body = Vec::new();
        let mut bytes = self.body(response);
        // What came in tells most, so a body that breaks off, is too large or takes too long is no error of its own.
        let read = async {
            while let Some(Ok(chunk)) = bytes.next().await {
                let room = ERROR_BODY_MAX - body.len();
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                if body.len() == ERROR_BODY_MAX {
                    break;
                }
            }
        };
        // What came in until then is kept; a credential may be cut there, too.
        let cut = tokio::time::timeout(ERROR_BODY_TIME, read).await.is_err();
        let text = String::from_utf8_lossy(&body);
        refusal.body = if cut || body.len() == ERROR_BODY_MAX {
            request.redact_begin(&text, &self.proxies.credentials)
        } else {
            self.redact(request, &text)
        };
        refusal
    }
}

/// Whether `NO_PROXY` has a `*`. The HTTP client takes that for all names and leaves out addresses such as 127.0.0.1.
fn no_proxy_for_any() -> bool {
    let exceptions = std::env::var("NO_PROXY").or_else(|_| std::env::var("no_proxy"));
    exceptions.is_ok_and(|exceptions| exceptions.split(',').any(|exception| exception.trim() == "*"))
}

/// The inner client would show the URLs of proxies, which may have passwords in them.
impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("options", &self.options).finish_non_exhaustive()
    }
}

fn encoding(headers: &http::HeaderMap) -> Option<String> {
    let value = headers.get(http::header::CONTENT_ENCODING)?;
    let name = String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase();
    (!name.is_empty() && name != "identity").then_some(name)
}

/// True when the other side ended the connection within an answer or before it.
fn other_side_closed(error: &(dyn std::error::Error + 'static)) -> bool {
    if let Some(error) = error.downcast_ref::<hyper::Error>() {
        return error.is_incomplete_message();
    }
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof)
}

fn sources<'a>(error: &'a reqwest::Error) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(error.source(), |error: &&'a (dyn std::error::Error + 'static)| (**error).source())
}

#[cfg(test)]
mod tests {
    use picofleet_delta::Json;
    use tokio::time::Instant;

    use super::*;
    use crate::model::Model;

    #[tokio::test(start_paused = true)]
    async fn an_error_that_is_told_for_ever_is_cut_and_kept() {
        let model = r#"{"id":"m","name":"M","api":"a","provider":"p","baseUrl":"http://h","reasoning":false,"input":[],
            "cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0},"contextWindow":0,"maxTokens":0}"#;
        let model: Model = model.parse::<Json>().unwrap().to().unwrap();
        let request = Request::post(&model, "/x", &Json::null()).unwrap();
        let client = Client::new(ClientOptions::default(), Clock::system()).unwrap();
        // A byte a second is never idle.
        let drip = futures::stream::repeat(()).then(|()| async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok::<_, std::io::Error>(Bytes::from_static(b"x"))
        });
        let response = http::Response::builder().status(400).body(reqwest::Body::wrap_stream(drip)).unwrap();
        let began = Instant::now();
        let refusal = client.refusal(response.into(), &request).await;
        assert_eq!(began.elapsed(), ERROR_BODY_TIME);
        assert!((9..=10).contains(&refusal.body.len()), "{}", refusal.body);
    }
}
