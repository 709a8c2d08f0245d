//! A server on loopback that answers as a test says.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use picofleet_delta::Json;
use picofleet_models::anthropic::Anthropic;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::model::{Model, ModelCost, Rates};
use picofleet_models::provider::{Context, StreamEvent};
use picofleet_models::transcript;
use picofleet_session::message::{Message, UserMessage};
use picofleet_session::{Clock, Millis};
use secrecy::SecretString;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

/// Longest time that a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const KEY: &str = "dummy-key-0123456789";

/// What was asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Json,
}

/// What is answered after the head.
#[derive(Clone)]
pub(crate) enum Part {
    Bytes(Vec<u8>),
    /// Nothing until the test says so.
    Wait(Arc<Notify>),
    /// The connection ends within the answer.
    Cut,
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Further header lines.
    pub(crate) headers: String,
    pub(crate) parts: Vec<Part>,
}

impl Answer {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: String::new(), parts: vec![Part::Bytes(body.into())] }
    }

    pub(crate) fn header(mut self, line: &str) -> Self {
        self.headers.push_str(line);
        self.headers.push_str("\r\n");
        self
    }
}

pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Told when a client ends a connection before its answer is complete.
    pub(crate) left: Arc<Notify>,
}

impl Server {
    /// Answers every request, on a connection of its own, with what `answer` makes of it and of its number.
    pub(crate) async fn start(answer: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = Self { url, asked: Arc::default(), left: Arc::default() };
        let (asked, left, answer) = (Arc::clone(&server.asked), Arc::clone(&server.left), Arc::new(answer));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (asked, left, answer) = (Arc::clone(&asked), Arc::clone(&left), Arc::clone(&answer));
                tokio::spawn(async move {
                    if serve(stream, &asked, &*answer).await.is_none() {
                        left.notify_one();
                    }
                });
            }
        });
        server
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn model(&self) -> Model {
        model(&self.url)
    }
}

/// `None` when the client left early.
async fn serve(mut stream: TcpStream, asked: &Mutex<Vec<Asked>>, answer: &(impl Fn(&Asked, usize) -> Answer + Sync)) -> Option<()> {
    let request = read_request(&mut stream).await?;
    let answer = {
        let mut asked = asked.lock().unwrap();
        asked.push(request.clone());
        answer(&request, asked.len() - 1)
    };
    let head = format!("HTTP/1.1 {} X\r\nconnection: close\r\ntransfer-encoding: chunked\r\n{}\r\n", answer.status, answer.headers);
    stream.write_all(head.as_bytes()).await.ok()?;
    for part in answer.parts {
        match part {
            Part::Bytes(bytes) if bytes.is_empty() => {}
            Part::Bytes(bytes) => {
                let chunk = [format!("{:x}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat();
                stream.write_all(&chunk).await.ok()?;
            }
            Part::Wait(notify) => {
                let mut byte = [0];
                tokio::select! {
                    () = notify.notified() => {}
                    read = stream.read(&mut byte) => return (read.ok()? > 0).then_some(()),
                }
            }
            Part::Cut => return Some(()),
        }
    }
    stream.write_all(b"0\r\n\r\n").await.ok()
}

async fn read_request(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |length| length.parse().unwrap());
    while bytes.len() < end + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let mut words = head.split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let body = if length == 0 { Json::null() } else { Json::parse(&bytes[end..]).unwrap() };
    Some(Asked { method, path, head, body })
}

pub(crate) fn model(url: &str) -> Model {
    let rates = Rates { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
    Model {
        id: "model-1".to_owned(),
        name: "Model 1".to_owned(),
        api: "anthropic-messages".to_owned(),
        provider: "acme".to_owned(),
        base_url: url.to_owned(),
        reasoning: false,
        input: Vec::new(),
        input_limits: None,
        cost: ModelCost { rates, tiers: None },
        context_window: 200_000,
        max_tokens: 8192,
        headers: None,
        thinking_level_map: None,
        prompt_cache: None,
        sampling_params: None,
        sampling_params_by_thinking_level: None,
        compat: None,
    }
}

pub(crate) fn provider(clock: &Clock) -> Anthropic {
    let options = ClientOptions { environment_proxies: false, ..ClientOptions::default() };
    Anthropic::new(Client::new(options, clock.clone()).unwrap(), Some(SecretString::from(KEY)))
}

pub(crate) fn context() -> Context {
    let user = Message::from(UserMessage { content: "hi".into(), timestamp: Millis(1) });
    transcript::Context { system_prompt: None, messages: vec![user], tools: None }
}

/// The event that ends a stream.
pub(crate) fn last(events: &[StreamEvent]) -> &picofleet_session::message::AssistantMessage {
    events.last().unwrap().final_message().unwrap()
}
