//! Classification of a complete response, in one commit (section 8.3).

use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason};
use picofleet_session::{EntryDraft, EntryId, Json, Millis, TaskError, TaskOutcome, TaskRecord, Tx, TxError};

use super::apply::fail;
use super::prepared::wait_for_compaction;
use super::rounds::start_round;
use super::{Checkpoint, Overflow, Pinned, Response, Then};
use crate::config::{ConversationConfig, RetryPolicy};
use crate::kinds::{ASSISTANT, reason};
use crate::live::{LIVE, LiveDeferred, LiveGeneration, LiveRetry};
use crate::run::{RunEnd, end_run};
use crate::submission::{Continuation, Facts, final_boundary_with, would_place_users};
use crate::usage::count_message;

/// How long a deferred response is left alone where the provider does not say, in milliseconds.
const POLL_DELAY: i64 = 5_000;

pub(super) async fn responded(
    tx: &Tx,
    task: &TaskRecord,
    pinned: Pinned,
    polled: Option<Millis>,
    response: Response,
) -> Result<Then, TxError> {
    let facts = Facts::read(tx, task.conversation_id).await?;
    tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").key("message").remove()?;
    let Response { message, calls, then, retryable, overflow } = response;
    match message.stop_reason {
        StopReason::Deferred => deferred(tx, task, pinned, polled, &message).await,
        StopReason::ToolUse if has_calls(&message) => {
            let assistant = append(tx, task, message.clone()).await?;
            start_round(tx, task, &pinned, assistant, &message, &calls).await
        }
        StopReason::Stop | StopReason::Length | StopReason::ToolUse => {
            let answer = append(tx, task, message).await?;
            let continuation = if would_place_users(tx, task.conversation_id, &facts).await? { None } else { then };
            let end = if continuation.is_some() { RunEnd::HandedOn } else { RunEnd::Done(answer) };
            let inputs = end_run(tx, task, end).await?;
            let continuation = continuation.map(|content| Continuation { inputs, content });
            final_boundary_with(tx, task.conversation_id, &facts, continuation).await?;
            Ok(Then::End(TaskOutcome::Completed { result: entry_result(answer) }))
        }
        StopReason::Error | StopReason::Aborted => {
            let text = message.error_message.clone().unwrap_or_else(|| "the request ended without an answer".to_owned());
            append(tx, task, message).await?;
            if let Some(overflow) = overflow {
                return overflowed(tx, task, &pinned, (&facts.config, overflow), text).await;
            }
            let policy = facts.config.retry.unwrap_or_default();
            if retryable && policy.enabled && pinned.attempt <= policy.max_retries {
                return retry(tx, task, &pinned, &policy, text).await;
            }
            fail(tx, task, reason::MODEL_ERROR, Some(Json::from(text))).await
        }
        StopReason::Pending => {
            let message = "a response that is still pending is no response".to_owned();
            Ok(Then::End(TaskOutcome::Faulted { error: TaskError { message, detail: None } }))
        }
    }
}

fn has_calls(message: &AssistantMessage) -> bool {
    message.content.iter().any(|block| matches!(block, AssistantBlock::ToolCall(_)))
}

async fn append(tx: &Tx, task: &TaskRecord, message: AssistantMessage) -> Result<EntryId, TxError> {
    count_message(tx, task.conversation_id, &message).await?;
    let entry = EntryDraft::new(ASSISTANT.kind).model(vec![Message::from(message)]);
    Ok(tx.append_entry(task.conversation_id, entry).await?.id)
}

/// The result that names an entry.
pub(crate) fn entry_result(entry: EntryId) -> Json {
    Json::object([("entryId", Json::from(entry.get()))])
}

async fn deferred(tx: &Tx, task: &TaskRecord, pinned: Pinned, polled: Option<Millis>, message: &AssistantMessage) -> Result<Then, TxError> {
    let Some(handle) = message.deferred.clone() else {
        let message = "a deferred response has no handle".to_owned();
        return Ok(Then::End(TaskOutcome::Faulted { error: TaskError { message, detail: None } }));
    };
    let delay = handle.poll_after_ms.map_or(POLL_DELAY, |ms| i64::try_from(ms).unwrap_or(i64::MAX));
    // Each poll is strictly later than the one before, also where the provider says 0.
    let earliest = polled.map_or(i64::MIN, |at| at.0.saturating_add(1));
    let poll_at = Millis(tx.now().0.saturating_add(delay).max(earliest));
    let generation = LiveGeneration { attempt: pinned.attempt, message: None, retry: None, deferred: Some(LiveDeferred { poll_at }) };
    tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").set_serde(&generation)?;
    let checkpoint = Checkpoint::Poll { pinned: Box::new(pinned), handle: Box::new(handle), poll_at };
    Ok(Then::Sleep { checkpoint, until: poll_at })
}

/// A request that did not fit is made again behind a compaction, once. It is no retry.
async fn overflowed(
    tx: &Tx,
    task: &TaskRecord,
    pinned: &Pinned,
    (config, overflow): (&ConversationConfig, Overflow),
    text: String,
) -> Result<Then, TxError> {
    if !config.compaction.unwrap_or_default().enabled || pinned.compacted.is_some() || !overflow.cut {
        return fail(tx, task, reason::MODEL_ERROR, Some(Json::from(text))).await;
    }
    tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").remove()?;
    wait_for_compaction(tx, task, pinned.attempt, Some(text)).await
}

async fn retry(tx: &Tx, task: &TaskRecord, pinned: &Pinned, policy: &RetryPolicy, error: String) -> Result<Then, TxError> {
    let Pinned { attempt, compacted, .. } = *pinned;
    let until = Millis(tx.now().0.saturating_add(policy.delay_ms(attempt)));
    let generation = LiveGeneration { attempt, message: None, retry: Some(LiveRetry { at: until, error }), deferred: None };
    tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").set_serde(&generation)?;
    Ok(Then::Sleep { checkpoint: Checkpoint::Retry { attempt, compacted, until }, until })
}
