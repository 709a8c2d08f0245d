//! Reservation: a task goes to an invocation (section 5.4, `protocol.md` 3).

use picofleet_session::{CommitError, InvocationId, InvocationRow, Json, TaskId, TaskRecord, TaskState, Tx};

use super::{Held, LineError, SessionLine};
use crate::kinds::reason;
use crate::step::Mode;
use crate::task::checkpoint;
use crate::wire::{Answer, Refusal, Reservation, WorkerId};

impl SessionLine {
    /// Gives a ready task to an invocation. The same invocation gets the same reservation again, so that a lost answer burns nothing.
    pub(super) async fn reserve(&self, task: TaskId, invocation: InvocationId, worker: WorkerId) -> Result<Answer, LineError> {
        if let Some(reservation) = self.reserved(task, invocation) {
            return Ok(Answer::Reserved(Box::new(reservation)));
        }
        self.complete_tree().await?;
        let reservation = self
            .session()
            .commit(async |tx| {
                let Some((record, mode)) = self.ready(tx, task).await? else { return Ok::<_, CommitError>(None) };
                let began_at = checkpoint(&record).cloned().unwrap_or(Json::null());
                tx.put_task(record.clone()).await?;
                tx.put_invocation(InvocationRow { task_id: task, invocation, number: 0, digest: None, answer: None });
                // Taken on the line: from here on no other reservation finds the task ready.
                let held = Held { invocation, worker, mode, began_at, number: 0, last: None };
                self.state().held.insert(task, held);
                Ok(Some(Reservation { record, mode }))
            })
            .await;
        match reservation {
            Ok(Some(reservation)) => Ok(Answer::Reserved(Box::new(reservation))),
            Ok(None) => Ok(Answer::Refused(Refusal::NotReady)),
            Err(error) => {
                self.ended(task, invocation);
                Err(error.into())
            }
        }
    }

    /// The reservation that an invocation has already.
    fn reserved(&self, task: TaskId, invocation: InvocationId) -> Option<Reservation> {
        let state = self.state();
        let held = state.held.get(&task).filter(|held| held.invocation == invocation)?;
        let record = state.tree.live.get(&task)?.clone();
        Some(Reservation { record, mode: held.mode })
    }

    /// The running record of a task that may be reserved now, with what to run.
    async fn ready(&self, tx: &Tx, task: TaskId) -> Result<Option<(TaskRecord, Mode)>, CommitError> {
        let mode = {
            let state = self.state();
            let plan = state.tree.plan(&state.held.keys().copied().collect(), tx.now());
            if plan.runs.contains(&task) {
                Mode::Run
            } else if plan.aborts.contains(&task) {
                Mode::Abort
            } else {
                return Ok(None);
            }
        };
        let Some(record) = tx.task(task).await? else { return Ok(None) };
        let Ok(record) = self.taken_by_definition(record) else { return Ok(None) };
        let Some(at) = checkpoint(&record).cloned() else { return Ok(None) };
        let record =
            TaskRecord { state: TaskState::Running { checkpoint: at }, started_at: record.started_at.or_else(|| Some(tx.now())), ..record };
        Ok(Some((record, mode)))
    }

    /// A record as the current definition takes it; else the reason that blocks it (section 5.4).
    pub(super) fn taken_by_definition(&self, record: TaskRecord) -> Result<TaskRecord, &'static str> {
        let task = self.inner.tasks.get(&record.kind).ok_or(reason::MISSING_TASK)?;
        let version = task.version();
        match record.version.cmp(&version) {
            std::cmp::Ordering::Equal => Ok(record),
            std::cmp::Ordering::Greater => Err(reason::TASK_TOO_OLD),
            std::cmp::Ordering::Less => {
                let at = checkpoint(&record).cloned().unwrap_or(Json::null());
                let migrated = task.migrate(record.version, record.input.clone(), at).ok_or(reason::MIGRATION_FAILED)?;
                let (input, at) = migrated.map_err(|_| reason::MIGRATION_FAILED)?;
                Ok(TaskRecord { version, input, state: TaskState::Pending { checkpoint: at }, ..record })
            }
        }
    }
}
