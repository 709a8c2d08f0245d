//! Applying a decision on the line, inside one commit.

use picofleet_session::message::{Message, ToolCall};
use picofleet_session::{Draft, Json, TaskError, TaskOutcome, TaskRecord, Tx, TxError};

use super::results::{ResultParts, append_result};
use super::{Checkpoint, Control, Decision, Input, Settled, ToolCode, append_error_result};
use crate::generation::calls;
use crate::live::{LIVE, SlotStatus, ToolSlot};

/// What a decision does with its task.
pub type Then = crate::task::Then<Checkpoint>;

/// Applies `decision` on a running tool task.
///
/// # Errors
/// As the operations of [`Tx`]; the commit rolls back and the task faults.
pub async fn apply(tx: &Tx, task: &TaskRecord, decision: Decision) -> Result<Then, TxError> {
    match decision {
        Decision::Intent { arguments, replay } => {
            if let Some(slot) = slot(tx, task).await? {
                slot.key("status").set_serde(&SlotStatus::Running)?;
            }
            Ok(Then::Checkpoint(Checkpoint::Execute { arguments, replay }))
        }
        Decision::Progress { ops } => {
            // Without a slot there is nothing to show.
            if let Some(slot) = slot(tx, task).await? {
                slot.apply_relative(&ops)?;
            }
            Ok(Then::Stay)
        }
        Decision::Settled(settled) => settle(tx, task, *settled).await,
        Decision::Refused { code, text } => {
            let outcome = |result| TaskOutcome::Completed { result };
            error_result(tx, task, code, &text, outcome).await
        }
        Decision::Interrupted => {
            let text = "The tool was interrupted; its effect may have happened";
            let failed = |result| TaskOutcome::Failed { error: error(text), result: Some(result) };
            error_result(tx, task, ToolCode::Interrupted, text, failed).await
        }
        Decision::Aborted => {
            let Some(call) = call(tx, task).await? else { return Ok(lost(task)) };
            let text = format!("Tool {} was aborted", call.name);
            error_result(tx, task, ToolCode::Aborted, &text, |result| TaskOutcome::Aborted { reason: None, result: Some(result) }).await
        }
    }
}

fn error(message: &str) -> TaskError {
    TaskError { message: message.to_owned(), detail: None }
}

/// The entry that the task names has no such call: it was made by something else than a generation.
fn lost(task: &TaskRecord) -> Then {
    Then::End(TaskOutcome::Faulted { error: error(&format!("tool task {} names a call that its entry does not have", task.id)) })
}

/// The call of a task. A table read.
async fn call(tx: &Tx, task: &TaskRecord) -> Result<Option<ToolCall>, TxError> {
    let Ok(input) = task.input.to::<Input>() else { return Ok(None) };
    let entry = tx.entry_shared(input.assistant).await?;
    let message = entry.as_ref().and_then(|entry| entry.model.as_ref()).and_then(|model| model.first());
    let Some(Message::Assistant(message)) = message else { return Ok(None) };
    Ok(calls(message).find(|call| call.id == input.call_id).cloned())
}

/// The slot of a task in the live document.
async fn slot<'t>(tx: &'t Tx, task: &TaskRecord) -> Result<Option<Draft<'t>>, TxError> {
    let tools = tx.doc(&LIVE, task.conversation_id).await?.draft.key("tools");
    let position = tools
        .get()
        .as_ref()
        .and_then(Json::as_array)
        .and_then(|slots| slots.iter().position(|slot| slot.get("taskId").and_then(Json::as_i64) == Some(task.id.get())));
    Ok(position.map(|index| tools.index(index)))
}

async fn settle(tx: &Tx, task: &TaskRecord, settled: Settled) -> Result<Then, TxError> {
    let Some(call) = call(tx, task).await? else { return Ok(lost(task)) };
    let Settled { content, is_error, details, diagnostics, usage, control, threw, duration_ms } = settled;
    let parts = ResultParts { content, is_error, details, diagnostics, usage, duration_ms };
    let message = parts.diagnostics.last().filter(|_| threw).map(|diagnostic| diagnostic.message.clone());
    let entry = append_result(tx, task.conversation_id, &call, parts).await?;
    finish_slot(tx, task, entry).await?;
    let result = result(entry, control.as_ref());
    Ok(Then::End(match message {
        Some(message) => TaskOutcome::Failed { error: error(&message), result: Some(result) },
        None => TaskOutcome::Completed { result },
    }))
}

/// An error result that the harness writes itself, from what the slot has.
async fn error_result(
    tx: &Tx,
    task: &TaskRecord,
    code: ToolCode,
    text: &str,
    outcome: impl FnOnce(Json) -> TaskOutcome,
) -> Result<Then, TxError> {
    let Some(call) = call(tx, task).await? else { return Ok(lost(task)) };
    let shown = slot(tx, task).await?.and_then(|slot| slot.get()).and_then(|slot| slot.to::<ToolSlot>().ok());
    let entry = append_error_result(tx, task.conversation_id, &call, code, text, shown.as_ref()).await?;
    finish_slot(tx, task, entry).await?;
    Ok(Then::End(outcome(result(entry, None))))
}

/// The slot is done: what was shown is in the entry now (section 8.2).
async fn finish_slot(tx: &Tx, task: &TaskRecord, entry: picofleet_session::EntryId) -> Result<(), TxError> {
    let Some(slot) = slot(tx, task).await? else { return Ok(()) };
    slot.key("status").set_serde(&SlotStatus::Done)?;
    slot.key("entry").set(entry.get())?;
    for key in ["output", "droppedBytes", "droppedLines", "details", "diagnostics"] {
        slot.key(key).remove()?;
    }
    Ok(())
}

fn result(entry: picofleet_session::EntryId, control: Option<&Control>) -> Json {
    let control = control.and_then(|control| Json::from_serde(control).ok());
    let fields = std::iter::once(("entryId", Json::from(entry.get()))).chain(control.map(|control| ("control", control)));
    Json::object(fields)
}
