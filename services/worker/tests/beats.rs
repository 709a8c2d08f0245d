//! A worker whose beats hang stops its tools, and lets what they have come to be said.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test panics where it can not go on")]
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_coordinator::{Coordinator, Options};
use picofleet_fleet::Local;
use picofleet_harness::config::{ConversationConfig, ModelRef};
use picofleet_harness::effects::{Models, Services};
use picofleet_harness::line::LineOptions;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::task::LineTasks;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, HostCall, Request};
use picofleet_models::model::Model;
use picofleet_models::provider::Provider;
use picofleet_models::scripted::{Script, Scripted};
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_session::{Clock, Json, Millis, ROOT_CONVERSATION_ID, SessionId};
use picofleet_storage::memory::MemoryStore;
use picofleet_worker::Worker;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What `protocol.md` 4 says: a tool stops after this time without an answered beat, and its lease ends after that.
const STOP: Duration = Duration::from_secs(15);
const LEASE: Duration = Duration::from_secs(20);

/// A transport whose beats never come back from the moment at which they hang; everything else arrives.
struct Hanging {
    inner: Local,
    hangs: AtomicBool,
    /// When the last beat was sent that was answered.
    answered: watch::Sender<Option<Instant>>,
}

impl Transport for Hanging {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        self.inner.call(session, request)
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        Box::pin(async move {
            let sent = Instant::now();
            if self.hangs.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let answer = self.inner.beat(beat).await;
            self.answered.send_replace(Some(sent));
            answer
        })
    }
}

/// Says that it began, and when it was told to stop.
struct Endless {
    spec: ToolSpec,
    begun: watch::Sender<bool>,
    stopped: watch::Sender<Option<Instant>>,
}

impl Tool for Endless {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn execute<'a>(&'a self, _: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            self.begun.send_replace(true);
            api.cancelled().cancelled().await;
            self.stopped.send_replace(Some(Instant::now()));
            Err(ToolError::new("stopped"))
        })
    }
}

struct OneModel(Model, Scripted);

impl Models for OneModel {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        (model.model_id == self.0.id).then(|| (self.0.clone(), Arc::new(self.1.clone()) as Arc<dyn Provider>))
    }
}

const SCRIPT: &str = "[[turns]]\nblocks = [{ type = \"toolCall\", id = \"c1\", name = \"endless\", arguments = {} }]\n";

fn model() -> Model {
    let text = br#"{"id":"m","name":"m","api":"scripted","provider":"p","baseUrl":"","reasoning":false,"input":["text"],
        "cost":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0},"contextWindow":100000,"maxTokens":1000}"#;
    Json::parse(text).unwrap().to().unwrap()
}

async fn call(transport: &Hanging, session: SessionId, call: HostCall) {
    let answer = transport.call(session, Request::Host(Box::new(call))).await.unwrap();
    assert!(matches!(answer, Answer::Value(_) | Answer::Done), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn tools_stop_before_their_lease_ends_also_where_a_beat_hangs() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let session = store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id;
    let (begun, mut begins) = watch::channel(false);
    let (stopped, mut stops) = watch::channel(None);
    let registry = Registry::new();
    let spec = ToolSpec::new("endless", "works", Json::parse(br#"{"type":"object"}"#).unwrap());
    registry.tool(Endless { spec, begun, stopped }).unwrap();
    let options = Options { tasks: LineTasks::of(&registry), line: LineOptions::of(&registry), ..Options::new() };
    let (coordinator, outgoing) = Coordinator::new(store, options);
    let inner = Local::plain(Arc::new(coordinator.clone()));
    let transport = Arc::new(Hanging { inner, hangs: AtomicBool::new(false), answered: watch::Sender::new(None) });
    let scripted = Scripted::new(Script::from_toml(SCRIPT).unwrap(), Clock::system());
    let services = Services::new(registry, Arc::new(OneModel(model(), scripted)));
    let stop = CancellationToken::new();
    let worker = Worker::new(Arc::clone(&transport) as Arc<dyn Transport>, services, picofleet_worker::Options::default());
    let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));

    call(&transport, session, HostCall::Root).await;
    let config = ConversationConfig {
        model: Some(ModelRef { provider: "p".into(), model_id: "m".into() }),
        active_tools: vec!["endless".into()],
        ..ConversationConfig::default()
    };
    call(&transport, session, HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::new(config) }).await;
    call(&transport, session, HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft: SubmissionDraft::input("go") }).await;
    begins.wait_for(|begun| *begun).await.unwrap();
    transport.hangs.store(true, Ordering::SeqCst);
    let stopped = tokio::time::timeout(2 * LEASE, stops.wait_for(Option::is_some)).await.expect("it is told to stop").unwrap().unwrap();
    let answered = transport.answered.borrow().unwrap();
    let silence = stopped.duration_since(answered);
    assert!(STOP <= silence && silence < LEASE, "{silence:?}");

    stop.cancel();
    worker.await.unwrap();
    coordinator.close().await;
}
