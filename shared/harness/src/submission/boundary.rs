//! What a boundary places, and who has the run afterwards.

use picofleet_session::message::UserInput;
use picofleet_session::{ConversationId, EntryId, Json, SubmissionId, TaskCreate, TaskId, TaskOwnership, Tx, TxError};

use super::admit::remove;
use super::place::{Facts, unanswered, user_entry};
use crate::generation::initial_checkpoint;
use crate::inbox::{Boundary, INBOX, InboxItem, select};
use crate::kinds::{GENERATION, reason};
use crate::live::{LIVE, Run};

/// What a boundary placed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Placed {
    /// The inputs, in the order of their ids.
    pub inputs: Vec<SubmissionId>,
    /// A reset was placed.
    pub reset: bool,
}

/// The inputs that stay open and what the run goes on with.
pub(crate) struct Continuation {
    pub(crate) inputs: Vec<SubmissionId>,
    pub(crate) content: UserInput,
}

/// A final boundary (section 6): places what waits, and starts the next run where an input was placed. With a continuation and neither
/// input nor reset, the run goes on with it.
pub(crate) async fn final_boundary_with(
    tx: &Tx,
    conversation: ConversationId,
    facts: &Facts,
    continuation: Option<Continuation>,
) -> Result<Placed, TxError> {
    let placed = place(tx, conversation, facts, Boundary::Final).await?;
    if !placed.inputs.is_empty() {
        start_run(tx, conversation, placed.inputs.clone()).await?;
    } else if let (Some(continuation), false) = (continuation, placed.reset) {
        tx.append_entry(conversation, user_entry(tx, continuation.content)).await?;
        start_run(tx, conversation, continuation.inputs).await?;
    }
    Ok(placed)
}

/// Whether a final boundary would place a user item or a reset, so that a continuation is dropped (section 8.3).
pub(crate) async fn would_place_users(tx: &Tx, conversation: ConversationId, facts: &Facts) -> Result<bool, TxError> {
    let items = tx.doc(&INBOX, conversation).await?.read()?.items;
    let selection = select(&items, facts.selecting(Boundary::Final));
    Ok(selection.reset || !selection.users.is_empty())
}

/// Places what a boundary selects: writes first, then user items, each in the order of their ids.
pub(crate) async fn place(tx: &Tx, conversation: ConversationId, facts: &Facts, boundary: Boundary) -> Result<Placed, TxError> {
    let items = tx.doc(&INBOX, conversation).await?.read()?.items;
    let selection = select(&items, facts.selecting(boundary));
    let taken: Vec<SubmissionId> = [&selection.writes, &selection.stale, &selection.users]
        .into_iter()
        .flatten()
        .filter_map(|i| items.get(*i))
        .map(InboxItem::id)
        .collect();
    if taken.is_empty() {
        return Ok(Placed::default());
    }
    remove(tx, conversation, &taken).await?;
    for item in selection.stale.iter().filter_map(|index| items.get(*index)) {
        unanswered(tx, item.id(), reason::STALE, None).await?;
    }
    for item in selection.writes.iter().filter_map(|index| items.get(*index)) {
        if let InboxItem::Write { id, entry } = item {
            let entry = tx.append_entry(conversation, (**entry).clone()).await?;
            tx.place_submission(*id, entry.id).await?;
        }
    }
    let mut inputs = Vec::new();
    for item in selection.users.iter().filter_map(|index| items.get(*index)) {
        if let InboxItem::Steer { id, content } | InboxItem::FollowUp { id, content } = item {
            let entry: EntryId = tx.append_entry(conversation, user_entry(tx, content.clone())).await?.id;
            tx.place_submission(*id, entry).await?;
            inputs.push(*id);
        }
    }
    Ok(Placed { inputs, reset: selection.reset })
}

/// Creates a generation and gives it the run with these inputs.
///
/// # Errors
/// As the operations of [`Tx`].
pub async fn start_run(tx: &Tx, conversation: ConversationId, inputs: Vec<SubmissionId>) -> Result<TaskId, TxError> {
    let task = TaskCreate {
        kind: GENERATION.to_owned(),
        version: 1,
        input: Json::object::<&str, Json>([]),
        checkpoint: initial_checkpoint(),
        ownership: TaskOwnership::Conversation,
        conversation_id: Some(conversation),
        background: false,
    };
    let task_id = tx.create_task_raw(task).await?;
    tx.doc(&LIVE, conversation).await?.draft.key("run").set_serde(&Run { task_id, inputs })?;
    Ok(task_id)
}
