//! Deferred answers as background responses.

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::http::{Client, ClientOptions};
use picofleet_models::openai_responses::OpenAiResponses;
use picofleet_models::provider::{CancelDeferredError, DeferredRequest, Provider as _, StreamEvent, StreamOptions};
use picofleet_models::sse::Limits;
use picofleet_session::Millis;
use picofleet_session::message::{AssistantBlock, AssistantMessage, DeferredHandle, StopReason};
use tokio_util::sync::CancellationToken;

use crate::server::{Reply, Server, soon};
use crate::{events, last, model};

const PENDING: &str = r#"{"id":"resp_7","status":"queued"}"#;
const DONE: &str = r#"{"id":"resp_7","status":"completed","service_tier":"flex",
    "output":[{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"hm"}]},
        {"type":"message","id":"msg_1","content":[{"type":"output_text","text":"hello"}]},
        {"type":"function_call","id":"fc_1","call_id":"call_1","name":"read","arguments":"{\"path\":\"a\"}"}],
    "usage":{"input_tokens":1000000,"output_tokens":1000000,"total_tokens":2000000}}"#;

fn wanted(window: Option<&str>) -> StreamOptions {
    let request = DeferredRequest::Within { window: window.map(str::to_owned) };
    StreamOptions { deferred: Some(request), ..StreamOptions::default() }
}

async fn fetch(provider: &OpenAiResponses, base_url: &str, handle: &DeferredHandle) -> Vec<StreamEvent> {
    let stream = provider.fetch_deferred(&model(base_url), handle, CancellationToken::new());
    soon("the end of the fetch", stream.collect()).await
}

fn handle(message: &AssistantMessage) -> DeferredHandle {
    assert_eq!((message.stop_reason, message.content.len()), (StopReason::Deferred, 0));
    message.deferred.clone().unwrap()
}

fn some_handle(expires_at: i64) -> DeferredHandle {
    DeferredHandle {
        provider: "acme".to_owned(),
        model_id: "model-1".to_owned(),
        api: "openai-responses".to_owned(),
        id: "resp_7".to_owned(),
        expires_at: Some(Millis(expires_at)),
        poll_after_ms: Some(5_000),
        data: None,
    }
}

fn asked(server: &Server) -> Vec<(String, String)> {
    server.received().into_iter().map(|request| (request.method, request.path)).collect()
}

fn call(method: &str, path: &str) -> (String, String) {
    (method.to_owned(), path.to_owned())
}

#[tokio::test]
async fn an_answer_is_asked_for_until_it_is_there() {
    let replies = [Reply::json(200, PENDING), Reply::json(200, PENDING), Reply::json(503, "busy"), Reply::json(200, DONE)];
    let server = Server::start(replies).await;
    let provider = crate::provider();
    let made = handle(&last(&events(&provider, &model(&server.base_url), &wanted(Some("1h"))).await));
    assert_eq!((made.id.as_str(), made.expires_at, made.poll_after_ms), ("resp_7", Some(Millis(4_600_000)), Some(5_000)));

    for _ in 0..2 {
        assert_eq!(handle(&last(&fetch(&provider, &server.base_url, &made).await)), made);
    }
    let events = fetch(&provider, &server.base_url, &made).await;
    let names: Vec<_> = events.iter().map(StreamEvent::name).collect();
    let block = |kind: &str| ["start", "delta", "end"].map(|part| format!("{kind}_{part}"));
    let blocks = ["thinking", "text", "toolcall"].map(block).concat();
    assert_eq!(names, [vec!["start".to_owned()], blocks, vec!["done".to_owned()]].concat());
    let message = last(&events);
    assert_eq!(message.stop_reason, StopReason::ToolUse);
    assert!(matches!(&message.content[1], AssistantBlock::Text(text) if text.text == "hello"));
    assert_eq!((message.usage.input, message.usage.total_tokens, message.usage.cost.input), (1_000_000, 2_000_000, 1.5));

    let created = server.received()[0].json();
    let flag = |name: &str| created.get(name).and_then(Json::as_bool);
    assert_eq!((flag("background"), flag("store"), flag("stream")), (Some(true), Some(true), None));
    let poll = || call("GET", "/v1/responses/resp_7");
    assert_eq!(asked(&server), [call("POST", "/v1/responses"), poll(), poll(), poll()]);
}

#[tokio::test]
async fn an_answer_that_is_there_at_once_is_not_deferred() {
    let server = Server::start([Reply::json(200, DONE)]).await;
    let message = last(&events(&crate::provider(), &model(&server.base_url), &wanted(None)).await);
    assert_eq!((message.stop_reason, message.content.len()), (StopReason::ToolUse, 3));
}

#[tokio::test]
async fn what_fails_is_an_error_event() {
    for (reply, options, text) in [
        (Reply::json(400, r#"{"error":{"message":"m"}}"#), wanted(None), r#"acme API error (400): {"message":"m"}"#),
        (Reply::json(200, "<"), wanted(None), "The provider's answer about a background response is not JSON"),
        (Reply::json(200, r#"{"status":"queued"}"#), wanted(None), "The provider made a background response without a usable id"),
        (Reply::json(200, PENDING), wanted(Some("1s")), "Unknown window \"1s\" for a deferred response; use 15m, 1h or 24h"),
        (Reply::json(200, r#"{"id":"x","status":"failed","error":{"code":"c","message":"m"}}"#), wanted(None), "c: m"),
    ] {
        let server = Server::start([reply]).await;
        let message = last(&events(&crate::provider(), &model(&server.base_url), &options).await);
        assert_eq!((message.stop_reason, message.error_message.as_deref()), (StopReason::Error, Some(text)));
    }
}

#[tokio::test]
async fn an_answer_that_was_cancelled_says_so() {
    let cancelled = r#"{"id":"resp_7","status":"cancelled","output":[],"error":null,"incomplete_details":null,"usage":null}"#;
    let server = Server::start([Reply::json(200, cancelled)]).await;
    let message = last(&fetch(&crate::provider(), &server.base_url, &some_handle(i64::MAX)).await);
    assert_eq!(message.stop_reason, StopReason::Error);
    assert_eq!(message.error_message.as_deref(), Some("OpenAI background response resp_7 was cancelled"));
    assert_eq!(message.raw_stop_reason.as_deref(), Some("cancelled"));
}

#[tokio::test]
async fn an_answer_without_an_end_is_waited_for() {
    let server = Server::start([Reply::json(200, PENDING)]).await;
    let endless = DeferredHandle { expires_at: None, ..some_handle(0) };
    assert_eq!(handle(&last(&fetch(&crate::provider(), &server.base_url, &endless).await)), endless);
    assert_eq!(asked(&server), [call("GET", "/v1/responses/resp_7")]);
}

#[tokio::test]
async fn an_unknown_handle_is_an_error() {
    let server = Server::start([Reply::json(404, r#"{"error":{"message":"not found"}}"#)]).await;
    let message = last(&fetch(&crate::provider(), &server.base_url, &some_handle(i64::MAX)).await);
    assert_eq!(message.error_message.unwrap(), r#"acme API error (404): {"message":"not found"}"#);

    let odd = DeferredHandle { id: "../models".to_owned(), ..some_handle(i64::MAX) };
    let message = last(&fetch(&crate::provider(), &server.base_url, &odd).await);
    assert_eq!(message.error_message.unwrap(), "Unknown OpenAI background response: \"../models\"");
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn an_expired_answer_is_given_up() {
    let server = Server::start([Reply::json(200, PENDING)]).await;
    let message = last(&fetch(&crate::provider(), &server.base_url, &some_handle(1_000_000)).await);
    assert_eq!(message.error_message.unwrap(), "OpenAI background response resp_7 expired before it was answered");
    assert_eq!(asked(&server), [call("GET", "/v1/responses/resp_7"), call("POST", "/v1/responses/resp_7/cancel")]);
}

#[tokio::test]
async fn an_expired_answer_that_came_is_still_taken() {
    let server = Server::start([Reply::json(200, DONE)]).await;
    let message = last(&fetch(&crate::provider(), &server.base_url, &some_handle(0)).await);
    assert_eq!(message.stop_reason, StopReason::ToolUse);
}

#[tokio::test]
async fn cancelling_what_is_gone_or_over_is_no_error() {
    for (replies, expected) in [
        (vec![Reply::json(200, PENDING)], Ok(())),
        (vec![Reply::json(404, "{}")], Ok(())),
        (vec![Reply::json(400, "{}"), Reply::json(200, DONE)], Ok(())),
        (
            vec![Reply::json(400, "no"), Reply::json(200, PENDING)],
            Err(CancelDeferredError::Refused("acme API error (400): 400 no".to_owned())),
        ),
    ] {
        let server = Server::start(replies).await;
        let cancelled = crate::provider().cancel_deferred(&model(&server.base_url), &some_handle(i64::MAX));
        assert_eq!(soon("the end of the call", cancelled).await, expected);
        assert_eq!(asked(&server)[0], call("POST", "/v1/responses/resp_7/cancel"));
    }
}

#[tokio::test]
async fn a_cancelled_fetch_is_aborted() {
    let cancel = CancellationToken::new();
    cancel.cancel();
    let stream = crate::provider().fetch_deferred(&model("http://127.0.0.1:1/v1"), &some_handle(i64::MAX), cancel);
    assert_eq!(last(&soon("the end", stream.collect::<Vec<_>>()).await).stop_reason, StopReason::Aborted);
}

/// Of an answer that is read whole no more is kept than of a stream.
#[tokio::test]
async fn an_endless_answer_is_an_error() {
    let server = Server::start([Reply::json(200, &"x".repeat(1 << 20))]).await;
    let limits = Limits { body: 1000, ..Limits::default() };
    let options = ClientOptions { environment_proxies: false, limits, ..ClientOptions::default() };
    let provider = OpenAiResponses::new(Client::new(options, crate::clock()).unwrap(), Some(crate::KEY.into()));
    let message = last(&fetch(&provider, &server.base_url, &some_handle(2_000_000)).await);
    assert_eq!(message.error_message.unwrap(), "Read the answer: a stream of events has more than 1000 bytes");
}
