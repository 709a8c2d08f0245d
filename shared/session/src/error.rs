//! Errors of a session, by what a caller can do about them.

use std::sync::Arc;

use picofleet_delta::DraftError;

use crate::storage::{StorageError, StorageRejected};
use crate::{ConversationId, DefinitionError, DocumentAddress, EntryId, SubmissionId, TaskId};

/// Why a commit did not happen. In every case nothing of it was written, except [`CommitError::Failed`] for the commit that failed
/// uncertainly: opening the session again tells.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum CommitError {
    /// It breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Violation),
    /// A write through a draft was refused.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A definition's code failed, or its token does not fit.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// An operation of the transaction failed.
    #[error(transparent)]
    Tx(TxError),
    /// It was asked for inside a commit of the same session, whose line it would wait for for ever.
    #[error("a commit inside a commit of the same session; use the methods of the open transaction")]
    Nested,
    /// Storage refused it; the session goes on.
    #[error(transparent)]
    Rejected(#[from] StorageRejected),
    /// The session failed.
    #[error(transparent)]
    Failed(#[from] SessionFailed),
    /// Another owner has the session: it was released, or storage refused this or an earlier commit because somebody else opened it.
    #[error("the session has another owner now; ask again")]
    NotOwner,
    /// The session is closed or closing.
    #[error("the session is closed")]
    Closed,
}

impl From<TxError> for CommitError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Invalid(violation) => Self::Invalid(violation),
            TxError::Draft(error) => Self::Draft(error),
            TxError::Definition(error) => Self::Definition(error),
            TxError::ReadAfterWrite | TxError::Read(_) => Self::Tx(error),
        }
    }
}

/// Why an operation of a transaction failed. The transaction can go on; one that ends with this error rolls back.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum TxError {
    /// A table was read after a table was written (section 4).
    #[error("tables can't be read after the first table write of a transaction; read them before")]
    ReadAfterWrite,
    /// It breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Violation),
    /// A write through a draft was refused.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A definition's code failed, or its token does not fit.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// Storage could not be read.
    #[error("a transaction could not read storage")]
    Read(#[source] StorageError),
}

impl From<StorageError> for TxError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::UnknownConversation { conversation } => Self::Invalid(Violation::UnknownConversation { conversation }),
            other => Self::Read(other),
        }
    }
}

/// Why a read failed.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum ReadError {
    /// It breaks a rule.
    #[error(transparent)]
    Invalid(#[from] Violation),
    /// A definition's code failed, or its token does not fit.
    #[error(transparent)]
    Definition(#[from] DefinitionError),
    /// It was asked for inside a commit of the same session, whose line it would wait for for ever.
    #[error("a session read inside a commit of the same session; use the methods of the open transaction")]
    Nested,
    /// Storage could not be read.
    #[error("a session could not read storage")]
    Storage(#[source] StorageError),
    /// The session failed.
    #[error(transparent)]
    Failed(#[from] SessionFailed),
    /// Another owner has the session.
    #[error("the session has another owner now; ask again")]
    NotOwner,
    /// The session is closed or closing.
    #[error("the session is closed")]
    Closed,
}

impl From<StorageError> for ReadError {
    fn from(error: StorageError) -> Self {
        match TxError::from(error) {
            TxError::Invalid(violation) => Self::Invalid(violation),
            TxError::Read(error) => Self::Storage(error),
            // The conversion above makes nothing else.
            other => Self::Storage(StorageError::failed("read", other)),
        }
    }
}

impl From<TxError> for ReadError {
    fn from(error: TxError) -> Self {
        match error {
            TxError::Invalid(violation) => Self::Invalid(violation),
            TxError::Definition(error) => Self::Definition(error),
            TxError::Read(error) => Self::Storage(error),
            TxError::ReadAfterWrite | TxError::Draft(_) => Self::Storage(StorageError::failed("read", error)),
        }
    }
}

/// Why a session could not be opened.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// Storage refused or failed.
    #[error("open session")]
    Storage(#[from] StorageError),
}

/// A session ended because its storage failed and what is stored can't be told (invariant 8), or because a listener of commits panicked.
/// Open it again to go on.
///
/// A report also says so of a session that another owner has; then the cause is [`StorageError::Fenced`], nothing of the refused commit
/// was written, and callers get [`CommitError::NotOwner`].
#[derive(Clone, Debug, thiserror::Error)]
#[error("the session failed and must be opened again")]
pub struct SessionFailed {
    /// What storage said.
    #[source]
    pub cause: Arc<StorageError>,
}

/// Why closing did not go in order.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum CloseError {
    /// It was asked for inside a commit of the same session, which it would wait for for ever. The session stays open.
    #[error("a session can't be closed inside one of its commits; close it after the commit")]
    Nested,
    /// Storage did not take the line back; the session is closed all the same.
    #[error("close session")]
    Storage(#[source] StorageError),
}

/// A rule of the specification that a transaction breaks.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// The conversation is not there.
    #[error("conversation {conversation} does not exist")]
    UnknownConversation {
        /// The conversation.
        conversation: ConversationId,
    },
    /// The root conversation is there already.
    #[error("the root conversation exists already")]
    RootExists,
    /// The entry is not part of the conversation's visible history.
    #[error("entry {entry} is not visible in conversation {conversation}")]
    NotVisible {
        /// The conversation.
        conversation: ConversationId,
        /// The entry.
        entry: EntryId,
    },
    /// The owner of a new task or conversation, or of a task document, is not there.
    #[error("task {task} does not exist")]
    UnknownTask {
        /// The task.
        task: TaskId,
    },
    /// The owner of a new task or conversation can't own anything new (section 3.3).
    #[error("owner task {task} is {state}")]
    OwnerState {
        /// The owner.
        task: TaskId,
        /// `terminal`, `completing` or `abort-marked`.
        state: &'static str,
    },
    /// A new task names no conversation, and nothing else does.
    #[error("a task that its conversation owns needs a conversation; name one")]
    NoConversation,
    /// A child names another conversation than its owner's.
    #[error("a child task is always in its owner's conversation {expected}, not in {found}")]
    ChildConversation {
        /// The owner's.
        expected: ConversationId,
        /// The named one.
        found: ConversationId,
    },
    /// A child task was to be a background task.
    #[error("a child task cannot be background; only a task that its conversation owns can")]
    BackgroundChild,
    /// A task record was replaced by one with another conversation or owner.
    #[error("task {task} cannot change {field}")]
    TaskChanged {
        /// The task.
        task: TaskId,
        /// `conversations` or `its owner`.
        field: &'static str,
    },
    /// A document of a task that is over.
    #[error("task {task} is terminal; its documents are gone")]
    TaskOver {
        /// The task.
        task: TaskId,
    },
    /// The submission is not there.
    #[error("submission {submission} does not exist")]
    UnknownSubmission {
        /// The submission.
        submission: SubmissionId,
    },
    /// Only a placed input can be answered.
    #[error("submission {submission} is not a placed input; only one can be answered")]
    NotPlacedInput {
        /// The submission.
        submission: SubmissionId,
    },
    /// Only a queued submission can be placed.
    #[error("submission {submission} is not queued; only a queued one can be placed")]
    NotQueued {
        /// The submission.
        submission: SubmissionId,
    },
    /// A transaction forks a conversation and writes a document that the fork copies (section 3.7).
    #[error("document {address} is copied by a fork in this transaction and can't be written in it; commit the change first")]
    ForkSource {
        /// The document.
        address: DocumentAddress,
    },
    /// What a task decided can't be applied.
    #[error("{why}")]
    Decision {
        /// Why.
        why: String,
    },
    /// A document that was there when its record was read is gone.
    #[error("document {address} does not exist")]
    UnknownDocument {
        /// The document.
        address: DocumentAddress,
    },
    /// A transaction asked for one document with tokens of two versions.
    #[error("document {address} is open in this transaction at version {open} and was asked for at version {asked}")]
    TwoVersions {
        /// The document.
        address: DocumentAddress,
        /// The version of the first token.
        open: u32,
        /// The version of the other one.
        asked: u32,
    },
    /// A commit that was made elsewhere breaks a rule that a transaction here keeps by itself.
    #[error("a commit from elsewhere can't be taken: {why}")]
    Replay {
        /// The rule, and what breaks it.
        why: String,
    },
    /// A setup of a conversation makes conversations whose setups make further ones.
    #[error("setups of conversations make further conversations {depth} deep; let a setup make no conversation of its own kind")]
    SetupDepth {
        /// How deep.
        depth: u32,
    },
    /// The creation of a conversation was dropped or failed before its setups had run.
    #[error("a conversation was not set up to its end; await its creation and pass its error on")]
    SetupUnfinished,
    /// The counter of ids reached 2^53-1.
    #[error("the session has no ids left")]
    IdsExhausted,
}
