//! Errors of storage by what a caller can do about them.

use std::sync::Arc;

use crate::{ConversationId, DocumentId, SessionId};

/// What is said to somebody whose store is damaged.
const WHAT_TO_DO: &str = "restore it from a backup, or see with `picofleet doctor` what is wrong, save the sessions that can be read with `picofleet \
                          export` and import them into a new store";

/// The error below, shared, so that every waiter can have it.
pub type Cause = Arc<dyn std::error::Error + Send + Sync>;

/// Why storage did not do it.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// Nothing was written; the session goes on.
    #[error(transparent)]
    Rejected(#[from] StorageRejected),
    /// Somebody else has the line. The session is over for this owner.
    #[error("session {session} belongs to another owner now; open it again to go on")]
    Fenced {
        /// The session.
        session: SessionId,
    },
    /// Whether the batch landed can't be told. The session is over; opening it again tells.
    #[error("{operation}: whether it was written can't be told; open the session again to see")]
    Uncertain {
        /// What was tried.
        operation: String,
        /// The error below.
        #[source]
        cause: Cause,
    },
    /// A read or an administrative call failed; trying again may help.
    #[error("{operation}: failed")]
    Failed {
        /// What was tried.
        operation: String,
        /// The error below.
        #[source]
        cause: Cause,
    },
    /// There is no such session, or it is being deleted.
    #[error("there is no session {session}")]
    NotFound {
        /// The session.
        session: SessionId,
    },
    /// Opening it failed too often.
    #[error(
        "session {session} is quarantined: it was opened too often without a commit since; look at it with `picofleet inspect {session}`, and \
         once the cause is gone let it be opened again with `picofleet retry --session {session}`"
    )]
    Quarantined {
        /// The session.
        session: SessionId,
    },
    /// A read names a conversation that is not there.
    #[error("there is no conversation {conversation}")]
    UnknownConversation {
        /// The conversation.
        conversation: ConversationId,
    },
    /// A past point of a document that keeps only its newest value.
    #[error("document {document} does not retain historical content; ask for its current value")]
    NoHistory {
        /// The document.
        document: DocumentId,
    },
    /// A cursor of another scan or another store.
    #[error("the cursor {cursor} is not one of this scan; start the scan again without a cursor")]
    BadCursor {
        /// The cursor.
        cursor: String,
    },
    /// Stored data contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// A newer program wrote the store.
    #[error(
        "{store} has schema version {found}, which needs at least version {compatible_from}; this program knows {known}: use a newer one"
    )]
    SchemaTooNew {
        /// The store.
        store: String,
        /// Its version.
        found: u32,
        /// The oldest version that may use it.
        compatible_from: u32,
        /// This program's version.
        known: u32,
    },
    /// Another process uses the store.
    #[error("{store} is in use by another process{}; stop it or use another store", holder(*.pid))]
    InUse {
        /// The store.
        store: String,
        /// The other process, where it is known.
        pid: Option<u32>,
    },
    /// It was closed.
    #[error("the storage is closed")]
    Closed,
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" ({pid})"))
}

impl StorageError {
    /// The backend went away while it had a batch.
    #[must_use]
    pub fn lost() -> Self {
        let cause = std::io::Error::new(std::io::ErrorKind::BrokenPipe, "the backend ended before it answered");
        Self::Uncertain { operation: "commit".to_owned(), cause: Arc::new(cause) }
    }

    /// Whether what is stored is damaged, so that trying again meets the same.
    #[must_use]
    pub const fn damaged(&self) -> bool {
        match self {
            Self::Corrupt(_) => true,
            Self::Rejected(rejected) => matches!(rejected.reason, Rejection::Damaged { .. }),
            _ => false,
        }
    }

    /// A failed read or administrative call.
    #[must_use]
    pub fn failed(operation: impl Into<String>, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Failed { operation: operation.into(), cause: Arc::new(cause) }
    }
}

/// A batch was refused before any durable effect: it did not and will not land (section 10).
#[derive(Clone, Debug, thiserror::Error)]
#[error("storage refused the batch: {reason}")]
pub struct StorageRejected {
    /// Why.
    pub reason: Rejection,
    /// The error below, if any.
    #[source]
    pub cause: Option<Cause>,
}

impl From<Rejection> for StorageRejected {
    fn from(reason: Rejection) -> Self {
        Self { reason, cause: None }
    }
}

impl From<Rejection> for StorageError {
    fn from(reason: Rejection) -> Self {
        Self::Rejected(reason.into())
    }
}

/// Why a batch was refused.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Rejection {
    /// A new record has the id of another one.
    #[error("ID {id} already belongs to {owner}")]
    IdTaken {
        /// The id.
        id: i64,
        /// What has it: `conversation`, `entry`, `task`, `submission`, `document`.
        owner: &'static str,
    },
    /// A new record has an id that this commit could not mint.
    #[error("ID {id} of a new {what} is not among those of this commit, {from} to {below}")]
    IdNotMinted {
        /// The id.
        id: i64,
        /// What was to be made.
        what: &'static str,
        /// The first id of the commit.
        from: i64,
        /// The first id of the next commit.
        below: i64,
    },
    /// Something that the batch names is not there.
    #[error("{what} {id} does not exist")]
    Missing {
        /// `task`, `document` and the like.
        what: &'static str,
        /// Its id.
        id: i64,
    },
    /// A task or submission changed what never changes.
    #[error("{what} {id} cannot change {field}")]
    Immutable {
        /// `task` or `submission`.
        what: &'static str,
        /// Its id.
        id: i64,
        /// `conversations`, `owner`, `request ID` and the like.
        field: &'static str,
    },
    /// The conversation has a submission with this key.
    #[error("request ID {request_id:?} already identifies submission {submission}")]
    RequestTaken {
        /// The key.
        request_id: String,
        /// The submission that has it.
        submission: i64,
    },
    /// A second current incarnation at one address.
    #[error("{address} already has a current incarnation")]
    AddressTaken {
        /// The address.
        address: String,
    },
    /// Content or retirement for an incarnation that is retired.
    #[error("document {id} is retired")]
    Retired {
        /// The document.
        id: i64,
    },
    /// Two contents, or two retirements, for one incarnation.
    #[error("document {id} has two commands of one kind in a commit")]
    Repeated {
        /// The document.
        id: i64,
    },
    /// A delta of another version than the content it stands on.
    #[error("document {id}: a version transition requires a base (stored {stored}, delta {delta})")]
    VersionTransition {
        /// The document.
        id: i64,
        /// The stored version.
        stored: u32,
        /// The delta's version.
        delta: u32,
    },
    /// A copy whose source is not alive, is changed by the same batch, or is of another kind.
    #[error("document {id} can't be copied from {origin}: {why}")]
    Copy {
        /// The new document.
        id: i64,
        /// The source.
        origin: i64,
        /// Why not.
        why: &'static str,
    },
    /// A base that is no JSON object, a batch without commits and the like.
    #[error("{0}")]
    Malformed(String),
    /// A batch of the session has not settled yet.
    #[error("another batch of the session is in flight")]
    InFlight,
    /// The queue of the backend is full.
    #[error("the storage is overloaded; try again later")]
    Overloaded,
    /// More than the store takes at once, however idle it is.
    #[error("the batch has {bytes} bytes and the storage takes {most} at once; split it into smaller commits")]
    TooLarge {
        /// The batch's size in bytes.
        bytes: usize,
        /// The most that is taken.
        most: usize,
    },
    /// The store is damaged where the batch reads or writes.
    #[error("{store} is corrupt; {WHAT_TO_DO}")]
    Damaged {
        /// The store.
        store: String,
    },
    /// No space left.
    #[error("{store}: the disk is full; free space and try again")]
    DiskFull {
        /// The store.
        store: String,
    },
    /// The store can't be written.
    #[error("{store} is read-only; give this process the right to write it")]
    ReadOnly {
        /// The store.
        store: String,
    },
    /// The store could not be reached and nothing was written.
    #[error("{operation}: the storage failed and nothing was written; try again")]
    Unavailable {
        /// What was tried.
        operation: String,
    },
    /// The session exists already.
    #[error("session {session} exists already")]
    SessionExists {
        /// The session.
        session: SessionId,
    },
    /// A session with this id was deleted and its tombstone stands.
    #[error("session {session} was deleted; use another key")]
    SessionDeleted {
        /// The session.
        session: SessionId,
    },
    /// Exported lines that can't be imported.
    #[error("line {line} can't be imported: {why}")]
    Import {
        /// Which, from 1.
        line: u64,
        /// Why.
        why: String,
    },
}

/// Stored data contradicts itself: absence is never reported for it (section 10).
#[derive(Clone, Debug, thiserror::Error)]
#[error("{store}: {what} is corrupt: {why}; {WHAT_TO_DO}")]
pub struct Corruption {
    /// The store.
    pub store: String,
    /// The record.
    pub what: String,
    /// What is wrong.
    pub why: String,
}
