//! Invariants of task records (`docs/invariants.md`, T1 to T9).

use std::collections::BTreeSet;

use picofleet_harness::kinds::COMPACTION;
use picofleet_session::storage::{Commit, Write};
use picofleet_session::{ConversationId, TaskId, TaskOutcome, TaskRecord, TaskState};

use super::Model;

/// Restarts without progress, after which a task is parked.
const RESTARTS_MAX: u32 = 5;

/// Faults that the simulation brings about itself: commits that storage refuses, handlers that are lost too often.
const EXPECTED: [&str; 2] = ["bytes", "was lost"];

/// What may become of a record.
pub(super) fn check_replacement(before: &TaskRecord, after: &TaskRecord, found: &mut Vec<String>) {
    let id = before.id;
    if before.terminal() && before.state != after.state {
        found.push(format!("task {id} was terminal and changed"));
    }
    if let (TaskState::Completing { outcome: held }, now) = (&before.state, &after.state) {
        let kept = match now {
            TaskState::Completing { outcome } | TaskState::Terminal { outcome } => outcome == held,
            _ => false,
        };
        if !kept {
            found.push(format!("task {id} held an outcome and gave it up: {now:?}"));
        }
    }
    if let TaskState::Completing { outcome: TaskOutcome::Faulted { error } }
    | TaskState::Terminal { outcome: TaskOutcome::Faulted { error } } = &after.state
        && !matches!(before.state, TaskState::Completing { .. })
        && !EXPECTED.iter().any(|expected| error.message.contains(expected))
    {
        found.push(format!("task {id} of {} faulted: {}", after.kind, error.message));
    }
    if before.abort_requested && !after.abort_requested {
        found.push(format!("task {id} lost its abort mark"));
    }
    if (before.conversation_id, before.owner, before.background) != (after.conversation_id, after.owner, after.background) {
        found.push(format!("task {id} changed its place"));
    }
    if before.started_at.is_some() && before.started_at != after.started_at {
        found.push(format!("task {id} started twice"));
    }
}

impl Model {
    pub(super) fn check_tasks(&mut self, commit: &Commit, found: &mut Vec<String>) {
        for write in &commit.writes {
            if let Write::Task(record) = write {
                self.check_task(record, commit, found);
            }
        }
        // A hold is judged by what the whole commit leaves. One whose work drains later is finished by a commit of its own.
        for task in std::mem::take(&mut self.held) {
            if self.owned_work(task).is_empty() {
                found.push(format!("task {task} begins to hold its outcome, and nothing below it is live"));
            }
        }
    }

    fn check_task(&self, record: &TaskRecord, before: &Commit, found: &mut Vec<String>) {
        let id = record.id;
        if !self.conversations.contains_key(&record.conversation_id) {
            found.push(format!("task {id} is in a conversation that is not there"));
        }
        if let Some(owner) = record.owner {
            match self.tasks.get(&owner) {
                None => found.push(format!("task {id} has an owner that is not there")),
                Some(owner) if owner.conversation_id != record.conversation_id => {
                    found.push(format!("task {id} is not in its owner's conversation"));
                }
                Some(_) => {}
            }
        }
        let waited_for = |other: &&TaskId| self.tasks.get(other).is_some_and(|task| task.kind == COMPACTION && task.owner == record.owner);
        if record.kind == COMPACTION && record.owner.is_some() && self.tasks.keys().filter(waited_for).count() > 1 {
            found.push(format!("the generation {:?} waits for a second compaction", record.owner));
        }
        if record.restarts > RESTARTS_MAX {
            found.push(format!("task {id} was restarted {} times without progress", record.restarts));
        }
        match &record.state {
            TaskState::Running { .. } if !record.abort_requested && self.begins(record, before) && self.below_cancelled(record) => {
                found.push(format!("task {id} of {} begins to run below a cancelled owner", record.kind));
            }
            TaskState::Terminal { .. } => {
                let owned = self.owned_work(id);
                if !owned.is_empty() {
                    found.push(format!("task {id} is terminal and {owned:?} below it are live"));
                }
                if record.ended_at.is_none() {
                    found.push(format!("task {id} is terminal and has no end"));
                }
            }
            _ => {}
        }
        if matches!(record.state, TaskState::Completing { .. } | TaskState::Terminal { .. }) && record.memos.is_some() {
            found.push(format!("task {id} is over and has memos"));
        }
    }

    /// Whether the commit reserves the task.
    fn begins(&self, record: &TaskRecord, commit: &Commit) -> bool {
        let reserved = |write: &Write| matches!(write, Write::Invocation(row) if row.task_id == record.id && row.number == 0);
        commit.writes.iter().any(reserved)
    }

    /// Whether a live owner above has a cancellation intent, without a background task in between that has none (section 5.4).
    fn below_cancelled(&self, record: &TaskRecord) -> bool {
        let mut current = record;
        loop {
            if current.background {
                return false;
            }
            let owner = current.owner.or_else(|| self.conversations.get(&current.conversation_id)?.owner.map(|pair| pair.task_id));
            let Some(above) = owner.and_then(|owner| self.tasks.get(&owner)) else { return false };
            let held = matches!(&above.state, TaskState::Completing { outcome } if !matches!(outcome, TaskOutcome::Completed { .. }));
            if !above.terminal() && (above.abort_requested || held) {
                return true;
            }
            current = above;
        }
    }

    /// The live ordinary owned work of a task, written down a second time (section 5.5).
    pub(crate) fn owned_work(&self, task: TaskId) -> BTreeSet<TaskId> {
        let mut below = BTreeSet::new();
        let mut open = vec![task];
        while let Some(owner) = open.pop() {
            let conversations: Vec<ConversationId> = self
                .conversations
                .values()
                .filter(|conversation| conversation.owner.is_some_and(|pair| pair.task_id == owner))
                .map(|conversation| conversation.id)
                .collect();
            for other in self.tasks.values() {
                let owned = other.owner == Some(owner) || (other.owner.is_none() && conversations.contains(&other.conversation_id));
                if owned && !other.background && below.insert(other.id) {
                    open.push(other.id);
                }
            }
        }
        below.retain(|other| self.tasks.get(other).is_some_and(|other| !other.terminal()));
        below
    }
}
