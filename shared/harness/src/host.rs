//! The host surface (section 2.2): a session over a transport, embedded or remote.
//!
//! Handles are stateless and cheap; compare them by id. A call that can be lost on the way is sent again: it carries a key, so that it is
//! done once. A wait is asked for again until it is over; dropping its future ends only the wait.

mod agent_events;
mod call;
mod configuration;
mod conversation;
mod create;
mod documents;
mod error;
mod follow;
mod submission;
mod views;
mod work;

use std::sync::Arc;

use picofleet_session::storage::Cursor;
use picofleet_session::{
    ConversationId, ConversationOwnership, ConversationRecord, DocumentAddress, InvocationId, ROOT_CONVERSATION_ID, SessionId, StoredValue,
    SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};

use crate::config::ConfigPatch;
use crate::transport::Transport;
use crate::usage::UsageState;
use crate::wire::{HostCall, Paged, Read};
use call::{Caller, once};

pub use agent_events::{AgentEvents, EventsStopper, watch_events};
pub use conversation::{Conversation, EntryRange};
pub use error::{HostError, SubmitError};
pub use submission::{Submission, Withdrawn};
pub use views::{ViewState, ViewWatch};

/// How long one call of a wait waits on the line, in milliseconds; then it is asked again.
const WAIT: u64 = 20_000;

/// A session as a host has it. Cheap to clone.
#[derive(Clone)]
pub struct Harness {
    caller: Arc<Caller>,
}

/// How a conversation is made.
#[derive(Clone, PartialEq, Debug)]
pub struct ConversationOptions {
    /// Who owns it. It is always said; nothing is taken from who calls.
    pub ownership: ConversationOwnership,
    /// A change of its first configuration: the default one, or for a fork the one that is visible where it begins.
    pub config: Option<ConfigPatch>,
    /// Names the creation, so that it is done once however often it is asked for; a random one where it is absent. Another creation under
    /// a key is refused. Keys are kept 48 hours.
    pub key: Option<String>,
}

impl ConversationOptions {
    /// Owned by nobody.
    #[must_use]
    pub const fn ownerless() -> Self {
        Self { ownership: ConversationOwnership::Ownerless, config: None, key: None }
    }

    /// Owned by a task.
    #[must_use]
    pub const fn owned_by(task_id: TaskId) -> Self {
        Self { ownership: ConversationOwnership::Task { task_id }, config: None, key: None }
    }

    /// With a change of its first configuration.
    #[must_use]
    pub fn config(mut self, patch: ConfigPatch) -> Self {
        self.config = Some(patch);
        self
    }

    /// With the caller's key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }
}

/// Which conversations; both filters together are conjunctive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConversationFilter {
    /// Owned from this conversation.
    pub owner_conversation: Option<ConversationId>,
    /// Owned by this task.
    pub owner_task: Option<TaskId>,
}

/// What an abort of a task came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AbortTask {
    /// It carries the mark now.
    Marked,
    /// It was over already.
    Terminal,
}

impl Harness {
    /// A session over a transport. Nothing is sent before the first call.
    #[must_use]
    pub fn connect(transport: Arc<dyn Transport>, session: SessionId) -> Self {
        Self { caller: Arc::new(Caller::new(transport, session)) }
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.caller.session()
    }

    /// The root conversation, which the first call makes.
    ///
    /// # Errors
    /// [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn root(&self) -> Result<Conversation, HostError> {
        let _: ConversationRecord = self.caller.write(HostCall::Root).await?;
        Ok(Conversation::new(self.clone(), ROOT_CONVERSATION_ID))
    }

    /// A conversation; `None` where there is none.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn conversation(&self, id: ConversationId) -> Result<Option<Conversation>, HostError> {
        let record: Option<ConversationRecord> = self.caller.read(Read::Conversation(id)).await?;
        Ok(record.map(|record| Conversation::new(self.clone(), record.id)))
    }

    /// A page of conversations in the order of their ids: at most `limit` of them, behind `cursor`.
    ///
    /// # Errors
    /// [`HostError::Unavailable`]; [`HostError::Invalid`] for a cursor of another scan.
    pub async fn conversations(
        &self,
        filter: ConversationFilter,
        limit: u32,
        cursor: Option<Cursor>,
    ) -> Result<Paged<ConversationRecord>, HostError> {
        let ConversationFilter { owner_conversation, owner_task } = filter;
        self.caller.read(Read::Conversations { owner_conversation, owner_task, limit, cursor }).await
    }

    /// Makes an independent conversation: record, built-in documents and configuration in one commit.
    ///
    /// # Errors
    /// [`HostError::NotFound`] for an owner that is not there, [`HostError::Invalid`] for one that can't own anything new and for a
    /// configuration that is not allowed; [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn create_conversation(&self, options: ConversationOptions) -> Result<Conversation, HostError> {
        let ConversationOptions { ownership, config, key } = options;
        let config = config.map(|patch| patch.to_json()).transpose()?;
        let record: ConversationRecord = self.caller.write(once(key, HostCall::CreateConversation { ownership, config })).await?;
        Ok(Conversation::new(self.clone(), record.id))
    }

    /// The committed value of any document, as it is stored; `None` where there is none.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn document(&self, address: DocumentAddress) -> Result<Option<StoredValue>, HostError> {
        self.caller.read(Read::Document(address)).await
    }

    /// A task's record; `None` where there is none.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn get_task(&self, id: TaskId) -> Result<Option<TaskRecord>, HostError> {
        self.caller.read(Read::Task(id)).await
    }

    /// Asks a task to stop, and waits until what runs of it has stopped. Dropping the future ends only the wait.
    ///
    /// # Errors
    /// [`HostError::NotFound`]; [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn abort_task(&self, id: TaskId) -> Result<AbortTask, HostError> {
        let word: String = self.caller.write(HostCall::AbortTask { task: id }).await?;
        match word.as_str() {
            "marked" => Ok(AbortTask::Marked),
            "terminal" => Ok(AbortTask::Terminal),
            "stopping" => {
                while !self.caller.ask(HostCall::WaitStopped { task: id, timeout_ms: WAIT }).await? {}
                Ok(AbortTask::Marked)
            }
            _ => Err(HostError::Answer(format!("{word:?} to an abort of a task"))),
        }
    }

    /// A submission, also of an earlier opening; `None` where there is none.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn submission(&self, id: SubmissionId) -> Result<Option<Submission>, HostError> {
        let record: Option<SubmissionRecord> = self.caller.read(Read::Submission(id)).await?;
        Ok(record.map(|record| Submission::new(self.clone(), record.id)))
    }

    /// Withdraws a submission that is still queued; with a conversation only one of that conversation. `None` where there is none.
    ///
    /// # Errors
    /// [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn abort_submission(&self, id: SubmissionId, conversation: Option<ConversationId>) -> Result<Option<Withdrawn>, HostError> {
        let word: String = self.caller.write(once(None, HostCall::AbortSubmission { submission: id, conversation })).await?;
        match word.as_str() {
            "aborted" => Ok(Some(Withdrawn::Aborted)),
            "already_placed" => Ok(Some(Withdrawn::AlreadyPlaced)),
            "settled" => Ok(Some(Withdrawn::Settled)),
            "not_found" => Ok(None),
            _ => Err(HostError::Answer(format!("{word:?} to a withdrawal"))),
        }
    }

    /// What all conversations spent together (section 8.6).
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn usage(&self) -> Result<UsageState, HostError> {
        self.caller.read(Read::SessionUsage).await
    }
}

/// A key that nobody else has.
fn random_key() -> String {
    InvocationId::random().to_string()
}
