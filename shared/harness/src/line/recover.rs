//! What an opening does, and filling in what the tree does not know.

use std::collections::{BTreeMap, BTreeSet};

use picofleet_session::storage::{PAGE_MAX, StorageError, TaskFilter, TaskQuery};
use picofleet_session::{CommitError, ConversationId, Json, TaskId, TaskRecord, TaskState};

use super::row::{ended_in_order, kept};
use super::{Held, Invocations, LineError, SessionLine};
use crate::ownership::Tree;
use crate::task::identity;
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
                state.tree.put(task);
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
            let (answer, mode) = kept(&row, task);
            let began_at = match &answer {
                Some(Answer::Said { next: Some(Next::Continue(_)), .. }) => Some(checkpoint.clone()),
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
                code: identity(&*definition),
                definition,
                reported: None,
                unstored: None,
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
            let unknown = self.state().tree.unknown();
            let Some(found) = self.find(unknown).await? else { return Ok(()) };
            found.enter(&mut self.state().tree);
        }
    }

    /// The same for a tree that is not the committed one.
    pub(super) async fn complete(&self, tree: &mut Tree) -> Result<(), StorageError> {
        while let Some(found) = self.find(tree.unknown()).await? {
            found.enter(tree);
        }
        Ok(())
    }

    /// What storage has of what is unknown, if something is.
    async fn find(&self, (conversations, tasks): (Vec<ConversationId>, Vec<TaskId>)) -> Result<Option<Found>, StorageError> {
        if conversations.is_empty() && tasks.is_empty() {
            return Ok(None);
        }
        let mut found = Found::default();
        for id in conversations {
            let owner = self.session().store().conversation(id).await?.and_then(|conversation| conversation.owner);
            found.conversations.push((id, owner.map(|owner| owner.task_id)));
        }
        for id in tasks {
            found.tasks.push((id, self.session().store().task(id).await?));
        }
        Ok(Some(found))
    }
}

#[derive(Default)]
struct Found {
    conversations: Vec<(ConversationId, Option<TaskId>)>,
    tasks: Vec<(TaskId, Option<TaskRecord>)>,
}

impl Found {
    fn enter(self, tree: &mut Tree) {
        for (id, owner) in self.conversations {
            tree.own(id, owner);
        }
        for (id, record) in self.tasks {
            // A commit may have made it live meanwhile.
            if !tree.live.contains_key(&id) {
                tree.found(id, record.as_ref());
            }
        }
    }
}
