//! Reading what decides about placements, and placing.

use picofleet_session::message::{Message, UserInput, UserMessage};
use picofleet_session::{ConversationId, EntryDraft, EntryId, Json, Settlement, SubmissionId, Tx, TxError};

use crate::config::{CONFIG, ConversationConfig};
use crate::inbox::{Boundary, Selecting};
use crate::kinds::USER;

/// What a commit has to know before it places inputs.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// How boundaries select.
    pub(crate) config: ConversationConfig,
    /// The marker that begins the active range.
    pub(crate) marker: Option<EntryId>,
    /// Where the active range begins.
    pub(crate) active_from: Option<EntryId>,
}

impl Facts {
    /// As the commit would leave it.
    pub(crate) async fn read(tx: &Tx, conversation: ConversationId) -> Result<Self, TxError> {
        let marker = tx.head_marker_as_left(conversation).await?;
        let config = tx.doc(&CONFIG, conversation).await?.read()?;
        Ok(Self { config, marker: marker.as_ref().map(|marker| marker.id), active_from: marker.and_then(|marker| marker.head) })
    }

    pub(super) fn selecting(&self, boundary: Boundary) -> Selecting {
        Selecting {
            boundary,
            steering: self.config.steering_mode.unwrap_or_default(),
            follow_up: self.config.follow_up_mode.unwrap_or_default(),
            active_from: self.active_from,
        }
    }
}

/// The entry of a user's message; its time is the one of its placement (section 6).
pub(super) fn user_entry(tx: &Tx, content: UserInput) -> EntryDraft {
    EntryDraft::new(USER.kind).model(vec![Message::from(UserMessage { content, timestamp: tx.now() })])
}

/// Ends a submission without an answer.
pub(super) async fn unanswered(tx: &Tx, id: SubmissionId, reason: &str, detail: Option<Json>) -> Result<(), TxError> {
    tx.settle_submission(id, Settlement::Unanswered { reason: reason.to_owned(), detail }).await
}
