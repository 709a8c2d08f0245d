//! The `scripted` provider: it plays a [`Script`], needs no key and no network, and gives the same events for the same
//! requests in the same order. Tests and the keyless demo use it.
//!
//! A request is answered by the first turn that matches it. What a turn says depends on the request alone, so a worker that
//! starts again gets the same answer. Two things are kept in memory, per provider: how many requests a turn has failed, and
//! the deferred answers that were not cancelled.

mod script;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_session::message::{
    AssistantBlock, AssistantMessage, DeferredHandle, Message, StopReason, TextContent, ThinkingContent, ToolCall, Usage,
};
use picofleet_session::{Clock, Millis};
use tokio_util::sync::CancellationToken;

use crate::arguments::parse_tool_call_arguments;
use crate::estimate::{estimate_context_tokens, estimate_message_tokens};
use crate::js;
use crate::model::{Model, calculate_cost};
use crate::provider::{CancelDeferredError, Context, Partial, Provider, StreamEvent, StreamOptions, empty_answer, failed};
use crate::transcript::normalize_context;

pub use script::{Block, Script, ScriptError, Turn, When};

/// The API of models that this provider answers for.
pub const API: &str = "scripted";

/// Most deferred answers that are kept; the oldest ones go first.
const DEFERRED_MAX: usize = 1024;

/// What an aborted request says.
const ABORTED: &str = "Request was aborted";

/// Plays a script.
#[derive(Clone)]
pub struct Scripted {
    script: Arc<Script>,
    clock: Clock,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// By turn: requests that failed with its error.
    failed: HashMap<usize, u32>,
    deferred: Vec<Deferred>,
    next_deferred: u64,
}

struct Deferred {
    id: String,
    pending_fetches: u32,
    cancelled: bool,
    answer: Vec<Step>,
}

/// A step of a stream that is planned ahead.
#[derive(Clone)]
enum Step {
    Wait(Duration),
    Event(StreamEvent),
}

impl Scripted {
    /// Plays a script; the clock gives the time of its messages.
    #[must_use]
    pub fn new(script: Script, clock: Clock) -> Self {
        Self { script: Arc::new(script), clock, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and its parts hold by themselves.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self, model: &Model, messages: &[Message]) -> (Vec<Step>, u32) {
        let now = self.clock.now();
        let Some((place, turn)) = self.script.turn(messages) else {
            let number = script::request_number(messages);
            let text = format!("The script has no turn for request {number}; add one, or one whose `when` matches it");
            return (vec![error_step(empty_answer(model, now), text)], 0);
        };
        if let (Some(error), Some(times)) = (&turn.error, turn.times) {
            let mut state = self.state();
            let failed = state.failed.entry(place).or_default();
            if *failed < times {
                *failed += 1;
                return (vec![error_step(empty_answer(model, now), error.clone())], 0);
            }
        }
        (play(turn, model, messages, now), turn.pending_fetches)
    }

    fn defer(&self, model: &Model, pending_fetches: u32, answer: Vec<Step>) -> Vec<Step> {
        let mut state = self.state();
        state.next_deferred += 1;
        let id = format!("deferred-{}", state.next_deferred);
        if state.deferred.len() >= DEFERRED_MAX {
            state.deferred.remove(0);
        }
        state.deferred.push(Deferred { id: id.clone(), pending_fetches, cancelled: false, answer });
        let handle = DeferredHandle {
            provider: model.provider.clone(),
            model_id: model.id.clone(),
            api: model.api.clone(),
            id,
            expires_at: None,
            poll_after_ms: self.script.poll_after_ms,
            data: None,
        };
        deferred_steps(model, self.clock.now(), handle)
    }
}

impl Provider for Scripted {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        let messages = normalize_context(context.clone());
        let (steps, pending_fetches) = self.plan(model, &messages);
        let wanted = options.deferred.as_ref().is_some_and(crate::provider::DeferredRequest::is_wanted);
        let steps = if wanted { self.defer(model, pending_fetches, steps) } else { steps };
        run(steps, empty_answer(model, self.clock.now()), cancel)
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        let now = self.clock.now();
        let refuse = |text: String| failed(model, now, text);
        let mut state = self.state();
        let Some(deferred) = state.deferred.iter_mut().find(|deferred| deferred.id == handle.id) else {
            return refuse(format!("Unknown scripted deferred response: {}", handle.id));
        };
        if deferred.cancelled {
            return refuse(format!("Scripted deferred response was cancelled: {}", handle.id));
        }
        let steps = match deferred.pending_fetches.checked_sub(1) {
            Some(left) => {
                deferred.pending_fetches = left;
                deferred_steps(model, now, handle.clone())
            }
            None => deferred.answer.clone(),
        };
        run(steps, empty_answer(model, now), cancel)
    }

    fn cancel_deferred(&self, _model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        let mut state = self.state();
        let known = state.deferred.iter_mut().find(|deferred| deferred.id == handle.id);
        let result = match known {
            Some(deferred) => {
                deferred.cancelled = true;
                Ok(())
            }
            None => Err(CancelDeferredError::Refused(format!("Unknown scripted deferred response: {}", handle.id))),
        };
        async move { result }.boxed()
    }
}

fn error_step(mut message: AssistantMessage, text: String) -> Step {
    message.stop_reason = StopReason::Error;
    message.error_message = Some(text);
    Step::Event(StreamEvent::terminal(message))
}

fn deferred_steps(model: &Model, now: Millis, handle: DeferredHandle) -> Vec<Step> {
    let empty = empty_answer(model, now);
    let message = AssistantMessage { stop_reason: StopReason::Deferred, deferred: Some(handle), ..empty.clone() };
    vec![Step::Event(StreamEvent::Start { message: Box::new(empty) }), Step::Event(StreamEvent::terminal(message))]
}

/// The steps of a turn.
fn play(turn: &Turn, model: &Model, messages: &[Message], now: Millis) -> Vec<Step> {
    let mut message = empty_answer(model, now);
    let mut steps = vec![Step::Event(StreamEvent::Start { message: Box::new(message.clone()) })];
    let number = script::request_number(messages);
    for block in &turn.blocks {
        let index = message.content.len();
        let block = match block {
            Block::Delay { ms } => {
                steps.push(Step::Wait(Duration::from_millis(*ms)));
                continue;
            }
            Block::Text { chunks } => play_text(index, chunks, &mut steps),
            Block::Thinking { chunks, signature } => play_thinking(index, chunks, signature.as_ref(), &mut steps),
            Block::ToolCall { id, name, arguments, chunks } => {
                let id = id.clone().unwrap_or_else(|| format!("call_{number}_{index}"));
                let whole = || vec![arguments.as_ref().map_or_else(|| "{}".to_owned(), js::stringify)];
                play_call(index, id, name.clone(), &chunks.clone().unwrap_or_else(whole), &mut steps)
            }
        };
        message.content.push(block);
    }
    message.stop_reason = turn.stop_reason.unwrap_or_else(|| {
        let calls = message.content.iter().any(|block| matches!(block, AssistantBlock::ToolCall(_)));
        if calls { StopReason::ToolUse } else { StopReason::Stop }
    });
    if let Some(error) = turn.error.as_ref().filter(|_| turn.times.is_none()) {
        message.stop_reason = StopReason::Error;
        message.error_message = Some(error.clone());
    }
    message.usage = usage(turn, model, messages, &message);
    if !turn.cut {
        steps.push(Step::Event(StreamEvent::terminal(message)));
    }
    steps
}

fn usage(turn: &Turn, model: &Model, messages: &[Message], message: &AssistantMessage) -> Usage {
    let mut usage = turn.usage.unwrap_or_else(|| {
        let input = estimate_context_tokens(messages).tokens;
        let output = estimate_message_tokens(&Message::from(message.clone()));
        Usage { input, output, total_tokens: input.saturating_add(output), ..Usage::default() }
    });
    if usage.cost.total == 0.0 {
        usage.cost = calculate_cost(&model.cost, &usage);
    }
    usage
}

fn play_text(index: usize, chunks: &[String], steps: &mut Vec<Step>) -> AssistantBlock {
    let content = chunks.concat();
    steps.push(Step::Event(StreamEvent::TextStart { index }));
    steps.extend(chunks.iter().map(|delta| Step::Event(StreamEvent::TextDelta { index, delta: delta.clone() })));
    steps.push(Step::Event(StreamEvent::TextEnd { index, content: content.clone() }));
    AssistantBlock::Text(TextContent::new(content))
}

fn play_thinking(index: usize, chunks: &[String], signature: Option<&String>, steps: &mut Vec<Step>) -> AssistantBlock {
    let content = chunks.concat();
    steps.push(Step::Event(StreamEvent::ThinkingStart { index }));
    steps.extend(chunks.iter().map(|delta| Step::Event(StreamEvent::ThinkingDelta { index, delta: delta.clone() })));
    steps.push(Step::Event(StreamEvent::ThinkingEnd { index, content: content.clone() }));
    AssistantBlock::Thinking(ThinkingContent { thinking: content, thinking_signature: signature.cloned(), redacted: None })
}

fn play_call(index: usize, id: String, name: String, chunks: &[String], steps: &mut Vec<Step>) -> AssistantBlock {
    let parsed = parse_tool_call_arguments(&chunks.concat());
    steps.push(Step::Event(StreamEvent::ToolCallStart { index, id: id.clone(), name: name.clone() }));
    steps.extend(chunks.iter().map(|delta| Step::Event(StreamEvent::ToolCallDelta { index, delta: delta.clone() })));
    let (arguments, arguments_error) = (parsed.arguments, parsed.error);
    let call = ToolCall { id, name, arguments, thought_signature: None, namespace: None, arguments_error };
    steps.push(Step::Event(StreamEvent::ToolCallEnd { index, tool_call: Box::new(call.clone()) }));
    AssistantBlock::ToolCall(call)
}

/// A stream that is running: what is left, and what came before, for an abort.
struct Run {
    steps: std::vec::IntoIter<Step>,
    partial: Partial,
    empty: AssistantMessage,
    cancel: CancellationToken,
    ended: bool,
}

fn run(steps: Vec<Step>, empty: AssistantMessage, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
    let run = Run { steps: steps.into_iter(), partial: Partial::default(), empty, cancel, ended: false };
    futures::stream::unfold(run, |mut run| async move { run.next().await.map(|event| (event, run)) }).boxed()
}

impl Run {
    async fn next(&mut self) -> Option<StreamEvent> {
        if self.ended {
            return None;
        }
        loop {
            if self.cancel.is_cancelled() {
                return Some(self.abort());
            }
            match self.steps.next()? {
                Step::Event(event) => {
                    self.partial.apply(&event);
                    self.ended = event.final_message().is_some();
                    return Some(event);
                }
                Step::Wait(time) => {
                    // Both are cancel-safe: nothing is lost when either is dropped.
                    tokio::select! {
                        () = self.cancel.cancelled() => {}
                        () = tokio::time::sleep(time) => {}
                    }
                }
            }
        }
    }

    fn abort(&mut self) -> StreamEvent {
        self.ended = true;
        let mut message = self.partial.message().unwrap_or_else(|| self.empty.clone());
        message.stop_reason = StopReason::Aborted;
        message.error_message = Some(ABORTED.to_owned());
        StreamEvent::terminal(message)
    }
}
