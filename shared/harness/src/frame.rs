//! What subscribers of one conversation see of a commit (`design.md` 8): made from the publication, applied by the subscriber.

use std::sync::Arc;

use imbl::OrdMap;
use picofleet_session::{
    ConversationId, DocumentChange, DocumentScope, EntryRecord, Json, Publication, SubmissionRecord, TaskId, TaskRecord, TaskState,
    ValueChange, ops_to_json,
};
use serde::{Deserialize, Serialize};

use crate::view::mounted;
use crate::wire::Point;

/// One commit, restricted to one conversation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// The commit.
    pub at: Point,
    /// The conversation's frame before it; a later one than the subscriber has means that something is missing.
    pub previous: Option<Point>,
    /// New entries, in the order of their ids.
    pub entries: Vec<Arc<EntryRecord>>,
    /// Submissions that changed.
    pub submissions: Vec<Arc<SubmissionRecord>>,
    /// Tasks of the conversation that changed, with their checkpoints and outcomes.
    pub tasks: Vec<Arc<TaskRecord>>,
    /// Those of them that are new.
    #[serde(default)]
    pub created: Vec<TaskId>,
    /// Those of them whose outcome this commit decided, held ones too (section 5.5).
    #[serde(default)]
    pub decided: Vec<TaskId>,
    /// The built-in documents by kind. Those of applications are no part of a frame: they are watched by themselves (section 9.2).
    pub documents: Vec<(String, DocumentFrame)>,
}

/// What a commit did to a document.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum DocumentFrame {
    /// Its whole value.
    Value(Json),
    /// Operations on the value before.
    Ops(Json),
    /// It is gone.
    Retired,
    /// It is new, and its value is in storage only: who follows the document takes a snapshot.
    Stored,
}

/// What stood before a commit, for what a frame says about tasks.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// The conversation's frame before.
    pub previous: Option<Point>,
    /// The first id that the commit could mint.
    pub next_id: i64,
    /// The live tasks.
    pub live: &'a OrdMap<TaskId, TaskRecord>,
}

impl Before<'_> {
    fn created(&self, task: &TaskRecord) -> bool {
        task.id.get() >= self.next_id
    }

    fn decided(&self, task: &TaskRecord) -> bool {
        let ends = |state: &TaskState| matches!(state, TaskState::Completing { .. } | TaskState::Terminal { .. });
        let open = self.created(task) || self.live.get(&task.id).is_some_and(|before| !ends(&before.state));
        open && ends(&task.state)
    }
}

/// The frame of a commit; `None` where the commit has nothing of the conversation.
#[must_use]
pub fn frame(publication: &Publication, conversation: ConversationId, before: Before<'_>) -> Option<Frame> {
    let scope = DocumentScope::Conversation { id: conversation };
    let documents = publication.documents.iter().filter(|change| {
        let document = &change.document;
        document.placement.scope() == scope && document.key.is_none() && mounted().contains(&document.kind.as_str())
    });
    let documents: Vec<_> = documents.filter_map(|change| Some((change.document.kind.clone(), document(change)?))).collect();
    let tasks: Vec<_> = publication.tasks.iter().filter(|task| task.conversation_id == conversation).cloned().collect();
    let frame = Frame {
        at: Point(publication.head.seq, publication.head.token),
        previous: before.previous,
        entries: publication.entries.iter().filter(|entry| entry.conversation_id == conversation).cloned().collect(),
        submissions: publication.submissions.iter().filter(|record| record.conversation_id == conversation).cloned().collect(),
        created: tasks.iter().filter(|task| before.created(task)).map(|task| task.id).collect(),
        decided: tasks.iter().filter(|task| before.decided(task)).map(|task| task.id).collect(),
        tasks,
        documents,
    };
    let touched = !frame.entries.is_empty() || !frame.submissions.is_empty() || !frame.tasks.is_empty() || !frame.documents.is_empty();
    touched.then_some(frame)
}

fn document(change: &DocumentChange) -> Option<DocumentFrame> {
    if change.retired {
        return Some(DocumentFrame::Retired);
    }
    match change.value.as_ref()? {
        ValueChange::Created { value, .. } | ValueChange::Changed { value, migrated: true, .. } => {
            Some(DocumentFrame::Value(value.clone()))
        }
        ValueChange::Changed { ops, .. } if ops.is_empty() => None,
        ValueChange::Changed { ops, .. } => Some(DocumentFrame::Ops(ops_to_json(ops))),
        ValueChange::Copied { .. } => Some(DocumentFrame::Stored),
    }
}

/// A frame that does not stand on what the subscriber has: it takes a snapshot again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame does not fit {what}: {why}")]
pub struct FrameError {
    /// What it does not fit: a document, the entries, or the frame before.
    pub what: String,
    /// What is wrong.
    pub why: String,
}
