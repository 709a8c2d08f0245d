//! Whole turns over the encoded local transport: line, scheduler and worker on the memory store, with a scripted model.

#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures::future::BoxFuture;
use picofleet_coordinator::{Coordinator, Options};
use picofleet_fleet::Local;
use picofleet_harness::config::{ConversationConfig, ModelRef};
use picofleet_harness::effects::{Models, Services};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_harness::transport::Transport;
use picofleet_harness::wire::{Answer, HostCall, Read, Request};
use picofleet_models::model::Model;
use picofleet_models::provider::Provider;
use picofleet_models::scripted::{Script, Scripted};
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_session::{Clock, EntryRecord, Json, Millis, ROOT_CONVERSATION_ID, SessionId, SubmissionRecord, SubmissionStatus};
use picofleet_storage::memory::MemoryStore;
use picofleet_worker::Worker;
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

struct OneModel(Model, Scripted);

impl Models for OneModel {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        (model.model_id == self.0.id).then(|| (self.0.clone(), Arc::new(self.1.clone()) as Arc<dyn Provider>))
    }
}

fn model() -> Model {
    Json::parse(
        br#"{"id":"m","name":"m","api":"scripted","provider":"p","baseUrl":"","reasoning":false,"input":["text"],
        "cost":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0},"contextWindow":100000,"maxTokens":1000}"#,
    )
    .unwrap()
    .to()
    .unwrap()
}

/// An engine of one coordinator and one worker.
struct Engine {
    coordinator: Coordinator,
    transport: Arc<dyn Transport>,
    worker: JoinHandle<()>,
    stop: CancellationToken,
    session: SessionId,
}

impl Engine {
    async fn start(store: &Arc<dyn Store>, session: SessionId, script: &str, registry: Registry) -> Self {
        let (coordinator, outgoing) = Coordinator::new(Arc::clone(store), Options::new());
        let transport: Arc<dyn Transport> = Arc::new(Local::encoded(Arc::new(coordinator.clone())));
        let scripted = Scripted::new(Script::from_toml(script).unwrap(), Clock::system());
        let services = Services::new(registry, Arc::new(OneModel(model(), scripted)));
        let stop = CancellationToken::new();
        let worker = Worker::new(Arc::clone(&transport), services, picofleet_worker::Options::default());
        let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));
        Self { coordinator, transport, worker, stop, session }
    }

    async fn new(script: &str, registry: Registry) -> (Arc<dyn Store>, Self) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let session = store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id;
        let names = registry.snapshot().tool_names();
        let engine = Self::start(&store, session, script, registry).await;
        engine.host::<Json>(HostCall::Root).await;
        let config = ConversationConfig {
            model: Some(ModelRef { provider: "p".into(), model_id: "m".into() }),
            active_tools: names,
            ..ConversationConfig::default()
        };
        let answer = engine
            .call(Request::Host(Box::new(HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::new(config) })))
            .await;
        assert_eq!(answer, Answer::Done);
        (store, engine)
    }

    async fn call(&self, request: Request) -> Answer {
        self.transport.call(self.session, request).await.unwrap()
    }

    async fn host<T: DeserializeOwned>(&self, call: HostCall) -> T {
        match self.call(Request::Host(Box::new(call))).await {
            Answer::Value(value) => value.to().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn submit(&self, draft: SubmissionDraft) -> SubmissionRecord {
        self.host(HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft }).await
    }

    async fn settled(&self, record: &SubmissionRecord) -> SubmissionRecord {
        let record: SubmissionRecord = self.host(HostCall::WaitSubmission { submission: record.id, timeout_ms: 20_000 }).await;
        assert!(record.settled(), "{record:?} {:?}", self.kinds().await);
        record
    }

    async fn entries(&self) -> Vec<EntryRecord> {
        let read = Read::Entries { conversation: ROOT_CONVERSATION_ID, min: None, max: None, limit: 1_000 };
        let Answer::Value(value) = self.call(Request::Read(read)).await else { panic!("no entries") };
        let mut entries: Vec<EntryRecord> = value.to().unwrap();
        entries.reverse();
        entries
    }

    async fn kinds(&self) -> Vec<String> {
        self.entries().await.into_iter().map(|entry| entry.kind).collect()
    }

    async fn document(&self, kind: &str) -> Json {
        let read = Read::ConversationDocument { conversation: ROOT_CONVERSATION_ID, kind: kind.into() };
        let Answer::Value(value) = self.call(Request::Read(read)).await else { panic!("no document") };
        value
    }

    async fn stop(self) {
        self.stop.cancel();
        self.worker.await.unwrap();
        self.coordinator.close().await;
    }
}

/// Counts its executions.
struct Echo(ToolSpec, Arc<AtomicU32>);

impl Echo {
    fn new(name: &str, count: &Arc<AtomicU32>) -> Self {
        let schema = r#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}"#;
        let spec = ToolSpec { replay: Replay::Safe, ..ToolSpec::new(name, "echoes", Json::parse(schema.as_bytes()).unwrap()) };
        Self(spec, Arc::clone(count))
    }
}

impl Tool for Echo {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            self.1.fetch_add(1, Ordering::SeqCst);
            let text = arguments.get("text").and_then(Json::as_str).unwrap_or_default().into_owned();
            if text == "throw" {
                return Err(ToolError::new("thrown"));
            }
            api.output(text.as_bytes())?;
            Ok(ToolResult::default())
        })
    }
}

const ANSWER: &str = r#"
[[turns]]
blocks = [{ type = "text", chunks = ["hel", "lo"] }]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s123_a_plain_answer() {
    let registry = Registry::new();
    registry.section("preamble", false, |_| Some("Be brief.".into())).unwrap();
    let (_store, engine) = Engine::new(ANSWER, registry).await;
    let submission = engine.submit(SubmissionDraft::input("hi")).await;
    let done = engine.settled(&submission).await;
    assert_eq!(done.status(), SubmissionStatus::Done);
    assert_eq!(engine.kinds().await, ["pi.user", "pi.system", "pi.assistant"]);
    assert_eq!(engine.document("pi.live").await, Json::object::<&str, Json>([]));
    engine.stop().await;
}

const TOOLS: &str = r#"
[[turns]]
blocks = [
  { type = "text", chunks = ["Let me see."] },
  { type = "toolCall", id = "c1", name = "echo", arguments = { text = "one" } },
  { type = "toolCall", id = "c2", name = "echo", arguments = { text = "throw" } },
  { type = "toolCall", id = "c3", name = "ghost", arguments = {} },
  { type = "toolCall", id = "c4", name = "echo", arguments = { wrong = 1 } },
]
[[turns]]
blocks = [{ type = "text", chunks = ["done"] }]
[[turns]]
blocks = [{ type = "text", chunks = ["more"] }]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s137_a_round_of_tools_with_errors() {
    let count = Arc::new(AtomicU32::new(0));
    let registry = Registry::new();
    registry.tool(Echo::new("echo", &count)).unwrap();
    let (_store, engine) = Engine::new(TOOLS, registry).await;
    let done = engine.settled(&engine.submit(SubmissionDraft::input("go")).await).await;
    assert_eq!(done.status(), SubmissionStatus::Done);
    let kinds = engine.kinds().await;
    assert_eq!(kinds.len(), 8, "{kinds:?}");
    assert_eq!(kinds[..3], ["pi.user", "pi.system", "pi.assistant"]);
    assert_eq!(kinds[7], "pi.assistant");
    assert_eq!(count.load(Ordering::SeqCst), 2);
    let codes: Vec<String> = engine.entries().await.iter().filter(|entry| entry.kind == "pi.tool-result").map(code).collect();
    let mut sorted = codes.clone();
    sorted.sort();
    assert_eq!(sorted, ["", "invalid_arguments", "tool_error", "tool_unavailable"], "{codes:?}");
    assert_eq!(engine.document("pi.live").await, Json::object::<&str, Json>([]));
    engine.stop().await;
}

/// The code of a result's last diagnostic.
fn code(entry: &EntryRecord) -> String {
    let diagnostics = entry.data.as_ref().and_then(|data| data.get("diagnostics")).and_then(Json::as_array);
    let last = diagnostics.and_then(|all| all.iter().last().and_then(|last| last.get("code").and_then(Json::as_str)));
    last.map(std::borrow::Cow::into_owned).unwrap_or_default()
}

/// Waits for `go` once, so that a test can do something while it runs.
struct Gate(ToolSpec, Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>);

impl Tool for Gate {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, _arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            api.output(b"begun")?;
            self.1.notify_one();
            tokio::select! {
                () = self.2.notified() => Ok(ToolResult::text("opened")),
                () = api.cancelled().cancelled() => Err(ToolError::new("cancelled")),
            }
        })
    }
}

fn gate(replay: Replay) -> (Registry, Arc<tokio::sync::Notify>, Arc<tokio::sync::Notify>) {
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let registry = Registry::new();
    let spec = ToolSpec { replay, ..ToolSpec::new("gate", "waits", Json::parse(br#"{"type":"object"}"#).unwrap()) };
    registry.tool(Gate(spec, Arc::clone(&begun), Arc::clone(&go))).unwrap();
    (registry, begun, go)
}

const GATED: &str = r#"
[[turns]]
blocks = [{ type = "toolCall", id = "c1", name = "gate", arguments = {} }]
[[turns]]
blocks = [{ type = "text", chunks = ["done"] }]
[[turns]]
blocks = [{ type = "text", chunks = ["more"] }]
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s119_s121_a_steer_joins_the_run_and_a_follow_up_begins_the_next() {
    let (registry, begun, go) = gate(Replay::Unsafe);
    let (_store, engine) = Engine::new(GATED, registry).await;
    let first = engine.submit(SubmissionDraft::input("go")).await;
    begun.notified().await;
    let steer = engine.submit(SubmissionDraft::input("quick").when_busy(WhenBusy::Steer)).await;
    let follow = engine.submit(SubmissionDraft::input("next")).await;
    assert_eq!((steer.status(), follow.status()), (SubmissionStatus::Queued, SubmissionStatus::Queued));
    go.notify_one();
    for record in [&first, &steer, &follow] {
        assert_eq!(engine.settled(record).await.status(), SubmissionStatus::Done);
    }
    let kinds = engine.kinds().await;
    let expected = ["pi.user", "pi.system", "pi.assistant", "pi.tool-result", "pi.user", "pi.assistant", "pi.user", "pi.assistant"];
    assert_eq!(kinds, expected);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s148_an_unsafe_tool_is_not_run_again_after_a_restart() {
    let (registry, begun, _go) = gate(Replay::Unsafe);
    let (store, engine) = Engine::new(GATED, registry.clone()).await;
    let submission = engine.submit(SubmissionDraft::input("go")).await;
    begun.notified().await;
    let session = engine.session;
    engine.stop().await;
    let engine = Engine::start(&store, session, GATED, registry).await;
    engine.coordinator.resume(session).await.unwrap();
    assert_eq!(engine.settled(&submission).await.status(), SubmissionStatus::Done);
    let codes: Vec<String> = engine.entries().await.iter().filter(|entry| entry.kind == "pi.tool-result").map(code).collect();
    assert_eq!(codes, ["interrupted"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s149_a_safe_tool_is_run_again_after_a_restart() {
    let (registry, begun, go) = gate(Replay::Safe);
    let (store, engine) = Engine::new(GATED, registry.clone()).await;
    let submission = engine.submit(SubmissionDraft::input("go")).await;
    begun.notified().await;
    let session = engine.session;
    engine.stop().await;
    let engine = Engine::start(&store, session, GATED, registry).await;
    engine.coordinator.resume(session).await.unwrap();
    begun.notified().await;
    go.notify_one();
    assert_eq!(engine.settled(&submission).await.status(), SubmissionStatus::Done);
    let codes: Vec<String> = engine.entries().await.iter().filter(|entry| entry.kind == "pi.tool-result").map(code).collect();
    assert_eq!(codes, [""]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s088_s152_abort_of_a_conversation_stops_its_tool_and_its_run() {
    let (registry, begun, _go) = gate(Replay::Unsafe);
    let (_store, engine) = Engine::new(GATED, registry).await;
    let submission = engine.submit(SubmissionDraft::input("go")).await;
    begun.notified().await;
    let queued = engine.submit(SubmissionDraft::input("later")).await;
    let abort = HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background: false };
    assert_eq!(engine.call(Request::Host(Box::new(abort))).await, Answer::Done);
    for record in [&submission, &queued] {
        assert_eq!(engine.settled(record).await.status(), SubmissionStatus::Unanswered);
    }
    let codes: Vec<String> = engine.entries().await.iter().filter(|entry| entry.kind == "pi.tool-result").map(code).collect();
    assert_eq!(codes, ["aborted"]);
    assert_eq!(engine.document("pi.live").await, Json::object::<&str, Json>([]));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s124_no_model_ends_the_run() {
    let (_store, engine) = Engine::new(ANSWER, Registry::new()).await;
    let configure = HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::default() };
    engine.call(Request::Host(Box::new(configure))).await;
    let done = engine.settled(&engine.submit(SubmissionDraft::input("hi")).await).await;
    let text = Json::from_serde(&done).unwrap();
    assert_eq!(text.get("reason").and_then(Json::as_str).as_deref(), Some("no_model"));
    assert_eq!(engine.kinds().await, ["pi.user"]);
    engine.stop().await;
}
