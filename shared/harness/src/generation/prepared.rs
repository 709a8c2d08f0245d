//! A planned request: the system entries, and the pin (sections 7.4 and 8.3).

use picofleet_session::message::{Message, SystemMessage};
use picofleet_session::{EntryDraft, Json, TaskRecord, Tx, TxError};

use super::apply::{omit, tail};
use super::{Checkpoint, Pinned, Prepare, Then};
use crate::config::{CONFIG, ConversationConfig};
use crate::kinds::SYSTEM;
use crate::live::{LIVE, LiveGeneration};

pub(super) async fn prepared(tx: &Tx, task: &TaskRecord, attempt: u32, plan: Prepare) -> Result<Then, TxError> {
    let tail = tail(tx, task).await?;
    if tail != plan.tail || config(tx, task).await? != plan.config {
        return Ok(Then::Stale);
    }
    let mut cutoff = tail;
    for planned in plan.system {
        let message = SystemMessage { timestamp: tx.now(), ..planned.message };
        let entry = EntryDraft { edits: omit(&planned.omits), ..EntryDraft::new(SYSTEM.kind).model(vec![Message::System(message)]) };
        cutoff = Some(tx.append_entry(task.conversation_id, entry).await?.id);
    }
    // A run begins with an entry, so there is one; a conversation without any has nothing to ask. A plan without a model is none.
    let (Some(cutoff), Some(model)) = (cutoff, plan.config.model) else { return Ok(Then::Stale) };
    let generation = LiveGeneration { attempt, message: None, retry: None, deferred: None };
    tx.doc(&LIVE, task.conversation_id).await?.draft.key("generation").set_serde(&generation)?;
    let ConversationConfig { thinking_level, stream_options, tool_execution, .. } = plan.config;
    let pinned = Pinned {
        attempt,
        model,
        thinking_level,
        stream_options: stream_options.unwrap_or_else(|| Json::object::<&str, Json>([])),
        tool_execution: tool_execution.unwrap_or_default(),
        cutoff,
    };
    Ok(Then::Checkpoint(Checkpoint::Request(Box::new(pinned))))
}

/// What the conversation is configured to now; a worker that finds nothing plans with the same defaults.
async fn config(tx: &Tx, task: &TaskRecord) -> Result<ConversationConfig, TxError> {
    if !tx.has_doc(&CONFIG, task.conversation_id).await? {
        return Ok(ConversationConfig::default());
    }
    tx.doc(&CONFIG, task.conversation_id).await?.read()
}
