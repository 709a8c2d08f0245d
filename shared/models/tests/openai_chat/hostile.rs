//! Servers that mean no good: bounded memory, one classified error, no hang, no leaked key.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use picofleet_delta::Json;
use picofleet_models::classify::is_retryable_assistant_error;
use picofleet_models::http::{ClientOptions, StreamEnd};
use picofleet_models::provider::{StreamEvent, StreamOptions};
use picofleet_models::sse::Limits;
use picofleet_session::message::{AssistantBlock, AssistantMessage, StopReason};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::server::{CHUNKED_HEAD, END_CHUNKS, KEY, OPEN_HEAD, Server, all, model, provider, soon, text_chunk};
use crate::vectors::{decode, field, raw, records};

/// What a socket and its buffers may hold of what nobody read.
const BUFFERED_MAX: usize = 16 << 20;

fn error_of(message: &AssistantMessage) -> &str {
    assert_eq!(message.stop_reason, StopReason::Error, "{message:?}");
    message.error_message.as_deref().unwrap()
}

/// Sends a beginning, then the same bytes for ever. Gives the final message and how many bytes the client let in.
async fn flooded(start: &'static str, flood: &'static [u8], limits: Limits) -> (AssistantMessage, usize) {
    let (sent, mut on_sent) = mpsc::channel(1);
    let server = Server::start(move |_, mut connection| {
        let sent = sent.clone();
        async move {
            connection.request().await;
            connection.send(start).await;
            let count = connection.flood(flood).await;
            let _ = sent.send(count).await;
        }
    })
    .await;
    let options = ClientOptions { limits, ..ClientOptions::default() };
    let (_, message) = all(server.ask_with(options, &StreamOptions::default(), CancellationToken::new())).await;
    (message, soon(on_sent.recv()).await.unwrap())
}

#[tokio::test]
async fn endless_headers() {
    for flood in [&b"x-more: and more\r\n"[..], b"abcdefgh"] {
        let (message, sent) = flooded("HTTP/1.1 200 OK\r\nx-first: ", flood, Limits::default()).await;
        assert!(error_of(&message).starts_with("Connection error.: "), "{message:?}");
        assert!(is_retryable_assistant_error(&message));
        assert!(sent < BUFFERED_MAX, "{sent}");
    }
}

#[tokio::test]
async fn endless_informational_answers() {
    let server = Server::start(|_, mut connection| async move {
        connection.request().await;
        connection.flood(b"HTTP/1.1 103 Early Hints\r\n\r\n").await;
    })
    .await;
    let options = StreamOptions { timeout_ms: Some(100), ..StreamOptions::default() };
    let (_, message) = all(server.ask_with(ClientOptions::default(), &options, CancellationToken::new())).await;
    assert_eq!(error_of(&message), "Request timed out.");
}

#[tokio::test]
async fn an_endless_line() {
    let limits = Limits { line: 1 << 20, ..Limits::default() };
    let (message, sent) = flooded("HTTP/1.1 200 OK\r\n\r\ndata: ", &[b'a'; 4096], limits).await;
    assert_eq!(error_of(&message), "Read the answer: a stream of events has a line of more than 1048576 bytes");
    assert!(sent < limits.line + BUFFERED_MAX, "{sent}");
}

#[tokio::test]
async fn an_endless_event() {
    let limits = Limits { event: 1 << 20, ..Limits::default() };
    let (message, sent) = flooded("HTTP/1.1 200 OK\r\n\r\n", b"data: a\ndata: b\r\n", limits).await;
    assert_eq!(error_of(&message), "Read the answer: a stream of events has an event of more than 1048576 bytes");
    assert!(sent < limits.event + BUFFERED_MAX, "{sent}");
}

#[tokio::test]
async fn endless_deltas() {
    let limits = Limits { body: 1 << 20, ..Limits::default() };
    let delta = b"data: {\"choices\":[{\"delta\":{\"content\":\"0123456789\"}}]}\n\n";
    let (message, sent) = flooded("HTTP/1.1 200 OK\r\n\r\n", delta, limits).await;
    assert_eq!(error_of(&message), "Read the answer: a stream of events has more than 1048576 bytes");
    let [AssistantBlock::Text(text)] = message.content.as_slice() else { panic!("{:?}", message.content.len()) };
    assert!(text.text.len() > 25_000 && text.text.len() < limits.body);
    assert!(sent < limits.body + BUFFERED_MAX, "{sent}");
}

#[tokio::test]
async fn an_endless_refusal() {
    let (message, sent) = flooded("HTTP/1.1 500 No\r\n\r\n", &[b'n'; 4096], Limits::default()).await;
    assert_eq!(error_of(&message).len(), "500 ".len() + (64 << 10));
    assert!(sent < BUFFERED_MAX, "{sent}");
}

/// The answer claims to be compressed; nothing of it is read.
#[tokio::test]
async fn a_compression_bomb() {
    let start = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n";
    let (message, sent) = flooded(start, &[0x1f; 4096], Limits::default()).await;
    assert_eq!(error_of(&message), "The answer has the content encoding gzip; only identity is accepted");
    assert!(sent < BUFFERED_MAX, "{sent}");
}

#[tokio::test]
async fn what_is_not_http() {
    for answer in ["", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 9 OK\r\n\r\n", "\0\0\0"] {
        let server = Server::always(answer).await;
        let (events, message) = all(server.ask()).await;
        assert_eq!(events.len(), 1);
        assert!(error_of(&message).starts_with("Connection error.: "), "{answer:?}: {message:?}");
        assert!(is_retryable_assistant_error(&message));
    }
}

#[tokio::test]
async fn nobody_there() {
    let server = Server::always("").await;
    let model = server.model();
    drop(server);
    let provider = provider(ClientOptions { connect_timeout: Duration::from_secs(5), ..ClientOptions::default() });
    let context = crate::server::context();
    let ask =
        picofleet_models::provider::Provider::stream(&provider, &model, &context, &StreamOptions::default(), CancellationToken::new());
    let (_, message) = all(ask).await;
    assert!(error_of(&message).starts_with("Connection error.: "), "{message:?}");
    assert!(is_retryable_assistant_error(&message));
}

/// The time to connect includes TLS, to which this server never answers.
#[tokio::test]
async fn connecting_has_an_end() {
    let server = Server::start(|_, mut connection| async move { connection.closed().await }).await;
    let model = model(&format!("https://127.0.0.1:{}/v1", server.port));
    let provider = provider(ClientOptions { connect_timeout: Duration::from_millis(50), ..ClientOptions::default() });
    let context = crate::server::context();
    let ask =
        picofleet_models::provider::Provider::stream(&provider, &model, &context, &StreamOptions::default(), CancellationToken::new());
    let (events, message) = all(ask).await;
    assert_eq!(events.len(), 1);
    assert!(error_of(&message).starts_with("Connection error.: "), "{message:?}");
    assert!(is_retryable_assistant_error(&message));
}

/// Another host would get the key.
#[tokio::test]
async fn redirects_are_not_followed() {
    let other = Server::always("HTTP/1.1 200 OK\r\n\r\n").await;
    let head = format!("HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:{}/\r\ncontent-length: 0\r\n\r\n", other.port);
    let (_, message) = all(Server::always(head).await.ask()).await;
    assert_eq!(error_of(&message), "307 status code (no body)");
    assert_eq!(other.connections.load(std::sync::atomic::Ordering::SeqCst), 0);
}

/// A server that repeats what it got.
#[tokio::test]
async fn the_key_is_in_no_error() {
    let server = Server::start(|_, mut connection| async move {
        let request = connection.request().await;
        let refusal = Json::build_object().with("error", Json::object([("message", request)])).build().to_string();
        connection.send(format!("HTTP/1.1 401 No\r\ncontent-length: {}\r\n\r\n{refusal}", refusal.len())).await;
    })
    .await;
    let (_, message) = all(server.ask()).await;
    assert!(error_of(&message).contains("Bearer [redacted]"), "{message:?}");
    assert!(!format!("{message:?}").contains(KEY));

    let told = format!("{OPEN_HEAD}data: {{\"error\":{{\"message\":\"bad key {KEY}\"}}}}\n\n");
    let (_, message) = all(Server::always(told).await.ask()).await;
    assert_eq!(error_of(&message), "bad key [redacted]");

    assert!(!format!("{:?}", provider(ClientOptions::default())).contains(KEY));
    let query = model(&format!("http://127.0.0.1:1/{KEY}?key={KEY}"));
    let provider = provider(ClientOptions::default());
    let context = crate::server::context();
    let ask =
        picofleet_models::provider::Provider::stream(&provider, &query, &context, &StreamOptions::default(), CancellationToken::new());
    let (_, message) = all(ask).await;
    assert!(!error_of(&message).contains(KEY), "{message:?}");
}

/// Every chunk has one byte of the answer, so characters and line ends are split.
#[tokio::test]
async fn invalid_utf8_split_over_chunks() {
    let mut body = b"data: {\"choices\":[{\"delta\":{\"content\":\"a".to_vec();
    body.extend_from_slice(b"\xf0\x9f\x98\x80\xf0\x9f\xff\xc3");
    body.extend_from_slice(format!("\"}}}}]}}\r\n\r\n{END_CHUNKS}").as_bytes());
    let body = Arc::new(body);
    let server = Server::start(move |_, mut connection| {
        let body = Arc::clone(&body);
        async move {
            connection.request().await;
            connection.send(CHUNKED_HEAD).await;
            for byte in body.iter() {
                connection.chunk([*byte]).await;
            }
            connection.send("0\r\n\r\n").await;
        }
    })
    .await;
    let (events, message) = all(server.ask()).await;
    assert_eq!(message.stop_reason, StopReason::Stop, "{message:?}");
    assert!(events.contains(&StreamEvent::TextDelta { index: 0, delta: "a😀\u{fffd}\u{fffd}\u{fffd}".to_owned() }), "{events:?}");
}

/// A recorded answer over a connection that ends after each of its bytes: the events are the first ones of the whole answer,
/// and the end tells the cut unless the answer was complete.
#[tokio::test]
async fn a_connection_closed_at_every_byte() {
    let record = records("pi-ai-stream-chat.jsonl").into_iter().find(|record| *raw(record, "id") == "st-c7").unwrap();
    let body: String = field(&record, "body");
    let mut model = model("");
    let whole = decode(&model, vec![Bytes::from(body.clone())], StreamEnd::Complete);
    let done_at = body.find("[DONE]\n\n").unwrap() + "[DONE]\n\n".len();
    let cuts: Vec<usize> = (0..=body.len()).collect();
    let (expected, pieces) = (body.clone(), cuts.clone());
    let server = Server::start(move |number, mut connection| {
        let piece = expected[..pieces[number]].to_owned();
        async move {
            connection.request().await;
            connection.send(CHUNKED_HEAD).await;
            if !piece.is_empty() {
                connection.chunk(piece).await;
            }
        }
    })
    .await;
    model.base_url = server.model().base_url;
    let provider = provider(ClientOptions { keep_alive: Duration::ZERO, ..ClientOptions::default() });
    let context = crate::server::context();
    for cut in cuts {
        let ask =
            picofleet_models::provider::Provider::stream(&provider, &model, &context, &StreamOptions::default(), CancellationToken::new());
        let (events, message) = all(ask).await;
        let names = |events: &[StreamEvent]| events.iter().map(StreamEvent::summary).collect::<Vec<_>>();
        if cut >= done_at {
            assert_eq!(names(&events), names(&whole), "cut at {cut}");
            continue;
        }
        assert_eq!(error_of(&message), "terminated: other side closed (UND_ERR_SOCKET)", "cut at {cut}");
        assert!(is_retryable_assistant_error(&message));
        assert_eq!(names(&events[..events.len() - 1]), names(&whole[..events.len() - 1]), "cut at {cut}");
    }
}

#[tokio::test]
async fn chunks_that_are_no_json_or_of_another_form() {
    for (data, error) in [
        ("{not json", Some("Error reading response: malformed server-sent event JSON.")),
        ("[1]", None),
        ("7", None),
        (r#"{"choices":7,"usage":"much","id":3,"model":{}}"#, None),
        (r#"{"choices":[7]}"#, None),
        (r#"{"choices":[{"delta":[],"finish_reason":7}]}"#, None),
        (r#"{"choices":[{"delta":{"content":7,"reasoning":[],"tool_calls":{},"reasoning_details":[1]}}]}"#, None),
        (r#"{"choices":[{"delta":{"tool_calls":[1,null]}}]}"#, None),
        (r#"{"choices":[{"delta":{"unheard":{"of":1}}}],"usage":{"prompt_tokens":-5,"completion_tokens":1e300}}"#, None),
    ] {
        let answer = format!("{OPEN_HEAD}event: odd\ndata: {data}\n\nevent: ping\n\n{}{END_CHUNKS}", text_chunk("x"));
        let (_, message) = all(Server::always(answer).await.ask()).await;
        match error {
            Some(error) => assert!(error_of(&message).starts_with(error), "{message:?}"),
            None => {
                assert_eq!(message.stop_reason, StopReason::Stop, "{data}: {message:?}");
                assert_eq!(message.content.len(), 1, "{data}");
            }
        }
    }
}
