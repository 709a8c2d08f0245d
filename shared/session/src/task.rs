//! Task records (section 5.1) with the lifecycle fields of `design.md` 13.

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use crate::{ConversationId, InvocationId, Millis, TaskId};

/// Who owns a task (section 5.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum TaskOwnership {
    /// Its conversation: a top-level task.
    Conversation,
    /// Another task of the same conversation.
    Task {
        /// The owner.
        #[serde(rename = "taskId")]
        task_id: TaskId,
    },
}

/// When a waiting task resumes although some of its tasks failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum JoinPolicy {
    /// A failure aborts the others; it resumes when all are terminal.
    FailFast,
    /// It resumes when all are terminal.
    AllSettled,
}

/// What went wrong in a task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TaskError {
    /// For people.
    pub message: String,
    /// For programs.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub detail: Option<Json>,
}

/// How a task ended.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "OutcomeWire", into = "OutcomeWire")]
pub enum TaskOutcome {
    /// It did its work.
    Completed {
        /// What came out.
        result: Json,
    },
    /// Its code said that it failed.
    Failed {
        /// Why.
        error: TaskError,
        /// What came out all the same.
        result: Option<Json>,
    },
    /// Its abort handler ended it.
    Aborted {
        /// Why.
        reason: Option<String>,
        /// What came out all the same.
        result: Option<Json>,
    },
    /// No code could run it and somebody aborted it.
    Orphaned {
        /// `missing_task`, `task_too_old` or `migration_failed`.
        reason: String,
    },
    /// Its code broke a rule or threw.
    Faulted {
        /// What happened.
        error: TaskError,
    },
}

/// Where a task is in its life.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "StateWire", into = "StateWire")]
pub enum TaskState {
    /// Ready to be reserved.
    Pending {
        /// The phase to run, with its data.
        checkpoint: Json,
    },
    /// Reserved by an invocation.
    Running {
        /// The phase that runs, with its data.
        checkpoint: Json,
    },
    /// Parked until every task of `on` is terminal.
    Waiting {
        /// The phase to resume at.
        checkpoint: Json,
        /// The tasks.
        on: Vec<TaskId>,
        /// What a failure among them does.
        policy: JoinPolicy,
    },
    /// Parked until a time (`design.md` 6).
    Sleeping {
        /// The phase to resume at.
        checkpoint: Json,
        /// The time.
        until: Millis,
    },
    /// Its outcome is decided and held until its owned work has drained (section 5.5).
    Completing {
        /// The held outcome.
        outcome: TaskOutcome,
    },
    /// Over.
    Terminal {
        /// How.
        outcome: TaskOutcome,
    },
}

/// The status of a task without its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TaskStatus {
    /// Ready to be reserved.
    Pending,
    /// Reserved by an invocation.
    Running,
    /// Parked until tasks end.
    Waiting,
    /// Parked until a time.
    Sleeping,
    /// Holds its outcome.
    Completing,
    /// Over.
    Terminal,
}

impl TaskStatus {
    /// The word that is stored and sent.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Sleeping => "sleeping",
            Self::Completing => "completing",
            Self::Terminal => "terminal",
        }
    }
}

impl TaskState {
    /// The status.
    #[must_use]
    pub const fn status(&self) -> TaskStatus {
        match self {
            Self::Pending { .. } => TaskStatus::Pending,
            Self::Running { .. } => TaskStatus::Running,
            Self::Waiting { .. } => TaskStatus::Waiting,
            Self::Sleeping { .. } => TaskStatus::Sleeping,
            Self::Completing { .. } => TaskStatus::Completing,
            Self::Terminal { .. } => TaskStatus::Terminal,
        }
    }
}

/// The durable record of a task.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TaskRecord {
    /// Its id.
    pub id: TaskId,
    /// Its conversation; never changes.
    pub conversation_id: ConversationId,
    /// The name of its definition.
    pub kind: String,
    /// The version of the definition that wrote it last.
    pub version: u32,
    /// What it was created with.
    pub input: Json,
    /// The task that owns it; absent where its conversation does. Never changes.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<TaskId>,
    /// Excluded from the abort and idleness of its conversation and from cascades.
    pub background: bool,
    /// Somebody asked it to stop.
    pub abort_requested: bool,
    /// Where it is in its life.
    pub state: TaskState,
    /// Values that its invocations agreed on, by name; absent once it is completing or terminal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub memos: Option<Json>,
    /// Reservations that ended another invocation since the last progress; absent at 0.
    #[serde(skip_serializing_if = "is_zero", default)]
    pub restarts: u32,
    /// The time of its first reservation.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub started_at: Option<Millis>,
    /// The time of its terminal commit.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ended_at: Option<Millis>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl TaskRecord {
    /// Its status.
    #[must_use]
    pub const fn status(&self) -> TaskStatus {
        self.state.status()
    }

    /// Whether it is over.
    #[must_use]
    pub const fn terminal(&self) -> bool {
        matches!(self.state, TaskState::Terminal { .. })
    }
}

/// A task to be created, before it has an id.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskCreate {
    /// The name of its definition.
    pub kind: String,
    /// The version of its definition.
    pub version: u32,
    /// What it works on.
    pub input: Json,
    /// Its first phase.
    pub checkpoint: Json,
    /// Who owns it.
    pub ownership: TaskOwnership,
    /// Its conversation; may be left out for an owned task, which is always in its owner's.
    pub conversation_id: Option<ConversationId>,
    /// Excluded from the abort and idleness of its conversation; only where its conversation owns it.
    pub background: bool,
}

/// What a task row keeps about its invocation, so that a repeated saying gets the stored answer (`protocol.md` 3).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InvocationRow {
    /// The task.
    pub task_id: TaskId,
    /// The invocation that holds the task, or held it last.
    pub invocation: InvocationId,
    /// The number of its last saying; 0 after the reservation.
    pub number: u32,
    /// The digest of that saying.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
    /// The answer to it; a terminal row keeps none.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub answer: Option<Json>,
}

#[derive(Debug, thiserror::Error)]
#[error("a task {what} that is {status} has other fields")]
struct InvalidTask {
    what: &'static str,
    status: &'static str,
}

/// The flat forms that are stored and sent. They are structs, so that nothing is buffered while they are read.
#[derive(Clone, Serialize, Deserialize)]
struct StateWire {
    status: TaskStatus,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    checkpoint: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    on: Option<Vec<TaskId>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    policy: Option<JoinPolicy>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    until: Option<Millis>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    outcome: Option<TaskOutcome>,
}

impl TryFrom<StateWire> for TaskState {
    type Error = InvalidTask;

    fn try_from(wire: StateWire) -> Result<Self, InvalidTask> {
        let status = wire.status;
        match (status, wire.checkpoint, wire.on, wire.policy, wire.until, wire.outcome) {
            (TaskStatus::Pending, Some(checkpoint), None, None, None, None) => Ok(Self::Pending { checkpoint }),
            (TaskStatus::Running, Some(checkpoint), None, None, None, None) => Ok(Self::Running { checkpoint }),
            (TaskStatus::Waiting, Some(checkpoint), Some(on), Some(policy), None, None) => Ok(Self::Waiting { checkpoint, on, policy }),
            (TaskStatus::Sleeping, Some(checkpoint), None, None, Some(until), None) => Ok(Self::Sleeping { checkpoint, until }),
            (TaskStatus::Completing, None, None, None, None, Some(outcome)) => Ok(Self::Completing { outcome }),
            (TaskStatus::Terminal, None, None, None, None, Some(outcome)) => Ok(Self::Terminal { outcome }),
            _ => Err(InvalidTask { what: "state", status: status.as_str() }),
        }
    }
}

impl From<TaskState> for StateWire {
    fn from(state: TaskState) -> Self {
        let status = state.status();
        let empty = StateWire { status, checkpoint: None, on: None, policy: None, until: None, outcome: None };
        match state {
            TaskState::Pending { checkpoint } | TaskState::Running { checkpoint } => StateWire { checkpoint: Some(checkpoint), ..empty },
            TaskState::Waiting { checkpoint, on, policy } => {
                StateWire { checkpoint: Some(checkpoint), on: Some(on), policy: Some(policy), ..empty }
            }
            TaskState::Sleeping { checkpoint, until } => StateWire { checkpoint: Some(checkpoint), until: Some(until), ..empty },
            TaskState::Completing { outcome } | TaskState::Terminal { outcome } => StateWire { outcome: Some(outcome), ..empty },
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum OutcomeStatus {
    Completed,
    Failed,
    Aborted,
    Orphaned,
    Faulted,
}

#[derive(Clone, Serialize, Deserialize)]
struct OutcomeWire {
    status: OutcomeStatus,
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    result: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    error: Option<TaskError>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    reason: Option<String>,
}

impl TryFrom<OutcomeWire> for TaskOutcome {
    type Error = InvalidTask;

    fn try_from(wire: OutcomeWire) -> Result<Self, InvalidTask> {
        let invalid = |status| Err(InvalidTask { what: "outcome", status });
        match (wire.status, wire.result, wire.error, wire.reason) {
            (OutcomeStatus::Completed, Some(result), None, None) => Ok(Self::Completed { result }),
            (OutcomeStatus::Failed, result, Some(error), None) => Ok(Self::Failed { error, result }),
            (OutcomeStatus::Aborted, result, None, reason) => Ok(Self::Aborted { reason, result }),
            (OutcomeStatus::Orphaned, None, None, Some(reason)) => Ok(Self::Orphaned { reason }),
            (OutcomeStatus::Faulted, None, Some(error), None) => Ok(Self::Faulted { error }),
            (OutcomeStatus::Completed, ..) => invalid("completed"),
            (OutcomeStatus::Failed, ..) => invalid("failed"),
            (OutcomeStatus::Aborted, ..) => invalid("aborted"),
            (OutcomeStatus::Orphaned, ..) => invalid("orphaned"),
            (OutcomeStatus::Faulted, ..) => invalid("faulted"),
        }
    }
}

impl From<TaskOutcome> for OutcomeWire {
    fn from(outcome: TaskOutcome) -> Self {
        let of = |status| OutcomeWire { status, result: None, error: None, reason: None };
        match outcome {
            TaskOutcome::Completed { result } => OutcomeWire { result: Some(result), ..of(OutcomeStatus::Completed) },
            TaskOutcome::Failed { error, result } => OutcomeWire { error: Some(error), result, ..of(OutcomeStatus::Failed) },
            TaskOutcome::Aborted { reason, result } => OutcomeWire { reason, result, ..of(OutcomeStatus::Aborted) },
            TaskOutcome::Orphaned { reason } => OutcomeWire { reason: Some(reason), ..of(OutcomeStatus::Orphaned) },
            TaskOutcome::Faulted { error } => OutcomeWire { error: Some(error), ..of(OutcomeStatus::Faulted) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_keep_their_stored_form() {
        let text = r#"{"id":3,"conversationId":1,"kind":"k","version":1,"input":null,"background":false,"abortRequested":false,"state":{"status":"waiting","checkpoint":{"phase":"a"},"on":[4],"policy":"failFast"},"memos":{"toString":1}}"#;
        let record: TaskRecord = Json::parse(text.as_bytes()).unwrap().to().unwrap();
        assert_eq!(Json::from_serde(&record).unwrap().to_string(), text);
        let terminal = r#"{"status":"terminal","outcome":{"status":"completed","result":null}}"#;
        let state: TaskState = Json::parse(terminal.as_bytes()).unwrap().to().unwrap();
        assert_eq!(state, TaskState::Terminal { outcome: TaskOutcome::Completed { result: Json::null() } });
        assert_eq!(Json::from_serde(&state).unwrap().to_string(), terminal);
    }

    #[test]
    fn a_state_with_fields_of_another_is_refused() {
        for bad in [r#"{"status":"pending"}"#, r#"{"status":"terminal","checkpoint":1}"#, r#"{"status":"sleeping","checkpoint":1}"#] {
            assert!(Json::parse(bad.as_bytes()).unwrap().to::<TaskState>().is_err(), "{bad}");
        }
    }
}
