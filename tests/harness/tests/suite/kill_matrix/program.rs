//! The recorded run. Every host call has a key and the model answers by what it is shown, so that it goes on from wherever it was killed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_coordinator::{Coordinator, Options};
use picofleet_fleet::Local;
use picofleet_harness::config::{ConfigPatch, ModelRef, RetryPolicy};
use picofleet_harness::effects::{Models, Services};
use picofleet_harness::host::Harness;
use picofleet_harness::line::LineOptions;
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::task::LineTasks;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_harness::transport::Transport;
use picofleet_harness_tests::Subagent;
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions, empty_answer};
use picofleet_session::message::{AssistantBlock, AssistantMessage, DeferredHandle, Message, StopReason, TextContent, ToolCall, Usage};
use picofleet_session::storage::{SessionCreate, SessionQuery};
use picofleet_session::{Json, Millis};
use picofleet_worker::Worker;
use tokio_util::sync::CancellationToken;

use super::kept::Kept;
use super::{compacting, telling};

/// Runs it to its end.
pub(super) async fn run(directory: &Path) {
    let log = Log(directory.join("log"));
    let store = Kept::chosen().open(directory).await;
    let found = store.sessions(SessionQuery::default(), 1, None).await.unwrap().items.pop();
    let session = match found {
        Some(found) => found.id,
        None => store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id,
    };
    let registry = registry(&log);
    let options = Options { tasks: LineTasks::of(&registry), line: LineOptions::of(&registry), ..Options::new() };
    let (coordinator, outgoing) = Coordinator::new(Arc::clone(&store), options);
    let transport: Arc<dyn Transport> = Arc::new(Local::encoded(Arc::new(coordinator.clone())));
    let stop = CancellationToken::new();
    let services = Services::new(registry, Arc::new(OneModel(log)));
    let worker = Worker::new(Arc::clone(&transport), services, picofleet_worker::Options::default());
    let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));

    let harness = Harness::connect(transport, session);
    tokio::join!(go(&harness), compacting::run(&harness), telling::run(&harness));
    stop.cancel();
    worker.await.unwrap();
    coordinator.close().await;
    store.close().await.unwrap();
}

async fn go(harness: &Harness) {
    let root = harness.root().await.unwrap();
    root.update(config()).await.unwrap();
    let first = root.submit(SubmissionDraft::input("go").request_id("first")).await.unwrap();
    let steer = SubmissionDraft::input("steer: and be short").when_busy(WhenBusy::Steer).request_id("steer");
    let steer = root.submit(steer).await.unwrap();
    first.wait().await.unwrap();
    steer.wait().await.unwrap();
}

pub(super) fn config() -> ConfigPatch {
    let retry = RetryPolicy { enabled: true, max_retries: 5, base_delay_ms: 10.0, max_agent_delay_ms: None };
    ConfigPatch {
        model: Some(Some(ModelRef { provider: "p".into(), model_id: "m".into() })),
        active_tools: Some(vec!["safe".into(), "unsafe".into(), "ask".into()]),
        retry: Some(Some(retry)),
        ..ConfigPatch::default()
    }
}

/// Where effects are written down before they happen: a line is whole or not there.
#[derive(Clone)]
pub(super) struct Log(pub(super) PathBuf);

impl Log {
    pub(super) fn write(&self, word: &str) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(format!("{word}\n").as_bytes()).unwrap();
    }

    pub(super) fn times(&self, word: &str) -> usize {
        std::fs::read_to_string(&self.0).map_or(0, |text| text.lines().filter(|line| *line == word).count())
    }
}

struct Logged(ToolSpec, Log);

impl Tool for Logged {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, _: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            self.1.write(&self.0.name);
            api.output(b"begun\n")?;
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok(ToolResult::text("done"))
        })
    }
}

fn registry(log: &Log) -> Registry {
    let registry = Registry::new();
    for (name, replay) in [("safe", Replay::Safe), ("unsafe", Replay::Unsafe)] {
        let spec = ToolSpec::new(name, "a tool", Json::object([("type", "object")]));
        registry.tool(Logged(ToolSpec { replay, ..spec }, log.clone())).unwrap();
    }
    compacting::register(&registry);
    telling::register(&registry);
    let config = ConfigPatch { active_tools: Some(Vec::new()), ..config() };
    registry.tool(Subagent::new("ask", config)).unwrap();
    registry
}

struct OneModel(Log);

struct Answers(Log);

impl Models for OneModel {
    fn find(&self, _: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        let text = br#"{"id":"m","name":"m","api":"scripted","provider":"p","baseUrl":"","reasoning":false,"input":["text"],
            "cost":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0},"contextWindow":100000,"maxTokens":1000}"#;
        Some((Json::parse(text).unwrap().to().unwrap(), Arc::new(Answers(self.0.clone()))))
    }
}

impl Answers {
    fn answer(&self, model: &Model, context: &Context) -> AssistantMessage {
        let Self(log) = self;
        self.check(&context.messages);
        let messages = &context.messages;
        if let Some(answer) = compacting::answer(log, model, messages).or_else(|| telling::answer(model, messages)) {
            return answer;
        }
        let usage = Usage { input: 3, output: 4, total_tokens: 7, ..Usage::default() };
        let empty = AssistantMessage { usage, ..empty_answer(model, Millis(0)) };
        let text = |text: &str| AssistantMessage {
            content: vec![AssistantBlock::Text(TextContent::new(text))],
            stop_reason: StopReason::Stop,
            ..empty.clone()
        };
        let shown = format!("{:?}", context.messages);
        if shown.contains("the question") && !shown.contains("\"go\"") {
            return text("42");
        }
        if !context.messages.iter().any(|message| matches!(message, Message::ToolResult(_))) {
            if log.times("failed") == 0 {
                log.write("failed");
                let error = Some("overloaded_error: try again".to_owned());
                return AssistantMessage { stop_reason: StopReason::Error, error_message: error, ..empty };
            }
            let call = |id: &str, name: &str, arguments: Json| {
                let call = ToolCall {
                    id: id.into(),
                    name: name.into(),
                    arguments,
                    thought_signature: None,
                    namespace: None,
                    arguments_error: None,
                };
                AssistantBlock::ToolCall(call)
            };
            let nothing = || Json::object::<&str, Json>([]);
            let content = vec![
                call("a", "safe", nothing()),
                call("b", "unsafe", nothing()),
                call("c", "ask", Json::object([("prompt", "the question")])),
            ];
            return AssistantMessage { content, stop_reason: StopReason::ToolUse, ..empty };
        }
        log.write("deferred");
        let handle = DeferredHandle {
            provider: "p".into(),
            model_id: "m".into(),
            api: "scripted".into(),
            id: "later".into(),
            expires_at: None,
            poll_after_ms: Some(10),
            data: None,
        };
        AssistantMessage { stop_reason: StopReason::Deferred, deferred: Some(handle), ..empty_answer(model, Millis(0)) }
    }

    /// Every call in a request has one result, and every result its call.
    fn check(&self, messages: &[Message]) {
        let calls = messages.iter().filter_map(|message| if let Message::Assistant(message) = message { Some(message) } else { None });
        let calls = calls.flat_map(|message| &message.content).filter_map(|block| match block {
            AssistantBlock::ToolCall(call) => Some(call.id.clone()),
            _ => None,
        });
        let results = messages.iter().filter_map(|message| match message {
            Message::ToolResult(result) => Some(result.tool_call_id.clone()),
            _ => None,
        });
        let (mut calls, mut results): (Vec<String>, Vec<String>) = (calls.collect(), results.collect());
        calls.sort();
        results.sort();
        if calls != results {
            self.0.write(&format!("BROKEN request: calls {calls:?}, results {results:?}"));
        }
    }
}

/// The events of an answer, with a partial on the way.
fn events(message: AssistantMessage) -> BoxStream<'static, StreamEvent> {
    let start = AssistantMessage {
        content: Vec::new(),
        usage: Usage::default(),
        stop_reason: StopReason::Pending,
        error_message: None,
        ..message.clone()
    };
    let mut events = vec![StreamEvent::Start { message: Box::new(start) }];
    if let Some(AssistantBlock::Text(text)) = message.content.first() {
        events.push(StreamEvent::TextStart { index: 0 });
        events.push(StreamEvent::TextDelta { index: 0, delta: text.text.clone() });
    }
    events.push(StreamEvent::terminal(message));
    let paced = futures::stream::iter(events).then(|event| async {
        tokio::time::sleep(Duration::from_millis(5)).await;
        event
    });
    paced.boxed()
}

impl Provider for Answers {
    fn stream(&self, model: &Model, context: &Context, _: &StreamOptions, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        events(self.answer(model, context))
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let first = self.0.times("fetched") == 0;
        self.0.write("fetched");
        let usage = Usage { input: 5, output: 6, total_tokens: 11, ..Usage::default() };
        let answer = empty_answer(model, Millis(0));
        events(if first {
            AssistantMessage { stop_reason: StopReason::Deferred, deferred: Some(handle.clone()), ..answer }
        } else {
            let content = vec![AssistantBlock::Text(TextContent::new("the answer"))];
            AssistantMessage { stop_reason: StopReason::Stop, content, usage, ..answer }
        })
    }
}
