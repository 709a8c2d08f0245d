//! Servers that send for ever. What a client lets in is bounded by its limits, beside what sockets buffer.

use picofleet_models::classify::is_retryable_assistant_error;
use picofleet_models::http::ClientOptions;
use picofleet_models::provider::StreamOptions;
use picofleet_models::sse::Limits;
use picofleet_session::message::{AssistantBlock, AssistantMessage};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::loopback::{OPEN_HEAD, Server, all, soon};
use crate::{error_of, for_each_api};

for_each_api! {
    endless_headers
    endless_informational_answers
    an_endless_line
    an_endless_event
    endless_deltas
    an_endless_refusal
    a_compression_bomb
}

/// What a socket and its buffers may hold of what nobody read.
const BUFFERED_MAX: usize = 16 << 20;

/// Sends a beginning, then the same bytes for ever. Gives the final message and how many bytes the client let in.
async fn flooded(api: &Api, start: String, flood: Vec<u8>, limits: Limits) -> (AssistantMessage, usize) {
    let (sent, mut on_sent) = mpsc::channel(1);
    let server = Server::start(move |_, mut connection| {
        let (sent, start, flood) = (sent.clone(), start.clone(), flood.clone());
        async move {
            connection.request().await;
            connection.send(start).await;
            let count = connection.flood(&flood).await;
            let _ = sent.send(count).await;
        }
    })
    .await;
    let options = ClientOptions { limits, ..ClientOptions::default() };
    let (_, message) = all(api.ask_with(&server, options, &StreamOptions::default(), CancellationToken::new())).await;
    (message, soon(on_sent.recv()).await.unwrap())
}

async fn endless_headers(api: &Api) {
    for flood in [&b"x-more: and more\r\n"[..], b"abcdefgh"] {
        let (message, sent) = flooded(api, "HTTP/1.1 200 OK\r\nx-first: ".to_owned(), flood.to_vec(), Limits::default()).await;
        assert!(error_of(&message).starts_with("Connection error.: "), "{message:?}");
        assert!(is_retryable_assistant_error(&message));
        assert!(sent < BUFFERED_MAX, "{sent}");
    }
}

/// The request ends at its limit of time, and its connection with it.
async fn endless_informational_answers(api: &Api) {
    let (closed, mut on_closed) = mpsc::channel(1);
    let server = Server::start(move |_, mut connection| {
        let closed = closed.clone();
        async move {
            connection.request().await;
            connection.flood(b"HTTP/1.1 103 Early Hints\r\n\r\n").await;
            let _ = closed.send(()).await;
        }
    })
    .await;
    let options = StreamOptions { timeout_ms: Some(100), ..StreamOptions::default() };
    let (_, message) = all(api.ask_with(&server, ClientOptions::default(), &options, CancellationToken::new())).await;
    assert_eq!(error_of(&message), "Request timed out.");
    soon(on_closed.recv()).await.unwrap();
}

async fn an_endless_line(api: &Api) {
    let limits = Limits { line: 1 << 20, ..Limits::default() };
    let (message, sent) = flooded(api, format!("{OPEN_HEAD}data: "), vec![b'a'; 4096], limits).await;
    assert_eq!(error_of(&message), "Read the answer: a stream of events has a line of more than 1048576 bytes");
    assert!(sent < limits.line + BUFFERED_MAX, "{sent}");
}

async fn an_endless_event(api: &Api) {
    let limits = Limits { event: 1 << 20, ..Limits::default() };
    let (message, sent) = flooded(api, OPEN_HEAD.to_owned(), b"data: a\ndata: b\r\n".repeat(64), limits).await;
    assert_eq!(error_of(&message), "Read the answer: a stream of events has an event of more than 1048576 bytes");
    assert!(sent < limits.event + BUFFERED_MAX, "{sent}");
}

/// A gigabyte of them is not different: the limit ends both.
async fn endless_deltas(api: &Api) {
    let limits = Limits { body: 1 << 20, ..Limits::default() };
    let start = format!("{OPEN_HEAD}{}", api.open);
    let (message, sent) = flooded(api, start, api.delta(&[b'x'; 100]).repeat(16), limits).await;
    assert_eq!(error_of(&message), "Read the answer: a stream of events has more than 1048576 bytes");
    let [AssistantBlock::Text(text)] = message.content.as_slice() else { panic!("{:?}", message.content.len()) };
    assert!(text.text.len() > limits.body / 4 && text.text.len() < limits.body, "{}", text.text.len());
    assert!(sent < limits.body + BUFFERED_MAX, "{sent}");
}

async fn an_endless_refusal(api: &Api) {
    let (message, sent) = flooded(api, "HTTP/1.1 500 No\r\n\r\n".to_owned(), vec![b'n'; 4096], Limits::default()).await;
    let error = error_of(&message);
    assert!(error.contains("500 nnn") && error.len() < 65 << 10, "{}", error.len());
    assert!(is_retryable_assistant_error(&message));
    assert!(sent < BUFFERED_MAX, "{sent}");
}

/// The answer claims to be compressed; nothing of it is read.
async fn a_compression_bomb(api: &Api) {
    let start = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n";
    let (message, sent) = flooded(api, start.to_owned(), vec![0x1f; 4096], Limits::default()).await;
    assert_eq!(error_of(&message), "The answer has the content encoding gzip; only identity is accepted");
    assert!(sent < BUFFERED_MAX, "{sent}");
}
