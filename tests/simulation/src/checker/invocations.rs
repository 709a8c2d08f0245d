//! Invariants of invocations (`docs/invariants.md`, T4, T11 and T12): who holds a task, and who says something about it.

use std::collections::BTreeMap;
use std::sync::Arc;

use picofleet_session::storage::{Commit, Write};
use picofleet_session::{InvocationRow, Millis, TaskId, TaskRecord, TaskState};

use super::Model;

/// No task of the simulation sleeps or waits for its next try for longer, in milliseconds.
const SLEEP_MAX: i64 = 300_000;

/// The records of the tasks of a commit as they were before it.
pub(super) type Before = BTreeMap<TaskId, Arc<TaskRecord>>;

/// The reservation of a task that never ran may be in memory only, until its invocation says something. Behind a mark that may only be that
/// its phase ended.
fn check_first_saying(row: &InvocationRow, before: &Before, changes: bool, found: &mut Vec<String>) {
    let InvocationRow { task_id, invocation, .. } = row;
    let Some(record) = before.get(task_id) else {
        return found.push(format!("{invocation} says something about task {task_id}, which is not there"));
    };
    if !matches!(record.state, TaskState::Pending { .. }) || record.started_at.is_some() {
        found.push(format!("{invocation} begins with a saying about task {task_id}, which ran before"));
    }
    if record.abort_requested && changes {
        found.push(format!("{invocation} begins with a change of task {task_id}, which is to stop"));
    }
}

fn running(record: Option<&Arc<TaskRecord>>) -> bool {
    record.is_some_and(|record| matches!(record.state, TaskState::Running { .. }))
}

impl Model {
    /// The tasks of a commit, as they are now.
    pub(super) fn before(&self, commit: &Commit) -> Before {
        let named = commit.writes.iter().filter_map(|write| match write {
            Write::Task(record) => Some(record.id),
            Write::Invocation(row) => Some(row.task_id),
            _ => None,
        });
        named.filter_map(|id| Some((id, Arc::clone(self.tasks.get(&id)?)))).collect()
    }

    /// Follows the rows of a commit whose other writes are taken already.
    pub(super) fn check_invocations(&mut self, before: &Before, commit: &Commit, found: &mut Vec<String>) {
        let (mut reserved, mut said) = (Vec::new(), Vec::new());
        for write in &commit.writes {
            let Write::Invocation(row) = write else { continue };
            let last = self.invocations.insert(row.task_id, InvocationRow::clone(row));
            let changes = commit.writes.iter().any(|write| matches!(write, Write::Task(record) if record.id == row.task_id));
            if last.as_ref().is_none_or(|last| last.invocation != row.invocation) && row.number == 1 {
                check_first_saying(row, before, changes, found);
                if changes {
                    self.holders.insert(row.task_id, row.invocation);
                }
                said.push(row.task_id);
                reserved.push(row.task_id);
            } else if last.as_ref().is_some_and(|last| last.invocation == row.invocation) {
                self.check_saying(row, last.as_ref(), before, changes, found);
                said.push(row.task_id);
            } else {
                self.check_reservation(row, found);
                self.holders.insert(row.task_id, row.invocation);
                self.ending.remove(&row.task_id);
                reserved.push(row.task_id);
            }
        }
        for write in &commit.writes {
            let Write::Task(record) = write else { continue };
            if !matches!(record.state, TaskState::Running { .. }) {
                // Whoever held it is over, but for the end of the phase that decided this. The row stays, to answer a repetition.
                let held = self.holders.remove(&record.id).filter(|_| said.contains(&record.id));
                self.ending.extend(held.map(|invocation| (record.id, invocation)));
            } else if !running(before.get(&record.id)) && !reserved.contains(&record.id) {
                found.push(format!("task {} begins to run, and no invocation reserves it", record.id));
            }
        }
    }

    fn check_reservation(&self, row: &InvocationRow, found: &mut Vec<String>) {
        let InvocationRow { task_id, invocation, number, .. } = row;
        if *number != 0 {
            found.push(format!("{invocation} says {number} about task {task_id}, and never reserved it"));
        }
        if !running(self.tasks.get(task_id)) {
            found.push(format!("{invocation} reserves task {task_id}, which does not run"));
        }
    }

    /// A saying is the next one of the invocation that holds the task. The row of one that ended in order has no digest.
    fn check_saying(&mut self, row: &InvocationRow, last: Option<&InvocationRow>, before: &Before, changes: bool, found: &mut Vec<String>) {
        let InvocationRow { task_id, invocation, number, .. } = row;
        let last = last.map_or(0, |last| last.number);
        let ends = row.digest.is_none() && *number == last;
        if !ends && *number != last + 1 {
            found.push(format!("{invocation} says {number} about task {task_id} behind {last}"));
        }
        let holds = self.holders.get(task_id) == Some(invocation);
        let ends_phase = self.ending.remove(task_id).is_some_and(|ending| ending == *invocation) && !changes;
        if before.get(task_id).is_some_and(|record| record.terminal()) && !ends_phase {
            found.push(format!("{invocation} outlives task {task_id}"));
        }
        if !ends && !holds && !ends_phase {
            found.push(format!("{invocation} says {number} about task {task_id}, which it does not hold"));
        }
    }

    /// Every live task has an invocation, a due time, something it waits for, or is pending.
    pub(super) fn check_live(&self, at: Millis, found: &mut Vec<String>) {
        for record in self.tasks.values().filter(|record| !record.terminal()) {
            let id = record.id;
            match &record.state {
                TaskState::Running { .. } if !self.holders.contains_key(&id) => found.push(format!("task {id} runs without an invocation")),
                TaskState::Sleeping { until, .. } if until.0 > at.0 + SLEEP_MAX => {
                    found.push(format!("task {id} sleeps until {}, and it is {}", until.0, at.0));
                }
                TaskState::Waiting { on, .. } => self.check_wait(id, on, found),
                _ => {}
            }
        }
        for (task, holder) in &self.holders {
            if !running(self.tasks.get(task)) {
                found.push(format!("{holder} holds task {task}, which does not run"));
            }
        }
    }

    /// What a task waits for is there, and does not wait for it in turn.
    fn check_wait(&self, id: TaskId, on: &[TaskId], found: &mut Vec<String>) {
        let mut open = on.to_vec();
        let mut seen = std::collections::BTreeSet::new();
        while let Some(other) = open.pop() {
            if other == id {
                found.push(format!("task {id} waits for itself"));
                return;
            }
            let Some(record) = self.tasks.get(&other) else {
                found.push(format!("task {id} waits for {other}, which is not there"));
                continue;
            };
            if let TaskState::Waiting { on, .. } = &record.state
                && seen.insert(other)
            {
                open.extend(on);
            }
        }
    }
}
