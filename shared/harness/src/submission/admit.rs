//! Admission, and withdrawal of what was queued.

use std::sync::Arc;

use picofleet_session::{
    ConversationId, DraftHead, EntryDraft, InputState, SubmissionId, SubmissionRecord, SubmissionState, Tx, TxError, WriteState,
};

use super::boundary::{final_boundary_with, start_run};
use super::place::{Facts, unanswered, user_entry};
use super::{SubmissionBody, SubmissionDraft, WhenBusy};
use crate::inbox::{INBOX, INBOX_MAX, InboxItem};
use crate::kinds::reason;
use crate::live::LIVE;

/// What an admission came to.
#[derive(Clone, PartialEq, Debug)]
pub enum Admission {
    /// Admitted, with the record as the commit left it.
    Admitted(Arc<SubmissionRecord>),
    /// The key names a submission that was admitted before.
    Existing(Arc<SubmissionRecord>),
    /// The conversation is busy and the input does not want to wait: nothing was written.
    Busy,
    /// The key names a submission of the other type: nothing was written.
    OtherType,
    /// The inbox is full: nothing was written.
    Full,
}

/// Admits a submission (section 6): placed at once where the conversation is idle with an empty inbox, else queued. An idle conversation
/// with waiting items queues it behind them and runs a final boundary in the same commit.
///
/// # Errors
/// As the operations of [`Tx`].
pub async fn admit(tx: &Tx, conversation: ConversationId, draft: SubmissionDraft) -> Result<Admission, TxError> {
    if let Some(key) = &draft.request_id
        && let Some(existing) = tx.submission_by_request(conversation, key).await?
    {
        let same = matches!(
            (&existing.state, &draft.body),
            (SubmissionState::Input(_), SubmissionBody::Input { .. }) | (SubmissionState::Write(_), SubmissionBody::Write { .. })
        );
        return Ok(if same { Admission::Existing(Arc::new(existing)) } else { Admission::OtherType });
    }
    let facts = Facts::read(tx, conversation).await?;
    let busy = tx.doc(&LIVE, conversation).await?.draft.key("run").get().is_some();
    let waiting = tx.doc(&INBOX, conversation).await?.draft.key("items").get();
    let waiting = waiting.as_ref().and_then(|items| items.as_array()).map_or(0, |items| items.len());
    if busy && matches!(draft.body, SubmissionBody::Input { when_busy: Some(WhenBusy::Reject), .. }) {
        return Ok(Admission::Busy);
    }
    let key = draft.request_id;
    if !busy && waiting == 0 {
        let record = match draft.body {
            SubmissionBody::Input { content, .. } => {
                let entry = tx.append_entry(conversation, user_entry(tx, content)).await?.id;
                let record = tx.create_submission(conversation, key, SubmissionState::Input(InputState::Placed { entry })).await?;
                start_run(tx, conversation, vec![record.id]).await?;
                record
            }
            SubmissionBody::Write { entry } => place_write(tx, conversation, key, entry, &facts).await?,
        };
        return Ok(Admission::Admitted(record));
    }
    if waiting >= INBOX_MAX {
        return Ok(Admission::Full);
    }
    let record = queue(tx, conversation, key, draft.body).await?;
    if !busy {
        final_boundary_with(tx, conversation, &facts, None).await?;
    }
    Ok(Admission::Admitted(record))
}

/// A write that is placed at once, or stale at once (section 6).
async fn place_write(
    tx: &Tx,
    conversation: ConversationId,
    key: Option<String>,
    entry: EntryDraft,
    facts: &Facts,
) -> Result<Arc<SubmissionRecord>, TxError> {
    let stale = match (entry.head, facts.active_from) {
        (Some(DraftHead::Entry(target)), Some(start)) => target < start,
        _ => false,
    };
    let state = if stale {
        WriteState::Unanswered { reason: reason::STALE.to_owned(), detail: None }
    } else {
        WriteState::Done { entry: tx.append_entry(conversation, entry).await?.id }
    };
    tx.create_submission(conversation, key, SubmissionState::Write(state)).await
}

async fn queue(tx: &Tx, conversation: ConversationId, key: Option<String>, body: SubmissionBody) -> Result<Arc<SubmissionRecord>, TxError> {
    let state = match &body {
        SubmissionBody::Input { .. } => SubmissionState::Input(InputState::Queued),
        SubmissionBody::Write { .. } => SubmissionState::Write(WriteState::Queued),
    };
    let record = tx.create_submission(conversation, key, state).await?;
    let id = record.id;
    let item = match body {
        SubmissionBody::Input { content, when_busy: Some(WhenBusy::Steer) } => InboxItem::Steer { id, content },
        SubmissionBody::Input { content, .. } => InboxItem::FollowUp { id, content },
        SubmissionBody::Write { entry } => InboxItem::Write { id, entry: Box::new(entry) },
    };
    let items = tx.doc(&INBOX, conversation).await?.draft.key("items");
    let item = picofleet_session::Json::from_serde(&item).map_err(|error| not_json(&error))?;
    items.push(item)?;
    Ok(record)
}

fn not_json(error: &impl std::fmt::Display) -> TxError {
    TxError::Definition(picofleet_session::DefinitionError::NotJson { call: "an inbox item", kind: INBOX.kind, why: error.to_string() })
}

/// Withdraws a queued submission; `false` where it is not queued in the conversation any more.
///
/// # Errors
/// As the operations of [`Tx`].
pub async fn withdraw(tx: &Tx, conversation: ConversationId, id: SubmissionId) -> Result<bool, TxError> {
    let inbox = tx.doc(&INBOX, conversation).await?;
    let found = inbox.read()?.items.iter().any(|item| item.id() == id);
    if found {
        remove(tx, conversation, &[id]).await?;
        unanswered(tx, id, reason::ABORTED, None).await?;
    }
    Ok(found)
}

/// Withdraws the queued inputs of a conversation; writes stay for a later boundary (section 5.4).
///
/// # Errors
/// As the operations of [`Tx`].
pub async fn withdraw_inputs(tx: &Tx, conversation: ConversationId) -> Result<(), TxError> {
    let items = tx.doc(&INBOX, conversation).await?.read()?.items;
    let inputs: Vec<SubmissionId> = items.iter().filter(|item| !matches!(item, InboxItem::Write { .. })).map(InboxItem::id).collect();
    if inputs.is_empty() {
        return Ok(());
    }
    remove(tx, conversation, &inputs).await?;
    for id in inputs {
        unanswered(tx, id, reason::ABORTED, None).await?;
    }
    Ok(())
}

/// Takes items out by their place, so that what stays is not written again.
pub(super) async fn remove(tx: &Tx, conversation: ConversationId, ids: &[SubmissionId]) -> Result<(), TxError> {
    let items = tx.doc(&INBOX, conversation).await?.draft.key("items");
    let gone = |item: &picofleet_session::Json| {
        let id = item.get("id").and_then(picofleet_session::Json::as_i64);
        ids.iter().any(|other| Some(other.get()) == id)
    };
    items.retain(|_, item| !gone(item))?;
    Ok(())
}
