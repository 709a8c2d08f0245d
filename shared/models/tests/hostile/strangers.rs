//! Servers that are none, are not there, point elsewhere or repeat what they got.

use std::sync::atomic::Ordering;
use std::time::Duration;

use picofleet_delta::Json;
use picofleet_models::classify::is_retryable_assistant_error;
use picofleet_models::http::ClientOptions;
use picofleet_models::provider::StreamOptions;
use picofleet_session::message::StopReason;
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::loopback::{KEY, OPEN_HEAD, Server, all, context};
use crate::{error_of, for_each_api};

for_each_api! {
    what_is_not_http
    nobody_there
    connecting_has_an_end
    redirects_are_not_followed
    answers_that_are_no_events
    the_key_is_in_no_error
}

async fn what_is_not_http(api: &Api) {
    for answer in ["", "SSH-2.0-x\r\n", "HTTP/1.1 200 OK\r\ncontent-le", "HTTP/1.1 9 OK\r\n\r\n", "\0\0\0"] {
        let server = Server::always(answer).await;
        let (events, message) = all(api.ask(&server)).await;
        assert_eq!(events.len(), 1);
        assert!(error_of(&message).starts_with("Connection error.: "), "{answer:?}: {message:?}");
        assert!(is_retryable_assistant_error(&message));
    }
}

async fn nobody_there(api: &Api) {
    let server = Server::always("").await;
    let model = api.model(&format!("http://127.0.0.1:{}", server.port));
    drop(server);
    let provider = api.provider(ClientOptions { connect_timeout: Duration::from_secs(5), ..ClientOptions::default() });
    let (_, message) = all(provider.stream(&model, &context(), &StreamOptions::default(), CancellationToken::new())).await;
    assert!(error_of(&message).starts_with("Connection error.: "), "{message:?}");
    assert!(error_of(&message).ends_with(&format!(" ({})", model.base_url.trim_start_matches("http://"))), "{message:?}");
    assert!(is_retryable_assistant_error(&message));
}

/// The time to connect includes TLS, to which this server never answers.
async fn connecting_has_an_end(api: &Api) {
    let server = Server::start(|_, mut connection| async move { connection.closed().await }).await;
    let model = api.model(&format!("https://127.0.0.1:{}", server.port));
    let provider = api.provider(ClientOptions { connect_timeout: Duration::from_millis(50), ..ClientOptions::default() });
    let (events, message) = all(provider.stream(&model, &context(), &StreamOptions::default(), CancellationToken::new())).await;
    assert_eq!(events.len(), 1);
    assert!(error_of(&message).starts_with("Connection error.: "), "{message:?}");
    assert!(is_retryable_assistant_error(&message));
}

/// The error tells what came instead, without the key and not all of it.
async fn answers_that_are_no_events(api: &Api) {
    let long = format!("{KEY} {}", "é".repeat(6000));
    let long_told = format!("a body that begins with \"[redacted] {}\";", "é".repeat(189));
    for (status, head, body, told) in [
        (
            "200 OK",
            "content-type: text/html\r\n",
            "<html>\n",
            "status 200, the content type text/html and a body that begins with \"<html>\\n\"",
        ),
        (
            "200 OK",
            "content-type: application/json\r\n",
            "{\"a\":1}",
            "the content type application/json and a body that begins with \"{\\\"a",
        ),
        ("200 OK", "", "", "status 200, no content type and no body"),
        ("204 Nothing", "", "", "status 204, no content type and no body"),
        ("200 OK", "content-type: text/plain\r\n", &long, &long_told),
    ] {
        let server = Server::always(format!("HTTP/1.1 {status}\r\n{head}\r\n{body}")).await;
        let (_, message) = all(api.ask(&server)).await;
        let text = error_of(&message);
        assert!(text.starts_with("Stream ended without an event: ") && text.contains(told), "{text}");
        assert!(is_retryable_assistant_error(&message));
    }
    // One that does not say what it is.
    let (_, message) = all(api.ask(&Server::always(format!("HTTP/1.1 200 OK\r\n\r\n{}", api.answer)).await)).await;
    assert_eq!(message.stop_reason, StopReason::ToolUse, "{message:?}");
}

/// Another host would get the key.
async fn redirects_are_not_followed(api: &Api) {
    let other = Server::always("HTTP/1.1 200 OK\r\n\r\n").await;
    let head = format!("HTTP/1.1 307 Elsewhere\r\nlocation: http://me:hush@127.0.0.1:{}/{KEY}\r\ncontent-length: 0\r\n\r\n", other.port);
    let (_, message) = all(api.ask(&Server::always(head).await)).await;
    let expected = format!("307 redirect to 127.0.0.1:{}, which is not followed; set the base URL to where the API is", other.port);
    assert!(error_of(&message).ends_with(&expected), "{message:?}");
    assert_eq!(other.connections.load(Ordering::SeqCst), 0);
}

/// A server that repeats what it got, as a refusal and within a stream, and one whose URL has the key.
async fn the_key_is_in_no_error(api: &Api) {
    let server = Server::start(|_, mut connection| async move {
        let request = connection.request().await;
        assert!(request.contains(KEY));
        let refusal = Json::build_object().with("error", Json::object([("message", request)])).build().to_string();
        connection.send(format!("HTTP/1.1 401 No\r\ncontent-length: {}\r\n\r\n{refusal}", refusal.len())).await;
    })
    .await;
    let (_, message) = all(api.ask(&server)).await;
    assert!(error_of(&message).contains("[redacted]"), "{message:?}");
    assert!(!format!("{message:?}").contains(KEY));

    let told = format!("{OPEN_HEAD}{}", api.failure(&format!("bad key {KEY}")));
    let (_, message) = all(api.ask(&Server::always(told).await)).await;
    assert!(error_of(&message).contains("bad key [redacted]"), "{message:?}");
    assert!(!format!("{message:?}").contains(KEY));

    let model = api.model(&format!("http://127.0.0.1:1/{KEY}?key={KEY}"));
    let provider = api.provider(ClientOptions::default());
    let (_, message) = all(provider.stream(&model, &context(), &StreamOptions::default(), CancellationToken::new())).await;
    assert!(!format!("{message:?}").contains(KEY), "{message:?}");
}
