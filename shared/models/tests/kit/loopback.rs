//! A server on loopback whose connections do what a test says, and what a client makes of them.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_models::provider::{Context, StreamEvent};
use picofleet_session::message::AssistantMessage;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The longest time that a test waits for anything. Nothing depends on how short it is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// The credential in all tests.
pub(crate) const KEY: &str = "sk-secret-of-the-test";

/// The head of an answer whose body ends when the connection does.
pub(crate) const OPEN_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";

/// The head of an answer in chunks.
pub(crate) const CHUNKED_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// Waits for something, but not for ever.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it took too long")
}

/// A server; its connections end with it.
pub(crate) struct Server {
    pub(crate) port: u16,
    pub(crate) connections: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Server {
    /// Serves each connection with a function of its number, from 0.
    pub(crate) async fn start<F: Future<Output = ()> + Send + 'static>(serve: impl Fn(usize, Connection) -> F + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&connections);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                // Or each small piece would wait for the acknowledgement of the one before it.
                stream.set_nodelay(true).unwrap();
                served.spawn(serve(counter.fetch_add(1, Ordering::SeqCst), Connection { stream, sent: 0 }));
            }
        });
        Self { port, connections, _tasks: tasks }
    }

    /// Answers every request of every connection with the same bytes and ends the connection.
    pub(crate) async fn always(answer: impl Into<Vec<u8>>) -> Self {
        let answer = Arc::new(answer.into());
        Self::start(move |_, mut connection| {
            let answer = Arc::clone(&answer);
            async move {
                connection.request().await;
                connection.send(answer.as_slice()).await;
            }
        })
        .await
    }
}

pub(crate) fn context() -> Context {
    r#"{"messages":[{"role":"user","content":"hello","timestamp":1}]}"#.parse::<Json>().unwrap().to().unwrap()
}

/// All events of a stream, which must end with its only terminal event.
pub(crate) async fn all(stream: BoxStream<'static, StreamEvent>) -> (Vec<StreamEvent>, AssistantMessage) {
    let events: Vec<_> = soon(stream.collect()).await;
    let finals = events.iter().filter(|event| event.final_message().is_some()).count();
    assert_eq!(finals, 1, "{events:?}");
    let message = events.last().unwrap().final_message().expect("the last event is not terminal").clone();
    assert!(message.duration_ms.is_some() || message.error_message.is_some(), "{message:?}");
    (events, message)
}

/// One side of a connection.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    /// Bytes that went out.
    pub(crate) sent: usize,
}

impl Connection {
    /// Reads a whole request: its head, then as many bytes as it says. `None` when the client is gone.
    pub(crate) async fn next_request(&mut self) -> Option<String> {
        let mut bytes = Vec::new();
        let mut buffer = vec![0; 4096];
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if let Some((head, body)) = text.split_once("\r\n\r\n") {
                let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
                if body.len() >= length.unwrap_or(0) {
                    return Some(text);
                }
            }
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            }
        }
    }

    pub(crate) async fn request(&mut self) -> String {
        self.next_request().await.unwrap_or_default()
    }

    /// Sends bytes; false when the client is gone.
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.sent += bytes.as_ref().len();
        self.stream.write_all(bytes.as_ref()).await.is_ok() && self.stream.flush().await.is_ok()
    }

    pub(crate) async fn chunk(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        let bytes = bytes.as_ref();
        self.send([format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()).await
    }

    /// Sends the same bytes until the client is gone, and says how many went out.
    pub(crate) async fn flood(&mut self, bytes: &[u8]) -> usize {
        while self.send(bytes).await {}
        self.sent
    }

    /// Waits until the client closes the connection.
    pub(crate) async fn closed(&mut self) {
        let mut buffer = [0; 256];
        while matches!(self.stream.read(&mut buffer).await, Ok(1..)) {}
    }
}
