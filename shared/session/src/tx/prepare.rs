//! The end of a transaction: from drafts and staged writes to one batch, and from the stored batch to committed state (section 3.4).

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use picofleet_delta::{Prepared as PreparedChange, Tracker};
use tokio::sync::OwnedMutexGuard;

use super::documents::{Origin, Slot};
use super::staged::Staged;
use super::{State, Tx};
use crate::error::CommitError;
use crate::line::{Line, Loaded};
use crate::storage::{Batch, Commit, Head, Write};
use crate::{
    CheckpointInfo, CommitToken, DocumentContent, DocumentCreate, DocumentId, DocumentRecord, DocumentScope, Fork, Millis, Placement,
    Publication, Seq, SessionId, TaskState, TxError, ValueChange, Violation,
};

/// A transaction whose callback succeeded: everything is decided, nothing is stored.
pub(crate) struct Prepared {
    line: OwnedMutexGuard<Line>,
    now: Millis,
    staged: Staged,
    documents: Vec<Document>,
}

/// An open document at the end of its transaction.
struct Document {
    create: DocumentCreate,
    version: u32,
    tracker: Tracker,
    prepared: PreparedChange,
    /// The committed record; `None` for a new one.
    record: Option<DocumentRecord>,
    stored_version: u32,
    deltas_since_base: u32,
    store: Store,
    retired: bool,
}

/// What of a document's value is stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Nothing,
    Create,
    Base,
    Delta,
}

impl Tx {
    /// Decides everything. Reads storage only for owners, and for the documents of ended tasks, that are not in memory.
    pub(crate) async fn prepare(self) -> Result<Prepared, CommitError> {
        let checked = async {
            self.check_set_up()?;
            self.check_owners().await?;
            self.retire_task_documents().await
        };
        if let Err(error) = checked.await {
            self.roll_back();
            return Err(error.into());
        }
        let now = self.now;
        let (State { mut line, staged, .. }, slots) = self.into_parts();
        let mut documents = Vec::with_capacity(slots.len());
        for slot in slots {
            match Document::decide(*slot) {
                Ok(document) => documents.push(document),
                // The rest only loses its place in memory; the next access reads it again.
                Err(error) => {
                    keep_committed(&mut line, documents);
                    return Err(error);
                }
            }
        }
        let prepared = Prepared { line, now, staged, documents };
        match prepared.check_fork_sources() {
            Ok(()) => Ok(prepared),
            Err(violation) => {
                prepared.roll_back();
                Err(violation.into())
            }
        }
    }

    /// Discards everything; what was committed stays in memory.
    pub(crate) fn roll_back(self) {
        let (mut state, slots) = self.into_parts();
        for slot in slots {
            let Slot { rules, origin, tracker, .. } = *slot;
            if let Origin::Loaded { record, stored_version, deltas_since_base } = origin {
                state.line.keep_document(Loaded { record, stored_version, version: rules.version, deltas_since_base, tracker });
            }
        }
    }

    #[expect(clippy::vec_box, reason = "the slots stood in an append-only list of boxes")]
    fn into_parts(self) -> (State, Vec<Box<Slot>>) {
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        (state, self.slots.into_vec())
    }

    /// Judges the owners of new tasks and conversations on their final records (section 3.3).
    async fn check_owners(&self) -> Result<(), TxError> {
        let owners = self.state().staged.owners.clone();
        for task in owners {
            let owner = self.candidate_task(task).await?.ok_or(Violation::UnknownTask { task })?;
            let state = match owner.state {
                TaskState::Terminal { .. } => "terminal",
                TaskState::Completing { .. } => "completing",
                _ if owner.abort_requested => "abort-marked",
                _ => continue,
            };
            return Err(Violation::OwnerState { task, state }.into());
        }
        Ok(())
    }
}

impl Document {
    /// Ends a draft and decides what is stored of it (section 3.5).
    fn decide(slot: Slot) -> Result<Self, CommitError> {
        let retired = slot.is_retired();
        let Slot { create, rules, origin, tracker, change, .. } = slot;
        let prepared = change.prepare();
        if prepared.value.as_object().is_none() {
            let why = "a document's value is an object".to_owned();
            return Err(crate::DefinitionError::NotJson { call: "a draft", kind: rules.kind, why }.into());
        }
        let version = rules.version;
        let (record, stored_version, deltas_since_base) = match origin {
            Origin::Created => (None, version, 0),
            Origin::Loaded { record, stored_version, deltas_since_base } => (Some(record), stored_version, deltas_since_base),
        };
        let store = if record.is_none() {
            Store::Create
        } else if stored_version != version {
            Store::Base
        } else if prepared.ops.is_empty() {
            Store::Nothing
        } else if rules.checkpoint_when(&prepared.value, &prepared.ops, CheckpointInfo { deltas_since_base })? {
            Store::Base
        } else {
            Store::Delta
        };
        Ok(Self { create, version, tracker, prepared, record, stored_version, deltas_since_base, store, retired })
    }

    fn write(&self) -> Option<Write> {
        let (id, version, value) = (self.create.id, self.version, || self.prepared.value.clone());
        match self.store {
            Store::Nothing => None,
            Store::Create => Some(Write::DocumentCreate { create: self.create.clone(), version, value: value() }),
            Store::Base => Some(Write::DocumentChange { id, content: DocumentContent::Base { version, value: value() } }),
            Store::Delta => {
                let content = DocumentContent::Delta { version, ops: Arc::clone(&self.prepared.ops) };
                Some(Write::DocumentChange { id, content })
            }
        }
    }

    fn change(&self) -> Option<crate::DocumentChange> {
        let value = match self.store {
            Store::Nothing if !self.retired => return None,
            Store::Nothing => None,
            Store::Create => Some(ValueChange::Created { version: self.version, value: self.prepared.value.clone() }),
            Store::Base | Store::Delta => Some(ValueChange::Changed {
                version: self.version,
                base: self.prepared.base.clone(),
                value: self.prepared.value.clone(),
                ops: Arc::clone(&self.prepared.ops),
                migrated: self.stored_version != self.version,
            }),
        };
        Some(crate::DocumentChange { document: self.create.clone(), value, retired: self.retired })
    }

    /// Back to what is committed.
    fn committed(self) -> Option<Loaded> {
        let Self { version, tracker, record, stored_version, deltas_since_base, .. } = self;
        record.map(|record| Loaded { record, stored_version, version, deltas_since_base, tracker })
    }

    /// On to what is committed now: a pointer swap.
    fn adopt(self, seq: Seq) -> Option<Loaded> {
        let Self { create, version, mut tracker, prepared, record, stored_version, deltas_since_base, store, retired } = self;
        // The line lets nobody else change the tracker, so that the change can't be stale; a document that is not adopted is read again.
        if retired || tracker.adopt(prepared).is_err() {
            return None;
        }
        let (stored_version, deltas_since_base) = match store {
            Store::Nothing => (stored_version, deltas_since_base),
            Store::Create | Store::Base => (version, 0),
            Store::Delta => (stored_version, deltas_since_base.saturating_add(1)),
        };
        let record = record.unwrap_or(DocumentRecord { create, created_at: seq, retired_at: None });
        Some(Loaded { record, stored_version, version, deltas_since_base, tracker })
    }
}

impl Prepared {
    /// Refuses a transaction that writes what one of its forks copies (section 3.7).
    fn check_fork_sources(&self) -> Result<(), Violation> {
        let parents: HashSet<_> =
            self.staged.conversations.values().filter_map(|record| record.parent).map(|at| at.conversation_id).collect();
        if parents.is_empty() {
            return Ok(());
        }
        let open = self.documents.iter().filter(|document| document.store != Store::Nothing || document.retired);
        let written: HashSet<DocumentId> = open.map(|document| document.create.id).chain(self.retired_ids()).collect();
        if let Some((_, address)) = self.staged.sources.iter().find(|(source, _)| written.contains(source)) {
            return Err(Violation::ForkSource { address: address.clone() });
        }
        // A new one would have to be copied too, and has no committed value.
        let new = self.documents.iter().filter(|document| document.store == Store::Create).map(|document| &document.create);
        let mut sources = new.filter(|create| match create.placement {
            Placement::Conversation { id, policy } => policy.fork() == Fork::Current && parents.contains(&id),
            Placement::Session | Placement::Task { .. } => false,
        });
        sources.next().map_or(Ok(()), |create| Err(Violation::ForkSource { address: create.address() }))
    }

    fn retired_ids(&self) -> impl Iterator<Item = DocumentId> + '_ {
        self.staged.retired.iter().map(|record| record.create.id)
    }

    /// The batch to store; `None` where the transaction writes nothing.
    pub(crate) fn batch(&self) -> Option<Batch> {
        let writes = self.writes();
        if writes.is_empty() {
            return None;
        }
        let commit = Commit { token: CommitToken::random(), at: self.now, next_id: self.line.next_id(), writes };
        Some(Batch { expect: (self.line.head.seq, self.line.head.token), commits: vec![commit] })
    }

    fn writes(&self) -> Vec<Write> {
        let staged = &self.staged;
        let mut writes: Vec<Write> = Vec::new();
        writes.extend(staged.conversations.values().cloned().map(Write::Conversation));
        writes.extend(staged.entries.iter().cloned().map(Write::Entry));
        writes.extend(staged.tasks.values().map(|task| Write::Task(Arc::clone(&task.record))));
        writes.extend(staged.invocations.values().cloned().map(|row| Write::Invocation(Box::new(row))));
        writes.extend(staged.submissions.values().cloned().map(Write::Submission));
        writes.extend(self.documents.iter().filter_map(Document::write));
        writes.extend(staged.copies.values().cloned().map(Write::DocumentCopy));
        writes.extend(self.documents.iter().filter(|document| document.retired).map(|document| Write::DocumentRetire(document.create.id)));
        writes.extend(self.retired_ids().map(Write::DocumentRetire));
        writes.extend(staged.requests.iter().cloned().map(|row| Write::Request(Box::new(row))));
        writes.extend(staged.outbox.iter().cloned().map(|row| Write::Outbox(Box::new(row))));
        writes.extend(staged.wake.map(Write::Wake));
        writes
    }

    /// Discards everything; what was committed stays in memory.
    pub(crate) fn roll_back(self) {
        let Self { mut line, documents, .. } = self;
        keep_committed(&mut line, documents);
    }

    /// Makes the stored batch the committed state. The line stays held until the publication is handed out.
    pub(crate) fn adopt(self, session: SessionId, head: Head) -> (OwnedMutexGuard<Line>, Publication) {
        let previous = (self.line.head.seq, self.line.head.token);
        let documents = self.document_changes();
        let Self { mut line, staged, documents: open, .. } = self;
        line.head = head;
        for record in staged.conversations.values() {
            line.keep_conversation(record.clone());
        }
        for task in staged.tasks.values() {
            let known =
                if task.created { Some(Vec::new()) } else { line.cached_task(task.record.id).and_then(|task| task.documents.clone()) };
            line.keep_task(Arc::clone(&task.record), known);
        }
        for record in staged.submissions.values() {
            line.keep_submission(Arc::clone(record));
        }
        line.transcripts.follow(&staged.entries);
        for record in &staged.retired {
            line.forget_document(&record.create.address());
            forget_task_document(&mut line, &record.create);
        }
        for document in open {
            settle_document(&mut line, document, head.seq);
        }
        let publication = Publication {
            session,
            head,
            previous,
            conversations: staged.conversations.into_values().collect(),
            entries: staged.entries,
            tasks: staged.tasks.into_values().map(|task| task.record).collect(),
            invocations: staged.invocations.into_values().collect(),
            submissions: staged.submissions.into_values().collect(),
            documents,
        };
        (line, publication)
    }

    fn document_changes(&self) -> Vec<crate::DocumentChange> {
        let copies = self.staged.copies.values().map(|copy| crate::DocumentChange {
            document: copy.create.clone(),
            value: Some(ValueChange::Copied { source: copy.source, at: copy.at }),
            retired: false,
        });
        let retired =
            self.staged.retired.iter().map(|record| crate::DocumentChange { document: record.create.clone(), value: None, retired: true });
        self.documents.iter().filter_map(Document::change).chain(copies).chain(retired).collect()
    }
}

fn keep_committed(line: &mut Line, documents: Vec<Document>) {
    for loaded in documents.into_iter().filter_map(Document::committed) {
        line.keep_document(loaded);
    }
}

/// Puts an open document into the line's memory, or out of it.
fn settle_document(line: &mut Line, document: Document, seq: Seq) {
    let (create, new, retired) = (document.create.clone(), document.record.is_none(), document.retired);
    let loaded = document.adopt(seq);
    if retired {
        forget_task_document(line, &create);
    } else if let (DocumentScope::Task { id }, true) = (create.placement.scope(), new) {
        line.add_task_document(id, DocumentRecord { create, created_at: seq, retired_at: None });
    }
    if let Some(loaded) = loaded {
        line.keep_document(loaded);
    }
}

fn forget_task_document(line: &mut Line, create: &DocumentCreate) {
    if let DocumentScope::Task { id } = create.placement.scope() {
        line.remove_task_document(id, create.id);
    }
}
