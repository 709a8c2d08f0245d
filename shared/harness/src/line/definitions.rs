//! Which definition takes a task (section 5.4): what blocks one, migration, and handing over to another definition.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use picofleet_session::{Json, TaskId, TaskRecord};

use super::{Held, RESTART_LIMIT, SessionLine, State};
use crate::kinds::reason;
use crate::task::{LineTask, LineTasks, checkpoint, identity};

/// What a line tells its application. Nothing of it changes an outcome.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LineReport {
    /// A definition could not migrate a task; it is tried again when the definition changes.
    #[error("task {task} can't be migrated, and waits for another definition: {error}")]
    MigrationFailed {
        /// The task.
        task: TaskId,
        /// Why.
        error: String,
    },
    /// A task was lost too often without progress and is parked until it is retried or aborted.
    #[error("task {task} was lost too often without progress, and waits until it is retried or aborted")]
    RestartLimit {
        /// The task.
        task: TaskId,
    },
    /// Storage refused what was decided about a task: it is left alone for a while and tried again, less and less often, while the rest of
    /// the session goes on.
    #[error("storage refused what was decided about task {task}; it is tried again, less and less often: {why}")]
    Refused {
        /// The task.
        task: TaskId,
        /// Why.
        why: String,
    },
    /// A running task's definition was replaced by one that can't take it, or removed: the old code goes on.
    #[error("task {task} goes on in its old code: {}", .current.as_ref().map_or_else(|| "its definition was removed".to_owned(), |(version, _)| format!("version {version} of its definition can't take it")))]
    NotHandedOver {
        /// The task.
        task: TaskId,
        /// The version and build that are there now.
        current: Option<(u32, String)>,
    },
    /// Storage failed a commit in doubt, or another owner has the session: this opening is over.
    #[error("the session's opening is over: {why}")]
    SessionEnded {
        /// Why.
        why: String,
    },
}

/// A migration that failed.
pub(super) struct Failed {
    definition: Arc<dyn LineTask>,
    error: String,
}

/// Whether a task may be reserved.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    Ready { migrates: bool },
    Blocked { reason: &'static str, error: Option<String> },
}

impl Fit {
    const fn blocked(reason: &'static str) -> Self {
        Self::Blocked { reason, error: None }
    }
}

impl State {
    /// Whether the current definition takes a task. Runs no code.
    pub(super) fn fit(&self, record: &TaskRecord) -> Fit {
        let Some(definition) = self.tasks.get(&record.kind) else { return Fit::blocked(reason::MISSING_TASK) };
        let migrates = match record.version.cmp(&definition.version()) {
            std::cmp::Ordering::Greater => return Fit::blocked(reason::TASK_TOO_OLD),
            std::cmp::Ordering::Less if !definition.migrates() => return Fit::blocked(reason::MIGRATION_FAILED),
            std::cmp::Ordering::Less => true,
            std::cmp::Ordering::Equal => false,
        };
        if let Some(failed) = self.failed.get(&record.id).filter(|failed| migrates && Arc::ptr_eq(&failed.definition, definition)) {
            return Fit::Blocked { reason: reason::MIGRATION_FAILED, error: Some(failed.error.clone()) };
        }
        // An abort handler that is lost as often faults instead.
        if record.restarts >= RESTART_LIMIT && !record.abort_requested {
            return Fit::blocked(reason::RESTART_LIMIT);
        }
        Fit::Ready { migrates }
    }
}

impl SessionLine {
    /// Replaces the line halves of task definitions. Blocked tasks are considered again, and running ones handed over.
    pub fn set_tasks(&self, tasks: LineTasks) {
        self.state().tasks = Arc::new(tasks);
        self.changed().notify_waiters();
    }

    /// A record as the current definition takes it, with that definition. A migration that fails is kept and reported.
    pub(super) fn taken(&self, record: TaskRecord) -> Result<(TaskRecord, Arc<dyn LineTask>), &'static str> {
        let definition = {
            let state = self.state();
            match state.fit(&record) {
                Fit::Blocked { reason, .. } => return Err(reason),
                Fit::Ready { .. } => state.tasks.get(&record.kind).cloned().ok_or(reason::MISSING_TASK)?,
            }
        };
        let version = definition.version();
        if record.version == version {
            return Ok((record, definition));
        }
        match migrated(&*definition, &record) {
            Ok((input, at)) => {
                let mut record = TaskRecord { version, input, ..record };
                replace_checkpoint(&mut record, at);
                Ok((record, definition))
            }
            Err(error) => {
                let task = record.id;
                self.state().failed.insert(task, Failed { definition, error: error.clone() });
                self.report(&LineReport::MigrationFailed { task, error });
                Err(reason::MIGRATION_FAILED)
            }
        }
    }

    /// Whether an invocation hands over at its phase boundary: its worker drains, or another definition is there and can take the task.
    pub(super) fn hands_over(&self, record: &TaskRecord, held: &Held) -> bool {
        let (current, takes) = {
            let state = self.state();
            if held.worker.is_some_and(|worker| state.draining.contains(&worker)) {
                return true;
            }
            let current = state.tasks.get(&record.kind);
            let takes = current
                .is_some_and(|current| current.version() == record.version || (current.version() > record.version && current.migrates()));
            (current.map(|current| identity(&**current)), takes)
        };
        if current.as_ref() == Some(&held.code) {
            return false;
        }
        if !takes {
            self.report_kept(record.id, current);
        }
        takes
    }

    /// Reports that the old code goes on, once for each definition that was found.
    fn report_kept(&self, task: TaskId, current: Option<(u32, String)>) {
        let new = {
            let mut state = self.state();
            let held = state.held.get_mut(&task);
            held.is_some_and(|held| held.reported.replace(current.clone()).as_ref() != Some(&current))
        };
        if new {
            self.report(&LineReport::NotHandedOver { task, current });
        }
    }

    /// Tells the application; its code's panic is nobody's.
    pub(super) fn report(&self, report: &LineReport) {
        let Some(on_report) = &self.inner.options.on_report else {
            tracing::warn!(session = %self.session().id(), error = %report, "the line reports");
            return;
        };
        if catch_unwind(AssertUnwindSafe(|| on_report(report))).is_err() {
            tracing::error!(session = %self.session().id(), "the listener of reports panicked");
        }
    }
}

fn migrated(definition: &dyn LineTask, record: &TaskRecord) -> Result<(Json, Json), String> {
    let at = checkpoint(record).cloned().unwrap_or(Json::null());
    let migrate = AssertUnwindSafe(|| definition.migrate(record.version, record.input.clone(), at));
    match catch_unwind(migrate) {
        Ok(Some(Ok(migrated))) => Ok(migrated),
        Ok(Some(Err(error))) => Err(error.to_string()),
        Ok(None) => Err(format!("version {} of {} does not migrate version {}", definition.version(), record.kind, record.version)),
        Err(_) => Err(format!("the migration of {} panicked", record.kind)),
    }
}

fn replace_checkpoint(record: &mut TaskRecord, at: Json) {
    use picofleet_session::TaskState::{Completing, Pending, Running, Sleeping, Terminal, Waiting};
    match &mut record.state {
        Pending { checkpoint } | Running { checkpoint } | Waiting { checkpoint, .. } | Sleeping { checkpoint, .. } => *checkpoint = at,
        Completing { .. } | Terminal { .. } => {}
    }
}
