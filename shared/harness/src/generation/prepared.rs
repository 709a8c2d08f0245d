//! A planned request: the system entries, and the pin (sections 7.4 and 8.3).

use picofleet_session::message::{Message, SystemMessage};
use picofleet_session::{EntryDraft, EntryId, Json, TaskId, TaskRecord, Tx, TxError};

use super::apply::{omit, tail};
use super::{Checkpoint, Pinned, Prepare, Then};
use crate::compaction::{self, CompactionReason, Input, Starter};
use crate::config::{CONFIG, ConversationConfig};
use crate::kinds::SYSTEM;
use crate::live::{LIVE, LiveGeneration};

pub(super) async fn prepared(
    tx: &Tx,
    task: &TaskRecord,
    (attempt, compacted): (u32, Option<TaskId>),
    plan: Prepare,
) -> Result<Then, TxError> {
    let tail = tail(tx, task).await?;
    if tail != plan.tail || config(tx, task).await? != plan.config {
        return Ok(Then::Stale);
    }
    let background = plan.background && compacted.is_none() && !compaction::any_live(tx, task.conversation_id).await?;
    let mut cutoff = tail;
    for planned in plan.system {
        let message = SystemMessage { timestamp: tx.now(), ..planned.message };
        let entry = EntryDraft { edits: omit(&planned.omits), ..EntryDraft::new(SYSTEM.kind).model(vec![Message::from(message)]) };
        cutoff = Some(tx.append_entry(task.conversation_id, entry).await?.id);
    }
    // A run begins with an entry, so there is one; a conversation without any has nothing to ask. A plan without a model is none.
    let (Some(cutoff), Some(model)) = (cutoff, plan.config.model) else { return Ok(Then::Stale) };
    let generation = LiveGeneration { attempt, message: None, retry: None, deferred: None };
    tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").set_serde(&generation)?;
    if background {
        compaction::start(tx, Starter::Beside(task), threshold()).await?;
    }
    let ConversationConfig { thinking_level, stream_options, tool_execution, .. } = plan.config;
    let pinned = Pinned {
        attempt,
        compacted,
        model,
        thinking_level,
        stream_options: stream_options.unwrap_or_else(|| Json::object::<&str, Json>([])),
        tool_execution: tool_execution.unwrap_or_default(),
        cutoff,
    };
    Ok(Then::Checkpoint(Checkpoint::Request(Box::new(pinned))))
}

/// Waits for a compaction, because the context is too full for a request. Nothing is appended.
pub(super) async fn block(
    tx: &Tx,
    task: &TaskRecord,
    attempt: u32,
    (looked_at, looked_with): (Option<EntryId>, ConversationConfig),
) -> Result<Then, TxError> {
    if tail(tx, task).await? != looked_at || config(tx, task).await? != looked_with {
        return Ok(Then::Stale);
    }
    wait_for_compaction(tx, task, attempt, None).await
}

/// Creates the compaction that a generation waits for, however it ends. `overflow` is what the provider said, where that is why.
pub(super) async fn wait_for_compaction(tx: &Tx, task: &TaskRecord, attempt: u32, overflow: Option<String>) -> Result<Then, TxError> {
    let reason = if overflow.is_some() { CompactionReason::Overflow } else { CompactionReason::Threshold };
    let id = compaction::start(tx, Starter::Waiting(task), Input { reason, instructions: None }).await?;
    Ok(Then::Wait { checkpoint: Checkpoint::Prepare { attempt, compacted: Some(id), overflow }, on: vec![id] })
}

const fn threshold() -> Input {
    Input { reason: CompactionReason::Threshold, instructions: None }
}

/// What the conversation is configured to now; a worker that finds nothing plans with the same defaults.
async fn config(tx: &Tx, task: &TaskRecord) -> Result<ConversationConfig, TxError> {
    if !tx.has_doc(&CONFIG, task.conversation_id).await? {
        return Ok(ConversationConfig::default());
    }
    tx.doc(&CONFIG, task.conversation_id).await?.read()
}
