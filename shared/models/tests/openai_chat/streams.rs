//! Answers over a connection: when events come, how a connection ends and is used again, what is sent.

use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use picofleet_models::http::ClientOptions;
use picofleet_models::provider::{StreamEvent, StreamOptions};
use picofleet_session::message::{AssistantBlock, StopReason};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::server::{CHUNKED_HEAD, END_CHUNKS, KEY, OPEN_HEAD, Server, all, context, model, provider, soon, text_chunk};

fn text_of(message: &picofleet_session::message::AssistantMessage) -> String {
    let texts = message.content.iter().map(|block| match block {
        AssistantBlock::Text(text) => text.text.as_str(),
        _ => "",
    });
    texts.collect()
}

/// The server sends the rest only when the test has the first text.
#[tokio::test]
async fn text_is_there_before_the_answer_is_complete() {
    let (seen, on_seen) = mpsc::channel(1);
    let on_seen = std::sync::Arc::new(tokio::sync::Mutex::new(on_seen));
    let server = Server::start(move |_, mut connection| {
        let on_seen = std::sync::Arc::clone(&on_seen);
        async move {
            connection.request().await;
            connection.send(CHUNKED_HEAD).await;
            connection.chunk(text_chunk("one ")).await;
            on_seen.lock().await.recv().await;
            connection.chunk(text_chunk("two")).await;
            connection.chunk(END_CHUNKS).await;
            connection.send("0\r\n\r\n").await;
        }
    })
    .await;
    let mut stream = server.ask();
    loop {
        let event = soon(stream.next()).await.unwrap();
        if let StreamEvent::TextDelta { delta, .. } = event {
            assert_eq!(delta, "one ");
            break;
        }
    }
    seen.send(()).await.unwrap();
    let (_, message) = all(stream).await;
    assert_eq!((text_of(&message).as_str(), message.stop_reason), ("one two", StopReason::Stop));
}

#[tokio::test]
async fn a_request_that_is_cancelled_already_is_not_made() {
    let server = Server::always("").await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let (_, message) = all(server.ask_with(ClientOptions::default(), &StreamOptions::default(), cancel)).await;
    assert_eq!(message.stop_reason, StopReason::Aborted);
    assert_eq!(server.connections.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_connection_is_used_again() {
    let server = Server::start(|_, mut connection| async move {
        while connection.next_request().await.is_some() {
            connection.send(CHUNKED_HEAD).await;
            connection.chunk(text_chunk("x")).await;
            connection.chunk(END_CHUNKS).await;
            connection.send("0\r\n\r\n").await;
        }
    })
    .await;
    let provider = provider(ClientOptions::default());
    for _ in 0..3 {
        let stream = picofleet_models::provider::Provider::stream(
            &provider,
            &server.model(),
            &context(),
            &StreamOptions::default(),
            CancellationToken::new(),
        );
        let (_, message) = all(stream).await;
        assert_eq!(message.stop_reason, StopReason::Stop, "{message:?}");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn an_answer_is_over_at_done_though_the_connection_stays() {
    let (server, _closed) = {
        let (closed, on_closed) = mpsc::channel::<()>(1);
        let server = Server::start(move |_, mut connection| {
            let closed = closed.clone();
            async move {
                connection.request().await;
                connection.send(OPEN_HEAD).await;
                connection.send(text_chunk("x")).await;
                connection.send(END_CHUNKS).await;
                connection.closed().await;
                drop(closed);
            }
        })
        .await;
        (server, on_closed)
    };
    let (_, message) = all(server.ask()).await;
    assert_eq!((text_of(&message).as_str(), message.stop_reason), ("x", StopReason::Stop));
}

#[tokio::test]
async fn requests_have_the_key_the_headers_and_no_compression() {
    let (heads, mut on_head) = mpsc::channel(1);
    let server = Server::start(move |_, mut connection| {
        let heads = heads.clone();
        async move {
            let request = connection.request().await;
            heads.send(request).await.unwrap();
            connection.send(OPEN_HEAD).await;
            connection.send(END_CHUNKS).await;
        }
    })
    .await;
    let headers = [("X-Own".to_owned(), Some("1".to_owned())), ("Accept".to_owned(), None)];
    let options = StreamOptions { headers: headers.into(), ..StreamOptions::default() };
    let stream = server.ask_with(ClientOptions::default(), &options, CancellationToken::new());
    let (_, message) = all(stream).await;
    assert_eq!(message.stop_reason, StopReason::Stop);
    let request = soon(on_head.recv()).await.unwrap();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{head}");
    for line in ["content-type: application/json", "accept-encoding: identity", "x-own: 1", &format!("authorization: Bearer {KEY}")] {
        assert!(head.lines().any(|own| own.eq_ignore_ascii_case(line)), "{line} is not in {head}");
    }
    assert!(!head.contains("accept: application/json"), "{head}");
    assert!(body.starts_with("{\"model\":\"m\""), "{body}");
}

#[tokio::test]
async fn without_a_key_nothing_is_sent() {
    let client = picofleet_models::http::Client::new(ClientOptions::default(), picofleet_session::Clock::system()).unwrap();
    let provider = picofleet_models::openai_chat::OpenAiChat::new(client, None);
    let ask = |url: &str, options: &StreamOptions| {
        picofleet_models::provider::Provider::stream(&provider, &model(url), &context(), options, CancellationToken::new())
    };
    let (events, message) = all(ask("http://127.0.0.1:1", &StreamOptions::default())).await;
    assert_eq!((events.len(), message.error_message.as_deref()), (1, Some("No API key for provider: acme")));
    let bad = StreamOptions { headers: [("x".to_owned(), Some("a\nb".to_owned()))].into(), ..StreamOptions::default() };
    let (_, message) = all(ask("http://127.0.0.1:1", &bad)).await;
    let expected = "The header \"x\" cannot be sent; correct its name or value in the configuration";
    assert_eq!(message.error_message.as_deref(), Some(expected));
    let (_, message) = all(ask("nowhere", &StreamOptions::default())).await;
    assert!(message.error_message.unwrap().starts_with("The base URL \"nowhere\" is not a URL"));
}

/// The environment of a process cannot be changed safely, so the test runs itself in another one.
#[tokio::test]
async fn proxies_come_from_the_environment() {
    if std::env::var_os("PICOFLEET_TEST_BEHIND_PROXY").is_some() {
        let stream = picofleet_models::provider::Provider::stream(
            &provider(ClientOptions::default()),
            &model("http://models.invalid/v1"),
            &context(),
            &StreamOptions::default(),
            CancellationToken::new(),
        );
        let (_, message) = all(stream).await;
        assert_eq!(text_of(&message), "by proxy", "{message:?}");
        // Nobody listens there, and the proxy, which would answer, is not asked.
        let stream = picofleet_models::provider::Provider::stream(
            &provider(ClientOptions { environment_proxies: false, ..ClientOptions::default() }),
            &model("http://127.0.0.1:1/v1"),
            &context(),
            &StreamOptions::default(),
            CancellationToken::new(),
        );
        let (_, message) = all(stream).await;
        assert!(message.error_message.unwrap().starts_with("Connection error.: "));
        return;
    }
    let (lines, mut on_line) = mpsc::channel(1);
    let proxy = Server::start(move |_, mut connection| {
        let lines = lines.clone();
        async move {
            let request = connection.request().await;
            lines.send(request.lines().next().unwrap_or_default().to_owned()).await.unwrap();
            connection.send(OPEN_HEAD).await;
            connection.send(text_chunk("by proxy")).await;
            connection.send(END_CHUNKS).await;
        }
    })
    .await;
    behind_proxy("streams::proxies_come_from_the_environment", format!("http://127.0.0.1:{}", proxy.port)).await;
    assert_eq!(soon(on_line.recv()).await.unwrap(), "POST http://models.invalid/v1/chat/completions HTTP/1.1");
}

/// Runs one test of this file in a process of its own with a proxy, and tells what it printed when it failed.
async fn behind_proxy(test: &'static str, proxy: String) {
    let child = tokio::task::spawn_blocking(move || {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test]).env("PICOFLEET_TEST_BEHIND_PROXY", "1");
        command.env("HTTP_PROXY", &proxy).env("http_proxy", &proxy);
        command.env_remove("NO_PROXY").env_remove("no_proxy").output().unwrap()
    });
    let output = soon(child).await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A proxy that says nothing that is HTTP.
#[tokio::test]
async fn a_failed_connection_names_the_proxy() {
    if std::env::var_os("PICOFLEET_TEST_BEHIND_PROXY").is_some() {
        let stream = picofleet_models::provider::Provider::stream(
            &provider(ClientOptions::default()),
            &model("http://models.invalid/v1"),
            &context(),
            &StreamOptions::default(),
            CancellationToken::new(),
        );
        let text = all(stream).await.1.error_message.unwrap();
        let way = " (models.invalid:80 by the proxy 127.0.0.1:";
        assert!(text.starts_with("Connection error.: ") && text.contains(way) && !text.contains("hush"), "{text}");
        return;
    }
    let proxy = Server::always("no HTTP\r\n\r\n").await;
    behind_proxy("streams::a_failed_connection_names_the_proxy", format!("http://me:hush@127.0.0.1:{}", proxy.port)).await;
}

/// A proxy that answers with what it was asked.
#[tokio::test]
async fn the_password_of_a_proxy_is_in_no_error() {
    if std::env::var_os("PICOFLEET_TEST_BEHIND_PROXY").is_some() {
        let stream = picofleet_models::provider::Provider::stream(
            &provider(ClientOptions::default()),
            &model("http://models.invalid/v1"),
            &context(),
            &StreamOptions::default(),
            CancellationToken::new(),
        );
        let (_, message) = all(stream).await;
        let text = format!("{message:?}");
        assert!(text.contains("Basic [redacted]"), "{text}");
        // The base64 of the password within that of both, and the password.
        assert!(!text.contains("cHJveHktdXNlcjpwQHNzLXdvcmQ") && !text.contains("p@ss-word"), "{text}");
        return;
    }
    let proxy = Server::start(|_, mut connection| async move {
        let asked = format!("{} p@ss-word", connection.request().await);
        assert!(asked.contains("Basic cHJveHktdXNlcjpwQHNzLXdvcmQ="), "{asked}");
        connection.send(format!("HTTP/1.1 400 Bad\r\ncontent-length: {}\r\n\r\n{asked}", asked.len())).await;
    })
    .await;
    let url = format!("http://proxy-user:p%40ss-word@127.0.0.1:{}", proxy.port);
    behind_proxy("streams::the_password_of_a_proxy_is_in_no_error", url).await;
}

#[test]
fn the_key_is_in_no_debug_text() {
    assert!(!format!("{:?}", provider(ClientOptions::default())).contains(KEY));
}
