//! The scripted provider: its events, its turns, deferred answers, cancellation.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use picofleet_delta::Json;
use picofleet_models::estimate::{estimate_context_tokens, estimate_message_tokens};
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, DeferredRequest, Partial, Provider, StreamEvent, StreamOptions};
use picofleet_models::scripted::{Block, Script, Scripted, Turn};
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, Usage};
use picofleet_session::{Clock, Millis};
use tokio_util::sync::CancellationToken;

fn model() -> Model {
    let text = r#"{"id":"faux-1","name":"Faux","api":"faux-api","provider":"faux","baseUrl":"","reasoning":false,"input":["text"],
        "cost":{"input":1,"output":2,"cacheRead":0,"cacheWrite":0},"contextWindow":1000,"maxTokens":100}"#;
    text.parse::<Json>().unwrap().to().unwrap()
}

fn scripted(script: Script) -> Scripted {
    Scripted::new(script, Clock::manual(Millis(5)))
}

fn context(messages: &str) -> Context {
    Context { messages: messages.parse::<Json>().unwrap().to().unwrap(), ..Context::default() }
}

fn hi() -> Context {
    context(r#"[{"role":"user","content":"hi","timestamp":1}]"#)
}

async fn all(stream: BoxStream<'static, StreamEvent>) -> Vec<StreamEvent> {
    stream.collect().await
}

async fn answer(provider: &Scripted, context: &Context) -> AssistantMessage {
    let events = all(provider.stream(&model(), context, &StreamOptions::default(), CancellationToken::new())).await;
    events.last().unwrap().final_message().unwrap().clone()
}

fn text(message: &AssistantMessage) -> String {
    let texts = message.content.iter().filter_map(|block| match block {
        AssistantBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect()
}

const TALK: &str = r#"
[[turns]]
blocks = [
  { type = "thinking", chunks = ["hm", "m"], signature = "s" },
  { type = "text", chunks = ["Let me ", "look."] },
  { type = "toolCall", name = "read", arguments = { path = "a", n = 1.5 } },
  { type = "toolCall", id = "c2", name = "bad", chunks = ["{\"a\":", "1"] },
]
[[turns]]
when = { user = "fail" }
error = "503 overloaded"
times = 2
blocks = [{ type = "text", chunks = ["at last"] }]
[[turns]]
blocks = [{ type = "text", chunks = ["second"] }]
usage = { input = 7, output = 3, cacheRead = 0, cacheWrite = 0, totalTokens = 10, cost = { input = 0, output = 0, cacheRead = 0, cacheWrite = 0, total = 0 } }
[[turns]]
when = { turn = 2 }
blocks = [{ type = "text", chunks = ["par"] }]
error = "broken"
"#;

#[tokio::test]
async fn a_turn_streams_its_blocks() {
    let provider = scripted(Script::from_toml(TALK).unwrap());
    let events = all(provider.stream(&model(), &hi(), &StreamOptions::default(), CancellationToken::new())).await;
    let summary = Json::array(events.iter().map(StreamEvent::summary)).to_string();
    let read = r#"{"id":"call_0_2","name":"read","arguments":{"path":"a","n":1.5}}"#;
    let start = r#"[["start"],["thinking_start",0],["thinking_delta",0,"hm"],["thinking_delta",0,"m"],["thinking_end",0,"hmm"],"#;
    let middle =
        r#"["text_start",1],["text_delta",1,"Let me "],["text_delta",1,"look."],["text_end",1,"Let me look."],["toolcall_start",2],"#;
    assert!(summary.starts_with(&format!("{start}{middle}")), "{summary}");
    assert!(summary.contains(&format!(r#"["toolcall_end",2,{read}]"#)), "{summary}");
    assert!(summary.ends_with(r#"["done","toolUse"]]"#), "{summary}");

    let message = events.last().unwrap().final_message().unwrap();
    assert_eq!(message.timestamp, Millis(5));
    let AssistantBlock::ToolCall(bad) = &message.content[3] else { panic!("{message:?}") };
    assert_eq!(bad.arguments.to_string(), "{}");
    assert!(bad.arguments_error.as_ref().unwrap().ends_with("Received arguments:\n{\"a\":1"), "{bad:?}");
    assert_eq!(message.usage.input, 1);
    assert!(message.usage.cost.total > 0.0);
}

#[tokio::test]
async fn the_partial_answer_grows_to_the_final_one() {
    let provider = scripted(Script::from_toml(TALK).unwrap());
    let events = all(provider.stream(&model(), &hi(), &StreamOptions::default(), CancellationToken::new())).await;
    let mut partial = Partial::default();
    assert!(partial.message().is_none());
    let mut seen = Vec::new();
    for event in &events {
        partial.apply(event);
        let message = partial.message().unwrap();
        seen.push((message.stop_reason, Json::from_serde(&message.content).unwrap().to_string()));
    }
    assert_eq!(seen[0], (StopReason::Pending, "[]".to_owned()));
    assert!(seen.iter().any(|(_, content)| content.ends_with(r#"{"type":"text","text":"Let me "}]"#)), "{seen:?}");
    let open = r#"{"type":"toolCall","id":"c2","name":"bad","arguments":{"a":1}}]"#;
    assert!(seen.iter().any(|(reason, content)| *reason == StopReason::Pending && content.ends_with(open)), "{seen:?}");
    assert_eq!(partial.message().as_ref(), events.last().unwrap().final_message());
}

#[tokio::test]
async fn turns_match_by_number_and_by_user_text() {
    let provider = scripted(Script::from_toml(TALK).unwrap());
    let failing = context(r#"[{"role":"user","content":[{"type":"text","text":"please fail"}],"timestamp":1}]"#);
    // The first turn without a condition matches the number 0 before the second one is asked.
    assert_eq!(text(&answer(&provider, &failing).await), "Let me look.");

    let mut later = hi();
    later.messages.push(Message::from(answer(&provider, &hi()).await));
    let second = answer(&provider, &later).await;
    assert_eq!((text(&second), second.usage.total_tokens), ("second".to_owned(), 10));
    assert_eq!(second.usage.cost.total, 7.0 / 1e6 + 2.0 / 1e6 * 3.0);

    let mut failing_later = failing.clone();
    failing_later.messages.insert(0, later.messages[1].clone());
    for _ in 0..2 {
        let failed = answer(&provider, &failing_later).await;
        assert_eq!((failed.stop_reason, failed.error_message.as_deref()), (StopReason::Error, Some("503 overloaded")));
        // A failed answer in the transcript does not move the script on.
        failing_later.messages.insert(1, Message::from(failed));
    }
    assert_eq!(text(&answer(&provider, &failing_later).await), "at last");

    later.messages.push(Message::from(second));
    let broken = answer(&provider, &later).await;
    assert_eq!((text(&broken), broken.stop_reason, broken.error_message.as_deref()), ("par".to_owned(), StopReason::Error, Some("broken")));
    later.messages.push(later.messages[1].clone());
    let missing = answer(&provider, &later).await;
    assert!(missing.error_message.unwrap().contains("no turn for request 3"));
}

#[test]
fn a_script_is_read_from_json_too_and_a_wrong_one_is_refused() {
    let script = Script::from_toml(TALK).unwrap();
    let json = Json::from_serde(&script).unwrap().to_string();
    assert_eq!(Script::from_json(&json).unwrap(), script);
    assert!(Script::from_json("{\"turns\":[{\"block\":[]}]}").is_err());
    assert!(Script::from_toml("turns = [{ blocks = [{ type = \"song\" }] }]").is_err());
}

#[tokio::test(start_paused = true)]
async fn cancelling_ends_a_delay_and_keeps_what_came() {
    let blocks =
        vec![Block::Text { chunks: vec!["a".to_owned()] }, Block::Delay { ms: 60_000 }, Block::Text { chunks: vec!["b".to_owned()] }];
    let provider = scripted(Script { turns: vec![Turn { blocks, ..Turn::default() }], poll_after_ms: None });
    let cancel = CancellationToken::new();
    let mut stream = provider.stream(&model(), &hi(), &StreamOptions::default(), cancel.clone());
    for name in ["start", "text_start", "text_delta", "text_end"] {
        assert_eq!(stream.next().await.unwrap().name(), name);
    }
    let before = tokio::time::Instant::now();
    let (last, ()) = tokio::join!(stream.next(), async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        cancel.cancel();
    });
    assert_eq!(before.elapsed(), Duration::from_millis(10));
    let Some(StreamEvent::Error { message }) = last else { panic!("{last:?}") };
    assert_eq!((message.stop_reason, text(&message).as_str()), (StopReason::Aborted, "a"));
    assert!(stream.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_delay_passes() {
    let blocks = vec![Block::Delay { ms: 60_000 }, Block::Text { chunks: vec!["b".to_owned()] }];
    let provider = scripted(Script { turns: vec![Turn { blocks, ..Turn::default() }], poll_after_ms: None });
    let before = tokio::time::Instant::now();
    assert_eq!(text(&answer(&provider, &hi()).await), "b");
    assert_eq!(before.elapsed(), Duration::from_secs(60));
}

#[tokio::test]
async fn a_cut_stream_has_no_terminal_event() {
    let turn = Turn { blocks: vec![Block::Text { chunks: vec!["a".to_owned()] }], cut: true, ..Turn::default() };
    let provider = scripted(Script { turns: vec![turn], poll_after_ms: None });
    let events = all(provider.stream(&model(), &hi(), &StreamOptions::default(), CancellationToken::new())).await;
    assert_eq!(events.last().unwrap().name(), "text_end");
}

/// A provider that implements nothing of deferred answers.
struct Plain;

impl Provider for Plain {
    fn stream(&self, _: &Model, _: &Context, _: &StreamOptions, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        futures::stream::empty().boxed()
    }
}

/// The events as the vectors have them: the name, and for terminal ones the reason.
fn names(events: &[StreamEvent]) -> Json {
    let short = |event: &StreamEvent| match event.final_message() {
        Some(_) => event.summary(),
        None => Json::array([event.name()]),
    };
    Json::array(events.iter().map(short))
}

/// The turn that gives the answer of a vector: its blocks, its usage and its error.
fn turn_of(message: &AssistantMessage) -> Turn {
    let blocks = message.content.iter().map(|block| match block {
        AssistantBlock::Text(text) => Block::Text { chunks: vec![text.text.clone()] },
        AssistantBlock::ToolCall(call) => {
            Block::ToolCall { id: Some(call.id.clone()), name: call.name.clone(), arguments: Some(call.arguments.clone()), chunks: None }
        }
        AssistantBlock::Thinking(_) => panic!("no vector has one"),
    });
    let stop_reason = Some(message.stop_reason).filter(|reason| *reason != StopReason::Error);
    Turn { blocks: blocks.collect(), error: message.error_message.clone(), stop_reason, ..Turn::default() }
}

/// What the vectors fix of a message: how the faux provider counts tokens and names itself in errors is its own.
fn comparable(message: &AssistantMessage) -> Json {
    let error_message = message.error_message.as_ref().map(|text| text.replace("Faux", "Scripted").replace("faux", "scripted"));
    let message = AssistantMessage { usage: Usage::default(), timestamp: Millis(0), error_message, ..message.clone() };
    Json::from_serde(&message).unwrap()
}

/// The message of a call in a vector, which has no time.
fn expected_message(call: &Json) -> AssistantMessage {
    let entries = call.get("message").unwrap().as_object().unwrap().iter().map(|(key, value)| (key, value.clone()));
    Json::object(entries.chain([("timestamp", Json::from(0))])).to().unwrap()
}

#[tokio::test]
async fn deferred_vectors() {
    let directory = std::env::var_os("PICOFLEET_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors"), PathBuf::from);
    let lines = std::fs::read_to_string(directory.join("pi-ai-deferred.jsonl")).unwrap();
    assert!(!lines.is_empty());
    for record in lines.lines().map(|line| line.parse::<Json>().unwrap()) {
        let calls: Vec<&Json> = record.get("calls").unwrap().as_array().unwrap().iter().collect();
        let messages = calls.iter().filter(|call| call.get("message").is_some()).map(|call| expected_message(call));
        let last = messages.rev().find(|message| !message.content.is_empty());
        let pending = u32::try_from(record.get("pendingFetches").and_then(Json::as_u64).unwrap_or(0)).unwrap();
        let turn = last.map_or_else(Turn::default, |message| turn_of(&message));
        let turn = Turn { pending_fetches: pending, ..turn };
        let script = Script { turns: vec![turn], poll_after_ms: record.get("pollAfterMs").and_then(Json::as_u64) };
        let scripted = scripted(script);
        for call in calls {
            play(&record, call, &scripted).await;
        }
    }
}

async fn play(record: &Json, call: &Json, scripted: &Scripted) {
    let handle = call.get("handle").map(|handle| handle.to().unwrap());
    let model = Model { provider: provider_of(call), api: api_of(call), id: id_of(call), ..model() };
    let provider: &dyn Provider = if model.provider == "plain" { &Plain } else { scripted };
    let cancel = CancellationToken::new();
    let events = match &*call.get("call").unwrap().as_str().unwrap() {
        "streamSimple" => {
            let options: StreamOptions = call.get("options").unwrap().to().unwrap();
            let deferred = options.deferred.as_ref().is_some_and(DeferredRequest::is_wanted);
            assert_eq!(deferred, call.get("options").unwrap().get("deferred").is_some(), "{record}");
            all(provider.stream(&model, &hi(), &options, cancel)).await
        }
        "fetchDeferred" => all(provider.fetch_deferred(&model, handle.as_ref().unwrap(), cancel)).await,
        "cancelDeferred" => {
            let result = provider.cancel_deferred(&model, handle.as_ref().unwrap()).await;
            let thrown = result.err().map(|error| error.to_string());
            assert_eq!(thrown, call.get("thrown").map(|text| text.as_str().unwrap().into_owned()), "{record}");
            return;
        }
        other => panic!("unknown call {other}"),
    };
    if let Some(expected) = call.get("events") {
        assert_eq!(names(&events), *expected, "{record}");
    }
    let actual = events.last().unwrap().final_message().unwrap();
    assert_eq!(comparable(actual), comparable(&expected_message(call)), "{record}");
    if actual.stop_reason == StopReason::Stop {
        let output = estimate_message_tokens(&Message::from(actual.clone()));
        assert_eq!((actual.usage.input, actual.usage.output), (estimate_context_tokens(&hi().messages).tokens, output));
    }
}

fn of_handle(call: &Json, key: &str, otherwise: &str) -> String {
    call.get("handle").and_then(|handle| handle.get(key)).map_or_else(|| otherwise.to_owned(), |text| text.as_str().unwrap().into_owned())
}

fn provider_of(call: &Json) -> String {
    of_handle(call, "provider", "faux")
}

fn api_of(call: &Json) -> String {
    of_handle(call, "api", "faux-api")
}

fn id_of(call: &Json) -> String {
    of_handle(call, "modelId", "faux-1")
}
