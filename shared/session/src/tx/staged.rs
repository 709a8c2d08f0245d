//! What a transaction wants to write to tables, and the candidate records that follow from it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::storage::{DocumentCopy, OutboxRow, RequestRow};
use crate::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryRecord, InvocationRow, Millis, SubmissionId,
    SubmissionRecord, TaskId, TaskRecord, TxError,
};

/// Staged table writes. All of it is discarded on rollback.
#[derive(Default)]
pub(super) struct Staged {
    /// A table was written: tables can't be read any more (section 4).
    pub(super) written: bool,
    pub(super) conversations: BTreeMap<ConversationId, ConversationRecord>,
    pub(super) entries: Vec<Arc<EntryRecord>>,
    pub(super) tasks: BTreeMap<TaskId, StagedTask>,
    pub(super) invocations: BTreeMap<TaskId, InvocationRow>,
    pub(super) submissions: BTreeMap<SubmissionId, Arc<SubmissionRecord>>,
    /// Copies that forks make, by the address in the child. A typed access takes one out.
    pub(super) copies: BTreeMap<DocumentAddress, DocumentCopy>,
    /// The documents that forks copy, with the address in the child; they can't be written here (section 3.7).
    pub(super) sources: Vec<(DocumentId, DocumentAddress)>,
    /// The tasks that new conversations and tasks name as their owners.
    pub(super) owners: Vec<TaskId>,
    /// Documents that were retired without being open.
    pub(super) retired: Vec<DocumentRecord>,
    /// Addresses whose incarnation the transaction retired: the next access creates one.
    pub(super) gone: BTreeSet<DocumentAddress>,
    pub(super) requests: Vec<RequestRow>,
    pub(super) outbox: Vec<OutboxRow>,
    pub(super) wake: Option<Option<Millis>>,
    /// Creations of conversations whose setups have not run to their end, and the first error of one.
    pub(super) unfinished: usize,
    pub(super) setup_error: Option<TxError>,
}

/// A task that the transaction creates or replaces.
pub(super) struct StagedTask {
    pub(super) record: Arc<TaskRecord>,
    pub(super) created: bool,
}
