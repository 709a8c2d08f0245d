//! An engine of one coordinator and one worker on the memory store, with a scripted model whose requests are kept.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_coordinator::{Coordinator, Options};
use picofleet_fleet::Local;
use picofleet_harness::config::{ConversationConfig, ModelRef};
use picofleet_harness::effects::{Models, Services};
use picofleet_harness::hooks::{BeforeTool, GenerationHooks, HookApi, HookError, HookResult, Observed, ToolHooks};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_harness::transport::Transport;
use picofleet_harness::wire::{Answer, HostCall, Read, Request};
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions};
use picofleet_models::scripted::{Script, Scripted};
use picofleet_session::message::{AssistantMessage, Message, ToolCall, UserInput};
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_session::{
    Clock, ConversationId, EntryId, EntryRecord, Json, Millis, ROOT_CONVERSATION_ID, SessionId, SubmissionRecord, SubmissionStatus,
};
use picofleet_storage::memory::MemoryStore;
use picofleet_worker::Worker;
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Requests as the provider got them.
pub(crate) type Requests = Arc<Mutex<Vec<Vec<Message>>>>;

#[derive(Clone)]
struct Recorded(Scripted, Requests);

impl Provider for Recorded {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        self.1.lock().unwrap().push(context.messages.clone());
        self.0.stream(model, context, options, cancel)
    }
}

struct OneModel(Model, Recorded);

impl Models for OneModel {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        (model.model_id == self.0.id).then(|| (self.0.clone(), Arc::new(self.1.clone()) as Arc<dyn Provider>))
    }
}

fn model() -> Model {
    let text = br#"{"id":"m","name":"m","api":"scripted","provider":"p","baseUrl":"","reasoning":false,"input":["text"],
        "cost":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0},"contextWindow":100000,"maxTokens":1000}"#;
    Json::parse(text).unwrap().to().unwrap()
}

pub(crate) fn config(active: Vec<String>) -> ConversationConfig {
    let model = Some(ModelRef { provider: "p".into(), model_id: "m".into() });
    ConversationConfig { model, active_tools: active, ..ConversationConfig::default() }
}

pub(crate) struct Engine {
    pub(crate) coordinator: Coordinator,
    transport: Arc<dyn Transport>,
    worker: JoinHandle<()>,
    stop: CancellationToken,
    pub(crate) session: SessionId,
    pub(crate) requests: Requests,
    pub(crate) reports: Arc<Mutex<Vec<String>>>,
}

impl Engine {
    pub(crate) fn start(store: &Arc<dyn Store>, session: SessionId, script: &str, registry: Registry) -> Self {
        let (coordinator, outgoing) = Coordinator::new(Arc::clone(store), Options::new());
        let transport: Arc<dyn Transport> = Arc::new(Local::encoded(Arc::new(coordinator.clone())));
        let (requests, reports) = (Requests::default(), Arc::new(Mutex::new(Vec::new())));
        let scripted = Scripted::new(Script::from_toml(script).unwrap(), Clock::system());
        let models = Arc::new(OneModel(model(), Recorded(scripted, Arc::clone(&requests))));
        let reported = Arc::clone(&reports);
        let services = Services::new(registry, models).with_report(move |error| reported.lock().unwrap().push(error.to_string()));
        let stop = CancellationToken::new();
        let worker = Worker::new(Arc::clone(&transport), services, picofleet_worker::Options::default());
        let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));
        Self { coordinator, transport, worker, stop, session, requests, reports }
    }

    pub(crate) async fn create() -> (Arc<dyn Store>, SessionId) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let session = store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id;
        (store, session)
    }

    /// A new session whose root has all tools of the registry.
    pub(crate) async fn new(script: &str, registry: &Registry) -> (Arc<dyn Store>, Self) {
        let (store, session) = Self::create().await;
        let engine = Self::start(&store, session, script, registry.clone());
        engine.host::<Json>(HostCall::Root).await;
        engine.configure(ROOT_CONVERSATION_ID, registry.snapshot().tool_names()).await;
        (store, engine)
    }

    pub(crate) async fn configure(&self, conversation: ConversationId, active: Vec<String>) {
        let config = Box::new(config(active));
        assert_eq!(self.call(Request::Host(Box::new(HostCall::Configure { conversation, config }))).await, Answer::Done);
    }

    pub(crate) async fn call(&self, request: Request) -> Answer {
        self.transport.call(self.session, request).await.unwrap()
    }

    pub(crate) async fn host<T: DeserializeOwned>(&self, call: HostCall) -> T {
        self.value(Request::Host(Box::new(call))).await
    }

    pub(crate) async fn read<T: DeserializeOwned>(&self, read: Read) -> T {
        self.value(Request::Read(read)).await
    }

    async fn value<T: DeserializeOwned>(&self, request: Request) -> T {
        match self.call(request).await {
            Answer::Value(value) => value.to().unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn submit(&self, draft: SubmissionDraft) -> SubmissionRecord {
        self.host(HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft }).await
    }

    pub(crate) async fn settled(&self, record: &SubmissionRecord) -> SubmissionRecord {
        let record: SubmissionRecord = self.host(HostCall::WaitSubmission { submission: record.id, timeout_ms: 30_000 }).await;
        assert!(record.settled(), "{record:?} {:?}", self.kinds().await);
        record
    }

    /// Submits a text and waits until it is done.
    pub(crate) async fn turn(&self, text: &str) -> SubmissionRecord {
        let done = self.settled(&self.submit(SubmissionDraft::input(text)).await).await;
        assert_eq!(done.status(), SubmissionStatus::Done, "{done:?}");
        done
    }

    pub(crate) async fn entries(&self) -> Vec<EntryRecord> {
        let read = Read::Entries { conversation: ROOT_CONVERSATION_ID, min: None, max: None, limit: 1_000 };
        let mut entries: Vec<EntryRecord> = self.read(read).await;
        entries.reverse();
        entries
    }

    pub(crate) async fn kinds(&self) -> Vec<String> {
        self.entries().await.into_iter().map(|entry| entry.kind).collect()
    }

    /// The message of each entry of a kind, as JSON.
    pub(crate) async fn messages(&self, kind: &str) -> Vec<Json> {
        let entries = self.entries().await.into_iter().filter(|entry| entry.kind == kind);
        entries.map(|entry| Json::from_serde(&entry.model.unwrap()[0]).unwrap()).collect()
    }

    /// The last diagnostic's code of every tool result, empty where there is none, with the text of the result's blocks.
    pub(crate) async fn results(&self) -> Vec<(String, String)> {
        let entries = self.entries().await.into_iter().filter(|entry| entry.kind == "pi.tool-result");
        entries.map(|entry| (code(&entry), texts(&Json::from_serde(&entry.model.unwrap()[0]).unwrap()))).collect()
    }

    pub(crate) async fn document(&self, kind: &str) -> Json {
        self.read(Read::ConversationDocument { conversation: ROOT_CONVERSATION_ID, kind: kind.into() }).await
    }

    pub(crate) fn reported(&self) -> Vec<String> {
        self.reports.lock().unwrap().clone()
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.worker.await.unwrap();
        self.coordinator.close().await;
    }
}

fn code(entry: &EntryRecord) -> String {
    let diagnostics = entry.data.as_ref().and_then(|data| data.get("diagnostics")).and_then(Json::as_array);
    let last = diagnostics.and_then(|all| all.iter().last().and_then(|last| last.get("code").and_then(Json::as_str)));
    last.map(std::borrow::Cow::into_owned).unwrap_or_default()
}

/// The text of a message's blocks, one line each.
pub(crate) fn texts(message: &Json) -> String {
    let content = message.get("content").unwrap();
    if let Some(text) = content.as_str() {
        return text.into_owned();
    }
    let blocks = content.as_array().unwrap();
    let texts: Vec<String> = blocks.iter().filter_map(|block| Some(block.get("text")?.as_str()?.into_owned())).collect();
    texts.join("\n")
}

pub(crate) type Run = dyn Fn(Json, ToolApi) -> BoxFuture<'static, Result<ToolResult, ToolError>> + Send + Sync;

/// A tool of closures.
pub(crate) struct Tooled {
    pub(crate) spec: ToolSpec,
    pub(crate) run: Box<Run>,
    pub(crate) prepare: fn(Json) -> Result<Json, ToolError>,
}

impl Tool for Tooled {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        (self.prepare)(arguments)
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        (self.run)(arguments, api)
    }
}

/// A tool with a text and a number as arguments.
pub(crate) fn tool<F, R>(name: &str, run: F) -> Tooled
where
    F: Fn(Json, ToolApi) -> R + Send + Sync + 'static,
    R: Future<Output = Result<ToolResult, ToolError>> + Send + 'static,
{
    let schema = br#"{"type":"object","properties":{"text":{"type":"string"},"n":{"type":"number"}}}"#;
    let spec = ToolSpec::new(name, "a tool", Json::parse(schema).unwrap());
    Tooled { spec, run: Box::new(move |arguments, api| Box::pin(run(arguments, api))), prepare: Ok }
}

/// A tool that answers with its arguments, and counts.
pub(crate) fn echo(name: &str, count: &Arc<AtomicU32>) -> Tooled {
    let count = Arc::clone(count);
    tool(name, move |arguments, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ToolResult::text(arguments.to_string())) }
    })
}

type Asked<A, T> = Box<dyn Fn(&A) -> Result<Option<T>, HookError> + Send + Sync>;
type Watched<A> = Box<dyn Fn(&A) -> Result<(), HookError> + Send + Sync>;

/// Generation hooks of closures.
#[derive(Default)]
pub(crate) struct Generation {
    pub(crate) before_request: Option<Asked<[Message], Vec<Message>>>,
    pub(crate) after_response: Option<Watched<AssistantMessage>>,
    pub(crate) on_yield: Option<Asked<AssistantMessage, UserInput>>,
    pub(crate) after_tools: Option<Watched<(EntryId, Vec<EntryId>)>>,
}

impl GenerationHooks for Generation {
    fn before_request<'a>(&'a self, messages: &'a [Message], _: &'a HookApi) -> HookResult<'a, Vec<Message>> {
        Box::pin(async move { self.before_request.as_ref().map_or(Ok(None), |ask| ask(messages)) })
    }

    fn after_response<'a>(&'a self, message: &'a AssistantMessage, _: &'a HookApi) -> Observed<'a> {
        Box::pin(async move { self.after_response.as_ref().map_or(Ok(()), |ask| ask(message)) })
    }

    fn on_yield<'a>(&'a self, answer: &'a AssistantMessage, _: &'a HookApi) -> HookResult<'a, UserInput> {
        Box::pin(async move { self.on_yield.as_ref().map_or(Ok(None), |ask| ask(answer)) })
    }

    fn after_tools<'a>(&'a self, assistant: EntryId, results: &'a [EntryId], _: &'a HookApi) -> Observed<'a> {
        Box::pin(async move { self.after_tools.as_ref().map_or(Ok(()), |ask| ask(&(assistant, results.to_vec()))) })
    }
}

/// Tool hooks of closures.
#[derive(Default)]
pub(crate) struct Tooling {
    pub(crate) before: Option<Asked<ToolCall, BeforeTool>>,
    pub(crate) after: Option<Asked<ToolResult, ToolResult>>,
}

impl ToolHooks for Tooling {
    fn before_tool<'a>(&'a self, call: &'a ToolCall, _: &'a HookApi) -> HookResult<'a, BeforeTool> {
        Box::pin(async move { self.before.as_ref().map_or(Ok(None), |ask| ask(call)) })
    }

    fn after_tool<'a>(&'a self, _: &'a ToolCall, result: &'a ToolResult, _: &'a HookApi) -> HookResult<'a, ToolResult> {
        Box::pin(async move { self.after.as_ref().map_or(Ok(None), |ask| ask(result)) })
    }
}

/// Two signals: that something begun, and that it may go on.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    pub(crate) begun: Arc<Notify>,
    pub(crate) go: Arc<Notify>,
}

pub(crate) const ANSWERS: &str = r#"
[[turns]]
blocks = [{ type = "text", chunks = ["one"] }]
[[turns]]
blocks = [{ type = "text", chunks = ["two"] }]
[[turns]]
blocks = [{ type = "text", chunks = ["three"] }]
[[turns]]
blocks = [{ type = "text", chunks = ["four"] }]
"#;

/// One call, then answers.
pub(crate) fn calls(calls: &str) -> String {
    format!(
        r#"
[[turns]]
blocks = [{calls}]
[[turns]]
blocks = [{{ type = "text", chunks = ["done"] }}]
[[turns]]
blocks = [{{ type = "text", chunks = ["more"] }}]
"#
    )
}
