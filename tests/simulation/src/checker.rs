//! The invariants that hold after every commit (`docs/invariants.md`), checked on what was written and on nothing else.

mod documents;
mod invocations;
mod tasks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use picofleet_harness::kinds::COMPACTED;
use picofleet_session::storage::{Batch, Commit, Head, Write};
use picofleet_session::{
    CommitToken, ConversationId, ConversationRecord, EntryRecord, InvocationId, InvocationRow, Seq, SessionId, SubmissionId,
    SubmissionRecord, TaskId, TaskRecord, TaskState,
};
use tokio::time::Instant;

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
    /// The newest commit or fence.
    head: Option<(Seq, CommitToken)>,
    next_id: i64,
    pub(crate) conversations: BTreeMap<ConversationId, ConversationRecord>,
    pub(crate) entries: BTreeMap<ConversationId, Vec<Arc<EntryRecord>>>,
    pub(crate) tasks: BTreeMap<TaskId, Arc<TaskRecord>>,
    pub(crate) submissions: BTreeMap<SubmissionId, Arc<SubmissionRecord>>,
    /// The last row of each task.
    pub(crate) invocations: BTreeMap<TaskId, InvocationRow>,
    /// The invocations that hold a task.
    holders: BTreeMap<TaskId, InvocationId>,
    /// The invocations that have decided the end of their hold, and may still say that their phase ended.
    ending: BTreeMap<TaskId, InvocationId>,
    /// When tasks became terminal.
    ended: BTreeMap<TaskId, Instant>,
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
        let mut seq = model.head.map_or(Seq(0), |(seq, _)| seq);
        let mut unlinked = Vec::new();
        model.follow(batch, head, &mut unlinked);
        inner.violations.extend(unlinked);
        for commit in &batch.commits {
            inner.commits += 1;
            seq = seq.next();
            let mut found = Vec::new();
            model.commit(commit, &mut found);
            for violation in found {
                if inner.violations.len() < KEPT {
                    inner.violations.push(format!("commit {} of {session}: {violation}", seq.0));
                }
            }
        }
    }

    /// Takes a fence that was set.
    pub(crate) fn fenced(&self, session: SessionId, head: &Head) {
        let mut inner = self.lock();
        let model = inner.sessions.entry(session).or_default();
        let before = model.head.map_or(Seq(0), |(seq, _)| seq);
        model.head = Some((head.seq, head.token));
        if head.seq != before.next() {
            inner.violations.push(format!("the fence {} of {session} does not follow {}", head.seq.0, before.0));
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

    /// How long ago a task became terminal.
    #[must_use]
    pub(crate) fn over_for(&self, session: SessionId, task: TaskId) -> Option<Duration> {
        self.lock().sessions.get(&session)?.ended.get(&task).map(Instant::elapsed)
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
    /// A batch stands on the newest commit or fence, and each of its commits takes one sequence: nothing is left out.
    fn follow(&mut self, batch: &Batch, head: &Head, found: &mut Vec<String>) {
        let (before, now) = (self.head.replace((head.seq, head.token)), head.seq.0);
        if before != Some(batch.expect) {
            found.push(format!("the batch up to {now} stands on {:?}, and the newest commit is {before:?}", batch.expect));
        }
        let count = i64::try_from(batch.commits.len()).unwrap_or(i64::MAX);
        if before.is_none_or(|(seq, _)| seq.0 + count != now) {
            found.push(format!("{count} commits up to {now} behind {before:?}"));
        }
    }

    fn commit(&mut self, commit: &Commit, found: &mut Vec<String>) {
        if commit.next_id < self.next_id {
            found.push(format!("the next id went back from {} to {}", self.next_id, commit.next_id));
        }
        self.next_id = commit.next_id;
        let before = self.before(commit);
        for write in &commit.writes {
            self.write(write, found);
        }
        self.check_invocations(&before, commit, found);
        self.check_live(commit.at, found);
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
                if record.terminal() {
                    self.ended.entry(record.id).or_insert_with(Instant::now);
                }
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
            Write::DocumentCreate { create, value, .. } => self.documents.create(create, Some(value.clone())),
            Write::DocumentCopy(copy) => self.documents.create(&copy.create, None),
            Write::DocumentChange { id, content } => self.documents.change(*id, content, found),
            Write::DocumentRetire(id) => self.documents.retire(*id),
            // Rows of invocations are judged by what the whole commit leaves.
            Write::Invocation(_) | Write::Request(_) | Write::Outbox(_) | Write::Wake(_) => {}
        }
    }
}
