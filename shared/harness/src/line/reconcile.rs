//! What the scheduler decides by itself: marks, finishes, aborts without effects, orphans (sections 5.4 and 5.5).

use std::collections::BTreeSet;

use picofleet_session::storage::{ConversationQuery, PAGE_MAX};
use picofleet_session::{CommitError, ConversationId, Json, TaskId, TaskOutcome, TaskRecord, TaskState, Tx, TxError};

use super::outcome::finish;
use super::{LineError, SessionLine};
use crate::ownership::Plan;
use crate::submission::withdraw_inputs;
use crate::task::{NextState, checkpoint};

impl SessionLine {
    /// Stores what the scheduler decides until nothing is left of it, and answers what may be reserved.
    pub(super) async fn reconcile(&self) -> Result<Plan, LineError> {
        loop {
            self.complete_tree().await?;
            let plan = self.current_plan();
            let blocked = self.blocked_aborts(&plan);
            let on_line = self.aborts_on_line(&plan, &blocked);
            if plan.marks.is_empty() && plan.finishes.is_empty() && on_line.is_empty() && blocked.is_empty() {
                return Ok(plan);
            }
            if !plan.marks.is_empty() {
                self.mark(&plan.marks).await?;
            }
            for task in plan.finishes {
                self.finish_held(task).await?;
            }
            for (task, decision) in on_line {
                self.abort_on_line(task, decision).await?;
            }
            for (task, reason) in blocked {
                self.orphan(task, reason).await?;
            }
        }
    }

    fn current_plan(&self) -> Plan {
        let state = self.state();
        state.tree.plan(&state.held.keys().copied().collect(), self.now())
    }

    /// Marks tasks, and withdraws the queued inputs of the conversations that they own.
    pub(super) async fn mark(&self, tasks: &BTreeSet<TaskId>) -> Result<(), LineError> {
        self.session()
            .commit(async |tx| {
                let mut owned = Vec::new();
                let mut records = Vec::new();
                for task in tasks {
                    owned.extend(owned_conversations(tx, *task).await?);
                    records.extend(tx.task(*task).await?.filter(|record| !record.terminal() && !record.abort_requested));
                }
                for record in records {
                    tx.put_task(TaskRecord { abort_requested: true, ..record }).await?;
                }
                for conversation in owned {
                    withdraw_inputs(tx, conversation).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }

    /// A held outcome becomes terminal once nothing below is live.
    async fn finish_held(&self, task: TaskId) -> Result<(), LineError> {
        self.session()
            .commit(async |tx| {
                let Some(record) = tx.task(task).await? else { return Ok(()) };
                let TaskState::Completing { outcome } = record.state.clone() else { return Ok(()) };
                if self.candidate_tree(tx).owned_work(task).is_empty() {
                    finish(tx, record, outcome).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }

    /// Marked tasks that no definition can take: they are orphaned (section 5.4).
    fn blocked_aborts(&self, plan: &Plan) -> Vec<(TaskId, &'static str)> {
        let records: Vec<TaskRecord> = {
            let state = self.state();
            plan.aborts.iter().filter_map(|task| state.tree.live.get(task).cloned()).collect()
        };
        records.into_iter().filter_map(|record| Some((record.id, self.taken_by_definition(record).err()?))).collect()
    }

    /// Marked tasks whose abort handler has no effect.
    fn aborts_on_line(&self, plan: &Plan, blocked: &[(TaskId, &'static str)]) -> Vec<(TaskId, Json)> {
        let state = self.state();
        let decision = |task: &TaskId| {
            let record = state.tree.live.get(task)?;
            self.inner.tasks.get(&record.kind)?.abort_decision(checkpoint(record)?)
        };
        let free = plan.aborts.iter().filter(|task| blocked.iter().all(|(other, _)| other != *task));
        free.filter_map(|task| Some((*task, decision(task)?))).collect()
    }

    async fn abort_on_line(&self, task: TaskId, decision: Json) -> Result<(), LineError> {
        let bound = picofleet_session::Bound { conversation: None, task: Some(task) };
        let result = self
            .session()
            .commit_bound(bound, async |tx| {
                let Some(record) = tx.task(task).await?.filter(|task| !task.terminal()) else { return Ok(()) };
                let Some(definition) = self.inner.tasks.get(&record.kind) else { return Ok(()) };
                if let (NextState::End(outcome), _) = definition.apply(tx, &record, decision).await? {
                    self.end_task(tx, record, outcome).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await;
        match result {
            Err(error @ (CommitError::Closed | CommitError::NotOwner | CommitError::Failed(_))) => Err(error.into()),
            Err(error) => self.end_marked(task, TaskOutcome::Faulted { error: super::say_error(&error) }).await,
            Ok(()) => Ok(()),
        }
    }

    async fn orphan(&self, task: TaskId, reason: &'static str) -> Result<(), LineError> {
        self.end_marked(task, TaskOutcome::Orphaned { reason: reason.to_owned() }).await
    }

    async fn end_marked(&self, task: TaskId, outcome: TaskOutcome) -> Result<(), LineError> {
        self.session()
            .commit(async |tx| {
                if let Some(record) = tx.task(task).await?.filter(|task| !task.terminal()) {
                    self.end_task(tx, record, outcome).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }
}

/// The conversations that a task owns. Table reads.
async fn owned_conversations(tx: &Tx, task: TaskId) -> Result<Vec<ConversationId>, TxError> {
    let mut owned = Vec::new();
    let mut cursor = None;
    loop {
        let query = ConversationQuery { owner_conversation_id: None, owner_task_id: Some(task) };
        let page = tx.scan_conversations(query, PAGE_MAX, cursor).await?;
        owned.extend(page.items.into_iter().map(|conversation| conversation.id));
        cursor = page.next;
        if cursor.is_none() {
            return Ok(owned);
        }
    }
}
