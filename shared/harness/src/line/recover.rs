//! What an opening does, and filling in what the tree does not know.

use picofleet_session::storage::{PAGE_MAX, TaskFilter, TaskQuery};
use picofleet_session::{CommitError, ConversationId, TaskId, TaskRecord, TaskState};

use super::{LineError, SessionLine};
use crate::ownership::Lineage;

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
        let running: Vec<TaskRecord> = live.iter().filter(|task| matches!(task.state, TaskState::Running { .. })).cloned().collect();
        {
            let mut state = self.state();
            for task in live {
                state.tree.lineage.insert(task.id, Lineage::of(&task));
                state.tree.live.insert(task.id, task);
            }
        }
        if running.is_empty() {
            return Ok(());
        }
        self.session()
            .commit(async |tx| {
                for task in running {
                    let TaskState::Running { checkpoint } = task.state.clone() else { continue };
                    let restarts = task.restarts.saturating_add(1);
                    tx.put_task(TaskRecord { state: TaskState::Pending { checkpoint }, restarts, ..task }).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }

    /// Reads what is above the live tasks, and how tasks ended that a live one waits for. These facts never change.
    pub(super) async fn complete_tree(&self) -> Result<(), LineError> {
        loop {
            let (conversations, tasks) = self.unknown();
            if conversations.is_empty() && tasks.is_empty() {
                return Ok(());
            }
            for id in conversations {
                let owner = self.session().store().conversation(id).await?.and_then(|conversation| conversation.owner);
                self.state().tree.conversation_owners.insert(id, owner.map(|owner| owner.task_id));
            }
            for id in tasks {
                let Some(task) = self.session().store().task(id).await? else {
                    // A task that is not there owns nothing and is waited for by nobody: it is taken as the top.
                    self.state()
                        .tree
                        .lineage
                        .insert(id, Lineage { conversation: picofleet_session::ROOT_CONVERSATION_ID, owner: None, background: false });
                    continue;
                };
                let mut state = self.state();
                state.tree.lineage.insert(id, Lineage::of(&task));
                if let TaskState::Terminal { outcome } = task.state {
                    state.tree.outcomes.insert(id, outcome);
                }
            }
        }
    }

    fn unknown(&self) -> (Vec<ConversationId>, Vec<TaskId>) {
        let state = self.state();
        let tree = &state.tree;
        let conversations = tree.lineage.values().map(|lineage| lineage.conversation);
        let conversations = conversations.filter(|id| !tree.conversation_owners.contains_key(id)).collect();
        let owners = tree.lineage.values().filter_map(|lineage| lineage.owner);
        let above = tree.conversation_owners.values().filter_map(|owner| *owner);
        let waited = tree.live.values().filter_map(|task| if let TaskState::Waiting { on, .. } = &task.state { Some(on) } else { None });
        let waited = waited.flatten().copied().filter(|id| !tree.live.contains_key(id) && !tree.outcomes.contains_key(id));
        let tasks = owners.chain(above).filter(|id| !tree.lineage.contains_key(id)).chain(waited).collect();
        (conversations, tasks)
    }
}
