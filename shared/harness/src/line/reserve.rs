//! Reservation: a task goes to an invocation (section 5.4, `protocol.md` 3).

use std::sync::Arc;

use picofleet_session::{CommitError, InvocationId, InvocationRow, Json, TaskId, TaskRecord, TaskState, Tx, TxError};

use super::{Held, LineError, RESTART_LIMIT, SessionLine, row};
use crate::guard::Guard;
use crate::inspection::Scheduling;
use crate::step::Mode;
use crate::task::{LineTask, checkpoint, identity};
use crate::wire::{Answer, Definition, Refusal, Reservation, WorkerId};

/// A task that may be reserved now.
struct Ready {
    record: TaskRecord,
    mode: Mode,
    definition: Arc<dyn LineTask>,
}

impl SessionLine {
    /// Gives a ready task to an invocation. The same invocation gets the same reservation again, so that a lost answer burns nothing.
    pub(super) async fn reserve(
        &self,
        task: TaskId,
        invocation: InvocationId,
        worker: WorkerId,
        named: Option<Definition>,
    ) -> Result<Answer, LineError> {
        if let Some(reservation) = self.reserved(task, invocation) {
            return Ok(Answer::Reserved(Box::new(reservation)));
        }
        self.complete_tree().await?;
        let reservation = self
            .session()
            .commit(async |tx| {
                // Again on the line: the same request may have been in storage while this one waited for it.
                if let Some(reservation) = self.reserved(task, invocation) {
                    return Ok(Some(reservation));
                }
                let Some(Ready { record, mode, definition }) = self.ready(tx, task, named.as_ref()).await? else {
                    return Ok::<_, CommitError>(None);
                };
                let over = self.last_invocation(&record).await? == Some(invocation);
                if self.inner.options.guards.stops(Guard::Over, over) {
                    return Ok(None);
                }
                let began_at = checkpoint(&record).cloned().unwrap_or(Json::null());
                tx.put_task(record.clone()).await?;
                tx.put_invocation(InvocationRow { task_id: task, invocation, number: 0, digest: None, answer: row::reserved(mode)? });
                // Taken on the line: from here on no other reservation finds the task ready.
                let held = Held {
                    invocation,
                    worker: Some(worker),
                    mode,
                    began_at,
                    number: 0,
                    last: None,
                    progress: 0,
                    code: named.as_ref().map_or_else(|| identity(&*definition), |named| (named.version, named.build.clone())),
                    definition,
                    reported: None,
                    heard: false,
                    expired: false,
                };
                let mut state = self.state();
                if state.held.insert(task, held).is_some_and(|before| before.expired && before.heard) {
                    state.lost.insert(task);
                }
                Ok(Some(Reservation { record, mode }))
            })
            .await;
        match reservation {
            Ok(Some(reservation)) => {
                self.state().lost.remove(&task);
                self.first_step(task, invocation, reservation).await
            }
            Ok(None) => Ok(Answer::Refused(Refusal::NotReady)),
            Err(error) => {
                self.ended(task, invocation);
                Err(error.into())
            }
        }
    }

    /// The step before the first phase (section 5.1): a mark that landed while the reservation was in storage had to wait for the line, and
    /// comes before this.
    async fn first_step(&self, task: TaskId, invocation: InvocationId, reservation: Reservation) -> Result<Answer, LineError> {
        let begins = self
            .session()
            .commit(async |tx| {
                let record = tx.task(task).await?;
                let begins = record.is_some_and(|record| {
                    matches!(record.state, TaskState::Running { .. }) && (reservation.mode == Mode::Abort || !record.abort_requested)
                });
                Ok::<_, CommitError>(begins && self.scheduling() != Scheduling::Closing)
            })
            .await;
        if let Ok(true) = begins {
            return Ok(Answer::Reserved(Box::new(reservation)));
        }
        self.ended(task, invocation);
        begins?;
        Ok(Answer::Refused(Refusal::NotReady))
    }

    /// The reservation that an invocation has already.
    fn reserved(&self, task: TaskId, invocation: InvocationId) -> Option<Reservation> {
        let state = self.state();
        let held = state.held.get(&task).filter(|held| held.invocation == invocation)?;
        let record = state.tree.live.get(&task).filter(|record| matches!(record.state, TaskState::Running { .. }))?.clone();
        Some(Reservation { record, mode: held.mode })
    }

    /// The invocation that a task had before. One that holds nothing any more is over: its request was under way for longer than it lived.
    async fn last_invocation(&self, record: &TaskRecord) -> Result<Option<InvocationId>, CommitError> {
        if record.started_at.is_none() {
            return Ok(None);
        }
        if let Some(invocation) = self.state().named.get(&record.id) {
            return Ok(Some(*invocation));
        }
        let row = self.session().store().invocation(record.id).await.map_err(|error| CommitError::Tx(TxError::Read(error)))?;
        Ok(row.map(|row| row.invocation))
    }

    /// The running record of a task that may be reserved now, with what to run.
    async fn ready(&self, tx: &Tx, task: TaskId, named: Option<&Definition>) -> Result<Option<Ready>, CommitError> {
        let mode = {
            let state = self.state();
            if state.scheduling != Scheduling::Running {
                return Ok(None);
            }
            let taken = state.held.get(&task).is_some_and(|held| !held.expired);
            if self.inner.options.guards.stops(Guard::Held, taken) {
                return Ok(None);
            }
            let mut invoked = state.invoked();
            invoked.remove(&task);
            let plan = state.tree.plan(&invoked, tx.now());
            if plan.runs.contains(&task) {
                Mode::Run
            } else if plan.aborts.contains(&task) {
                Mode::Abort
            } else {
                return Ok(None);
            }
        };
        let Some(record) = tx.task(task).await? else { return Ok(None) };
        let restarts = self.state().restarts(&record);
        // Parking it, or ending it, is the scheduler's.
        if restarts >= RESTART_LIMIT {
            return Ok(None);
        }
        let Ok((record, definition)) = self.taken(record) else { return Ok(None) };
        if named.is_some_and(|named| named.version != definition.version()) {
            return Ok(None);
        }
        let Some(at) = checkpoint(&record).cloned() else { return Ok(None) };
        // An abort handler without effects is the scheduler's: no worker has code for it.
        if mode == Mode::Abort && definition.abort_decision(&at).is_some() {
            return Ok(None);
        }
        let started_at = record.started_at.or_else(|| Some(tx.now()));
        let record = TaskRecord { state: TaskState::Running { checkpoint: at }, started_at, restarts, ..record };
        Ok(Some(Ready { record, mode, definition }))
    }
}
