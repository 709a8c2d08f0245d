//! How the tree follows commits: each costs what it changes, whatever else is live.

use picofleet_session::{ConversationId, JoinPolicy, Json, ROOT_CONVERSATION_ID, TaskId, TaskOutcome, TaskRecord, TaskState};

use super::{Lineage, Tree};

/// The tasks that a state waits for.
fn waits(record: &TaskRecord) -> &[TaskId] {
    if let TaskState::Waiting { on, .. } = &record.state { on } else { &[] }
}

/// The tasks of a wait that ends with the first failure.
pub(super) fn fails_fast(record: &TaskRecord) -> Option<&[TaskId]> {
    if let TaskState::Waiting { on, policy: JoinPolicy::FailFast, .. } = &record.state { Some(on) } else { None }
}

impl Tree {
    /// A task is live, as of this record.
    pub fn put(&mut self, record: TaskRecord) {
        let id = record.id;
        self.place(id, Lineage::of(&record));
        if fails_fast(&record).is_some() {
            self.fail_fast.insert(id)
        } else {
            self.fail_fast.remove(&id)
        };
        self.unknown_outcomes.remove(&id);
        for on in waits(&record) {
            *self.waiters.entry(*on).or_default() += 1;
            if *on != id && !self.live.contains_key(on) && !self.outcomes.contains_key(on) {
                self.unknown_outcomes.insert(*on);
            }
        }
        // Only now: what both the old and the new state wait for is not forgotten.
        if let Some(before) = self.live.insert(id, record) {
            self.stop_waiting(&before);
        }
    }

    /// A task is over. How it ended is kept while a live task waits for it.
    pub fn end(&mut self, task: TaskId, outcome: &TaskOutcome) {
        self.fail_fast.remove(&task);
        if let Some(before) = self.live.remove(&task) {
            self.stop_waiting(&before);
        }
        self.unknown_outcomes.remove(&task);
        if self.waiters.contains_key(&task) {
            self.outcomes.insert(task, outcome.clone());
        }
    }

    fn stop_waiting(&mut self, record: &TaskRecord) {
        for on in waits(record) {
            let left = self.waiters.get(on).copied().unwrap_or(0).saturating_sub(1);
            if left == 0 {
                self.waiters.remove(on);
                self.outcomes.remove(on);
                self.unknown_outcomes.remove(on);
            } else {
                self.waiters.insert(*on, left);
            }
        }
    }

    /// Where a task stands, live or not.
    pub fn place(&mut self, task: TaskId, lineage: Lineage) {
        if self.lineage.insert(task, lineage).is_some() {
            return;
        }
        self.unknown_tasks.remove(&task);
        if !self.conversation_owners.contains_key(&lineage.conversation) {
            self.unknown_conversations.insert(lineage.conversation);
        }
        match lineage.owner {
            Some(owner) => {
                self.owned.entry(owner).or_default().insert(task);
                self.ask_for(owner);
            }
            None => {
                self.in_conversation.entry(lineage.conversation).or_default().insert(task);
            }
        }
    }

    /// Which task owns a conversation, if one does.
    pub fn own(&mut self, conversation: ConversationId, owner: Option<TaskId>) {
        self.unknown_conversations.remove(&conversation);
        self.conversation_owners.insert(conversation, owner);
        if let Some(owner) = owner {
            self.conversations.entry(owner).or_default().insert(conversation);
            self.ask_for(owner);
        }
    }

    fn ask_for(&mut self, task: TaskId) {
        if !self.lineage.contains_key(&task) {
            self.unknown_tasks.insert(task);
        }
    }

    /// The conversations whose owners are not known, and the tasks of which the place or, where one waits for them, the end is not.
    #[must_use]
    pub fn unknown(&self) -> (Vec<ConversationId>, Vec<TaskId>) {
        let tasks = self.unknown_tasks.iter().chain(&self.unknown_outcomes).copied().collect();
        (self.unknown_conversations.iter().copied().collect(), tasks)
    }

    /// What storage has of a task that was unknown.
    pub fn found(&mut self, task: TaskId, record: Option<&TaskRecord>) {
        // A task that is not there owns nothing and is waited for by nobody: it is taken as the top.
        let top = Lineage { conversation: ROOT_CONVERSATION_ID, owner: None, background: false };
        self.place(task, record.map_or(top, Lineage::of));
        match record.map(|record| &record.state) {
            Some(TaskState::Terminal { outcome }) => self.end(task, outcome),
            // It can't have failed, and is not live: taken as completed, so that it is not looked for again.
            _ => {
                self.unknown_outcomes.remove(&task);
                if self.waiters.contains_key(&task) {
                    self.outcomes.insert(task, TaskOutcome::Completed { result: Json::null() });
                }
            }
        }
    }

    /// Drops the places of what is neither live nor above something that is, once that is most of it: memory follows the live work and
    /// not the history.
    pub fn forget(&mut self) {
        const KEPT: usize = 1_024;
        if self.lineage.len() <= KEPT + 4 * self.live.len() {
            return;
        }
        let mut kept = Self { outcomes: std::mem::take(&mut self.outcomes), ..Self::default() };
        for task in self.needed() {
            if let Some(lineage) = self.lineage.get(&task) {
                if let Some(owner) = self.conversation_owners.get(&lineage.conversation) {
                    kept.own(lineage.conversation, *owner);
                }
                kept.place(task, *lineage);
            }
        }
        for record in std::mem::take(&mut self.live).into_iter().map(|(_, record)| record) {
            kept.put(record);
        }
        *self = kept;
    }

    /// The live ordinary owned work of a task.
    #[must_use]
    pub fn owned_work(&self, task: TaskId) -> Vec<TaskId> {
        let mut found = Vec::new();
        let mut open = vec![task];
        while let Some(above) = open.pop() {
            let conversations = self.conversations.get(&above).into_iter().flatten();
            let in_them = conversations.filter_map(|conversation| self.in_conversation.get(conversation)).flatten();
            let below = self.owned.get(&above).into_iter().flatten().chain(in_them);
            for task in below.filter(|task| self.lineage.get(*task).is_some_and(|lineage| !lineage.background)) {
                if self.live.contains_key(task) {
                    found.push(*task);
                }
                open.push(*task);
            }
        }
        found.sort_unstable();
        found
    }
}
