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
    /// An invocation of it has been stored.
    ran: bool,
    /// It never ran, and its phase begins without an effect: nothing is stored before its first decision.
    plans_first: bool,
}

/// A reservation that was made on the line.
struct Made {
    reservation: Reservation,
    /// It is in storage, or in memory only.
    stored: bool,
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
                    return Ok(Some(Made { reservation, stored: self.unstored(task).is_none() }));
                }
                let Some(Ready { record, mode, definition, ran, plans_first }) = self.ready(tx, task, named.as_ref()).await? else {
                    return Ok::<_, CommitError>(None);
                };
                let over = self.last_invocation(task, ran).await? == Some(invocation);
                if self.inner.options.guards.stops(Guard::Over, over) {
                    return Ok(None);
                }
                let began_at = checkpoint(&record).cloned().unwrap_or(Json::null());
                if !plans_first {
                    tx.put_task(record.clone()).await?;
                    tx.put_invocation(InvocationRow { task_id: task, invocation, number: 0, digest: None, answer: row::reserved(mode)? });
                }
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
                    unstored: plans_first.then(|| Box::new(record.clone())),
                    heard: false,
                    expired: false,
                };
                {
                    let mut state = self.state();
                    if state.held.insert(task, held).is_some_and(|before| before.expired && before.heard) {
                        state.lost.insert(task);
                    }
                    if plans_first {
                        state.named.insert(task, invocation);
                    }
                }
                if plans_first {
                    // No commit says it.
                    self.inner.changed.notify_waiters();
                }
                Ok(Some(Made { reservation: Reservation { record, mode }, stored: !plans_first }))
            })
            .await;
        match reservation {
            // On the line just now: no mark came between.
            Ok(Some(Made { reservation, stored: false })) => Ok(Answer::Reserved(Box::new(reservation))),
            Ok(Some(Made { reservation, stored: true })) => {
                self.state().lost.remove(&task);
                self.first_step(task, invocation, reservation).await
            }
            Ok(None) => Ok(Answer::Refused(Refusal::NotReady)),
            Err(error) => {
                if let CommitError::Rejected(_) = error {
                    self.put_aside(task, super::chain(&error));
                }
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

    /// The running record of a task whose reservation is in memory only.
    pub(super) fn unstored(&self, task: TaskId) -> Option<TaskRecord> {
        self.state().held.get(&task).and_then(|held| held.unstored.as_deref().cloned())
    }

    /// The record of a task as its invocation finds it: running, also where its reservation is in memory only. Not where the task, or a
    /// task above it, was asked to stop meanwhile: it never ran then (section 5.4). A table read.
    pub(super) async fn found_by(&self, tx: &Tx, task: TaskId) -> Result<Option<TaskRecord>, TxError> {
        let found = tx.task(task).await?;
        Ok(found.map(|record| self.as_reserved(record)))
    }

    fn as_reserved(&self, record: TaskRecord) -> TaskRecord {
        let never_ran = matches!(record.state, TaskState::Pending { .. }) && record.started_at.is_none() && !record.abort_requested;
        match self.unstored(record.id).filter(|_| never_ran && !self.state().tree.marks(record.id)) {
            Some(TaskRecord { state, started_at, restarts, .. }) => TaskRecord { state, started_at, restarts, ..record },
            None => record,
        }
    }

    /// Stores the reservations that are in memory only and whose invocations a beat has named: what plans for longer than that is known to
    /// the next owner, and counted where it is lost.
    pub(super) async fn store_heard(&self) -> Result<(), LineError> {
        let heard: Vec<TaskId> = {
            let state = self.state();
            let heard = state.held.iter().filter(|(_, held)| held.unstored.is_some() && held.heard && !held.expired);
            let may = |task: &TaskId| state.tree.live.get(task).is_some_and(|live| !live.abort_requested) && !state.tree.marks(*task);
            heard.filter(|(task, _)| may(task)).map(|(task, _)| *task).collect()
        };
        for task in heard {
            let stored = self
                .session()
                .commit(async |tx| {
                    let held = self.state().held.get(&task).filter(|held| held.unstored.is_some()).cloned();
                    let (Some(held), Some(now)) = (held, self.found_by(tx, task).await?) else { return Ok(()) };
                    if matches!(now.state, TaskState::Running { .. }) {
                        tx.put_task(now).await?;
                        let answer = row::reserved(held.mode)?;
                        tx.put_invocation(InvocationRow { task_id: task, invocation: held.invocation, number: 0, digest: None, answer });
                    }
                    Ok::<_, CommitError>(())
                })
                .await;
            self.decided(task, stored.map_err(LineError::from))?;
        }
        Ok(())
    }

    /// Stores a reservation that was in memory only, in the commit of what its invocation says first, where that has not changed the
    /// record itself.
    pub(super) async fn store_reservation(&self, tx: &Tx, task: TaskId) -> Result<(), TxError> {
        if self.unstored(task).is_none() {
            return Ok(());
        }
        let Some(left) = tx.task_as_left(task).await? else { return Ok(()) };
        let reserved = self.as_reserved(left.clone());
        if reserved == left { Ok(()) } else { tx.put_task(reserved).await }
    }

    /// The reservation that an invocation has already.
    fn reserved(&self, task: TaskId, invocation: InvocationId) -> Option<Reservation> {
        let state = self.state();
        let held = state.held.get(&task).filter(|held| held.invocation == invocation)?;
        if let Some(record) = held.unstored.as_deref() {
            let marked = state.tree.live.get(&task).is_none_or(|live| live.abort_requested) || state.tree.marks(task);
            return (!marked).then(|| Reservation { record: record.clone(), mode: held.mode });
        }
        let record = state.tree.live.get(&task).filter(|record| matches!(record.state, TaskState::Running { .. }))?.clone();
        Some(Reservation { record, mode: held.mode })
    }

    /// The invocation that a task had before. One that holds nothing any more is over: its request was under way for longer than it lived.
    async fn last_invocation(&self, task: TaskId, ran: bool) -> Result<Option<InvocationId>, CommitError> {
        if let Some(invocation) = self.state().named.get(&task) {
            return Ok(Some(*invocation));
        }
        if !ran {
            return Ok(None);
        }
        let row = self.session().store().invocation(task).await.map_err(|error| CommitError::Tx(TxError::Read(error)))?;
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
            let Some(mode) = state.tree.may_start(task, tx.now()) else { return Ok(None) };
            mode
        };
        let Some(record) = tx.task(task).await? else { return Ok(None) };
        let restarts = self.state().restarts(&record);
        // Parking it, or ending it, is the scheduler's.
        if restarts >= RESTART_LIMIT {
            return Ok(None);
        }
        let version = record.version;
        let Ok((record, definition)) = self.taken(record) else { return Ok(None) };
        let migrated = record.version != version;
        if named.is_some_and(|named| named.version != definition.version()) {
            return Ok(None);
        }
        let Some(at) = checkpoint(&record).cloned() else { return Ok(None) };
        // An abort handler without effects is the scheduler's: no worker has code for it.
        if mode == Mode::Abort && definition.abort_decision(&at).is_some() {
            return Ok(None);
        }
        let plans_first = {
            let fresh = mode == Mode::Run && record.started_at.is_none() && restarts == 0 && !migrated;
            fresh && definition.plans_first(&at)
        };
        let ran = record.started_at.is_some();
        let started_at = record.started_at.or_else(|| Some(tx.now()));
        let record = TaskRecord { state: TaskState::Running { checkpoint: at }, started_at, restarts, ..record };
        Ok(Some(Ready { record, mode, definition, ran, plans_first }))
    }
}
