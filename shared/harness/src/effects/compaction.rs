//! The phases of a compaction (section 8.7).

use picofleet_models::classify::{is_context_overflow, is_retryable_assistant_error};
use picofleet_models::estimate::{estimate_message_tokens, estimate_text_tokens};
use picofleet_models::model::Model;
use picofleet_models::provider::{CacheRetention, Context, StreamOptions};
use picofleet_session::message::{Message, StopReason};
use picofleet_session::{ContextView, EntryId, Json, TaskError, TaskId, TaskRecord};

use super::generation::{document, finished, last_message, options};
use super::invocation::Fault;
use super::phase::PhaseRun;
use crate::compaction::range::Cut;
use crate::compaction::source::{request, summary_text, wrapped};
use crate::compaction::{Basis, Checkpoint, Choice, DECISION_VERSION, Decision, Input, Selected, SummaryRequest};
use crate::config::{CONFIG, ConversationConfig, ModelRef};
use crate::hooks::{CompactionChoice, CompactionRequest, CompactionTask};
use crate::kinds::reason;
use crate::task::checkpoint;
use crate::wire::Next;

pub(super) async fn run(run: &PhaseRun, record: &TaskRecord) -> Result<Next, Fault> {
    let null = Json::null();
    match checkpoint(record).unwrap_or(&null).to().map_err(|error| Fault::failed(&error))? {
        Checkpoint::Select => select(run, record).await,
        Checkpoint::Summarize(request) => summarize(run, record, *request).await,
        Checkpoint::Retry { .. } => decide(run, &Decision::Due).await,
    }
}

/// The abort handler: it has no effect, so that the line mostly decides it by itself.
pub(super) async fn abort(run: &PhaseRun) -> Result<Next, Fault> {
    decide(run, &Decision::Aborted).await
}

async fn decide(run: &PhaseRun, decision: &Decision) -> Result<Next, Fault> {
    run.invocation.decide_last(DECISION_VERSION, decision).await
}

async fn no_model(run: &PhaseRun) -> Result<Next, Fault> {
    decide(run, &Decision::Fail { reason: reason::NO_MODEL.to_owned(), detail: None }).await
}

fn input(record: &TaskRecord) -> Result<Input, Fault> {
    record.input.to().map_err(|error| Fault::failed(&error))
}

/// Selects the range, and asks hooks about it.
async fn select(run: &PhaseRun, record: &TaskRecord) -> Result<Next, Fault> {
    let config: Option<ConversationConfig> = document(run, record, CONFIG.kind).await?;
    let config = config.unwrap_or_default();
    let known = |name: ModelRef| Some((run.invocation.services().models.find(&name)?.0, name));
    let Some((model, name)) = config.model.clone().and_then(known) else { return no_model(run).await };
    let transcript = run.invocation.transcript(record.conversation_id, None).await?;
    let (view, tail) = (transcript.view(), transcript.newest());
    let keep = config.compaction.unwrap_or_default().keep_recent_tokens;
    let cut = Cut::select(&view, keep).and_then(|cut| Some((cut, cut.first_kept(&view)?)));
    let choice = match (tail, cut) {
        (Some(tail), Some((cut, first_kept))) => match ask(run, record, &view, (cut, first_kept)).await? {
            Some(CompactionChoice::Decline) => Choice::Nothing,
            Some(CompactionChoice::Summary(text)) => Choice::Summary { text, first_kept },
            None => Choice::Summarize(Box::new(pin(&config, &model, name, (tail, first_kept)))),
        },
        _ => Choice::Nothing,
    };
    let selected = Selected { config: Basis::of(&config), marker: view.head.map(|head| head.id), choice };
    decide(run, &Decision::Selected(Box::new(selected))).await
}

/// The first decision of a hook (section 7.2).
async fn ask(
    run: &PhaseRun,
    record: &TaskRecord,
    view: &ContextView,
    (cut, first_kept): (Cut, EntryId),
) -> Result<Option<CompactionChoice>, Fault> {
    let handlers = run.handlers::<CompactionTask>().await?;
    if handlers.is_empty() {
        return Ok(None);
    }
    let Input { reason, instructions } = input(record)?;
    let messages = cut.messages(view);
    let request = CompactionRequest { reason, entries: cut.entries(view).to_vec(), messages, first_kept, instructions };
    for handler in handlers {
        let answer = run.ask_or_report(async { handler.before_compact(&request, &run.api).await }).await?;
        if let Some(choice) = answer.flatten() {
            if let CompactionChoice::Summary(text) = &choice {
                report_size(run, &request.messages, text);
            }
            return Ok(Some(choice));
        }
    }
    Ok(None)
}

fn pin(config: &ConversationConfig, model: &Model, name: ModelRef, (tail, first_kept): (EntryId, EntryId)) -> SummaryRequest {
    let reserve = u64::try_from(config.compaction.unwrap_or_default().reserve_tokens).unwrap_or(0);
    let desired = reserve.saturating_mul(4) / 5;
    let most = if model.max_tokens > 0 { desired.min(model.max_tokens) } else { desired };
    SummaryRequest {
        attempt: 1,
        model: name,
        thinking_level: config.thinking_level.clone(),
        stream_options: config.stream_options.clone().unwrap_or_else(|| Json::object::<&str, Json>([])),
        // No provider takes 0.
        max_tokens: most.max(1),
        tail,
        first_kept,
    }
}

/// Asks the model for the summary. After a crash it asks the same again.
async fn summarize(run: &PhaseRun, record: &TaskRecord, pinned: SummaryRequest) -> Result<Next, Fault> {
    let Some((model, provider)) = run.invocation.services().models.find(&pinned.model) else { return no_model(run).await };
    let view = run.invocation.context(record.conversation_id, Some(pinned.tail)).await?;
    let messages = Cut::before(&view, pinned.first_kept).ok_or_else(|| lost_cut(&pinned))?.messages(&view);
    let instructions = input(record)?.instructions;
    let context = Context { system_prompt: None, messages: request(&messages, instructions.as_deref()), tools: None };
    run.invocation.effect().await?;
    let events = provider.stream(&model, &context, &summary_options(&pinned)?, run.invocation.cancel().clone());
    let message = finished(run, last_message(events).await?)?;
    if message.stop_reason == StopReason::Stop {
        report_size(run, &messages, &summary_text(&message));
    }
    // What does not fit will not fit the next time.
    let retryable = is_retryable_assistant_error(&message) && !is_context_overflow(&message, None);
    decide(run, &Decision::Summarized { message: Box::new(message), retryable }).await
}

/// The conversation's options, for one short text that nothing else will be asked about. There are no tools, and providers refuse a
/// choice among none.
fn summary_options(pinned: &SummaryRequest) -> Result<StreamOptions, Fault> {
    let options = options(&pinned.stream_options, &pinned.thinking_level)?;
    let (max_tokens, cache_retention) = (Some(pinned.max_tokens), Some(CacheRetention::None));
    Ok(StreamOptions { max_tokens, cache_retention, deferred: None, tool_choice: None, ..options })
}

fn lost_cut(pinned: &SummaryRequest) -> Fault {
    let message = format!("entry {} is not in the context at entry {} any more", pinned.first_kept, pinned.tail);
    Fault::Failed(TaskError { message, detail: None })
}

/// A summary that is no smaller than what it stands for. It is placed all the same, and a generation waits for one compaction only; but
/// somebody should know that compacting this conversation does not help.
#[derive(Debug, thiserror::Error)]
#[error(
    "compaction {task}: the summary has about {summary} tokens and what it stands for about {source_tokens}, so that the context does not shrink; \
     look at the summary in the conversation, and at what the hooks and the model make of it"
)]
struct NotSmaller {
    task: TaskId,
    summary: u64,
    source_tokens: u64,
}

fn report_size(run: &PhaseRun, source: &[Message], text: &str) {
    let source_tokens = source.iter().map(estimate_message_tokens).fold(0, u64::saturating_add);
    let summary = estimate_text_tokens(&wrapped(text));
    if summary >= source_tokens {
        run.report(&NotSmaller { task: run.invocation.task(), summary, source_tokens });
    }
}
