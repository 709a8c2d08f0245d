//! A conversation as a host has it (section 2.2).

use picofleet_session::storage::Cursor;
use picofleet_session::{ContextView, ConversationId, ConversationRecord, EntryId, EntryRecord, Json, SubmissionRecord, TaskId};
use serde::de::DeserializeOwned;

use super::call::once;
use super::{ConversationOptions, Harness, HostError, Submission, SubmitError, WAIT};
use crate::compaction::CompactionResult;
use crate::inbox::{INBOX, InboxState};
use crate::live::{LIVE, LiveState};
use crate::submission::SubmissionDraft;
use crate::usage::{USAGE, UsageState};
use crate::wire::{HostCall, Paged, Read};

/// A conversation. Two are the same where their ids are.
#[derive(Clone)]
pub struct Conversation {
    pub(super) harness: Harness,
    pub(super) id: ConversationId,
}

/// Which entries, by their ids and both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryRange {
    /// The oldest.
    pub min: Option<EntryId>,
    /// The newest.
    pub max: Option<EntryId>,
}

impl Conversation {
    pub(super) const fn new(harness: Harness, id: ConversationId) -> Self {
        Self { harness, id }
    }

    /// Its id.
    #[must_use]
    pub const fn id(&self) -> ConversationId {
        self.id
    }

    /// Admits an input or a write; it does not wait for an answer. With a `requestId` the same submission is admitted once for ever,
    /// without one once for this call.
    ///
    /// # Errors
    /// [`SubmitError`].
    pub async fn submit(&self, draft: SubmissionDraft) -> Result<Submission, SubmitError> {
        let keyed = draft.request_id.is_some();
        let call = HostCall::Submit { conversation: self.id, draft };
        let call = if keyed { call } else { once(None, call) };
        let record: SubmissionRecord = self.harness.caller.submit(call).await?;
        Ok(Submission::new(self.harness.clone(), record.id))
    }

    /// The active transcript and what a model sees of it.
    ///
    /// # Errors
    /// [`HostError::NotFound`], [`HostError::Unavailable`].
    pub async fn context(&self) -> Result<ContextView, HostError> {
        let transcript = self.harness.caller.transcript(Read::ContextView { conversation: self.id, at: None }).await?;
        Ok(transcript.view())
    }

    /// A page of the stored history, newest first, through the ancestry of forks: at most `limit` entries, behind `cursor`.
    ///
    /// # Errors
    /// [`HostError::NotFound`], [`HostError::Unavailable`]; [`HostError::Invalid`] for a cursor of another scan.
    pub async fn entries(&self, range: EntryRange, limit: u32, cursor: Option<Cursor>) -> Result<Paged<EntryRecord>, HostError> {
        let EntryRange { min, max } = range;
        self.harness.caller.read(Read::EntryPage { conversation: self.id, min, max, limit, cursor }).await
    }

    /// A conversation that begins with this one's history up to an entry, in one commit with its documents and configuration.
    ///
    /// # Errors
    /// [`HostError::Invalid`] with the field `at` for an entry that is not visible here, else as [`Harness::create_conversation`].
    pub async fn fork(&self, at: EntryId, options: ConversationOptions) -> Result<Conversation, HostError> {
        let ConversationOptions { ownership, config, key } = options;
        let config = config.map(|patch| patch.to_json()).transpose()?;
        let call = once(key, HostCall::Fork { conversation: self.id, at, ownership, config });
        let record: ConversationRecord = self.harness.caller.write(call).await?;
        Ok(Conversation::new(self.harness.clone(), record.id))
    }

    /// Asks for a new context, which begins with the handoff where there is one. While the conversation is busy it begins at a boundary;
    /// the submission tells when.
    ///
    /// # Errors
    /// [`SubmitError::InboxFull`], [`SubmitError::Host`].
    pub async fn reset(&self, handoff: Option<&str>) -> Result<Submission, SubmitError> {
        let call = once(None, HostCall::Reset { conversation: self.id, handoff: handoff.map(ToOwned::to_owned) });
        let record: SubmissionRecord = self.harness.caller.submit(call).await?;
        Ok(Submission::new(self.harness.clone(), record.id))
    }

    /// Begins to replace the older part of the context with a summary, and answers the task that does it; the conversation goes on
    /// meanwhile. `instructions` say what the summary is to look at most. It enables scheduling. [`Harness::wait_for_task`] tells what came
    /// of it: a write that places the summary, or nothing where there was nothing to compact.
    ///
    /// # Errors
    /// [`HostError::NotFound`]; [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn compact(&self, instructions: Option<&str>) -> Result<TaskId<CompactionResult>, HostError> {
        let call = HostCall::Compact { conversation: self.id, instructions: instructions.map(ToOwned::to_owned) };
        self.harness.caller.write(once(None, call)).await
    }

    /// Withdraws its queued inputs, marks its work, and waits until that is over and the conversation is idle; with `background` also work
    /// that runs on its own. Dropping the future ends only the wait.
    ///
    /// # Errors
    /// [`HostError::NotFound`]; [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn abort(&self, background: bool) -> Result<(), HostError> {
        let caller = &self.harness.caller;
        let marked: Option<Vec<TaskId>> = caller.write(HostCall::Abort { conversation: self.id, background }).await?;
        let Some(tasks) = marked else { return Ok(()) };
        let wait = HostCall::WaitAborted { conversation: self.id, tasks, timeout_ms: WAIT };
        while !caller.ask(wait.clone()).await? {}
        Ok(())
    }

    /// What it spent itself (section 8.6).
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn usage(&self) -> Result<UsageState, HostError> {
        self.state(USAGE.kind).await
    }

    /// What happens in it now (section 8.2).
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn live(&self) -> Result<LiveState, HostError> {
        self.state(LIVE.kind).await
    }

    /// What waits in it (section 6).
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn inbox(&self) -> Result<InboxState, HostError> {
        self.state(INBOX.kind).await
    }

    /// The committed value of a document by its kind; `None` where there is none, or the line does not know the kind.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn document(&self, kind: &str) -> Result<Option<Json>, HostError> {
        let read = Read::ConversationDocument { conversation: self.id, kind: kind.to_owned() };
        let value: Json = self.harness.caller.read(read).await?;
        Ok((!value.is_null()).then_some(value))
    }

    /// A built-in document; its first value where there is none.
    pub(super) async fn state<T: DeserializeOwned + Default>(&self, kind: &str) -> Result<T, HostError> {
        let value = self.document(kind).await?;
        value.map_or_else(|| Ok(T::default()), |value| value.to().map_err(|error| HostError::Answer(error.to_string())))
    }
}
