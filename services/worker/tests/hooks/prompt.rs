//! Prompt sections and tool changes in whole turns (section 7.4).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use picofleet_harness::config::CONFIG;
use picofleet_harness::hooks::HookError;
use picofleet_harness::registry::{PromptInput, PromptSection, Registry, Section};
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::wire::{HostCall, Request};
use picofleet_session::message::Message;
use picofleet_session::{Json, ROOT_CONVERSATION_ID, SubmissionStatus};

use super::engine::{ANSWERS, Engine, Gate, echo};

fn object(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

async fn sections(engine: &Engine) -> Vec<Option<Json>> {
    engine.messages("pi.system").await.iter().map(|message| message.get("sections").cloned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s176_a_section_is_tagged_left_out_and_patched() {
    let registry = Registry::new();
    registry.section("preamble", false, |_| Some("Be brief.".into())).unwrap();
    let count = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&count);
    let changing = move |input: &PromptInput| {
        let shown = input.shown.iter().any(|(key, _)| key == "turn");
        assert_eq!(shown, counter.load(Ordering::SeqCst) > 0, "a renderer sees what is shown");
        Some(format!("turn {}", counter.fetch_add(1, Ordering::SeqCst) / 2))
    };
    registry.section("turn", true, changing).unwrap();
    registry.section("none", true, |_| None).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    for text in ["a", "b", "c"] {
        engine.turn(text).await;
    }
    let first = object(r#"{"preamble":"Be brief.","turn":"<turn>\nturn 0\n</turn>"}"#);
    assert_eq!(sections(&engine).await, [Some(first), Some(object(r#"{"turn":"<turn>\nturn 1\n</turn>"}"#))], "equal text makes no entry");
    for message in engine.messages("pi.system").await {
        assert_eq!(message.get("content"), Some(&Json::from("")), "x085: the content is always empty");
    }
    engine.stop().await;
}

/// Renders what the committed configuration says.
struct Reads;

impl PromptSection for Reads {
    fn render<'a>(&'a self, input: &'a PromptInput) -> BoxFuture<'a, Result<Option<String>, HookError>> {
        Box::pin(async move {
            let config = input.read.snapshot(&CONFIG, input.conversation).await?;
            let names: Vec<String> = input.tools.iter().map(|tool| tool.spec().name.clone()).collect();
            Ok(config.map(|config| format!("{} {}", config.active_tools.join(","), names.join(","))))
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_read_committed_documents_and_wrappers_decorate_them() {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    registry.tool(echo("echo", &count)).unwrap();
    registry.prompt("config", true, Reads).unwrap();
    registry.wrap_section("config", "plain", |section| Ok(Section { tag: false, ..section })).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    engine.configure(ROOT_CONVERSATION_ID, vec!["echo".into(), "ghost".into()]).await;
    engine.turn("a").await;
    assert_eq!(sections(&engine).await, [Some(object(r#"{"config":"echo,ghost echo"}"#))]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_section_that_throws_keeps_its_shown_text_and_is_reported() {
    let registry = Registry::new();
    let broken = Arc::new(AtomicU32::new(0));
    let state = Arc::clone(&broken);
    let text = move |_: &PromptInput| match state.load(Ordering::SeqCst) {
        0 => Some("good".to_owned()),
        _ => panic!("boom"),
    };
    registry.section("part", true, text).unwrap();
    let never = |_: &PromptInput| -> Option<String> { panic!("never shown") };
    registry.section("never", true, never).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    engine.turn("a").await;
    broken.store(1, Ordering::SeqCst);
    engine.turn("b").await;
    assert_eq!(sections(&engine).await, [Some(object(r#"{"part":"<part>\ngood\n</part>"}"#))]);
    let reports = engine.reported();
    assert_eq!(reports.len(), 3, "{reports:?}");
    assert!(reports[1].contains("boom"), "{reports:?}");
    engine.stop().await;
}

/// Waits for the end of its invocation and throws then.
struct Throws(Gate);

impl PromptSection for Throws {
    fn render<'a>(&'a self, input: &'a PromptInput) -> BoxFuture<'a, Result<Option<String>, HookError>> {
        Box::pin(async move {
            self.0.begun.notify_one();
            input.read.cancelled().cancelled().await;
            Err(HookError::new("cut off"))
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x085_an_error_after_the_cancellation_propagates() {
    let registry = Registry::new();
    let gate = Gate::default();
    registry.prompt("slow", true, Throws(gate.clone())).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    let submission = engine.submit(SubmissionDraft::input("go")).await;
    gate.begun.notified().await;
    engine.call(Request::Host(Box::new(HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background: false }))).await;
    assert_eq!(engine.settled(&submission).await.status(), SubmissionStatus::Unanswered);
    assert_eq!(engine.kinds().await, ["pi.user"]);
    let (reports, requests) = (Arc::clone(&engine.reports), Arc::clone(&engine.requests));
    engine.stop().await;
    assert!(reports.lock().unwrap().is_empty() && requests.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x064_an_unregistered_tool_is_removed_and_comes_back() {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    let registration = registry.tool(echo("a", &count)).unwrap();
    registry.tool(echo("b", &count)).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    engine.turn("1").await;
    registration.dispose();
    engine.turn("2").await;
    registry.tool(echo("a", &count)).unwrap();
    engine.turn("3").await;
    let systems = engine.messages("pi.system").await;
    assert_eq!(systems.len(), 3);
    assert_eq!(systems[1].get("toolsRemoved"), Some(&object(r#"[{"name":"a"}]"#)));
    let added: Vec<String> = systems[2]
        .get("toolsAdded")
        .and_then(Json::as_array)
        .map(|tools| tools.iter().filter_map(|tool| Some(tool.get("name")?.as_str()?.into_owned())).collect())
        .unwrap_or_default();
    assert!(added.contains(&"a".to_owned()), "{added:?}");
    let config = engine.document("pi.conversation.config").await;
    assert_eq!(config.get("activeTools"), Some(&object(r#"["a","b"]"#)));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s181_system_messages_stay_where_they_were_appended() {
    let registry = Registry::new();
    let turn = Arc::new(Mutex::new("one"));
    let text = Arc::clone(&turn);
    registry.section("part", true, move |_| Some((*text.lock().unwrap()).to_owned())).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    engine.turn("a").await;
    *turn.lock().unwrap() = "two";
    engine.turn("b").await;
    let requests = engine.requests.lock().unwrap().clone();
    let roles = |request: &[Message]| -> Vec<&'static str> {
        let role = |message: &Message| match message {
            Message::User(_) => "user",
            Message::System(_) => "system",
            Message::Assistant(_) => "assistant",
            _ => "other",
        };
        request.iter().map(role).collect()
    };
    assert_eq!(roles(&requests[0]), ["user", "system"]);
    assert_eq!(roles(&requests[1]), ["user", "system", "assistant", "user", "system"]);
    engine.stop().await;
}
