//! A model that gives one recorded answer: a text in twenty pieces, and before it one call of a tool where the script has one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use picofleet_harness::config::ModelRef;
use picofleet_harness::effects::Models;
use picofleet_harness::events::{AgentEvent, MessageChange};
use picofleet_harness::tools::{Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_models::model::Model;
use picofleet_models::provider::{Context, Provider, StreamEvent, StreamOptions, empty_answer};
use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, TextContent, ToolCall, Usage};
use picofleet_session::{Json, Millis};
use tokio_util::sync::CancellationToken;

const PIECES: usize = 20;
const PIECE: &str = "word and ";

/// The model, and who answers for it.
pub(crate) struct Answers {
    model: Model,
    player: Arc<Player>,
}

struct Player {
    tool: bool,
    pace: Pace,
}

/// How the pieces of a text come.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// One right behind the other.
    AtOnce,
    /// With pauses; each piece is the time at which it is given out.
    Every {
        /// The pause.
        every: Duration,
        /// How many.
        pieces: u32,
    },
}

impl Answers {
    pub(crate) fn new(tool: bool, pace: Pace) -> anyhow::Result<Self> {
        let model = r#"{"id":"m","name":"m","api":"scripted","provider":"p","baseUrl":"","reasoning":false,"input":["text"],
            "cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0},"contextWindow":1000000,"maxTokens":1000}"#;
        Ok(Self { model: model.parse::<Json>()?.to()?, player: Arc::new(Player { tool, pace }) })
    }
}

impl Models for Answers {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        (model.model_id == self.model.id).then(|| (self.model.clone(), Arc::clone(&self.player) as Arc<dyn Provider>))
    }
}

impl Provider for Player {
    fn stream(&self, model: &Model, context: &Context, _: &StreamOptions, _: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let start = StreamEvent::Start { message: Box::new(empty_answer(model, Millis(0))) };
        let asked = matches!(context.messages.iter().rev().find(|message| !matches!(message, Message::System(_))), Some(Message::User(_)));
        let events = match self.pace {
            Pace::Every { every, pieces } => return stream::iter([start]).chain(paced(model.clone(), every, pieces)).boxed(),
            Pace::AtOnce if self.tool && asked => call(model),
            Pace::AtOnce => text(model),
        };
        stream::iter(std::iter::once(start).chain(events)).boxed()
    }
}

fn text(model: &Model) -> Vec<StreamEvent> {
    let piece = StreamEvent::TextDelta { index: 0, delta: PIECE.to_owned() };
    let content = PIECE.repeat(PIECES);
    let mut events = vec![StreamEvent::TextStart { index: 0 }];
    events.extend(std::iter::repeat_n(piece, PIECES));
    events.push(StreamEvent::TextEnd { index: 0, content: content.clone() });
    events.push(done(model, AssistantBlock::Text(TextContent::new(content)), StopReason::Stop));
    events
}

/// Milliseconds since 1970.
pub(crate) fn milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn paced(model: Model, every: Duration, pieces: u32) -> impl futures::Stream<Item = StreamEvent> + Send {
    let begin = stream::iter([StreamEvent::TextStart { index: 0 }]);
    let middle = stream::iter(0..pieces).then(move |_| async move {
        tokio::time::sleep(every).await;
        StreamEvent::TextDelta { index: 0, delta: format!("{} ", milliseconds()) }
    });
    let end = stream::once(async move { done(&model, AssistantBlock::Text(TextContent::new("over")), StopReason::Stop) });
    begin.chain(middle).chain(end)
}

/// When the pieces of an event were given out.
pub(crate) fn given_at(event: &AgentEvent) -> Vec<u64> {
    let AgentEvent::MessageUpdate { changes, .. } = event else { return Vec::new() };
    let deltas = changes.iter().filter_map(|change| if let MessageChange::TextDelta { delta, .. } = change { Some(delta) } else { None });
    deltas.flat_map(|delta| delta.split_whitespace()).filter_map(|time| time.parse().ok()).collect()
}

fn call(model: &Model) -> Vec<StreamEvent> {
    let arguments = Json::object([("text", Json::from("hello"))]);
    let call = ToolCall {
        id: "call-1".to_owned(),
        name: "echo".to_owned(),
        arguments,
        thought_signature: None,
        namespace: None,
        arguments_error: None,
    };
    vec![
        StreamEvent::ToolCallStart { index: 0, id: call.id.clone(), name: call.name.clone() },
        StreamEvent::ToolCallEnd { index: 0, tool_call: Box::new(call.clone()) },
        done(model, AssistantBlock::ToolCall(call), StopReason::ToolUse),
    ]
}

fn done(model: &Model, block: AssistantBlock, stop_reason: StopReason) -> StreamEvent {
    let usage = Usage { input: 10, output: 20, total_tokens: 30, ..Usage::default() };
    let message = AssistantMessage { content: vec![block], usage, stop_reason, ..empty_answer(model, Millis(0)) };
    StreamEvent::Done { message: Box::new(message) }
}

/// The tool that is called.
pub(crate) struct Echo(ToolSpec);

impl Echo {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let parameters = r#"{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}"#;
        Ok(Self(ToolSpec::new("echo", "Says it again", parameters.parse()?)))
    }
}

impl Tool for Echo {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    fn execute<'a>(&'a self, arguments: Json, _: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move { Ok(ToolResult::text(arguments.get("text").and_then(Json::as_str).unwrap_or_default())) })
    }
}
