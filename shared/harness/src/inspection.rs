//! What `inspect` shows of a session's live work (section 2.2).

use picofleet_session::{Millis, SubmissionRecord, TaskId, TaskRecord};
use serde::{Deserialize, Serialize};

use crate::registry::RegistryFailure;

/// Whether the line plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Scheduling {
    /// Opened, and nobody has asked for progress yet.
    #[default]
    Paused,
    /// It plans.
    Running,
    /// It takes no new work.
    Closing,
}

/// A session's live work at one point on its line.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    /// Whether the line plans.
    pub scheduling: Scheduling,
    /// Every task that is not terminal, in the order of ids.
    pub tasks: Vec<TaskInspection>,
    /// Queued and placed submissions, in the order of ids.
    pub submissions: Vec<SubmissionRecord>,
    /// What is registered and absent, because a wrapper failed.
    #[serde(default)]
    pub registry: Vec<RegistryFailure>,
    /// The session is quarantined: opening it failed too often, and nothing of it runs until somebody retries it.
    #[serde(default)]
    pub quarantined: bool,
}

/// A live task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskInspection {
    /// Its record.
    pub record: TaskRecord,
    /// Where it is under the current definitions. Derived, never stored.
    pub state: TaskView,
}

/// Where a live task is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum TaskView {
    /// An invocation has it.
    Running,
    /// The next pass would reserve it.
    Ready {
        /// Its definition is newer and would bring it up.
        migrates: bool,
    },
    /// It waits.
    Waiting {
        /// For these live tasks: of its wait, or its live owned work where it is to abort.
        on: Vec<TaskId>,
    },
    /// Its outcome is held until the work below has drained.
    Completing,
    /// It can't go on by itself.
    Blocked {
        /// `missing_task`, `task_too_old`, `migration_failed` or `restart_limit`; `no_worker` for a ready task whose route no live worker
        /// takes; `session_quarantined`.
        reason: String,
        /// What the migration said.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        error: Option<String>,
    },
    /// It sleeps.
    Sleeping {
        /// Until then.
        until: Millis,
    },
}
