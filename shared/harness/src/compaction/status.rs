//! The status of live compactions in the live document, in the order of their ids (section 8.2).

use picofleet_session::{ConversationId, Draft, Json, TaskId, TaskRecord, Tx, TxError};

use super::CompactionReason;
use crate::live::{LIVE, LiveRetry};

async fn statuses(tx: &Tx, conversation: ConversationId) -> Result<Draft<'_>, TxError> {
    Ok(tx.doc(&LIVE, conversation).await?.draft.key("compactions"))
}

fn is_of(status: &Json, task: TaskId) -> bool {
    status.get("taskId").and_then(Json::as_i64) == Some(task.get())
}

/// Whether a compaction is live in a conversation.
pub(crate) async fn any(tx: &Tx, conversation: ConversationId) -> Result<bool, TxError> {
    Ok(statuses(tx, conversation).await?.get().is_some())
}

/// Shows a new compaction, a [`crate::live::CompactionStatus`]. Its id is above all others, so that it goes last.
pub(super) async fn add(
    tx: &Tx,
    conversation: ConversationId,
    task: TaskId,
    reason: CompactionReason,
    blocking: bool,
) -> Result<(), TxError> {
    let status = Json::object([
        ("taskId", Json::from(task.get())),
        ("reason", Json::from(reason.as_str())),
        ("blocking", Json::from(blocking)),
        ("attempt", Json::from(1)),
    ]);
    let all = statuses(tx, conversation).await?;
    match all.get() {
        None => all.set(Json::array([status]))?,
        Some(_) => all.push(status)?,
    }
    Ok(())
}

/// Shows which attempt a compaction is at, and the pause behind it where it failed.
pub(super) async fn set_attempt(tx: &Tx, task: &TaskRecord, attempt: u32, retry: Option<LiveRetry>) -> Result<(), TxError> {
    let all = statuses(tx, task.conversation_id).await?;
    let shown = all.get();
    let index = shown.as_ref().and_then(Json::as_array).and_then(|all| all.iter().position(|status| is_of(status, task.id)));
    let Some(status) = index.map(|index| all.index(index)) else { return Ok(()) };
    status.key("attempt").set(i64::from(attempt))?;
    match retry {
        Some(retry) => status.key("retry").set_serde(&retry)?,
        None => status.key("retry").remove()?,
    }
    Ok(())
}

/// Takes the status of a task away, and the list with the last one.
pub(crate) async fn remove(tx: &Tx, task: &TaskRecord) -> Result<(), TxError> {
    let all = statuses(tx, task.conversation_id).await?;
    let Some(shown) = all.get() else { return Ok(()) };
    let others = shown.as_array().is_some_and(|all| all.iter().any(|status| !is_of(status, task.id)));
    if others {
        all.retain(|_, status| !is_of(status, task.id))?
    } else {
        all.remove()?
    }
    Ok(())
}
