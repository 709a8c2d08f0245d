//! What one commit made visible.

use std::sync::Arc;

use picofleet_delta::{Json, Op};

use crate::storage::Head;
use crate::{
    CommitToken, ConversationRecord, DocumentCreate, DocumentId, EntryRecord, InvocationRow, Point, Seq, SessionId, SubmissionRecord,
    TaskRecord,
};

/// Everything that one commit changed, complete and immutable (section 4).
#[derive(Clone, Debug)]
pub struct Publication {
    /// The session.
    pub session: SessionId,
    /// The commit.
    pub head: Head,
    /// The sequence and token of the commit before it.
    pub previous: (Seq, CommitToken),
    /// New conversations.
    pub conversations: Vec<ConversationRecord>,
    /// New entries, in the order of their ids.
    pub entries: Vec<Arc<EntryRecord>>,
    /// New and replaced tasks.
    pub tasks: Vec<Arc<TaskRecord>>,
    /// What tasks keep of their invocations.
    pub invocations: Vec<InvocationRow>,
    /// New and replaced submissions.
    pub submissions: Vec<Arc<SubmissionRecord>>,
    /// Documents.
    pub documents: Vec<DocumentChange>,
}

/// What one commit did to one document incarnation.
#[derive(Clone, Debug)]
pub struct DocumentChange {
    /// The incarnation: what created it.
    pub document: DocumentCreate,
    /// What happened to its value; `None` where it was only retired.
    pub value: Option<ValueChange>,
    /// It was retired, after the change of its value.
    pub retired: bool,
}

/// What one commit did to a document's value.
#[derive(Clone, Debug)]
pub enum ValueChange {
    /// It is new.
    Created {
        /// The version of its definition.
        version: u32,
        /// Its value.
        value: Json,
    },
    /// It is new, with the value that another document has in storage (section 3.7). Not to be read as a value.
    Copied {
        /// The other document.
        source: DocumentId,
        /// The value is the one at this point.
        at: Point,
    },
    /// It changed.
    Changed {
        /// The version of its definition.
        version: u32,
        /// The value that the operations stand on; after a migration that is the migrated one.
        base: Json,
        /// The new value.
        value: Json,
        /// The operations from `base` to `value`; empty for a version transition that changed nothing more.
        ops: Arc<[Op]>,
        /// The change brought the stored value to a newer version.
        migrated: bool,
    },
}
