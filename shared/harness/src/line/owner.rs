//! The owner of a task that ends goes on in the same commit, where it waits for nothing else and nobody has to be asked (`protocol.md` 3):
//! a tool round ends with its last result.

use std::sync::Arc;

use picofleet_session::{Bound, CommitError, Json, TaskId, TaskOutcome, TaskRecord, TaskState, Tx, Violation};

use super::definitions::Fit;
use super::say::apply;
use super::{RESTART_LIMIT, SessionLine};
use crate::inspection::Scheduling;
use crate::step::Mode;
use crate::task::{LineTask, NextState, checkpoint};

/// The step of an owner that nobody has to be asked about.
pub(super) struct OwnerStep {
    owner: TaskRecord,
    definition: Arc<dyn LineTask>,
    decision: Json,
}

impl SessionLine {
    /// The step of the owner of `task`, if that just ended and the step is the line's own. What is left out here the scheduler finds.
    pub(super) async fn owner_step(&self, tx: &Tx, task: TaskId) -> Result<Option<OwnerStep>, CommitError> {
        let Some(ended) = tx.task_as_left(task).await?.filter(in_order) else { return Ok(None) };
        let Some(owner) = self.waiting_owner(tx, &ended).await? else { return Ok(None) };
        let Some(definition) = self.runs_owner(tx, &owner).await? else { return Ok(None) };
        let Some(at) = checkpoint(&owner).cloned() else { return Ok(None) };
        let Some(decision) = definition.goes_on(&at, self.inner.options.catalogue.sees_rounds()) else { return Ok(None) };
        let owner = TaskRecord { state: TaskState::Running { checkpoint: at }, ..owner };
        Ok(Some(OwnerStep { owner, definition, decision }))
    }

    /// Takes it, in the same commit.
    pub(super) async fn owner_goes_on(&self, tx: &Tx, step: OwnerStep) -> Result<(), CommitError> {
        let OwnerStep { owner, definition, decision } = step;
        tx.bind(Bound { conversation: Some(owner.conversation_id), task: Some(owner.id) });
        match apply(&*definition, tx, &owner, decision).await?.0 {
            next @ (NextState::End(_) | NextState::Wait { .. } | NextState::Sleep { .. }) => {
                self.put_state(tx, owner, next, Mode::Run).await.map(drop)
            }
            other => Err(CommitError::Invalid(Violation::Decision {
                why: format!("a step that the line takes by itself ends, waits or sleeps, and {} decided {other:?}", owner.kind),
            })),
        }
    }

    /// The owner, where it waits and everything that it waits for is over as the commit would leave it.
    async fn waiting_owner(&self, tx: &Tx, ended: &TaskRecord) -> Result<Option<TaskRecord>, CommitError> {
        let Some(owner) = ended.owner else { return Ok(None) };
        // Cheap, and mostly so: of a round only the last end lets its owner go on.
        if self.state().tree.waits_for_more(owner, ended.id) {
            return Ok(None);
        }
        let Some(owner) = tx.task_as_left(owner).await?.filter(|owner| !owner.abort_requested) else { return Ok(None) };
        let TaskState::Waiting { on, .. } = &owner.state else { return Ok(None) };
        for task in on {
            if tx.task_as_left(*task).await?.is_none_or(|task| !task.terminal()) {
                return Ok(None);
            }
        }
        Ok(Some(owner))
    }

    /// The definition that takes it, where the scheduler would let it run.
    async fn runs_owner(&self, tx: &Tx, owner: &TaskRecord) -> Result<Option<Arc<dyn LineTask>>, CommitError> {
        let definition = {
            let state = self.state();
            let fits = matches!(state.fit(owner), Fit::Ready { migrates: false }) && state.restarts(owner) < RESTART_LIMIT;
            if !fits || state.scheduling != Scheduling::Running || state.held.contains_key(&owner.id) {
                return Ok(None);
            }
            state.tasks.get(&owner.kind).cloned()
        };
        let cancelled = self.candidate_tree(tx).await?.below_cancelled(owner.id);
        Ok(definition.filter(|_| !cancelled))
    }
}

/// Whether a task ended by its own decision; what else became of it stays to be seen.
const fn in_order(task: &TaskRecord) -> bool {
    matches!(&task.state, TaskState::Terminal { outcome: TaskOutcome::Completed { .. } | TaskOutcome::Failed { .. } })
}
