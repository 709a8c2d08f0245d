//! A model that throws dice: answers, calls tools, fails, defers, and takes its time.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_harness::config::ModelRef;
use picofleet_harness::effects::Models;
use picofleet_models::model::Model;
use picofleet_models::provider::{CancelDeferredError, Context, Provider, StreamEvent, StreamOptions, empty_answer};
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, DeferredHandle, Message, StopReason, TextContent, TextOrBlocks, ToolCall, Usage,
};
use picofleet_session::{Json, Millis};
use tokio_util::sync::CancellationToken;

use super::World;

/// The most rounds of tools in one run.
const ROUNDS_MAX: usize = 3;

/// How the model is named.
#[must_use]
pub(crate) fn model_ref() -> ModelRef {
    ModelRef { provider: "p".into(), model_id: "m".into() }
}

/// The models of the outside: one.
pub(crate) struct SimModels {
    model: Model,
    provider: Arc<SimProvider>,
}

struct SimProvider(World);

impl SimModels {
    /// The model of a world.
    ///
    /// # Panics
    /// Never: the model is a constant.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the text is a constant")]
    pub(crate) fn new(world: World) -> Self {
        let text = br#"{"id":"m","name":"m","api":"scripted","provider":"p","baseUrl":"","reasoning":false,"input":["text"],
            "cost":{"input":1,"output":1,"cacheRead":0,"cacheWrite":0},"contextWindow":1000,"maxTokens":1000}"#;
        let model = Json::parse(text).and_then(|json| json.to()).expect("the model's text is a model");
        Self { model, provider: Arc::new(SimProvider(world)) }
    }
}

impl Models for SimModels {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        (*model == model_ref()).then(|| (self.model.clone(), Arc::clone(&self.provider) as Arc<dyn Provider>))
    }
}

impl SimProvider {
    fn answer(&self, model: &Model, context: &Context) -> AssistantMessage {
        let world = &self.0;
        let usage = |n| Usage { input: n, output: n, total_tokens: 2 * n, ..Usage::default() };
        let empty = AssistantMessage { usage: usage(1 + world.below(50)), ..empty_answer(model, Millis(0)) };
        if world.fault(16) {
            world.count("overflow");
            let text = "prompt is too long: 2000 tokens > 1000 maximum";
            return AssistantMessage { stop_reason: StopReason::Error, error_message: Some(text.into()), ..empty };
        }
        if world.fault(8) {
            world.count("model error");
            let text = if world.once_in(3) { "invalid request" } else { "overloaded_error: try again" };
            return AssistantMessage { stop_reason: StopReason::Error, error_message: Some(text.into()), ..empty };
        }
        let last_user = context.messages.iter().rposition(|message| matches!(message, Message::User(_))).unwrap_or(0);
        let rounds = context.messages[last_user..].iter().filter(|message| matches!(message, Message::Assistant(_))).count();
        // A question of a subagent is answered at once, so that they do not nest without end.
        let asked = matches!(context.messages.get(last_user), Some(Message::User(user)) if Json::from_serde(&user.content).is_ok_and(|text| text.to_string().contains("question")));
        let rounds = if asked { rounds + ROUNDS_MAX - 1 } else { rounds };
        if rounds < ROUNDS_MAX && world.once_in(2) {
            let calls = 1 + world.below(3);
            let content = (0..calls).map(|_| AssistantBlock::ToolCall(self.call())).collect();
            return AssistantMessage { content, stop_reason: StopReason::ToolUse, ..empty };
        }
        let words = 1 + world.below(6);
        let text = (0..words).map(super::word).collect::<String>();
        AssistantMessage { content: vec![AssistantBlock::Text(TextContent::new(text))], stop_reason: StopReason::Stop, ..empty }
    }

    /// A summary, or none.
    fn summary(&self, model: &Model) -> AssistantMessage {
        let world = &self.0;
        world.count("summary");
        let n = 1 + world.below(20);
        let empty = AssistantMessage {
            usage: Usage { input: n, output: n, total_tokens: 2 * n, ..Usage::default() },
            ..empty_answer(model, Millis(0))
        };
        if world.fault(5) {
            world.count("summary failed");
            let text = if world.once_in(3) { "invalid request" } else { "overloaded_error: try again" };
            return AssistantMessage { stop_reason: StopReason::Error, error_message: Some(text.into()), ..empty };
        }
        let stop_reason = if world.fault(10) { StopReason::Length } else { StopReason::Stop };
        AssistantMessage { content: vec![AssistantBlock::Text(TextContent::new("a summary "))], stop_reason, ..empty }
    }

    fn call(&self) -> ToolCall {
        const TOOLS: [&str; 11] = ["safe", "unsafe", "unsafe", "slow", "fail", "alone", "end", "hand", "ghost", "fan", "ask"];
        let world = &self.0;
        let name = TOOLS[usize::try_from(world.below(TOOLS.len() as u64)).unwrap_or(0)];
        let mut call = ToolCall { id: format!("call-{}", world.below(u64::MAX)), name: name.into(), ..empty_call() };
        if world.once_in(12) {
            call.arguments = Json::object([("n", Json::from("no number"))]);
        }
        call
    }
}

fn asks_for_summary(messages: &[Message]) -> bool {
    let Some(Message::User(user)) = messages.last() else { return false };
    matches!(&user.content, TextOrBlocks::Text(text) if text.starts_with("<conversation>"))
}

fn empty_call() -> ToolCall {
    ToolCall {
        id: String::new(),
        name: String::new(),
        arguments: Json::object([("n", Json::from(1))]),
        thought_signature: None,
        namespace: None,
        arguments_error: None,
    }
}

/// The events of an answer, each behind its pause.
fn events(message: AssistantMessage) -> Vec<StreamEvent> {
    let start = AssistantMessage {
        content: Vec::new(),
        usage: Usage::default(),
        stop_reason: StopReason::Pending,
        error_message: None,
        ..message.clone()
    };
    let mut events = vec![StreamEvent::Start { message: Box::new(start) }];
    for (index, block) in message.content.iter().enumerate() {
        match block {
            AssistantBlock::Text(text) => {
                events.push(StreamEvent::TextStart { index });
                events.extend(text.text.split_inclusive(' ').map(|delta| StreamEvent::TextDelta { index, delta: delta.into() }));
                events.push(StreamEvent::TextEnd { index, content: text.text.clone() });
            }
            AssistantBlock::ToolCall(call) => {
                events.push(StreamEvent::ToolCallStart { index, id: call.id.clone(), name: call.name.clone() });
                events.push(StreamEvent::ToolCallEnd { index, tool_call: Box::new(call.clone()) });
            }
            AssistantBlock::Thinking(_) => {}
        }
    }
    events.push(StreamEvent::terminal(message));
    events
}

fn paced(world: World, events: Vec<StreamEvent>, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
    // Most answers take seconds; one in twenty longer than a lease.
    let longest = if world.once_in(12) { 30_000 } else { 800 };
    let state = (events.into_iter(), world, cancel, false);
    futures::stream::unfold(state, move |(mut events, world, cancel, over)| async move {
        if over {
            return None;
        }
        let event = events.next()?;
        let pause = world.pause(longest);
        tokio::select! {
            biased;
            () = cancel.cancelled() => {
                world.count("model request cancelled");
                let message = event.final_message().cloned().unwrap_or_else(aborted);
                let message = AssistantMessage { stop_reason: StopReason::Aborted, content: Vec::new(), usage: Usage::default(), ..message };
                Some((StreamEvent::Error { message: Box::new(message) }, (events, world, cancel, true)))
            }
            () = tokio::time::sleep(pause) => {
                let over = event.final_message().is_some();
                Some((event, (events, world, cancel, over)))
            }
        }
    })
    .boxed()
}

fn aborted() -> AssistantMessage {
    AssistantMessage {
        content: Vec::new(),
        api: "scripted".into(),
        provider: "p".into(),
        model: "m".into(),
        response_model: None,
        response_id: None,
        provider_thinking_level: None,
        thinking_level: None,
        diagnostics: None,
        usage: Usage::default(),
        stop_reason: StopReason::Aborted,
        deferred: None,
        error_message: None,
        raw_stop_reason: None,
        end_turn: None,
        timestamp: Millis(0),
        duration_ms: None,
    }
}

impl Provider for SimProvider {
    fn stream(&self, model: &Model, context: &Context, _: &StreamOptions, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let world = self.0.clone();
        world.request(&context.messages);
        let message = if asks_for_summary(&context.messages) {
            self.summary(model)
        } else if world.once_in(10) {
            world.count("deferred");
            let handle = DeferredHandle {
                provider: "p".into(),
                model_id: "m".into(),
                api: "scripted".into(),
                id: format!("later-{}", world.below(1_000_000)),
                expires_at: None,
                poll_after_ms: Some(1 + world.below(20_000)),
                data: None,
            };
            AssistantMessage { stop_reason: StopReason::Deferred, deferred: Some(handle), ..empty_answer(model, Millis(0)) }
        } else {
            self.answer(model, context)
        };
        paced(world, events(message), cancel)
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let world = self.0.clone();
        let message = if world.once_in(3) {
            AssistantMessage { stop_reason: StopReason::Deferred, deferred: Some(handle.clone()), ..empty_answer(model, Millis(0)) }
        } else {
            let usage = Usage { input: 5, output: 5, total_tokens: 10, ..Usage::default() };
            let content = vec![AssistantBlock::Text(TextContent::new(super::LATER))];
            AssistantMessage { stop_reason: StopReason::Stop, content, usage, ..empty_answer(model, Millis(0)) }
        };
        paced(world, vec![StreamEvent::terminal(message)], cancel)
    }

    fn cancel_deferred(&self, _: &Model, _: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        let world = self.0.clone();
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            world.count("deferred cancelled");
            if !world.fault(4) {
                return Ok(());
            }
            world.count("cancelling refused");
            Err(CancelDeferredError::Refused("not now".into()))
        })
    }
}
