//! Ends of tasks: held or terminal, and what the scheduler cleans up for code that can't (sections 5.4 and 5.5).

use picofleet_session::{CommitError, Json, TaskError, TaskOutcome, TaskRecord, TaskState, Tx, TxError};

use super::{LineError, SessionLine};
use crate::compaction::remove_status;
use crate::generation::salvage;
use crate::guard::Guard;
use crate::kinds::{COMPACTION, GENERATION, TOOL, reason};
use crate::live::{LIVE, SlotStatus};
use crate::ownership::{Lineage, Tree};
use crate::run::{RunEnd, end_run};

impl SessionLine {
    /// Ends a task with an outcome: held while ordinary owned work is live, judged on the commit's candidate records (section 5.5).
    pub(super) async fn end_task(&self, tx: &Tx, record: TaskRecord, outcome: TaskOutcome) -> Result<TaskRecord, TxError> {
        let candidate = self.candidate_tree(tx).await?;
        let held = !candidate.owned_work(record.id).is_empty();
        if self.inner.options.guards.stops(Guard::OwnedWork, held) {
            let record = TaskRecord { state: TaskState::Completing { outcome }, memos: None, ..record };
            tx.put_task(record.clone()).await?;
            return Ok(record);
        }
        finish(tx, record, outcome).await
    }

    /// The tree as the commit would leave it.
    pub(super) async fn candidate_tree(&self, tx: &Tx) -> Result<Tree, TxError> {
        let mut tree = self.state().tree.clone();
        for conversation in tx.staged_conversations() {
            tree.own(conversation.id, conversation.owner.map(|owner| owner.task_id));
        }
        for task in tx.staged_tasks() {
            tree.place(task.id, Lineage::of(&task));
            match &task.state {
                TaskState::Terminal { outcome } => tree.end(task.id, outcome),
                _ => tree.put(task),
            }
        }
        self.complete(&mut tree).await?;
        Ok(tree)
    }

    /// Ends a task as faulted: its code broke a rule, threw, or wrote what storage refused.
    pub(super) async fn fault(&self, id: picofleet_session::TaskId, error: TaskError) -> Result<(), LineError> {
        tracing::warn!(task = %id, error = %error.message, "task faulted");
        self.session()
            .commit(async |tx| {
                if let Some(record) = self.found_by(tx, id).await?.filter(|task| matches!(task.state, TaskState::Running { .. })) {
                    self.end_task(tx, record, TaskOutcome::Faulted { error }).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }
}

/// Writes the terminal record, with the cleanup for an outcome that the scheduler wrote itself.
pub(super) async fn finish(tx: &Tx, record: TaskRecord, outcome: TaskOutcome) -> Result<TaskRecord, TxError> {
    match &outcome {
        TaskOutcome::Faulted { error } => clean_up(tx, &record, reason::FAULTED, Some(Json::from(error.message.as_str()))).await?,
        TaskOutcome::Orphaned { reason } => clean_up(tx, &record, reason, None).await?,
        TaskOutcome::Completed { .. } | TaskOutcome::Failed { .. } | TaskOutcome::Aborted { .. } => {}
    }
    let record = TaskRecord { state: TaskState::Terminal { outcome }, memos: None, ended_at: Some(tx.now()), ..record };
    tx.put_task(record.clone()).await?;
    Ok(record)
}

/// What the task's own code would have cleaned up (section 5.4).
async fn clean_up(tx: &Tx, record: &TaskRecord, reason: &str, detail: Option<Json>) -> Result<(), TxError> {
    match record.kind.as_str() {
        GENERATION => {
            let run = tx.doc(&LIVE, record.conversation_id).await?.draft.key("run").key("taskId").get();
            if run.and_then(|task| task.as_i64()) == Some(record.id.get()) {
                salvage(tx, record).await?;
                end_run(tx, record, RunEnd::Unanswered { reason, detail }).await?;
            }
        }
        TOOL => {
            let tools = tx.doc(&LIVE, record.conversation_id).await?.draft.key("tools");
            let slots = tools.get();
            let position = slots
                .as_ref()
                .and_then(Json::as_array)
                .and_then(|slots| slots.iter().position(|slot| slot.get("taskId").and_then(Json::as_i64) == Some(record.id.get())));
            if let Some(index) = position {
                tools.index(index).key("status").set_serde(&SlotStatus::Done)?;
            }
        }
        COMPACTION => remove_status(tx, record).await?,
        _ => {}
    }
    Ok(())
}
