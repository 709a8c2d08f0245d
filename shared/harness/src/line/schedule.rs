//! Pause, resume and close of the line (sections 2.2 and 5.1).

use picofleet_session::{CommitError, TaskRecord, TaskState};

use super::row::ended;
use super::{LineError, SessionLine};
use crate::inspection::Scheduling;

impl SessionLine {
    /// Enables scheduling; whether the line still takes work.
    pub fn resume(&self) -> bool {
        let scheduling = {
            let mut state = self.state();
            if state.scheduling == Scheduling::Paused {
                state.scheduling = Scheduling::Running;
            }
            state.scheduling
        };
        self.changed().notify_waiters();
        scheduling == Scheduling::Running
    }

    /// Whether it plans.
    #[must_use]
    pub fn scheduling(&self) -> Scheduling {
        self.state().scheduling
    }

    /// Takes no new work: nothing is reserved, no invocation and no host commits, and [`SessionLine::cancellations`] names all invocations.
    pub fn begin_close(&self) {
        self.state().scheduling = Scheduling::Closing;
        self.changed().notify_waiters();
    }

    /// Whether a commit that waited for the line may still land: behind the seal of a close it is refused, as a closed session refuses it
    /// (section 5.1).
    pub(super) fn unsealed(&self) -> Result<(), CommitError> {
        if self.scheduling() == Scheduling::Closing { Err(CommitError::Closed) } else { Ok(()) }
    }

    /// Whether no invocation is left.
    #[must_use]
    pub fn joined(&self) -> bool {
        self.state().held.values().all(|held| held.expired)
    }

    /// Closes in order: what still runs goes back to `pending`, and no restart is counted for it.
    ///
    /// # Errors
    /// [`LineError`]; the session is closed all the same.
    pub async fn close(&self) -> Result<(), LineError> {
        self.begin_close();
        self.end_holds().await;
        let given = self.give_back().await;
        if let Err(error) = self.session().close().await {
            tracing::warn!(session = %self.session().id(), error = %error, "a session was not closed in order");
        }
        given
    }

    async fn give_back(&self) -> Result<(), LineError> {
        let stopped = {
            let mut state = self.state();
            let held = std::mem::take(&mut state.held);
            let lost = state.lost.clone();
            let running = state.tree.live.values().filter(|task| matches!(task.state, TaskState::Running { .. }));
            // One that expired before was lost, whatever the end of the line.
            let stopped = running.filter(|task| !lost.contains(&task.id) && !held.get(&task.id).is_some_and(|held| held.expired));
            stopped.map(|task| task.id).collect::<Vec<_>>()
        };
        if stopped.is_empty() {
            return Ok(());
        }
        // Read before the line is taken: these rows change by sayings only, and none is taken any more.
        let mut rows = Vec::new();
        for task in stopped {
            rows.extend(self.session().store().invocation(task).await?);
        }
        self.session()
            .commit(async |tx| {
                let mut given = Vec::new();
                for row in rows {
                    if let Some(task) = tx.task(row.task_id).await? {
                        given.push((task, row));
                    }
                }
                for (task, row) in given {
                    let TaskState::Running { checkpoint } = task.state.clone() else { continue };
                    tx.put_task(TaskRecord { state: TaskState::Pending { checkpoint }, ..task }).await?;
                    tx.put_invocation(ended(row));
                }
                Ok::<_, CommitError>(())
            })
            .await?;
        Ok(())
    }
}
