//! The ownership tree of one session's live work (sections 5.4 and 5.5), as pure functions: who is cancelled, who is held, who may run.

mod index;

use std::collections::BTreeSet;

use imbl::{HashMap, OrdMap, OrdSet};
use picofleet_session::{ConversationId, Millis, TaskId, TaskOutcome, TaskRecord, TaskState};

use crate::step::Mode;

/// Where a task stands in the tree. It never changes, so that it can be kept for tasks that are over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lineage {
    /// Its conversation.
    pub conversation: ConversationId,
    /// The task that owns it; `None` where its conversation does.
    pub owner: Option<TaskId>,
    /// A boundary for cascades and idleness.
    pub background: bool,
}

impl Lineage {
    /// The place of a record.
    #[must_use]
    pub const fn of(record: &TaskRecord) -> Self {
        Self { conversation: record.conversation_id, owner: record.owner, background: record.background }
    }
}

/// The live tasks of a session with everything above them. A clone shares everything: what a commit would leave is a clone with its changes.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Every task that is not terminal.
    pub live: OrdMap<TaskId, TaskRecord>,
    /// The place of every live task and of every task above one.
    pub lineage: HashMap<TaskId, Lineage>,
    /// The task that owns a conversation, for every conversation of a task in `lineage`.
    pub conversation_owners: HashMap<ConversationId, Option<TaskId>>,
    /// The outcomes of terminal tasks that a live task waits for. One that is missing here and not live is unknown and taken as
    /// completed.
    pub outcomes: HashMap<TaskId, TaskOutcome>,
    /// The live tasks that wait until one of others fails.
    fail_fast: OrdSet<TaskId>,
    /// How many live tasks wait for a task.
    waiters: HashMap<TaskId, usize>,
    /// The tasks that a task owns, those that their conversation owns, and the conversations that a task owns: `lineage` and
    /// `conversation_owners` from above.
    owned: HashMap<TaskId, OrdSet<TaskId>>,
    in_conversation: HashMap<ConversationId, OrdSet<TaskId>>,
    conversations: HashMap<TaskId, OrdSet<ConversationId>>,
    /// What is missing in the other fields.
    unknown_conversations: OrdSet<ConversationId>,
    unknown_tasks: OrdSet<TaskId>,
    unknown_outcomes: OrdSet<TaskId>,
}

/// Whether an outcome, while it is held, cancels the work below (section 5.4).
#[must_use]
pub const fn cancels(outcome: &TaskOutcome) -> bool {
    !matches!(outcome, TaskOutcome::Completed { .. })
}

/// Whether a live task cancels the work below it: its abort mark, or a held outcome other than completed.
#[must_use]
pub const fn cancelled(record: &TaskRecord) -> bool {
    record.abort_requested || matches!(&record.state, TaskState::Completing { outcome } if cancels(outcome))
}

/// What the scheduler does next with a session. Marks and finishes are commits; runs and aborts are reservations.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Tasks that get an abort mark.
    pub marks: BTreeSet<TaskId>,
    /// Completing tasks whose owned work has drained: they become terminal.
    pub finishes: Vec<TaskId>,
    /// Tasks whose phases may be reserved.
    pub runs: Vec<TaskId>,
    /// Marked tasks whose abort handler may be reserved.
    pub aborts: Vec<TaskId>,
    /// When the next sleeper is due.
    pub next_due: Option<Millis>,
}

impl Tree {
    /// The task right above: the owner, or the owner of the conversation.
    fn above(&self, lineage: &Lineage) -> Option<TaskId> {
        lineage.owner.or_else(|| self.conversation_owners.get(&lineage.conversation).copied().flatten())
    }

    /// The tasks above one, the nearest first, each with whether ordinary traversal from there reaches the task (section 5.4): a
    /// background task is a boundary, and so is a background task on the way.
    fn ancestors(&self, task: TaskId) -> impl Iterator<Item = (TaskId, bool)> + '_ {
        let mut current = self.lineage.get(&task).copied();
        let mut ordinary = true;
        std::iter::from_fn(move || {
            let lineage = current?;
            ordinary &= !lineage.background;
            let above = self.above(&lineage)?;
            current = self.lineage.get(&above).copied();
            Some((above, ordinary))
        })
    }

    /// The tasks whose ordinary owned work is live.
    #[must_use]
    pub fn holding(&self) -> BTreeSet<TaskId> {
        let live = self.live.keys();
        live.flat_map(|task| self.ancestors(*task).take_while(|(_, ordinary)| *ordinary).map(|(above, _)| above)).collect()
    }

    /// The tasks that hold their end until a task is over: what it may never wait for (section 5.1).
    #[must_use]
    pub fn held_by(&self, task: TaskId) -> Vec<TaskId> {
        self.ancestors(task).take_while(|(_, ordinary)| *ordinary).map(|(above, _)| above).collect()
    }

    /// The live tasks and everything above them.
    #[must_use]
    pub fn needed(&self) -> BTreeSet<TaskId> {
        let above = self.live.keys().flat_map(|task| self.ancestors(*task).map(|(above, _)| above));
        self.live.keys().copied().chain(above).collect()
    }

    /// Whether something above a task cancels it.
    #[must_use]
    pub fn below_cancelled(&self, task: TaskId) -> bool {
        self.cancelled_above(task).next().is_some()
    }

    /// The cancelled live tasks above one, reached without crossing a background task that has no cancellation of its own (section 5.4).
    pub fn cancelled_above(&self, task: TaskId) -> impl Iterator<Item = TaskId> + '_ {
        let background = |task: &TaskId| self.lineage.get(task).is_none_or(|lineage| lineage.background);
        let mut crossed = background(&task);
        let reached = self.ancestors(task).map_while(move |(above, _)| {
            let cancels = self.live.get(&above).is_some_and(cancelled);
            let reached = !crossed;
            crossed |= background(&above) && !cancels;
            reached.then_some((above, cancels))
        });
        reached.filter(|(_, cancels)| *cancels).map(|(above, _)| above)
    }

    /// Whether a conversation lies below a cancelled live task, so that its queued inputs are withdrawn (section 5.4).
    #[must_use]
    pub fn conversation_below_cancelled(&self, conversation: ConversationId) -> bool {
        let Some(owner) = self.conversation_owners.get(&conversation).copied().flatten() else { return false };
        self.live.get(&owner).is_some_and(cancelled) || self.below_cancelled(owner)
    }

    /// Live non-background tasks that ordinary traversal from a conversation reaches: what its idleness waits for.
    #[must_use]
    pub fn foreground_of(&self, conversation: ConversationId) -> Vec<TaskId> {
        self.live.keys().copied().filter(|task| self.reached_from(*task, conversation, false)).collect()
    }

    /// Live non-background tasks that ordinary traversal from every ownerless conversation reaches: what the session's idleness waits for
    /// (section 2.2).
    #[must_use]
    pub fn foreground(&self) -> Vec<TaskId> {
        let foreground = |task: &TaskId| {
            let own = self.lineage.get(task).is_some_and(|lineage| lineage.background);
            !own && self.ancestors(*task).all(|(above, _)| !self.lineage.get(&above).is_some_and(|lineage| lineage.background))
        };
        self.live.keys().copied().filter(foreground).collect()
    }

    /// Live tasks below a conversation, background ones too.
    #[must_use]
    pub fn everything_of(&self, conversation: ConversationId) -> Vec<TaskId> {
        self.live.keys().copied().filter(|task| self.reached_from(*task, conversation, true)).collect()
    }

    fn reached_from(&self, task: TaskId, conversation: ConversationId, across_background: bool) -> bool {
        let mut current = self.lineage.get(&task).copied();
        while let Some(lineage) = current {
            if lineage.background && !across_background {
                return false;
            }
            // A child is reached through its owner, which may be a boundary.
            if lineage.owner.is_none() && lineage.conversation == conversation {
                return true;
            }
            current = self.above(&lineage).and_then(|above| self.lineage.get(&above).copied());
        }
        false
    }

    /// Siblings that a failure in a `failFast` wait aborts (section 5.5).
    fn fail_fast_marks(&self) -> impl Iterator<Item = TaskId> + '_ {
        let failed = self.fail_fast_waits().filter(|on| on.iter().any(|task| self.ended_badly(*task)));
        failed.flatten().copied().filter(|task| self.live.contains_key(task))
    }

    fn fail_fast_waits(&self) -> impl Iterator<Item = &[TaskId]> + '_ {
        self.fail_fast.iter().filter_map(|task| index::fails_fast(self.live.get(task)?))
    }

    /// Whether a task that no invocation holds may be reserved now, and for what: what [`Tree::plan`] says of it, at the cost of what stands
    /// above it and of what it waits for, however much else is live.
    #[must_use]
    pub fn may_start(&self, id: TaskId, now: Millis) -> Option<Mode> {
        let task = self.live.get(&id)?;
        if matches!(task.state, TaskState::Completing { .. } | TaskState::Terminal { .. }) {
            return None;
        }
        if task.abort_requested {
            return self.owned_work(id).is_empty().then_some(Mode::Abort);
        }
        let starts = !self.marks(id)
            && match &task.state {
                TaskState::Waiting { on, .. } => !self.waits_on(on),
                TaskState::Sleeping { until, .. } => *until <= now,
                _ => true,
            };
        starts.then_some(Mode::Run)
    }

    /// Whether one of these tasks is live. They mostly end in their order: the last ones are looked at first.
    fn waits_on(&self, on: &[TaskId]) -> bool {
        on.iter().rev().any(|task| self.live.contains_key(task))
    }

    /// Whether a live task waits for another one than `ended`, so that the end of that lets it wait on.
    #[must_use]
    pub fn waits_for_more(&self, task: TaskId, ended: TaskId) -> bool {
        let Some(TaskState::Waiting { on, .. }) = self.live.get(&task).map(|record| &record.state) else { return false };
        on.iter().rev().any(|other| *other != ended && self.live.contains_key(other))
    }

    /// Whether a task holds or ended with an outcome other than completed.
    fn ended_badly(&self, task: TaskId) -> bool {
        match self.live.get(&task).map(|record| &record.state) {
            Some(TaskState::Completing { outcome }) => cancels(outcome),
            Some(_) => false,
            None => self.outcomes.get(&task).is_some_and(cancels),
        }
    }

    /// Whether the scheduler gives a live task an abort mark next: something above cancels it, or a `failFast` wait on it has failed.
    #[must_use]
    pub fn marks(&self, task: TaskId) -> bool {
        self.below_cancelled(task) || self.waiters.contains_key(&task) && self.fail_fast_marks().any(|marked| marked == task)
    }

    /// What the scheduler does next. `invoked` are the tasks that an invocation holds now.
    #[must_use]
    pub fn plan(&self, invoked: &BTreeSet<TaskId>, now: Millis) -> Plan {
        let cascaded = self.live.keys().copied().filter(|task| self.below_cancelled(*task));
        let marks =
            cascaded.chain(self.fail_fast_marks()).filter(|task| self.live.get(task).is_some_and(|task| !task.abort_requested)).collect();
        let holding = self.holding();
        let mut plan = Plan { marks, ..Plan::default() };
        for (id, task) in &self.live {
            let holds = holding.contains(id);
            match &task.state {
                TaskState::Completing { .. } => {
                    if !holds {
                        plan.finishes.push(*id);
                    }
                }
                TaskState::Terminal { .. } => {}
                // An abort handler starts once the work below is over, and never beside another invocation.
                _ if task.abort_requested => {
                    if !holds && !invoked.contains(id) {
                        plan.aborts.push(*id);
                    }
                }
                // No phase starts below a cancelled owner, also before the cascade's commit (`design.md` 13).
                _ if plan.marks.contains(id) || invoked.contains(id) => {}
                TaskState::Pending { .. } | TaskState::Running { .. } => plan.runs.push(*id),
                TaskState::Waiting { on, .. } => {
                    if !self.waits_on(on) {
                        plan.runs.push(*id);
                    }
                }
                TaskState::Sleeping { until, .. } => {
                    if *until <= now {
                        plan.runs.push(*id);
                    } else {
                        plan.next_due = Some(plan.next_due.map_or(*until, |due| due.min(*until)));
                    }
                }
            }
        }
        plan
    }

    /// The tasks that would wait for each other if `task` waited for `on`: from `task` back to itself, or nothing (`design.md` 13).
    #[must_use]
    pub fn wait_cycle(&self, task: TaskId, on: &[TaskId]) -> Option<Vec<TaskId>> {
        // Depth first, each task once; the path is what is answered.
        let mut seen = BTreeSet::new();
        let mut open: Vec<(TaskId, Vec<TaskId>)> = on.iter().map(|next| (*next, vec![task])).collect();
        while let Some((current, path)) = open.pop() {
            let mut path = path;
            path.push(current);
            if current == task {
                return Some(path);
            }
            if seen.insert(current) {
                open.extend(self.waits_for(current).into_iter().map(|next| (next, path.clone())));
            }
        }
        None
    }

    /// What a live task waits for: the tasks of its wait, or its owned work where it holds an outcome or carries a mark.
    fn waits_for(&self, task: TaskId) -> Vec<TaskId> {
        let Some(record) = self.live.get(&task) else { return Vec::new() };
        match &record.state {
            TaskState::Completing { .. } => self.owned_work(task),
            _ if record.abort_requested => self.owned_work(task),
            TaskState::Waiting { on, .. } => on.clone(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
