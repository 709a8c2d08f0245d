//! What subscribers of one conversation see of a commit (`design.md` 8): made from the publication, applied by the subscriber.

use std::collections::BTreeMap;
use std::sync::Arc;

use picofleet_session::{
    ConversationId, DocumentScope, EntryRecord, Json, Publication, SubmissionRecord, TaskRecord, ValueChange, apply, ops_from_json,
    ops_to_json,
};
use serde::{Deserialize, Serialize};

use crate::wire::Point;

/// One commit, restricted to one conversation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// The commit.
    pub at: Point,
    /// The conversation's frame before it; another one than the subscriber has means that something is missing.
    pub previous: Option<Point>,
    /// New entries.
    pub entries: Vec<Arc<EntryRecord>>,
    /// Submissions that changed.
    pub submissions: Vec<Arc<SubmissionRecord>>,
    /// Tasks of the conversation that changed.
    pub tasks: Vec<Arc<TaskRecord>>,
    /// Documents by kind; families are not part of a frame.
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
}

/// The frame of a commit; `None` where the commit has nothing of the conversation.
#[must_use]
pub fn frame(publication: &Publication, conversation: ConversationId, previous: Option<Point>) -> Option<Frame> {
    let scope = DocumentScope::Conversation { id: conversation };
    let documents =
        publication.documents.iter().filter(|change| change.document.placement.scope() == scope && change.document.key.is_none());
    let documents: Vec<_> = documents.filter_map(|change| Some((change.document.kind.clone(), document(change)?))).collect();
    let frame = Frame {
        at: Point(publication.head.seq, publication.head.token),
        previous,
        entries: publication.entries.iter().filter(|entry| entry.conversation_id == conversation).cloned().collect(),
        submissions: publication.submissions.iter().filter(|record| record.conversation_id == conversation).cloned().collect(),
        tasks: publication.tasks.iter().filter(|task| task.conversation_id == conversation).cloned().collect(),
        documents,
    };
    let touched = !frame.entries.is_empty() || !frame.submissions.is_empty() || !frame.tasks.is_empty() || !frame.documents.is_empty();
    touched.then_some(frame)
}

fn document(change: &picofleet_session::DocumentChange) -> Option<DocumentFrame> {
    if change.retired {
        return Some(DocumentFrame::Retired);
    }
    match change.value.as_ref()? {
        ValueChange::Created { value, .. } | ValueChange::Changed { value, migrated: true, .. } => {
            Some(DocumentFrame::Value(value.clone()))
        }
        ValueChange::Changed { ops, .. } if ops.is_empty() => None,
        ValueChange::Changed { ops, .. } => Some(DocumentFrame::Ops(ops_to_json(ops))),
        // The value is in storage only; who needs it takes a snapshot.
        ValueChange::Copied { .. } => None,
    }
}

/// The documents of a conversation as a subscriber follows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Documents {
    values: BTreeMap<String, Json>,
}

/// A frame that does not stand on what the subscriber has: it takes a snapshot again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame does not fit document {kind}: {why}")]
pub struct FrameError {
    /// The document.
    pub kind: String,
    /// What is wrong.
    pub why: String,
}

impl Documents {
    /// A snapshot's documents.
    #[must_use]
    pub fn new(values: impl IntoIterator<Item = (String, Json)>) -> Self {
        Self { values: values.into_iter().collect() }
    }

    /// The value of a document.
    #[must_use]
    pub fn get(&self, kind: &str) -> Option<&Json> {
        self.values.get(kind)
    }

    /// Follows a frame.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn advance(&mut self, frame: &Frame) -> Result<(), FrameError> {
        for (kind, change) in &frame.documents {
            let error = |why: String| FrameError { kind: kind.clone(), why };
            match change {
                DocumentFrame::Value(value) => {
                    self.values.insert(kind.clone(), value.clone());
                }
                DocumentFrame::Retired => {
                    self.values.remove(kind);
                }
                DocumentFrame::Ops(ops) => {
                    let ops = ops_from_json(ops).map_err(|e| error(e.to_string()))?;
                    let value = apply(self.values.get(kind), &ops).map_err(|e| error(e.to_string()))?;
                    self.values.insert(kind.clone(), value);
                }
            }
        }
        Ok(())
    }
}
