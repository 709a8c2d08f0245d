//! Queries of the ordered scans.

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use super::{SessionState, Tenant};
use crate::{ConversationId, DocumentScope, EntryId, Point, SubmissionStatus, TaskId, TaskStatus};

/// Some items of a scan and where the next ones begin.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// For the next call; `None` at the end.
    pub next: Option<Cursor>,
}

/// Where a scan goes on. It belongs to the backend; callers only hand it back to the same scan on the same storage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cursor(pub Json);

/// Which sessions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionQuery {
    /// Of one tenant.
    pub tenant: Option<Tenant>,
    /// With this key.
    pub key: Option<String>,
    /// In this state; sessions that are being deleted are only listed when asked for.
    pub state: Option<SessionState>,
}

/// Which conversations; both filters together are conjunctive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationQuery {
    /// Owned by a task of this conversation.
    pub owner_conversation_id: Option<ConversationId>,
    /// Owned by this task.
    pub owner_task_id: Option<TaskId>,
}

/// Which entries of a conversation's visible history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryQuery {
    /// The conversation whose ancestry is applied.
    pub conversation_id: ConversationId,
    /// The oldest, inclusive.
    pub min_entry_id: Option<EntryId>,
    /// The newest, inclusive.
    pub max_entry_id: Option<EntryId>,
}

impl EntryQuery {
    /// The complete visible history.
    #[must_use]
    pub const fn all(conversation_id: ConversationId) -> Self {
        Self { conversation_id, min_entry_id: None, max_entry_id: None }
    }
}

/// Which tasks by their status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskFilter {
    /// With exactly this status.
    Status(TaskStatus),
    /// Not terminal.
    Live,
}

/// Which tasks; all filters together are conjunctive.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskQuery {
    /// In this conversation.
    pub conversation_id: Option<ConversationId>,
    /// Owned by this task.
    pub owner_task_id: Option<TaskId>,
    /// Of this kind.
    pub kind: Option<String>,
    /// By status.
    pub status: Option<TaskFilter>,
    /// By abort mark.
    pub abort_requested: Option<bool>,
    /// By background.
    pub background: Option<bool>,
}

/// Which submissions; both filters together are conjunctive.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubmissionQuery {
    /// Of this conversation.
    pub conversation_id: Option<ConversationId>,
    /// With this status.
    pub status: Option<SubmissionStatus>,
}

/// Which documents: those alive in exactly this scope.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DocumentQuery {
    /// The scope.
    pub scope: DocumentScope,
    /// When.
    pub at: Point,
    /// Of this kind: the singleton or the members of the family.
    pub kind: Option<String>,
}
