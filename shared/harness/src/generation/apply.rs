//! Applying a decision on the line, inside one commit.

use std::sync::Arc;

use picofleet_session::message::{Message, StopReason};
use picofleet_session::{ContextEdit, EditAction, EntryDraft, Json, TaskError, TaskOutcome, TaskRecord, Tx, TxError};

use super::prepared::{block, prepared};
use super::responded::responded;
use super::rounds::{next_call, round_done, unstarted_results};
use super::{Checkpoint, Decision, Then};
use crate::kinds::{ASSISTANT, reason};
use crate::live::{LIVE, LiveGeneration};
use crate::run::{RunEnd, end_run};
use crate::usage::count_message;

/// Applies `decision` on a generation that is at `checkpoint`.
///
/// # Errors
/// As the operations of [`Tx`]; the commit rolls back and the task faults.
pub async fn apply(tx: &Tx, task: &TaskRecord, checkpoint: Checkpoint, decision: Decision) -> Result<Then, TxError> {
    match (decision, checkpoint) {
        (Decision::Prepared(plan), Checkpoint::Prepare { attempt, compacted, .. }) => prepared(tx, task, (attempt, compacted), *plan).await,
        (Decision::Block { tail, config }, Checkpoint::Prepare { attempt, compacted: None, overflow: None }) => {
            block(tx, task, attempt, (tail, *config)).await
        }
        (Decision::Fail { reason, detail }, _) => fail(tx, task, &reason, detail).await,
        (Decision::Salvage, Checkpoint::Request(pinned)) => {
            salvage(tx, task).await?;
            let generation = LiveGeneration { attempt: pinned.attempt, message: None, retry: None, deferred: None };
            tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").set_serde(&generation)?;
            Ok(Then::Stay)
        }
        (Decision::Partial { ops }, Checkpoint::Request(_)) => {
            tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").key("message").apply_relative(&ops)?;
            Ok(Then::Stay)
        }
        (Decision::Responded(response), Checkpoint::Request(pinned)) => responded(tx, task, *pinned, None, *response).await,
        (Decision::Responded(response), Checkpoint::Poll { pinned, poll_at, .. }) => {
            responded(tx, task, *pinned, Some(poll_at), *response).await
        }
        (Decision::Due, Checkpoint::Retry { attempt, compacted, .. }) => {
            let attempt = attempt.saturating_add(1);
            let generation = LiveGeneration { attempt, message: None, retry: None, deferred: None };
            tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").set_serde(&generation)?;
            Ok(Then::Checkpoint(Checkpoint::Prepare { attempt, compacted, overflow: None }))
        }
        (Decision::NextCall, Checkpoint::Tools(round)) => next_call(tx, task, round).await,
        (Decision::RoundDone, Checkpoint::Tools(round)) => round_done(tx, task, round).await,
        (Decision::Aborted, checkpoint) => aborted(tx, task, &checkpoint).await,
        (decision, checkpoint) => {
            let message = format!("a generation at {checkpoint:?} can't take the decision {}", name(&decision));
            Ok(Then::End(TaskOutcome::Faulted { error: TaskError { message, detail: None } }))
        }
    }
}

const fn name(decision: &Decision) -> &'static str {
    match decision {
        Decision::Prepared(_) => "prepared",
        Decision::Block { .. } => "block",
        Decision::Fail { .. } => "fail",
        Decision::Salvage => "salvage",
        Decision::Partial { .. } => "partial",
        Decision::Responded(_) => "responded",
        Decision::Due => "due",
        Decision::NextCall => "nextCall",
        Decision::RoundDone => "roundDone",
        Decision::Aborted => "aborted",
    }
}

/// The run ends without an answer.
pub(super) async fn fail(tx: &Tx, task: &TaskRecord, reason: &str, detail: Option<Json>) -> Result<Then, TxError> {
    end_run(tx, task, RunEnd::Unanswered { reason, detail: detail.clone() }).await?;
    Ok(Then::End(failed(reason, detail)))
}

/// A failure with its reason and more about it.
pub(crate) fn failed(reason: &str, detail: Option<Json>) -> TaskOutcome {
    let mut fields = vec![("reason", Json::from(reason))];
    let message = detail.as_ref().and_then(Json::as_str).map_or_else(|| reason.to_owned(), std::borrow::Cow::into_owned);
    if let Some(detail) = detail {
        fields.push(("detail", detail));
    }
    TaskOutcome::Failed { error: TaskError { message, detail: Some(Json::object(fields)) }, result: None }
}

/// Turns the committed part of a response into an aborted entry, and counts it. Nothing where there is none.
pub(crate) async fn salvage(tx: &Tx, task: &TaskRecord) -> Result<(), TxError> {
    let live = tx.doc(&LIVE, task.conversation_id).await?;
    let Some(message) = live.draft.key("generation").key("message").get() else { return Ok(()) };
    // What is stored there was written as a message; a part that is none yet (no start event) leaves no entry.
    let Ok(Message::Assistant(mut message)) = message.to::<Message>() else {
        live.draft.key("generation").key("message").remove()?;
        return Ok(());
    };
    Arc::make_mut(&mut message).stop_reason = StopReason::Aborted;
    count_message(tx, task.conversation_id, &message).await?;
    tx.append_entry(task.conversation_id, EntryDraft::new(ASSISTANT.kind).model(vec![Message::Assistant(message)])).await?;
    live.draft.key("generation").key("message").remove()?;
    Ok(())
}

/// The abort handler's outcome (sections 8.3 and 8.5).
async fn aborted(tx: &Tx, task: &TaskRecord, checkpoint: &Checkpoint) -> Result<Then, TxError> {
    let calls = match checkpoint {
        Checkpoint::Tools(round) => Some((round, tx.entry(round.assistant).await?)),
        _ => None,
    };
    salvage(tx, task).await?;
    if let Some((round, Some(assistant))) = calls {
        unstarted_results(tx, task, round, &assistant).await?;
    }
    end_run(tx, task, RunEnd::Unanswered { reason: reason::ABORTED, detail: None }).await?;
    Ok(Then::End(TaskOutcome::Aborted { reason: None, result: None }))
}

/// The newest visible entry of a conversation. It comes before writes, as a table read does.
pub(super) async fn tail(tx: &Tx, task: &TaskRecord) -> Result<Option<picofleet_session::EntryId>, TxError> {
    tx.newest_entry(task.conversation_id).await
}

/// Hides entries from the model.
pub(super) fn omit(targets: &[picofleet_session::EntryId]) -> Option<Vec<ContextEdit>> {
    let edits: Vec<ContextEdit> = targets.iter().map(|target| ContextEdit { target: *target, action: EditAction::Omit }).collect();
    (!edits.is_empty()).then_some(edits)
}
