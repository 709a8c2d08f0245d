//! Handles of conversations and submissions that live as long as the invocation that took them (section 7.3).

use std::sync::Arc;

use picofleet_session::{ConversationId, ConversationRecord, SubmissionId, SubmissionRecord, TaskError};

use crate::effects::{Fault, Invocation};
use crate::submission::{SubmissionBody, SubmissionDraft};
use crate::wire::{HostCall, Read};

/// A conversation, for inputs, aborts and idle waits. Every method fails with [`Fault::Ended`] once the invocation is over; what was
/// admitted stays.
#[derive(Clone)]
pub struct BoundConversation {
    invocation: Arc<Invocation>,
    id: ConversationId,
}

/// A submission that a [`BoundConversation`] admitted.
#[derive(Clone)]
pub struct BoundSubmission {
    invocation: Arc<Invocation>,
    id: SubmissionId,
}

impl BoundConversation {
    pub(crate) async fn acquire(invocation: &Arc<Invocation>, id: ConversationId) -> Result<Option<Self>, Fault> {
        let record: Option<ConversationRecord> = invocation.read(Read::Conversation(id)).await?;
        Ok(record.map(|_| Self { invocation: Arc::clone(invocation), id }))
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> ConversationId {
        self.id
    }

    /// Submits an input. With a request id that is derived from the task's id a rerun finds the same submission.
    ///
    /// # Errors
    /// [`Fault::Failed`] for a write, or where the conversation is busy and the input does not want to wait; [`Fault::Ended`].
    pub async fn submit(&self, draft: SubmissionDraft) -> Result<BoundSubmission, Fault> {
        if !matches!(draft.body, SubmissionBody::Input { .. }) {
            let message = "a tool's conversation handle accepts only input submissions; append entries in a commit".to_owned();
            return Err(Fault::Failed(TaskError { message, detail: None }));
        }
        let record: SubmissionRecord = self.invocation.host(HostCall::Submit { conversation: self.id, draft }).await?;
        Ok(BoundSubmission { invocation: Arc::clone(&self.invocation), id: record.id })
    }

    /// Withdraws queued inputs, and stops the foreground work of the conversation and waits until it is over. The worker's slot is free
    /// meanwhile.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn abort(&self) -> Result<(), Fault> {
        self.invocation.abort(self.id).await
    }
}

impl BoundConversation {
    /// Waits until the conversation's foreground work is over. The worker's slot is free meanwhile.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn wait_for_idle(&self) -> Result<(), Fault> {
        self.invocation.wait_for_idle(self.id).await
    }
}

impl BoundSubmission {
    /// Its id.
    #[must_use]
    pub const fn id(&self) -> SubmissionId {
        self.id
    }

    /// The committed record.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn status(&self) -> Result<SubmissionRecord, Fault> {
        self.invocation.read(Read::Submission(self.id)).await
    }

    /// Waits until it is settled. The invocation's slot is free meanwhile.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn wait(&self) -> Result<SubmissionRecord, Fault> {
        self.invocation.wait_for_submission(self.id).await
    }

    /// Withdraws it while it is queued: `aborted`, `already_placed` or `settled`.
    ///
    /// # Errors
    /// [`Fault::Ended`].
    pub async fn abort(&self) -> Result<String, Fault> {
        self.invocation.host(HostCall::Withdraw { submission: self.id }).await
    }
}
