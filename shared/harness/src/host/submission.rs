//! A submission as a host has it (sections 2.2 and 6).

use picofleet_session::{SubmissionId, SubmissionRecord};

use super::{Harness, HostError, WAIT};
use crate::wire::{HostCall, Read};

/// A submission. Two are the same where their ids are.
#[derive(Clone)]
pub struct Submission {
    harness: Harness,
    id: SubmissionId,
}

/// What a withdrawal came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Withdrawn {
    /// It was queued, and is withdrawn.
    Aborted,
    /// It is in the transcript; abort the conversation to stop its run.
    AlreadyPlaced,
    /// It was settled before.
    Settled,
}

impl Submission {
    pub(super) const fn new(harness: Harness, id: SubmissionId) -> Self {
        Self { harness, id }
    }

    /// Its id: [`Harness::submission`] finds it again after a reopen.
    #[must_use]
    pub const fn id(&self) -> SubmissionId {
        self.id
    }

    /// How far it is.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn status(&self) -> Result<SubmissionRecord, HostError> {
        let record: Option<SubmissionRecord> = self.harness.caller.read(Read::Submission(self.id)).await?;
        record.ok_or_else(|| self.not_found())
    }

    /// Waits until it is done or unanswered. Dropping the future withdraws nothing.
    ///
    /// # Errors
    /// [`HostError::Unavailable`] where the session closes meanwhile.
    pub async fn wait(&self) -> Result<SubmissionRecord, HostError> {
        loop {
            let call = HostCall::WaitSubmission { submission: self.id, timeout_ms: WAIT };
            let record: SubmissionRecord = self.harness.caller.ask(call).await?;
            if record.settled() {
                return Ok(record);
            }
        }
    }

    /// Withdraws it where it is still queued.
    ///
    /// # Errors
    /// [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn abort(&self) -> Result<Withdrawn, HostError> {
        self.harness.abort_submission(self.id, None).await?.ok_or_else(|| self.not_found())
    }

    fn not_found(&self) -> HostError {
        HostError::NotFound { what: "submission".to_owned(), id: self.id.get() }
    }
}
