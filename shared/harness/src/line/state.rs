//! How a line's memory follows commits.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use picofleet_session::{InvocationRow, Json, Publication, SubmissionId, SubmissionRecord, TaskId, TaskState};

use super::{Held, State, row};
use crate::inspection::Scheduling;
use crate::ownership::Lineage;
use crate::step::Mode;
use crate::wire::{Answer, Next};

/// How many submissions are kept.
const SUBMISSIONS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(255);

/// Submissions as the last commits left them, so that who waits for one reads no storage.
pub(super) struct Submissions(LruCache<SubmissionId, Arc<SubmissionRecord>>);

impl Default for Submissions {
    fn default() -> Self {
        Self(LruCache::new(SUBMISSIONS))
    }
}

impl State {
    /// A submission as the last commit left it, where that is known.
    pub(super) fn submission(&mut self, id: SubmissionId) -> Option<Arc<SubmissionRecord>> {
        self.submissions.0.get(&id).cloned()
    }

    /// Follows a commit. Runs on the line.
    pub(super) fn observe(&mut self, publication: &Publication) {
        self.watches.observe(publication);
        self.follows.observe(publication, &self.tree.live);
        for submission in &publication.submissions {
            self.submissions.0.put(submission.id, Arc::clone(submission));
        }
        for conversation in &publication.conversations {
            self.tree.own(conversation.id, conversation.owner.map(|owner| owner.task_id));
        }
        for task in &publication.tasks {
            self.tree.place(task.id, Lineage::of(task));
            if let TaskState::Terminal { outcome } = &task.state {
                self.tree.end(task.id, outcome);
                self.held.remove(&task.id);
                self.named.remove(&task.id);
                self.lost.remove(&task.id);
                self.failed.remove(&task.id);
                self.aside.remove(task.id);
            } else {
                // What was refused of the run says nothing of the abort.
                if task.abort_requested && self.tree.live.get(&task.id).is_some_and(|before| !before.abort_requested) {
                    self.aside.remove(task.id);
                }
                self.tree.put(picofleet_session::TaskRecord::clone(task));
            }
        }
        // Behind the tasks: a row stands for what its task is now.
        for row in &publication.invocations {
            self.said(row);
        }
        self.tree.forget();
        self.forget_watches();
    }

    /// Forgets what invocations watched that are over.
    pub(super) fn forget_watches(&mut self) {
        let held = &self.held;
        self.watches.retain(|task, invocation| held.get(&task).is_some_and(|held| held.invocation == invocation));
    }

    /// Takes over what an invocation said, with the commit of it: a repetition that already waits for the line finds it.
    fn said(&mut self, row: &InvocationRow) {
        let Some(record) = self.tree.live.get(&row.task_id) else { return };
        self.named.insert(row.task_id, row.invocation);
        let Some(held) = self.held.get_mut(&row.task_id).filter(|held| held.invocation == row.invocation) else { return };
        held.unstored = None;
        if held.number >= row.number {
            return;
        }
        let (answer, _) = row::kept(row, record);
        if let Some(Answer::Said { next: Some(Next::Continue(_)), .. }) = &answer {
            held.began_at = crate::task::checkpoint(record).cloned().unwrap_or(Json::null());
        }
        held.number = row.number;
        held.last = row.digest.clone().zip(answer);
    }

    /// The tasks that an invocation holds: nobody else may run them.
    pub(super) fn invoked(&self) -> BTreeSet<TaskId> {
        self.held.iter().filter(|(_, held)| !held.expired).map(|(task, _)| *task).collect()
    }

    /// Whether an invocation has to be told to stop.
    pub(super) fn cancelled(&self, task: TaskId, held: &Held) -> bool {
        let marked = self.tree.live.get(&task).is_some_and(|record| record.abort_requested);
        self.scheduling == Scheduling::Closing || (held.mode == Mode::Run && marked)
    }

    /// How often the task's invocations were lost in a row, with the one that a reservation now would end. One that no worker was heard
    /// naming counts none (`protocol.md` 3).
    pub(super) fn restarts(&self, record: &picofleet_session::TaskRecord) -> u32 {
        let lost = self.lost.contains(&record.id) || self.held.get(&record.id).is_some_and(|held| held.expired && held.heard);
        record.restarts.saturating_add(u32::from(lost))
    }
}
