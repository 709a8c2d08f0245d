//! The phases of a generation (section 8.3).

mod room;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use picofleet_models::classify::{is_context_overflow, is_retryable_assistant_error};
use picofleet_models::model::{Model, ThinkingLevel};
use picofleet_models::provider::{Context, Partial, Provider, StreamEvent, StreamOptions};
use picofleet_models::transcript::{get_current_tools, to_tool_declaration};
use picofleet_models::usage::bounded_event;
use picofleet_session::message::{AssistantMessage, Message, StopReason, UserInput};
use picofleet_session::{ContextView, EntryId, Json, Op, TaskId, TaskRecord};
use tokio::time::Instant;

use super::invocation::Fault;
use super::partial::PendingOps;
use super::phase::PhaseRun;
use super::sections;
use crate::config::{CONFIG, ConversationConfig, ModelRef};
use crate::generation::{CallFacts, Checkpoint, DECISION_VERSION, Decision, Pinned, PlannedSystem, Prepare, Response, calls};
use crate::hooks::GenerationTask;
use crate::kinds::reason;
use crate::live::{LIVE, LiveState};
use crate::prompt::{Desired, plan, shown_sections};
use crate::registry::PromptInput;
use crate::task::checkpoint;
use crate::wire::{Next, Read};
use room::Room;

/// The shortest time between two partials of one response.
const PARTIAL_PAUSE: Duration = Duration::from_millis(100);

pub(super) async fn run(run: &PhaseRun, record: &TaskRecord) -> Result<Next, Fault> {
    match at(record)? {
        Checkpoint::Prepare { compacted, overflow, .. } => prepare(run, record, (compacted, overflow)).await,
        Checkpoint::Request(pinned) => request(run, record, *pinned).await,
        Checkpoint::Retry { .. } => decide(run, &Decision::Due).await,
        Checkpoint::Poll { pinned, handle, .. } => {
            let Some((model, provider)) = run.invocation.services().models.find(&pinned.model) else { return no_model(run).await };
            run.invocation.effect().await?;
            let message = finished(run, last_message(provider.fetch_deferred(&model, &handle, run.invocation.cancel().clone())).await?)?;
            let view = run.invocation.context(record.conversation_id, Some(pinned.cutoff)).await?;
            respond(run, record, message, &view).await
        }
        Checkpoint::Tools(round) if round.pending.is_empty() => {
            after_tools(run, record, round.assistant).await?;
            decide(run, &Decision::RoundDone).await
        }
        Checkpoint::Tools(_) => decide(run, &Decision::NextCall).await,
    }
}

/// The abort handler: only a deferred response has an effect to undo.
pub(super) async fn abort(run: &PhaseRun, record: &TaskRecord) -> Result<Next, Fault> {
    if let Checkpoint::Poll { pinned, handle, .. } = at(record)?
        && let Some((model, provider)) = run.invocation.services().models.find(&pinned.model)
        && let Err(error) = provider.cancel_deferred(&model, &handle).await
    {
        run.report(&error);
    }
    decide(run, &Decision::Aborted).await
}

fn at(record: &TaskRecord) -> Result<Checkpoint, Fault> {
    let null = Json::null();
    checkpoint(record).unwrap_or(&null).to().map_err(|error| Fault::failed(&error))
}

async fn decide(run: &PhaseRun, decision: &Decision) -> Result<Next, Fault> {
    run.invocation.decide_last(DECISION_VERSION, decision).await
}

async fn no_model(run: &PhaseRun) -> Result<Next, Fault> {
    decide(run, &Decision::Fail { reason: reason::NO_MODEL.to_owned(), detail: None }).await
}

/// Plans the system entries and pins the request, or waits for a compaction. `compacted` is the one that it waited for, `overflow` what
/// the provider said before it.
async fn prepare(run: &PhaseRun, record: &TaskRecord, (compacted, overflow): (Option<TaskId>, Option<String>)) -> Result<Next, Fault> {
    let config: Option<ConversationConfig> = document(run, record, CONFIG.kind).await?;
    let config = config.unwrap_or_default();
    let known = |name: &ModelRef| run.invocation.services().models.find(name);
    let Some((model, _)) = config.model.as_ref().and_then(known) else { return no_model(run).await };
    if let (Some(compacted), Some(overflow)) = (compacted, overflow)
        && !room::was_made(run, compacted).await?
    {
        let detail = Some(Json::from(overflow));
        return decide(run, &Decision::Fail { reason: reason::MODEL_ERROR.to_owned(), detail }).await;
    }
    let transcript = run.invocation.transcript(record.conversation_id, None).await?;
    let (view, tail) = (transcript.view(), transcript.newest());
    let system = planned(run, record, &config, &view).await?;
    let background = match room::look(&config, &model, &view, &system) {
        Room::Blocked if compacted.is_none() => return decide(run, &Decision::Block { tail, config: Box::new(config) }).await,
        Room::Short if compacted.is_none() => true,
        Room::Blocked | Room::Short | Room::Enough => false,
    };
    decide(run, &Decision::Prepared(Box::new(Prepare { tail, config, system, background }))).await
}

/// The system entries that the transcript lacks (section 7.4).
async fn planned(
    run: &PhaseRun,
    record: &TaskRecord,
    config: &ConversationConfig,
    view: &ContextView,
) -> Result<Vec<PlannedSystem>, Fault> {
    let tools = run.registry.offered(&config.active_tools);
    let input = PromptInput {
        conversation: record.conversation_id,
        tools: tools.clone(),
        shown: shown_sections(&view.messages),
        model: config.model.clone(),
        thinking_level: config.thinking_level.clone(),
        read: run.api.clone(),
    };
    let declarations = tools.iter().map(|tool| {
        let spec = tool.spec();
        let json = Json::object([
            ("name", Json::from(spec.name.as_str())),
            ("description", Json::from(spec.description.as_str())),
            ("parameters", spec.parameters.clone()),
        ]);
        to_tool_declaration(&json).map_err(|error| Fault::failed(&error))
    });
    let desired = Desired { sections: sections::render(run, &input).await?, tools: declarations.collect::<Result<_, _>>()? };
    Ok(plan(view, &desired))
}

/// Asks the model, and shows what comes in.
async fn request(run: &PhaseRun, record: &TaskRecord, pinned: Pinned) -> Result<Next, Fault> {
    let live: Option<LiveState> = document(run, record, LIVE.kind).await?;
    if live.and_then(|live| live.generation).is_some_and(|generation| generation.message.is_some()) {
        run.invocation.decide(DECISION_VERSION, &Decision::Salvage).await?;
    }
    let Some((model, provider)) = run.invocation.services().models.find(&pinned.model) else { return no_model(run).await };
    let view = run.invocation.context(record.conversation_id, Some(pinned.cutoff)).await?;
    let messages = before_request(run, view.messages.clone()).await?;
    run.invocation.effect().await?;
    let message = stream(run, &provider, &model, messages, &pinned).await?;
    respond(run, record, message, &view).await
}

/// Options of a request with their thinking level.
pub(super) fn options(stream_options: &Json, thinking_level: &str) -> Result<StreamOptions, Fault> {
    let options: StreamOptions = stream_options.to().map_err(|error| Fault::failed(&error))?;
    let level = Json::from(thinking_level).to::<ThinkingLevel>().map_err(|error| Fault::failed(&error))?;
    Ok(StreamOptions { reasoning: (level != ThinkingLevel::Off).then_some(level), ..options })
}

/// All of a response that has come in, as one operation.
fn whole(shown: &Partial) -> Result<Vec<Op>, Fault> {
    let message = shown.message().map(|message| Json::from_serde(&Message::from(message)));
    Ok(message.transpose().map_err(|error| Fault::failed(&error))?.map(Op::Replace).into_iter().collect())
}

async fn stream(
    run: &PhaseRun,
    provider: &Arc<dyn Provider>,
    model: &Model,
    messages: Vec<Message>,
    pinned: &Pinned,
) -> Result<AssistantMessage, Fault> {
    let context = Context { system_prompt: None, messages, tools: None };
    let options = options(&pinned.stream_options, &pinned.thinking_level)?;
    let mut events = provider.stream(model, &context, &options, run.invocation.cancel().clone()).map(bounded_event);
    let (mut pending, mut shown) = (PendingOps::default(), Partial::default());
    let mut next_partial = Instant::now();
    loop {
        // Progress waits for its turn, and the stream goes on meanwhile only in the provider's own buffer: its size is bounded there.
        let event = if pending.is_empty() {
            events.next().await
        } else {
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(next_partial) => {
                    let ops = pending.take();
                    if !run.invocation.progress(&Decision::Partial { ops }, false).await? {
                        // The line has another text: it gets the whole.
                        let ops = whole(&shown)?;
                        run.invocation.progress(&Decision::Partial { ops }, true).await?;
                    }
                    next_partial = Instant::now() + PARTIAL_PAUSE;
                    continue;
                }
                event = events.next() => event,
            }
        };
        match event {
            Some(StreamEvent::Done { message } | StreamEvent::Error { message }) => return finished(run, *message),
            Some(event) => {
                shown.apply(&event);
                pending.push(&event);
            }
            None => return Err(broken_stream()),
        }
    }
}

/// The message of a stream whose parts are not shown.
pub(super) async fn last_message(events: futures::stream::BoxStream<'static, StreamEvent>) -> Result<AssistantMessage, Fault> {
    let mut events = events.map(bounded_event);
    while let Some(event) = events.next().await {
        if let StreamEvent::Done { message } | StreamEvent::Error { message } = event {
            return Ok(*message);
        }
    }
    Err(broken_stream())
}

/// A message that was cut off by the end of the invocation decides nothing: the abort handler does.
pub(super) fn finished(run: &PhaseRun, message: AssistantMessage) -> Result<AssistantMessage, Fault> {
    if run.invocation.cancel().is_cancelled() && message.stop_reason == StopReason::Aborted { Err(Fault::Ended) } else { Ok(message) }
}

fn broken_stream() -> Fault {
    Fault::Failed(picofleet_session::TaskError { message: "the provider's stream ended without a final event".to_owned(), detail: None })
}

async fn respond(run: &PhaseRun, record: &TaskRecord, message: AssistantMessage, view: &ContextView) -> Result<Next, Fault> {
    let then = ask_about(run, &message).await?;
    let offered = offered(view);
    let facts = calls(&message).map(|call| CallFacts {
        offered: offered.contains(&call.name),
        sequential: run.registry.tool(&call.name).is_some_and(|tool| tool.spec().sequential),
    });
    let calls = facts.collect();
    let failed = message.stop_reason == StopReason::Error;
    let overflow = if failed && is_context_overflow(&message, None) { Some(room::overflow(run, record, view).await?) } else { None };
    let retryable = failed && overflow.is_none() && is_retryable_assistant_error(&message);
    decide(run, &Decision::Responded(Box::new(Response { message, calls, then, retryable, overflow }))).await
}

/// The messages of this attempt: handlers replace them one after the other (section 7.2). What is offered stays as it is.
async fn before_request(run: &PhaseRun, mut messages: Vec<Message>) -> Result<Vec<Message>, Fault> {
    for handler in run.handlers::<GenerationTask>().await? {
        let answer = run.ask_or_report(async { handler.before_request(&messages, &run.api).await }).await?;
        messages = answer.flatten().unwrap_or(messages);
    }
    Ok(messages)
}

/// Shows a complete message to who observes; for a final answer, what the run goes on with.
async fn ask_about(run: &PhaseRun, message: &AssistantMessage) -> Result<Option<UserInput>, Fault> {
    if message.stop_reason == StopReason::Deferred {
        return Ok(None);
    }
    let handlers = run.handlers::<GenerationTask>().await?;
    for handler in &handlers {
        run.ask_or_report(async { handler.after_response(message, &run.api).await }).await?;
    }
    let last = match message.stop_reason {
        StopReason::Stop | StopReason::Length => true,
        StopReason::ToolUse => calls(message).next().is_none(),
        _ => false,
    };
    for handler in handlers.iter().filter(|_| last) {
        let answer = run.ask_or_report(async { handler.on_yield(message, &run.api).await }).await?;
        if let Some(then) = answer.flatten() {
            return Ok(Some(then));
        }
    }
    Ok(None)
}

/// Shows the end of a round to who observes: its results in call order, from the slots.
async fn after_tools(run: &PhaseRun, record: &TaskRecord, assistant: EntryId) -> Result<(), Fault> {
    let handlers = run.handlers::<GenerationTask>().await?;
    if handlers.is_empty() {
        return Ok(());
    }
    let live: Option<LiveState> = document(run, record, LIVE.kind).await?;
    let slots = live.and_then(|live| live.tools).unwrap_or_default();
    let results: Vec<EntryId> = slots.iter().filter_map(|slot| slot.entry).collect();
    for handler in handlers {
        run.ask_or_report(async { handler.after_tools(assistant, &results, &run.api).await }).await?;
    }
    Ok(())
}

/// The names of the tools that a request offers: replayed from its context (section 8.3).
fn offered(view: &ContextView) -> Vec<String> {
    get_current_tools(&view.messages).into_iter().map(|tool| tool.name).collect()
}

pub(super) async fn document<T: serde::de::DeserializeOwned>(run: &PhaseRun, record: &TaskRecord, kind: &str) -> Result<Option<T>, Fault> {
    run.invocation.read(Read::ConversationDocument { conversation: record.conversation_id, kind: kind.to_owned() }).await
}
