//! Retries within a request.

use std::sync::atomic::Ordering;

use picofleet_models::http::ClientOptions;
use picofleet_models::provider::StreamOptions;
use picofleet_session::message::{AssistantMessage, StopReason};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::server::{END_CHUNKS, OPEN_HEAD, Server, all, soon, text_chunk};

/// Refuses with a head and a body until the connection of a number.
async fn refusing(until: usize, head: &'static str) -> Server {
    Server::start(move |number, mut connection| async move {
        connection.request().await;
        if number < until {
            connection.send(format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{{\"error\":{{\"message\":\"too busy\"}}}}")).await;
        } else {
            connection.send(OPEN_HEAD).await;
            connection.send(text_chunk("x")).await;
            connection.send(END_CHUNKS).await;
        }
    })
    .await
}

async fn ask(server: &Server, max_retries: u32, max_retry_delay_ms: Option<u64>) -> (AssistantMessage, usize) {
    let options = StreamOptions { max_retries: Some(max_retries), max_retry_delay_ms, ..StreamOptions::default() };
    let (_, message) = all(server.ask_with(ClientOptions::default(), &options, CancellationToken::new())).await;
    (message, server.connections.load(Ordering::SeqCst))
}

#[tokio::test]
async fn a_request_is_made_again_as_often_as_allowed() {
    let server = refusing(2, "429 Too Many\r\nretry-after-ms: 1").await;
    let (message, requests) = ask(&server, 2, None).await;
    assert_eq!((message.stop_reason, requests), (StopReason::Stop, 3));

    let server = refusing(9, "503 Busy\r\nretry-after: 0").await;
    let (message, requests) = ask(&server, 2, None).await;
    assert_eq!((message.error_message.as_deref(), requests), (Some(r#"503: {"message":"too busy"}"#), 3));

    let server = refusing(9, "503 Busy\r\nretry-after: 0").await;
    let (_, requests) = ask(&server, 0, None).await;
    assert_eq!(requests, 1);
}

#[tokio::test]
async fn what_will_not_pass_is_not_tried_again() {
    for head in ["400 Bad\r\nretry-after: 0", "503 Busy\r\nretry-after: 0\r\nx-should-retry: false"] {
        let server = refusing(9, head).await;
        assert_eq!(ask(&server, 5, None).await.1, 1, "{head}");
    }
    let server = refusing(1, "400 Bad\r\nretry-after: 0\r\nx-should-retry: true").await;
    assert_eq!(ask(&server, 5, None).await.0.stop_reason, StopReason::Stop);
}

#[tokio::test]
async fn a_server_that_asks_for_too_long_a_delay_gets_no_other_try() {
    let server = refusing(9, "429 Too Many\r\nretry-after: 7").await;
    let (message, requests) = ask(&server, 5, Some(1500)).await;
    assert_eq!((message.error_message.as_deref(), requests), (Some("Server requested 7s retry delay (max: 2s). 429 too busy"), 1));
    assert!(picofleet_models::classify::is_retryable_assistant_error(&message));
}

/// The client has read the refusal when it closes the connection, so that it is not the request that is cancelled but the wait.
#[tokio::test]
async fn waiting_for_another_try_can_be_cancelled() {
    let (refused, mut on_refused) = mpsc::channel(1);
    let server = Server::start(move |_, mut connection| {
        let refused = refused.clone();
        async move {
            connection.request().await;
            connection.send("HTTP/1.1 429 Too Many\r\nretry-after: 50\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}").await;
            connection.closed().await;
            let _ = refused.send(()).await;
        }
    })
    .await;
    let cancel = CancellationToken::new();
    let options = StreamOptions { max_retries: Some(5), ..StreamOptions::default() };
    let running = tokio::spawn(all(server.ask_with(ClientOptions::default(), &options, cancel.clone())));
    soon(on_refused.recv()).await.unwrap();
    cancel.cancel();
    let (_, message) = running.await.unwrap();
    assert_eq!((message.stop_reason, server.connections.load(Ordering::SeqCst)), (StopReason::Aborted, 1));
}
