//! Takes the writes of a commit that was made elsewhere into this transaction (`design.md` 1): a closure ran over a `Tx` in a worker, and
//! its writes land here. Whatever a `Tx` checks for its own operations is checked again: the other side is not trusted.

mod documents;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Tx;
use super::staged::StagedTask;
use crate::storage::{DocumentCopy, Write};
use crate::{
    ConversationOwner, ConversationRecord, DocumentContent, DocumentCreate, DocumentId, EntryRecord, InputState, Json,
    ROOT_CONVERSATION_ID, Settlement, SubmissionRecord, SubmissionState, TaskRecord, TaskState, TxError, Violation, WriteState,
};

/// How many ids a commit from elsewhere may use up.
const IDS_MAX: i64 = 1 << 20;

/// What a replay did to documents, for further checks of its caller.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Replayed {
    /// The new documents with their values; those that a fork copies are not among them.
    pub created: Vec<(DocumentCreate, Json)>,
    /// The older documents whose content changed or that ended.
    pub changed: Vec<DocumentCreate>,
}

/// The writes of one commit by their kind.
#[derive(Default)]
struct Sorted {
    /// By id: a record only names older ones.
    records: BTreeMap<i64, Record>,
    entries: BTreeMap<i64, Arc<EntryRecord>>,
    submissions: Vec<Arc<SubmissionRecord>>,
    created: BTreeMap<DocumentId, (DocumentCreate, u32, Json)>,
    copies: Vec<DocumentCopy>,
    changed: BTreeMap<DocumentId, DocumentContent>,
    retired: BTreeSet<DocumentId>,
}

enum Record {
    Conversation(ConversationRecord),
    Task(Arc<TaskRecord>),
}

/// The ids that the commit may give to what it makes.
struct Ids {
    from: i64,
    below: i64,
    claimed: BTreeSet<i64>,
}

fn broken(why: impl Into<String>) -> TxError {
    Violation::Replay { why: why.into() }.into()
}

impl Ids {
    fn new(from: i64, below: i64) -> Result<Self, TxError> {
        if below < from || below - from > IDS_MAX || below > crate::ID_MAX {
            return Err(broken(format!("its next id {below} does not follow {from}")));
        }
        Ok(Self { from, below, claimed: BTreeSet::new() })
    }

    fn claim(&mut self, what: &str, id: i64) -> Result<(), TxError> {
        let (from, below) = (self.from, self.below);
        if !(from..below).contains(&id) {
            return Err(broken(format!("the id {id} of a new {what} is not among {from} to {below}")));
        }
        if self.claimed.insert(id) { Ok(()) } else { Err(broken(format!("two new records have the id {id}"))) }
    }
}

impl Sorted {
    fn new(writes: Vec<Write>) -> Result<Self, TxError> {
        let mut sorted = Self::default();
        for write in writes {
            let again = match write {
                Write::Conversation(record) => sorted.records.insert(record.id.get(), Record::Conversation(record)).is_some(),
                Write::Task(record) => sorted.records.insert(record.id.get(), Record::Task(record)).is_some(),
                Write::Entry(entry) => sorted.entries.insert(entry.id.get(), entry).is_some(),
                Write::Submission(record) => {
                    let again = sorted.submissions.iter().any(|other| other.id == record.id);
                    sorted.submissions.push(record);
                    again
                }
                Write::DocumentCreate { create, version, value } => sorted.created.insert(create.id, (create, version, value)).is_some(),
                Write::DocumentCopy(copy) => {
                    sorted.copies.push(copy);
                    false
                }
                Write::DocumentChange { id, content } => sorted.changed.insert(id, content).is_some(),
                Write::DocumentRetire(id) => !sorted.retired.insert(id),
                Write::Invocation(_) | Write::Request(_) | Write::Outbox(_) | Write::Wake(_) => {
                    return Err(broken("it writes what only the line writes"));
                }
            };
            if again {
                return Err(broken("it writes one record twice"));
            }
        }
        Ok(sorted)
    }
}

impl Tx {
    /// Takes a commit from elsewhere into this transaction: its `writes`, and the next id that it would have minted. It was made on the
    /// state that this transaction began with, where [`Tx::next_id`] was where its own ids begin.
    ///
    /// Taken are new conversations, forks with their copies, entries of the bound task, new tasks, settlements and places of submissions,
    /// and documents. Not taken are replacements of tasks, new submissions, and rows that only the line writes. Setups of conversations do
    /// not run again.
    ///
    /// # Errors
    /// [`Violation::Replay`] and whatever the operations of a transaction answer to what breaks their rules. Pass it on: some of the writes
    /// are staged already, and the transaction must roll back.
    pub async fn replay(&self, writes: Vec<Write>, next_id: i64) -> Result<Replayed, TxError> {
        let mut ids = Ids::new(self.next_id(), next_id)?;
        // Before anything else: what fails from here on has used the ids up, as any transaction that rolls back.
        self.state().line.skip_ids(next_id);
        let Sorted { records, entries, submissions, created, copies, changed, retired } = Sorted::new(writes)?;
        let mut forks = documents::Forks::default();
        for record in records.into_values() {
            match record {
                Record::Conversation(record) => self.replay_conversation(&mut ids, &mut forks, record).await?,
                Record::Task(record) => self.replay_task(&mut ids, record).await?,
            }
        }
        for entry in entries.into_values() {
            self.replay_entry(&mut ids, entry).await?;
        }
        for record in submissions {
            self.replay_submission(record).await?;
        }
        self.replay_documents(&mut ids, &forks, documents::Writes { created, copies, changed, retired }).await
    }

    async fn replay_conversation(&self, ids: &mut Ids, forks: &mut documents::Forks, record: ConversationRecord) -> Result<(), TxError> {
        if record.id == ROOT_CONVERSATION_ID {
            if self.candidate_conversation(record.id).await?.is_some() {
                return Err(Violation::RootExists.into());
            }
            if record.parent.is_some() || record.owner.is_some() {
                return Err(broken("the root conversation has neither parent nor owner"));
            }
        } else {
            ids.claim("conversation", record.id.get())?;
        }
        if let Some(ConversationOwner { conversation_id, task_id }) = record.owner {
            let task = self.candidate_task(task_id).await?.ok_or(Violation::UnknownTask { task: task_id })?;
            if task.conversation_id != conversation_id {
                return Err(broken(format!("conversation {} names another conversation of its owner", record.id)));
            }
            self.state().staged.owners.push(task_id);
        }
        if let Some(at) = record.parent {
            let sources = self.fork_points(at.conversation_id, at.at).await?;
            forks.expect(&mut self.state().staged.sources, record.id, sources);
        }
        self.state().staged.add_conversation(record);
        Ok(())
    }

    async fn replay_task(&self, ids: &mut Ids, record: Arc<TaskRecord>) -> Result<(), TxError> {
        let task = record.id;
        if self.candidate_task(task).await?.is_some() {
            return Err(Violation::TaskChanged { task, field: "in a commit from elsewhere" }.into());
        }
        ids.claim("task", task.get())?;
        let fresh = matches!(record.state, TaskState::Pending { .. })
            && !record.abort_requested
            && record.memos.is_none()
            && record.restarts == 0
            && record.started_at.is_none()
            && record.ended_at.is_none();
        if !fresh {
            return Err(broken(format!("the new task {task} is not as a task is created")));
        }
        match record.owner {
            Some(owner) => {
                let expected = self.candidate_task(owner).await?.ok_or(Violation::UnknownTask { task: owner })?.conversation_id;
                if record.conversation_id != expected {
                    return Err(Violation::ChildConversation { expected, found: record.conversation_id }.into());
                }
                if record.background {
                    return Err(Violation::BackgroundChild.into());
                }
                self.state().staged.owners.push(owner);
            }
            None => {
                self.existing_conversation(record.conversation_id).await?;
            }
        }
        let mut state = self.state();
        state.staged.written = true;
        state.staged.tasks.insert(task, StagedTask { record, created: true });
        Ok(())
    }

    async fn replay_entry(&self, ids: &mut Ids, entry: Arc<EntryRecord>) -> Result<(), TxError> {
        ids.claim("entry", entry.id.get())?;
        self.existing_conversation(entry.conversation_id).await?;
        if entry.by_task_id != self.bound().task {
            return Err(broken(format!("entry {} names another task as its author", entry.id)));
        }
        let mut state = self.state();
        state.staged.written = true;
        state.staged.entries.push(entry);
        Ok(())
    }

    /// A submission may go on as [`Tx::place_submission`] and [`Tx::settle_submission`] let it.
    async fn replay_submission(&self, record: Arc<SubmissionRecord>) -> Result<(), TxError> {
        let submission = record.id;
        let before = self.candidate_submission(submission).await?.ok_or(Violation::UnknownSubmission { submission })?;
        let (entry, settlement) = progress(&record.state);
        let placed = entry.and_then(|entry| before.place(entry));
        let goes_on = std::iter::once(SubmissionRecord::clone(&before)).chain(placed).any(|from| {
            let settled = settlement.clone().and_then(|settlement| from.settle(settlement));
            from == *record || settled.is_some_and(|settled| settled == *record)
        });
        if !goes_on {
            return Err(broken(format!("submission {submission} can't become that")));
        }
        self.state().staged.put_submission(record);
        Ok(())
    }
}

/// Where a submission's entry is, and how it ended.
fn progress(state: &SubmissionState) -> (Option<crate::EntryId>, Option<Settlement>) {
    let unanswered = |reason: &String, detail: &Option<Json>| Settlement::Unanswered { reason: reason.clone(), detail: detail.clone() };
    match state {
        SubmissionState::Input(InputState::Queued) | SubmissionState::Write(WriteState::Queued) => (None, None),
        SubmissionState::Input(InputState::Placed { entry }) | SubmissionState::Write(WriteState::Done { entry }) => (Some(*entry), None),
        SubmissionState::Input(InputState::Done { entry, answer }) => (Some(*entry), Some(Settlement::Done { answer: *answer })),
        SubmissionState::Input(InputState::Unanswered { entry, reason, detail }) => (*entry, Some(unanswered(reason, detail))),
        SubmissionState::Write(WriteState::Unanswered { reason, detail }) => (None, Some(unanswered(reason, detail))),
    }
}
