//! Streams over HTTP: when events come, and what broken, refused and cancelled ones end with.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::classify::{is_context_overflow, is_retryable_assistant_error};
use picofleet_models::provider::{Context, Provider as _, StreamEvent, StreamOptions};
use picofleet_session::Clock;
use picofleet_session::message::{StopReason, ToolDeclaration};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::server::{Answer, Asked, KEY, PATIENCE, Part, Server, context, last, provider};
use super::vectors::{field, records};

/// The body of a stream vector.
fn recorded(id: &str) -> String {
    let records = records("pi-ai-stream-anthropic.jsonl");
    field(records.iter().find(|record| record.get("id").is_some_and(|own| *own == id)).unwrap(), "body")
}

async fn all(server: &Server, context: &Context, options: &StreamOptions) -> Vec<StreamEvent> {
    let stream = provider(&Clock::system()).stream(&server.model(), context, options, CancellationToken::new());
    timeout(PATIENCE, stream.collect()).await.expect("the stream ends")
}

async fn events_of(answer: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> Vec<StreamEvent> {
    all(&Server::start(answer).await, &context(), &StreamOptions::default()).await
}

#[tokio::test]
async fn the_first_text_leaves_before_the_last_byte_arrives() {
    let body = recorded("st-a1");
    let (first, rest) = body.split_at(body.find("\"Hel\"").unwrap() + body[body.find("\"Hel\"").unwrap()..].find("\n\n").unwrap() + 2);
    let (first, rest, go_on) = (first.to_owned(), rest.to_owned(), Arc::new(Notify::new()));
    let wait = Arc::clone(&go_on);
    let server = Server::start(move |_, _| Answer {
        parts: vec![Part::Bytes(first.clone().into()), Part::Wait(Arc::clone(&wait)), Part::Bytes(rest.clone().into())],
        ..Answer::new(200, "")
    })
    .await;
    let mut stream = provider(&Clock::system()).stream(&server.model(), &context(), &StreamOptions::default(), CancellationToken::new());
    let mut next = async || timeout(PATIENCE, stream.next()).await.expect("an event comes");
    assert!(matches!(next().await, Some(StreamEvent::Start { .. })));
    assert!(matches!(next().await, Some(StreamEvent::TextStart { index: 0 })));
    assert_eq!(next().await, Some(StreamEvent::TextDelta { index: 0, delta: "Hel".to_owned() }));
    go_on.notify_one();
    assert_eq!(next().await, Some(StreamEvent::TextDelta { index: 0, delta: "lo 😀".to_owned() }));
    assert!(matches!(next().await, Some(StreamEvent::TextEnd { .. })));
    let end = next().await.unwrap();
    assert_eq!(end.final_message().unwrap().stop_reason, StopReason::Stop);
    assert!(end.final_message().unwrap().duration_ms.is_some());
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn refusals_say_what_the_server_says() {
    for (status, body, text, transient) in [
        (
            400,
            r#"{"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 5 tokens > 4 maximum"}}"#,
            r#"400 {"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 5 tokens > 4 maximum"}}"#,
            false,
        ),
        (
            529,
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
            r#"529 {"type":"error","error":{"type":"overloaded_error"}}"#,
            true,
        ),
        (503, "upstream gone", "503 upstream gone", true),
        (500, "", "500 status code (no body)", true),
        (404, r#"{"message":"no such model"}"#, "404 no such model", false),
        (404, r#"{"message":{"a":1}}"#, r#"404 {"a":1}"#, false),
        (404, "null", "404 null", false),
    ] {
        let events = events_of(move |_, _| Answer::new(status, body)).await;
        assert_eq!(events.len(), 1, "{text}");
        assert_eq!(last(&events).error_message.as_deref(), Some(text));
        assert_eq!(last(&events).stop_reason, StopReason::Error);
        assert_eq!(is_retryable_assistant_error(last(&events)), transient, "{text}");
        assert_eq!(is_context_overflow(last(&events), None), text.contains("too long"), "{text}");
    }
}

#[tokio::test]
async fn no_error_tells_the_key() {
    let told = format!("{{\"error\":\"bad key {KEY}\"}}");
    let refused = told.clone();
    let events = events_of(move |_, _| Answer::new(401, refused.clone())).await;
    assert_eq!(last(&events).error_message.as_deref(), Some(r#"401 {"error":"bad key [redacted]"}"#));
    let events = events_of(move |_, _| Answer::new(200, format!("event: error\ndata: {told}\n\n"))).await;
    assert_eq!(last(&events).error_message.as_deref(), Some(r#"{"error":"bad key [redacted]"}"#));
}

#[tokio::test]
async fn an_overload_within_the_stream_is_transient_and_keeps_what_came() {
    let body = recorded("st-a19");
    let events = events_of(move |_, _| Answer::new(200, body.clone())).await;
    let answer = last(&events);
    assert_eq!(answer.content.len(), 1);
    assert_eq!(answer.error_message.as_deref(), Some(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#));
    assert!(is_retryable_assistant_error(answer));
}

#[tokio::test]
async fn requests_are_made_again_as_often_as_the_caller_allows() {
    let body = recorded("st-a1");
    let answer = move |_: &Asked, number| match number {
        0 => Answer::new(529, "busy").header("retry-after-ms: 1"),
        1 => Answer::new(429, "slow down").header("retry-after: 0"),
        _ => Answer::new(200, body.clone()),
    };
    let server = Server::start(answer.clone()).await;
    let options = StreamOptions { max_retries: Some(2), ..StreamOptions::default() };
    let events = all(&server, &context(), &options).await;
    assert_eq!(last(&events).stop_reason, StopReason::Stop);
    assert_eq!(server.asked().len(), 3);

    let server = Server::start(answer).await;
    let events = all(&server, &context(), &StreamOptions::default()).await;
    assert_eq!(last(&events).error_message.as_deref(), Some("529 busy"));
    assert_eq!(server.asked().len(), 1);

    let server = Server::start(|_, _| Answer::new(429, r#"{"message": "slow down"}"#).header("retry-after: 61")).await;
    let events = all(&server, &context(), &options).await;
    let text = "Server requested 61s retry delay (max: 60s). 429 slow down";
    assert_eq!(last(&events).error_message.as_deref(), Some(text));
}

#[tokio::test]
async fn what_cannot_be_sent_is_an_error_event() {
    let server = Server::start(|_, _| Answer::new(200, "")).await;
    let keyless = picofleet_models::anthropic::Anthropic::new(
        picofleet_models::http::Client::new(picofleet_models::http::ClientOptions::default(), Clock::system()).unwrap(),
        None,
    );
    let stream = keyless.stream(&server.model(), &context(), &StreamOptions::default(), CancellationToken::new());
    let events: Vec<_> = timeout(PATIENCE, stream.collect()).await.unwrap();
    assert_eq!(last(&events).error_message.as_deref(), Some("No API key for provider: acme"));

    let context = Context { tools: Some(vec![tool("require")]), ..context() };
    let events = all(&server, &context, &StreamOptions::default()).await;
    let text = "Tool \"t\" requires JSON-schema constrained sampling, but strict tools are unsupported.";
    assert_eq!(last(&events).error_message.as_deref(), Some(text));
    assert!(server.asked().is_empty());
}

fn tool(strict: &str) -> ToolDeclaration {
    ToolDeclaration {
        name: "t".to_owned(),
        description: "d".to_owned(),
        parameters: r#"{"type":"object","properties":{"a":{"type":"string"}}}"#.parse().unwrap(),
        constrained_sampling: Some(Json::object([("type", "json_schema"), ("strict", strict)])),
    }
}

#[tokio::test]
async fn tools_that_prefer_strict_sampling_go_without_it_when_there_are_too_many() {
    const REFUSAL: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"Too many strict tools (21)"}}"#;
    let body = recorded("st-a1");
    let is_strict = |asked: &Asked| asked.body.get("tools").unwrap().as_array().unwrap().iter().next().unwrap().get("strict").is_some();
    let server =
        Server::start(move |asked, _| if is_strict(asked) { Answer::new(400, REFUSAL) } else { Answer::new(200, body.clone()) }).await;
    let mut model = server.model();
    model.compat = Some(Json::object([("supportsStrictTools", true)]));
    let events = async |strict: &str| -> Vec<StreamEvent> {
        let context = Context { tools: Some(vec![tool(strict)]), ..context() };
        let stream = provider(&Clock::system()).stream(&model, &context, &StreamOptions::default(), CancellationToken::new());
        timeout(PATIENCE, stream.collect()).await.unwrap()
    };
    let preferred = events("prefer").await;
    assert_eq!(last(&preferred).stop_reason, StopReason::Stop, "{preferred:?}");
    assert!(matches!(preferred[0], StreamEvent::Start { .. }));
    assert_eq!(server.asked().iter().map(is_strict).collect::<Vec<_>>(), [true, false]);
    let required = events("require").await;
    assert_eq!(last(&required).error_message, Some(format!("400 {REFUSAL}")));
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn a_connection_that_stays_open_after_the_answer_keeps_nobody_waiting() {
    let body = recorded("st-a1");
    let server = Server::start(move |_, _| Answer {
        parts: vec![Part::Bytes(body.clone().into()), Part::Wait(Arc::default())],
        ..Answer::new(200, "")
    })
    .await;
    let stream = provider(&Clock::system()).stream(&server.model(), &context(), &StreamOptions::default(), CancellationToken::new());
    let events: Vec<_> = timeout(Duration::from_secs(5), stream.collect()).await.expect("the stream ends");
    assert_eq!(last(&events).stop_reason, StopReason::Stop);
}
