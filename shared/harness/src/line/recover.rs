//! What an opening does, and filling in what the tree does not know.

use std::collections::{BTreeMap, BTreeSet};

use picofleet_session::storage::{PAGE_MAX, StorageError, TaskFilter, TaskQuery};
use picofleet_session::{CommitError, ConversationId, Json, ROOT_CONVERSATION_ID, TaskId, TaskOutcome, TaskRecord, TaskState};

use super::row::{ended_in_order, kept};
use super::{Held, Invocations, LineError, SessionLine};
use crate::ownership::{Lineage, Tree};
use crate::wire::{Answer, Next};

impl SessionLine {
    /// Reads the live tasks, and gives those back that a process left running.
    pub(super) async fn recover(&self) -> Result<(), LineError> {
        let mut live = Vec::new();
        let mut cursor = None;
        loop {
            let query = TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() };
            let page = self.session().store().scan_tasks(query, PAGE_MAX, cursor).await?;
            live.extend(page.items);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let (held, live_on) = match self.inner.options.invocations {
            Invocations::Ended => (BTreeMap::new(), BTreeSet::new()),
            Invocations::Live => self.living(&live).await?,
        };
        let gone = |task: &&TaskRecord| matches!(task.state, TaskState::Running { .. }) && !live_on.contains(&task.id);
        let running: Vec<TaskRecord> = live.iter().filter(gone).cloned().collect();
        let mut lost = self.lost(&live).await?;
        lost.retain(|task| !live_on.contains(task));
        {
            let mut state = self.state();
            state.lost = lost;
            state.held = held;
            for task in live {
                state.tree.lineage.insert(task.id, Lineage::of(&task));
                state.tree.live.insert(task.id, task);
            }
        }
        if !running.is_empty() {
            self.session()
                .commit(async |tx| {
                    for task in running {
                        let TaskState::Running { checkpoint } = task.state.clone() else { continue };
                        tx.put_task(TaskRecord { state: TaskState::Pending { checkpoint }, ..task }).await?;
                    }
                    Ok::<_, CommitError>(())
                })
                .await?;
        }
        self.finish_drained().await
    }

    /// The invocations that may live on under this owner, as their stored rows have them: the last saying is answered again, and the next
    /// one is taken (`protocol.md` 3). One that runs an abort handler goes on as one.
    async fn living(&self, live: &[TaskRecord]) -> Result<(BTreeMap<TaskId, Held>, BTreeSet<TaskId>), LineError> {
        let mut held = BTreeMap::new();
        for task in live {
            let TaskState::Running { checkpoint } = &task.state else { continue };
            let definition = self.state().tasks.get(&task.kind).filter(|definition| definition.version() == task.version).cloned();
            let (Some(definition), Some(row)) = (definition, self.session().store().invocation(task.id).await?) else { continue };
            if ended_in_order(&row) {
                continue;
            }
            let (answer, mode) = kept(&row);
            let began_at = match &answer {
                Some(Answer::Said { next: Some(Next::Continue(record)), .. }) => crate::task::checkpoint(record).cloned(),
                None if row.number == 0 => Some(checkpoint.clone()),
                // The phase has said something since it began: its progress was judged by the owner before.
                _ => None,
            };
            let last = row.digest.clone().zip(answer);
            let entry = Held {
                invocation: row.invocation,
                worker: None,
                mode,
                began_at: began_at.unwrap_or(Json::null()),
                number: row.number,
                last,
                progress: 0,
                definition,
                reported: None,
                heard: row.number > 0,
                expired: false,
            };
            held.insert(task.id, entry);
        }
        let tasks = held.keys().copied().collect();
        Ok((held, tasks))
    }

    /// The tasks whose invocation died with its process: those left running, and those given back by an opening which nobody reserved
    /// since. An invocation that ended in order has said so in its row.
    async fn lost(&self, live: &[TaskRecord]) -> Result<BTreeSet<TaskId>, LineError> {
        let mut lost = BTreeSet::new();
        for task in live {
            let reserved = match &task.state {
                TaskState::Running { .. } => true,
                TaskState::Pending { .. } => task.started_at.is_some(),
                _ => false,
            };
            if reserved && self.session().store().invocation(task.id).await?.is_some_and(|row| !ended_in_order(&row)) {
                lost.insert(task.id);
            }
        }
        Ok(lost)
    }

    /// Held outcomes whose work has drained become terminal; one may let go of another.
    async fn finish_drained(&self) -> Result<(), LineError> {
        loop {
            self.complete_tree().await?;
            let mut plan = self.tree_plan();
            self.leave_aside(&mut plan);
            if plan.finishes.is_empty() {
                return Ok(());
            }
            for task in plan.finishes {
                self.decided(task, self.finish_held(task).await)?;
            }
        }
    }

    /// Reads what is above the live tasks, and how tasks ended that a live one waits for. These facts never change.
    pub(super) async fn complete_tree(&self) -> Result<(), LineError> {
        loop {
            let unknown = unknown(&self.state().tree);
            if unknown.nothing() {
                return Ok(());
            }
            let found = self.find(unknown).await?;
            found.enter(&mut self.state().tree);
        }
    }

    /// The same for a tree that is not the committed one.
    pub(super) async fn complete(&self, tree: &mut Tree) -> Result<(), StorageError> {
        loop {
            let unknown = unknown(tree);
            if unknown.nothing() {
                return Ok(());
            }
            self.find(unknown).await?.enter(tree);
        }
    }

    async fn find(&self, unknown: Unknown) -> Result<Found, StorageError> {
        let mut found = Found::default();
        for id in unknown.conversations {
            let owner = self.session().store().conversation(id).await?.and_then(|conversation| conversation.owner);
            found.conversations.push((id, owner.map(|owner| owner.task_id)));
        }
        for id in unknown.tasks {
            found.tasks.push((id, self.session().store().task(id).await?));
        }
        Ok(found)
    }
}

/// What a tree does not know yet.
struct Unknown {
    conversations: Vec<ConversationId>,
    tasks: Vec<TaskId>,
}

impl Unknown {
    const fn nothing(&self) -> bool {
        self.conversations.is_empty() && self.tasks.is_empty()
    }
}

fn unknown(tree: &Tree) -> Unknown {
    let conversations = tree.lineage.values().map(|lineage| lineage.conversation);
    let conversations = conversations.filter(|id| !tree.conversation_owners.contains_key(id)).collect();
    let owners = tree.lineage.values().filter_map(|lineage| lineage.owner);
    let above = tree.conversation_owners.values().filter_map(|owner| *owner);
    let waited = tree.live.values().filter_map(|task| if let TaskState::Waiting { on, .. } = &task.state { Some(on) } else { None });
    let waited = waited.flatten().copied().filter(|id| !tree.live.contains_key(id) && !tree.outcomes.contains_key(id));
    let tasks = owners.chain(above).filter(|id| !tree.lineage.contains_key(id)).chain(waited).collect();
    Unknown { conversations, tasks }
}

#[derive(Default)]
struct Found {
    conversations: Vec<(ConversationId, Option<TaskId>)>,
    tasks: Vec<(TaskId, Option<TaskRecord>)>,
}

impl Found {
    fn enter(self, tree: &mut Tree) {
        tree.conversation_owners.extend(self.conversations);
        for (id, task) in self.tasks {
            // A task that is not there owns nothing and is waited for by nobody: it is taken as the top.
            let top = Lineage { conversation: ROOT_CONVERSATION_ID, owner: None, background: false };
            tree.lineage.insert(id, task.as_ref().map_or(top, Lineage::of));
            match task.map(|task| task.state) {
                Some(TaskState::Terminal { outcome }) => {
                    tree.outcomes.insert(id, outcome);
                }
                // It can't have failed, and is not live: taken as completed, so that it is not looked for again.
                None => {
                    tree.outcomes.insert(id, TaskOutcome::Completed { result: Json::null() });
                }
                Some(_) => {}
            }
        }
    }
}
