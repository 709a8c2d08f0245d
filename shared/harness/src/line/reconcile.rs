//! What the scheduler decides by itself: marks, finishes, aborts without effects, orphans (sections 5.4 and 5.5).

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use futures::FutureExt as _;
use picofleet_session::{CommitError, Json, TaskError, TaskId, TaskOutcome, TaskRecord, TaskState, Violation};

use super::aside::ends_session;
use super::definitions::{Fit, LineReport};
use super::outcome::finish;
use super::row::ended;
use super::{LineError, RESTART_LIMIT, SessionLine};
use crate::guard::Guard;
use crate::inspection::Scheduling;
use crate::ownership::Plan;
use crate::task::{NextState, checkpoint};

/// How many rounds of decisions follow from one another: as deep as ownership trees are, and far more.
const ROUNDS_MAX: u32 = 256;

impl SessionLine {
    /// Stores what the scheduler decides until nothing is left of it, and answers what may be reserved. A line that is paused or closing
    /// decides nothing.
    pub(super) async fn reconcile(&self) -> Result<Plan, LineError> {
        let mut rounds = 0_u32;
        loop {
            rounds += 1;
            if rounds > ROUNDS_MAX {
                // What is decided here changes nothing: somebody else has the session, and its records are newer than what this line
                // knows. An empty commit finds that out.
                self.session().assert_owner().await?;
                tracing::error!(session = %self.session().id(), "the plan of a session decides the same again and again");
                return Ok(Plan::default());
            }
            if self.scheduling() != Scheduling::Running {
                return Ok(Plan::default());
            }
            self.complete_tree().await?;
            self.store_heard().await?;
            let mut plan = self.tree_plan();
            self.leave_aside(&mut plan);
            let ends = self.sort(&mut plan);
            if plan.marks.is_empty() && plan.finishes.is_empty() && ends.is_empty() {
                return Ok(plan);
            }
            self.mark_all(&plan.marks).await?;
            for task in plan.finishes {
                self.decided(task, self.finish_held(task).await)?;
            }
            for (task, end) in ends {
                self.decided(task, self.end_by_scheduler(task, end).await)?;
            }
        }
    }

    /// Marks tasks in one commit; where storage refuses that, one by one, so that the one which it refuses keeps no other back.
    async fn mark_all(&self, tasks: &BTreeSet<TaskId>) -> Result<(), LineError> {
        if tasks.len() > 1 {
            match self.mark(tasks).await {
                Err(error) if !ends_session(&error) => {}
                marked => return marked,
            }
        }
        for task in tasks {
            self.decided(*task, self.mark(&[*task].into()).await)?;
        }
        Ok(())
    }

    /// What the ownership tree alone says.
    pub(super) fn tree_plan(&self) -> Plan {
        let state = self.state();
        let mut plan = state.tree.plan(&state.invoked(), self.now());
        if !plan.marks.is_empty() && !self.inner.options.guards.stops(Guard::Cascade, true) {
            // Only where a simulation took the guard away: what is below a cancelled owner runs on.
            plan.runs.extend(std::mem::take(&mut plan.marks));
        }
        plan
    }

    /// Takes blocked tasks out of the plan, and what the scheduler does itself.
    fn sort(&self, plan: &mut Plan) -> Vec<(TaskId, End)> {
        let state = self.state();
        let mut ends = Vec::new();
        plan.runs.retain(|task| {
            let Some(record) = state.tree.live.get(task) else { return false };
            if !matches!(state.fit(record), Fit::Ready { .. }) {
                return false;
            }
            let parked = self.inner.options.guards.stops(Guard::RestartLimit, state.restarts(record) >= RESTART_LIMIT);
            if parked {
                ends.push((*task, End::Park));
            }
            !parked
        });
        plan.aborts.retain(|task| {
            let Some(record) = state.tree.live.get(task) else { return false };
            let end = match state.fit(record) {
                Fit::Blocked { reason, .. } => Some(End::Orphan(reason)),
                Fit::Ready { .. } if state.restarts(record) >= RESTART_LIMIT => Some(End::Lost),
                Fit::Ready { .. } => {
                    let decision = || state.tasks.get(&record.kind)?.abort_decision(checkpoint(record)?);
                    // A record of an older version is brought up first, which changes the checkpoint.
                    state
                        .tasks
                        .get(&record.kind)
                        .is_some_and(|task| task.version() == record.version)
                        .then(decision)
                        .flatten()
                        .map(End::Abort)
                }
            };
            let reserved = end.is_none();
            ends.extend(end.map(|end| (*task, end)));
            reserved
        });
        ends
    }

    async fn end_by_scheduler(&self, task: TaskId, end: End) -> Result<(), LineError> {
        match end {
            End::Abort(decision) => self.abort_on_line(task, decision).await,
            End::Orphan(reason) => self.end_marked(task, TaskOutcome::Orphaned { reason: reason.to_owned() }).await,
            End::Lost => {
                let message = format!("the abort handler was lost {RESTART_LIMIT} times");
                self.end_marked(task, TaskOutcome::Faulted { error: TaskError { message, detail: None } }).await
            }
            End::Park => self.park(task).await,
        }
    }

    /// Parks a task that was lost too often: it stays `pending` until it is retried or aborted.
    async fn park(&self, task: TaskId) -> Result<(), LineError> {
        let row = self.session().store().invocation(task).await?;
        let parked = self
            .session()
            .commit(async |tx| {
                let Some(record) = tx.task(task).await?.filter(|task| !task.abort_requested) else { return Ok::<_, CommitError>(false) };
                let restarts = self.state().restarts(&record);
                let state = match record.state.clone() {
                    TaskState::Running { checkpoint } => TaskState::Pending { checkpoint },
                    other => other,
                };
                if record.terminal() || restarts < RESTART_LIMIT {
                    return Ok(false);
                }
                tx.put_task(TaskRecord { state, restarts, ..record }).await?;
                if let Some(row) = row {
                    tx.put_invocation(ended(row));
                }
                Ok(true)
            })
            .await?;
        if parked {
            {
                let mut state = self.state();
                state.lost.remove(&task);
                state.held.remove(&task);
            }
            self.report(&LineReport::RestartLimit { task });
        }
        Ok(())
    }

    /// A held outcome becomes terminal once nothing below is live.
    pub(super) async fn finish_held(&self, task: TaskId) -> Result<(), LineError> {
        self.session()
            .commit(async |tx| {
                let Some(record) = tx.task(task).await? else { return Ok(()) };
                let TaskState::Completing { outcome } = record.state.clone() else { return Ok(()) };
                if self.candidate_tree(tx).await?.owned_work(task).is_empty() {
                    finish(tx, record, outcome).await?;
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }

    async fn abort_on_line(&self, task: TaskId, decision: Json) -> Result<(), LineError> {
        let bound = picofleet_session::Bound { conversation: None, task: Some(task) };
        let result = self
            .session()
            .commit_bound(bound, async |tx| {
                let Some(record) = tx.task(task).await?.filter(|task| !task.terminal()) else { return Ok(()) };
                let definition = self.state().tasks.get(&record.kind).cloned();
                let Some(definition) = definition else { return Ok(()) };
                let panicked = |_| Err(CommitError::Invalid(Violation::Decision { why: format!("the abort of {} panicked", record.kind) }));
                let applied = AssertUnwindSafe(definition.apply(tx, &record, decision)).catch_unwind().await.unwrap_or_else(panicked);
                let outcome = match applied?.0 {
                    NextState::End(outcome) => outcome,
                    // Tried again and again it would never end.
                    _ => TaskOutcome::Faulted {
                        error: TaskError { message: "the abort handler returned without an outcome".to_owned(), detail: None },
                    },
                };
                self.end_task(tx, record, outcome).await?;
                Ok::<_, CommitError>(())
            })
            .await;
        match result {
            Err(error @ (CommitError::Closed | CommitError::NotOwner | CommitError::Failed(_))) => Err(error.into()),
            Err(error) => self.end_marked(task, TaskOutcome::Faulted { error: super::say_error(&error) }).await,
            Ok(()) => Ok(()),
        }
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

/// What the scheduler does with a task instead of letting it be reserved.
enum End {
    /// Its abort handler has no effect.
    Abort(Json),
    /// No definition can take it.
    Orphan(&'static str),
    /// Its abort handler was lost too often.
    Lost,
    /// It was lost too often.
    Park,
}
