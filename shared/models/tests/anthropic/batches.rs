//! Deferred answers by message batches.

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_models::provider::{CancelDeferredError, DeferredRequest, Provider as _, StreamEvent, StreamOptions};
use picofleet_session::message::{AssistantBlock, DeferredHandle, StopReason};
use picofleet_session::{Clock, Millis};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::server::{Answer, Asked, KEY, PATIENCE, Part, Server, context, last, provider};

const HOUR: i64 = 60 * 60 * 1000;

const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"model-1-dated","stop_reason":"tool_use","stop_sequence":null,
"content":[{"type":"thinking","thinking":"hm","signature":"sig"},{"type":"redacted_thinking","data":"opaque"},{"type":"text","text":"Hello"},
{"type":"odd"},{"type":"tool_use","id":"t1","name":"read","input":{"path":"a"}}],
"usage":{"input_tokens":1000000,"output_tokens":100000,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,
"output_tokens_details":{"thinking_tokens":7}}}"#;

fn result(result: &str) -> String {
    let other = r#"{"custom_id":"other","result":{"type":"canceled"}}"#;
    format!("{other}\n{{\"custom_id\":\"answer\",\"result\":{}}}\n", result.replace('\n', ""))
}

fn batch(status: &str) -> String {
    format!(r#"{{"id":"msgbatch_1","type":"message_batch","processing_status":"{status}","results_url":"http://127.0.0.1:1/elsewhere"}}"#)
}

fn options(window: Option<&str>) -> StreamOptions {
    let deferred = DeferredRequest::Within { window: window.map(str::to_owned) };
    StreamOptions { deferred: Some(deferred), ..StreamOptions::default() }
}

fn clock() -> Clock {
    Clock::manual(Millis(1_000_000))
}

fn handle(server: &Server) -> DeferredHandle {
    DeferredHandle {
        provider: "acme".to_owned(),
        model_id: server.model().id,
        api: "anthropic-messages".to_owned(),
        id: "msgbatch_1".to_owned(),
        expires_at: Some(Millis(1_000_000 + 24 * HOUR)),
        poll_after_ms: Some(60_000),
        data: None,
    }
}

async fn make(server: &Server, options: &StreamOptions) -> Vec<StreamEvent> {
    let stream = provider(&clock()).stream(&server.model(), &context(), options, CancellationToken::new());
    timeout(PATIENCE, stream.collect()).await.unwrap()
}

async fn fetch(server: &Server, clock: &Clock, handle: &DeferredHandle) -> Vec<StreamEvent> {
    let stream = provider(clock).fetch_deferred(&server.model(), handle, CancellationToken::new());
    timeout(PATIENCE, stream.collect()).await.unwrap()
}

async fn cancel(server: &Server, handle: &DeferredHandle) -> Result<(), CancelDeferredError> {
    timeout(PATIENCE, provider(&clock()).cancel_deferred(&server.model(), handle)).await.unwrap()
}

fn calls(server: &Server) -> Vec<String> {
    server.asked().iter().map(|asked| format!("{} {}", asked.method, asked.path)).collect()
}

fn names(events: &[StreamEvent]) -> Vec<&'static str> {
    events.iter().map(StreamEvent::name).collect()
}

/// A server whose batch has ended with a result.
async fn ended(outcome: &str) -> Server {
    let results = result(outcome);
    Server::start(move |asked: &Asked, _| match asked.path.ends_with("/results") {
        true => Answer::new(200, results.clone()),
        false => Answer::new(200, batch("ended")),
    })
    .await
}

#[tokio::test]
async fn an_answer_is_made_as_a_batch_of_one() {
    let server = Server::start(|_, _| Answer::new(200, batch("in_progress"))).await;
    let events = make(&server, &options(None)).await;
    assert_eq!(names(&events), ["start", "done"]);
    let answer = last(&events);
    assert_eq!((answer.stop_reason, answer.content.len()), (StopReason::Deferred, 0));
    assert_eq!(answer.deferred, Some(handle(&server)));

    let asked = &server.asked()[0];
    assert_eq!(calls(&server), ["POST /v1/messages/batches"]);
    assert!(asked.head.contains(&format!("\r\nx-api-key: {KEY}\r\n")) && asked.head.contains("\r\nanthropic-version: 2023-06-01\r\n"));
    let expected = r#"{"requests":[{"custom_id":"answer","params":{"model":"model-1","max_tokens":8192,
        "messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"ephemeral"}}]}]}}]}"#;
    assert_eq!(asked.body, expected.parse::<Json>().unwrap());

    for (window, hours) in [("15m", 0.25), ("1h", 1.0), ("24h", 24.0)] {
        let events = make(&server, &options(Some(window))).await;
        let end = last(&events).deferred.as_ref().unwrap().expires_at.unwrap().0 - 1_000_000;
        assert_eq!(Json::from(end), Json::try_from(hours * 3_600_000.0).unwrap(), "{window}");
    }
    let events = make(&server, &options(Some("2d"))).await;
    let text = "Unknown window \"2d\" for a deferred response; use 15m, 1h or 24h";
    assert_eq!(last(&events).error_message.as_deref(), Some(text));
    assert_eq!(server.asked().len(), 4);
}

#[tokio::test]
async fn a_batch_that_cannot_be_made_is_an_error() {
    let server = Server::start(|_, _| Answer::new(400, r#"{"type":"error","error":{"type":"x","message":"no"}}"#)).await;
    let events = make(&server, &options(None)).await;
    assert_eq!(names(&events), ["error"]);
    assert_eq!(last(&events).error_message.as_deref(), Some(r#"400 {"type":"error","error":{"type":"x","message":"no"}}"#));
    for body in ["{}", "[", r#"{"id":"a/../b"}"#, r#"{"id":""}"#] {
        let server = Server::start(move |_, _| Answer::new(200, body)).await;
        let events = make(&server, &options(None)).await;
        let text = format!("Anthropic made a message batch without a usable id: {body}");
        assert_eq!(last(&events).error_message, Some(text));
    }
}

#[tokio::test]
async fn a_batch_at_work_is_deferred_again_with_its_handle() {
    for status in ["in_progress", "canceling"] {
        let server = Server::start(move |_, _| Answer::new(200, batch(status))).await;
        let events = fetch(&server, &clock(), &handle(&server)).await;
        assert_eq!(names(&events), ["start", "done"]);
        assert_eq!(last(&events).deferred, Some(handle(&server)));
        assert_eq!(calls(&server), ["GET /v1/messages/batches/msgbatch_1"]);
        assert!(!server.asked()[0].head.contains("content-type"));
    }
}

#[tokio::test]
async fn the_answer_of_a_batch_has_the_events_of_a_stream_at_half_the_price() {
    let server = ended(&format!(r#"{{"type":"succeeded","message":{MESSAGE}}}"#)).await;
    let events = fetch(&server, &clock(), &handle(&server)).await;
    let expected = [
        "start",
        "thinking_start",
        "thinking_delta",
        "thinking_end",
        "thinking_start",
        "thinking_end",
        "text_start",
        "text_delta",
        "text_end",
        "toolcall_start",
        "toolcall_delta",
        "toolcall_end",
        "done",
    ];
    assert_eq!(names(&events), expected);
    assert_eq!(events[7], StreamEvent::TextDelta { index: 2, delta: "Hello".to_owned() });
    let answer = last(&events);
    assert_eq!(answer.stop_reason, StopReason::ToolUse);
    assert_eq!(answer.response_id.as_deref(), Some("msg_1"));
    assert_eq!(answer.response_model.as_deref(), Some("model-1-dated"));
    assert!(answer.duration_ms.is_some());
    let AssistantBlock::ToolCall(call) = &answer.content[3] else { panic!("{answer:?}") };
    assert_eq!(call.arguments, r#"{"path":"a"}"#.parse::<Json>().unwrap());
    let AssistantBlock::Thinking(thinking) = &answer.content[0] else { panic!("{answer:?}") };
    assert_eq!(thinking.thinking_signature.as_deref(), Some("sig"));
    let usage = answer.usage;
    assert_eq!((usage.input, usage.output, usage.total_tokens, usage.reasoning), (1_000_000, 100_000, 1_100_000, Some(7)));
    assert_eq!((usage.cost.input, usage.cost.output, usage.cost.total), (1.5, 0.75, 2.25));
    assert_eq!(calls(&server), ["GET /v1/messages/batches/msgbatch_1", "GET /v1/messages/batches/msgbatch_1/results"]);
}

#[tokio::test]
async fn results_without_an_answer_are_errors() {
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"},"request_id":null}"#;
    for (outcome, text) in [
        (format!(r#"{{"type":"errored","error":{overloaded}}}"#), overloaded.to_owned()),
        (format!(r#"{{"type":"errored","error":"{KEY}"}}"#), "\"[redacted]\"".to_owned()),
        (r#"{"type":"canceled"}"#.to_owned(), "Anthropic message batch msgbatch_1 was cancelled".to_owned()),
        (r#"{"type":"expired"}"#.to_owned(), "Anthropic message batch msgbatch_1 expired before it was answered".to_owned()),
        (r#"{"type":"succeeded","message":{"stop_reason":"brand_new"}}"#.to_owned(), "Unhandled stop reason: brand_new".to_owned()),
        (r#"{"type":"succeeded","message":{}}"#.to_owned(), "Anthropic stream ended without a stop reason".to_owned()),
        (
            r#"{"type":"new"}"#.to_owned(),
            format!("Anthropic message batch msgbatch_1 has a result that cannot be read: {}", result(r#"{"type":"new"}"#)),
        ),
    ] {
        let server = ended(&outcome).await;
        let events = fetch(&server, &clock(), &handle(&server)).await;
        assert_eq!(last(&events).stop_reason, StopReason::Error);
        assert_eq!(last(&events).error_message, Some(text), "{outcome}");
    }
    let server =
        Server::start(|asked, _| Answer::new(200, if asked.path.ends_with("results") { "\n{".into() } else { batch("ended") })).await;
    let events = fetch(&server, &clock(), &handle(&server)).await;
    assert_eq!(last(&events).error_message.as_deref(), Some("Anthropic message batch msgbatch_1 has no result"));
}

#[tokio::test]
async fn a_fetch_that_does_not_get_through_is_no_answer() {
    let broken = || Answer { parts: vec![Part::Bytes(b"{".to_vec()), Part::Cut], ..Answer::new(200, "") };
    for answer in [|| Answer::new(503, "gone"), || Answer::new(429, "wait"), broken] {
        let server = Server::start(move |_, _| answer()).await;
        let events = fetch(&server, &clock(), &handle(&server)).await;
        assert_eq!(last(&events).deferred, Some(handle(&server)));
        let late = DeferredHandle { expires_at: Some(Millis(1_000_000)), ..handle(&server) };
        assert_eq!(last(&fetch(&server, &clock(), &late).await).stop_reason, StopReason::Error);
        let endless = DeferredHandle { expires_at: None, ..handle(&server) };
        assert_eq!(last(&fetch(&server, &clock(), &endless).await).deferred, Some(endless));
    }
    let server = Server::start(|_, _| Answer::new(503, "gone").header("x-should-retry: false")).await;
    assert_eq!(last(&fetch(&server, &clock(), &handle(&server)).await).error_message.as_deref(), Some("503 gone"));
    for (status, body, text) in
        [(404, "no such batch", "404 no such batch"), (200, "{}", "Anthropic told no status of a message batch: {}")]
    {
        let server = Server::start(move |_, _| Answer::new(status, body)).await;
        let events = fetch(&server, &clock(), &handle(&server)).await;
        assert_eq!(names(&events), ["error"]);
        assert_eq!(last(&events).error_message.as_deref(), Some(text));
    }
    let server = Server::start(|_, _| Answer::new(200, "")).await;
    let events = fetch(&server, &clock(), &DeferredHandle { id: "../models".to_owned(), ..handle(&server) }).await;
    assert_eq!(last(&events).error_message.as_deref(), Some("Unknown Anthropic message batch: ../models"));
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn a_batch_that_works_too_long_is_cancelled() {
    let server = Server::start(|_, _| Answer::new(200, batch("in_progress"))).await;
    let clock = clock();
    clock.set(Millis(1_000_000 + HOUR));
    let late = DeferredHandle { expires_at: Some(Millis(1_000_000 + HOUR)), ..handle(&server) };
    let events = fetch(&server, &clock, &late).await;
    let text = "Anthropic message batch msgbatch_1 expired before it was answered";
    assert_eq!(last(&events).error_message.as_deref(), Some(text));
    assert_eq!(calls(&server)[1], "POST /v1/messages/batches/msgbatch_1/cancel");
    clock.set(Millis(1_000_000 + HOUR - 1));
    assert_eq!(last(&fetch(&server, &clock, &late).await).stop_reason, StopReason::Deferred);
}

/// Nobody said that it works too long.
#[tokio::test]
async fn a_batch_whose_handle_has_no_end_goes_on() {
    let server = Server::start(|_, _| Answer::new(200, batch("in_progress"))).await;
    let endless = DeferredHandle { expires_at: None, ..handle(&server) };
    assert_eq!(last(&fetch(&server, &clock(), &endless).await).deferred, Some(endless));
    assert_eq!(calls(&server), ["GET /v1/messages/batches/msgbatch_1"]);
}

#[tokio::test]
async fn batches_are_cancelled_once_and_again() {
    let server = Server::start(|_, _| Answer::new(200, batch("canceling"))).await;
    assert_eq!(cancel(&server, &handle(&server)).await, Ok(()));
    assert_eq!(calls(&server), ["POST /v1/messages/batches/msgbatch_1/cancel"]);

    let gone = Server::start(|_, _| Answer::new(404, "gone")).await;
    assert_eq!(cancel(&gone, &handle(&gone)).await, Ok(()));
    for (status, refused) in [("ended", false), ("canceling", false), ("in_progress", true)] {
        let server = Server::start(move |asked, _| match &*asked.method {
            "POST" => Answer::new(400, "not now"),
            _ => Answer::new(200, batch(status)),
        })
        .await;
        let expected = if refused { Err(CancelDeferredError::Refused("400 not now".to_owned())) } else { Ok(()) };
        assert_eq!(cancel(&server, &handle(&server)).await, expected, "{status}");
    }
}

#[tokio::test]
async fn a_fetch_ends_at_once_when_it_is_cancelled() {
    let server = Server::start(|_, _| Answer { parts: vec![Part::Wait(std::sync::Arc::default())], ..Answer::new(200, "") }).await;
    let cancel = CancellationToken::new();
    let mut stream = provider(&clock()).fetch_deferred(&server.model(), &handle(&server), cancel.clone());
    let (events, ()) = tokio::join!(async { timeout(PATIENCE, stream.next()).await.unwrap() }, async {
        while server.asked().is_empty() {
            tokio::task::yield_now().await;
        }
        cancel.cancel();
    });
    let answer = events.unwrap();
    assert_eq!(answer.final_message().unwrap().stop_reason, StopReason::Aborted);
    assert_eq!(answer.final_message().unwrap().error_message.as_deref(), Some("Request was aborted"));
    timeout(PATIENCE, server.left.notified()).await.expect("the connection is closed");
}
