//! The invariants that hold after every commit (`docs/invariants.md`), checked on what was written and on nothing else.

mod documents;
mod tasks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_harness::kinds::COMPACTED;
use picofleet_session::storage::{Batch, Commit, Head, Write};
use picofleet_session::{
    ConversationId, ConversationRecord, EntryRecord, InvocationRow, Seq, SessionId, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
    TaskState,
};

use documents::Documents;

/// How many violations of one run are kept.
const KEPT: usize = 20;

/// Follows the commits of all sessions. Clones are one checker.
#[derive(Clone, Default)]
pub(crate) struct Checker(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    sessions: BTreeMap<SessionId, Model>,
    violations: Vec<String>,
    commits: u64,
}

/// What one session's commits say.
#[derive(Default)]
pub(crate) struct Model {
    seq: Option<Seq>,
    next_id: i64,
    pub(crate) conversations: BTreeMap<ConversationId, ConversationRecord>,
    pub(crate) entries: BTreeMap<ConversationId, Vec<Arc<EntryRecord>>>,
    pub(crate) tasks: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(crate) submissions: BTreeMap<SubmissionId, Arc<SubmissionRecord>>,
    pub(crate) invocations: BTreeMap<TaskId, InvocationRow>,
    pub(crate) documents: Documents,
    /// Tasks that this commit lets hold their outcome.
    held: Vec<TaskId>,
}

impl Checker {
    /// Takes a batch that was written.
    pub(crate) fn written(&self, session: SessionId, batch: &Batch, head: &Head) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let model = inner.sessions.entry(session).or_default();
        let first = head.seq.0 - i64::try_from(batch.commits.len()).unwrap_or(0) + 1;
        for (index, commit) in batch.commits.iter().enumerate() {
            inner.commits += 1;
            let seq = Seq(first + i64::try_from(index).unwrap_or(0));
            let mut found = Vec::new();
            model.commit(seq, commit, &mut found);
            for violation in found {
                if inner.violations.len() < KEPT {
                    inner.violations.push(format!("commit {} of {session}: {violation}", seq.0));
                }
            }
        }
    }

    /// Takes note of a broken rule that somebody else saw.
    pub(crate) fn broken(&self, violation: String) {
        let mut inner = self.lock();
        if inner.violations.len() < KEPT {
            inner.violations.push(violation);
        }
    }

    /// The committed record of a task.
    #[must_use]
    pub(crate) fn task(&self, session: SessionId, task: TaskId) -> Option<Arc<TaskRecord>> {
        self.lock().sessions.get(&session)?.tasks.get(&task).cloned()
    }

    /// The live tasks of a session.
    #[must_use]
    pub(crate) fn live(&self, session: SessionId) -> Vec<Arc<TaskRecord>> {
        let inner = self.lock();
        let tasks = inner.sessions.get(&session).into_iter().flat_map(|model| model.tasks.values());
        tasks.filter(|task| !task.terminal()).cloned().collect()
    }

    /// Submissions that are not settled.
    #[must_use]
    pub(crate) fn open_submissions(&self, session: SessionId) -> Vec<Arc<SubmissionRecord>> {
        let inner = self.lock();
        let submissions = inner.sessions.get(&session).into_iter().flat_map(|model| model.submissions.values());
        submissions.filter(|submission| !submission.settled()).cloned().collect()
    }

    /// The conversations of a session.
    #[must_use]
    pub(crate) fn conversations(&self, session: SessionId) -> Vec<ConversationId> {
        self.lock().sessions.get(&session).map(|model| model.conversations.keys().copied().collect()).unwrap_or_default()
    }

    /// How many commits were seen.
    #[must_use]
    pub(crate) fn commits(&self) -> u64 {
        self.lock().commits
    }

    /// What was broken.
    #[must_use]
    pub(crate) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Model {
    fn commit(&mut self, seq: Seq, commit: &Commit, found: &mut Vec<String>) {
        // Fences are commits, too, and are not seen here: sequences rise, and storage refuses gaps.
        if self.seq.is_some_and(|before| seq <= before) {
            found.push(format!("sequence {} after {:?}", seq.0, self.seq));
        }
        self.seq = Some(seq);
        if commit.next_id < self.next_id {
            found.push(format!("the next id went back from {} to {}", self.next_id, commit.next_id));
        }
        self.next_id = commit.next_id;
        for write in &commit.writes {
            self.write(write, found);
        }
        self.check_tasks(commit, found);
        self.check_documents(found);
    }

    fn write(&mut self, write: &Write, found: &mut Vec<String>) {
        match write {
            Write::Conversation(record) => {
                if self.conversations.insert(record.id, record.clone()).is_some() {
                    found.push(format!("conversation {} was made twice", record.id));
                }
            }
            Write::Entry(record) => {
                let entries = self.entries.entry(record.conversation_id).or_default();
                if entries.last().is_some_and(|last| last.id >= record.id) {
                    found.push(format!("entry {} is not behind the last one of conversation {}", record.id, record.conversation_id));
                }
                let start = entries.iter().rev().find_map(|entry| entry.head);
                if record.kind == COMPACTED.kind && record.head < start {
                    found.push(format!("summary {} cuts at {:?}, and the context began at {start:?}", record.id, record.head));
                }
                entries.push(Arc::clone(record));
            }
            Write::Task(record) => {
                let before = self.tasks.insert(record.id, Arc::clone(record));
                let held = |record: &TaskRecord| matches!(record.state, TaskState::Completing { .. });
                if held(record) && !before.as_deref().is_some_and(held) {
                    self.held.push(record.id);
                }
                if let Some(before) = before {
                    tasks::check_replacement(&before, record, found);
                }
            }
            Write::Submission(record) => {
                let before = self.submissions.insert(record.id, Arc::clone(record));
                if let Some(before) = before
                    && before.settled()
                    && before.status() != record.status()
                {
                    found.push(format!("submission {} was settled twice: {:?}, then {:?}", record.id, before.state, record.state));
                }
            }
            Write::Invocation(row) => {
                self.invocations.insert(row.task_id, InvocationRow::clone(row));
            }
            Write::DocumentCreate { create, value, .. } => self.documents.create(create, Some(value.clone())),
            Write::DocumentCopy(copy) => self.documents.create(&copy.create, None),
            Write::DocumentChange { id, content } => self.documents.change(*id, content, found),
            Write::DocumentRetire(id) => self.documents.retire(*id),
            Write::Request(_) | Write::Outbox(_) | Write::Wake(_) => {}
        }
    }
}
