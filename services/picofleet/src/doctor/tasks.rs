//! T3 to T7 of `docs/invariants.md`, as far as one state shows them.

use std::collections::{BTreeMap, BTreeSet};

use picofleet_session::{TaskId, TaskRecord, TaskState};

use super::model::Model;

/// Restarts without progress, after which a task is parked.
const RESTARTS_MAX: u32 = 5;

impl Model {
    pub(super) fn check_tasks(&mut self) {
        let holding = self.holding();
        let tasks = std::mem::take(&mut self.tasks);
        for task in tasks.values() {
            self.check_task(task, &tasks, &holding);
        }
        self.tasks = tasks;
    }

    fn check_task(&mut self, task: &TaskRecord, tasks: &BTreeMap<TaskId, TaskRecord>, holding: &BTreeSet<TaskId>) {
        let id = task.id;
        if !self.conversations.contains_key(&task.conversation_id) {
            self.add("T3", format!("task {id} is in conversation {}, which is not there", task.conversation_id));
        }
        if let Some(owner) = task.owner {
            match tasks.get(&owner) {
                None => self.add("T3", format!("task {id} belongs to task {owner}, which is not there")),
                Some(owner) if owner.conversation_id != task.conversation_id => {
                    self.add("T3", format!("task {id} is not in the conversation of its owner {}", owner.id));
                }
                Some(_) => {}
            }
        }
        if task.restarts > RESTARTS_MAX {
            self.add("T7", format!("task {id} was restarted {} times without progress", task.restarts));
        }
        match &task.state {
            TaskState::Running { .. } if !self.invoked.contains(&id) => self.add("T4", format!("task {id} runs without an invocation")),
            TaskState::Waiting { on, .. } => {
                for other in on.iter().filter(|other| **other == id || !tasks.contains_key(other)) {
                    self.add(
                        "T5",
                        format!("task {id} waits for task {other}, which is {}", if *other == id { "itself" } else { "not there" }),
                    );
                }
            }
            TaskState::Terminal { .. } => {
                if holding.contains(&id) {
                    self.add("T6", format!("task {id} is over, and work below it is live"));
                }
                if task.ended_at.is_none() {
                    self.add("task", format!("task {id} is over and has no end"));
                }
            }
            _ => {}
        }
        if matches!(task.state, TaskState::Completing { .. } | TaskState::Terminal { .. }) && task.memos.is_some() {
            self.add("task", format!("task {id} has its outcome and still has memos"));
        }
    }

    /// The tasks with live ordinary owned work below (section 5.5): from each live task upwards, until a background task. What was passed
    /// once is not passed again.
    fn holding(&self) -> BTreeSet<TaskId> {
        let mut holding = BTreeSet::new();
        for live in self.tasks.values().filter(|task| !task.terminal()) {
            let mut current = live;
            while !current.background {
                let owner = current.owner.or_else(|| Some(self.conversations.get(&current.conversation_id)?.owner?.task_id));
                let Some(above) = owner.and_then(|owner| self.tasks.get(&owner)) else { break };
                if !holding.insert(above.id) {
                    break;
                }
                current = above;
            }
        }
        holding
    }
}
