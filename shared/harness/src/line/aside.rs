//! Tasks that the plan leaves alone for a while, because storage refused what was decided about them: nothing else of their session
//! waits for that.

use std::collections::BTreeMap;
use std::time::Duration;

use picofleet_session::{CommitError, ReadError, TaskId};
use tokio::time::Instant;

use super::{LineError, LineReport, SessionLine, chain, damage};
use crate::ownership::Plan;

/// The first pause of a task that storage refuses, and the longest; it doubles.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The tasks that wait for their next try. Live tasks only.
#[derive(Default)]
pub(super) struct Aside {
    tasks: BTreeMap<TaskId, Entry>,
}

struct Entry {
    until: Instant,
    pause: Duration,
}

impl Aside {
    /// Leaves a task alone, longer each time; whether it is the first time.
    fn put(&mut self, task: TaskId) -> bool {
        let before = self.tasks.get(&task).map(|entry| entry.pause);
        let pause = before.map_or(PAUSE, |pause| PAUSE_MAX.min(pause * 2));
        self.tasks.insert(task, Entry { until: Instant::now() + pause, pause });
        before.is_none()
    }

    /// What is decided about the task was stored, or it is to be tried at once.
    pub(super) fn remove(&mut self, task: TaskId) {
        self.tasks.remove(&task);
    }

    fn waits(&self, task: TaskId) -> bool {
        self.tasks.get(&task).is_some_and(|entry| entry.until > Instant::now())
    }

    /// How long the one that comes next still waits.
    fn next(&self) -> Option<Duration> {
        let now = Instant::now();
        self.tasks.values().filter(|entry| entry.until > now).map(|entry| entry.until - now).min()
    }
}

/// Whether a failed commit is the end of this opening.
pub(super) const fn ends_opening(error: &CommitError) -> bool {
    matches!(error, CommitError::Closed | CommitError::NotOwner | CommitError::Failed(_))
}

/// Whether an error is the end of this opening, and not of one decision.
pub(super) fn ends_session(error: &LineError) -> bool {
    match error {
        error if damage(error).is_some() => true,
        LineError::Commit(error) => ends_opening(error),
        LineError::Read(error) => matches!(error, ReadError::Closed | ReadError::NotOwner | ReadError::Failed(_)),
        LineError::Storage(_) => true,
        LineError::Unwatched(_) => false,
    }
}

impl SessionLine {
    /// Takes what waits for its next try out of a plan. A task whose mark waits runs nothing: its mark is decided, but not stored.
    pub(super) fn leave_aside(&self, plan: &mut Plan) {
        let state = self.state();
        let tried = |task: &TaskId| !state.aside.waits(*task);
        plan.marks.retain(tried);
        plan.finishes.retain(tried);
        plan.runs.retain(tried);
        plan.aborts.retain(tried);
        let wait = state.aside.next().and_then(|wait| i64::try_from(wait.as_millis()).ok());
        let due = wait.map(|wait| picofleet_session::Millis(self.now().0.saturating_add(wait).saturating_add(1)));
        plan.next_due = [plan.next_due, due].into_iter().flatten().min();
    }

    /// Follows a decision about a task of the scheduler's own. One that storage refused is reported and left for later.
    ///
    /// # Errors
    /// What ends the session.
    pub(super) fn decided(&self, task: TaskId, stored: Result<(), LineError>) -> Result<(), LineError> {
        match stored {
            Ok(()) => self.state().aside.remove(task),
            Err(error) if ends_session(&error) => return Err(error),
            Err(error) => self.put_aside(task, chain(&error)),
        }
        Ok(())
    }

    /// Leaves a task alone for a while; the first time is reported.
    pub(super) fn put_aside(&self, task: TaskId, why: String) {
        let first = self.state().aside.put(task);
        if first {
            self.report(&LineReport::Refused { task, why });
        } else {
            tracing::warn!(session = %self.session().id(), task = %task, why, "a decision was refused again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_pause_doubles_to_a_bound_and_begins_again() {
        let (mut aside, task) = (Aside::default(), TaskId::new(3).unwrap());
        assert!(aside.put(task));
        for _ in 0..30 {
            let wait = aside.next().unwrap();
            assert!(aside.waits(task) && wait <= PAUSE_MAX);
            tokio::time::advance(wait).await;
            assert!(!aside.waits(task));
            assert!(!aside.put(task));
        }
        assert_eq!(aside.next(), Some(PAUSE_MAX));
        aside.remove(task);
        assert!(aside.put(task));
        assert_eq!(aside.next(), Some(PAUSE));
    }
}
