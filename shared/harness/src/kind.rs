//! Task definitions as applications write them (section 5.1): a durable state machine with typed phases, its decisions, its two halves.

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_delta::JsonError;
use picofleet_session::{
    CommitError, ConversationId, JoinPolicy, Json, MigrateError, Millis, TaskCreate, TaskError, TaskId, TaskOutcome, TaskOwnership,
    TaskRecord, Tx, TxError, Violation,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::effects::{Fault, Invocation};
use crate::runtime::TaskRuntime;
use crate::step::Mode;
use crate::task::{Applied, LineTask, Migrated, NextState, checkpoint};
use crate::wire;

/// A durable state machine (section 5.1). The checkpoint is an enum with `#[serde(tag = "phase")]`; [`TaskKind::run`] matches it and
/// calls one function a phase.
///
/// A phase performs one effect and commits: the intent before it, the outcome or the next phase after it (section 5.2). A phase that
/// returns without having changed the checkpoint faults the task. Hidden data of a definition is shared by all its invocations.
pub trait TaskKind: Send + Sync + Sized + 'static {
    /// The name: the kind of its records. It is stored and stays.
    const NAME: &'static str;
    /// The version of its records, from 1: higher where the meaning of a stored input or checkpoint changed.
    const VERSION: u32;
    /// What a task works on; never changes.
    type Input: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// Where a task is. Progress is a checkpoint that differs as JSON.
    type Checkpoint: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;
    /// What comes out.
    type Output: Serialize + DeserializeOwned + Send + Sync + 'static;
    /// What its phases may hand to the line besides closures; [`NoDecision`] where closures suffice.
    type Decision: Decision<Self>;
    /// What it asks of hooks, for example `dyn GenerationHooks`; `()` where nothing.
    type Hooks: ?Sized + Send + Sync + 'static;

    /// The first checkpoint.
    fn initial(&self, input: &Self::Input) -> Self::Checkpoint;

    /// Runs the phase of the task's checkpoint.
    fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Decides the outcome of a task that was asked to stop; it must end it. Its owned work is over by then (section 5.5).
    fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> impl Future<Output = Result<(), Fault>> + Send;

    /// What brings the input and the checkpoint of an older version up; `None` where nothing does. It runs on the line: it must not block.
    fn migration(&self) -> Option<Migration<Self>> {
        None
    }

    /// Which build of the code this is. With the name and the version it is the definition's identity: a running task is handed over to
    /// another one at its next phase boundary. Processes of the same build have to give the same answer.
    fn build(&self) -> &str {
        ""
    }
}

/// Brings the input and the checkpoint of an older version up: the definition, the version, and both as they are stored.
pub type Migration<K> = fn(&K, u32, Json, Json) -> Result<Stored<K>, MigrateError>;

/// The input and the checkpoint of a task.
pub type Stored<K> = (<K as TaskKind>::Input, <K as TaskKind>::Checkpoint);

/// A task as its handler sees it.
#[derive(Debug)]
pub struct Running<K: TaskKind> {
    /// Its id.
    pub id: TaskId<K::Output>,
    /// Its conversation.
    pub conversation: ConversationId,
    /// What it works on.
    pub input: Arc<K::Input>,
    /// Where it is.
    pub checkpoint: K::Checkpoint,
    /// Reservations that ended another invocation since the last progress (`design.md` 6).
    pub restarts: u32,
}

/// What a task commits for itself. `pending` and `running` can't be named: they are the scheduler's.
#[derive(Debug)]
pub enum Next<K: TaskKind> {
    /// The state stays.
    Stay,
    /// On to another checkpoint.
    Checkpoint(K::Checkpoint),
    /// Parked without an invocation until every task of `on` is terminal (section 5.5).
    Wait {
        /// Where to resume.
        checkpoint: K::Checkpoint,
        /// The tasks. Other tasks than owned ones need [`JoinPolicy::AllSettled`].
        on: Vec<TaskId>,
        /// What a failure among them does.
        policy: JoinPolicy,
    },
    /// Parked without an invocation until a time (`design.md` 6).
    Sleep {
        /// Where to resume.
        checkpoint: K::Checkpoint,
        /// The time, by the line's clock.
        until: Millis,
    },
    /// Over; held while ordinary owned work is live (section 5.5).
    End(Outcome<K::Output>),
}

/// How a task ended.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome<R> {
    /// It did its work.
    Completed(R),
    /// Its code said that it failed.
    Failed {
        /// Why.
        error: TaskError,
        /// What came out all the same.
        result: Option<R>,
    },
    /// Its abort handler ended it.
    Aborted {
        /// Why.
        reason: Option<String>,
        /// What came out all the same.
        result: Option<R>,
    },
    /// No code could run it and somebody aborted it: `missing_task`, `task_too_old` or `migration_failed`.
    Orphaned(String),
    /// Its code broke a rule or threw.
    Faulted(TaskError),
}

/// Something a phase hands to the line: a serializable value that is applied inside one commit (`design.md` 1). It reads and writes the
/// transaction and nothing else: no clock, no registry, no model, no randomness.
pub trait Decision<K: TaskKind>: Serialize + DeserializeOwned + Send + 'static {
    /// The version of its form; a line reads this one and the one before.
    const VERSION: u32;
    /// What the line answers. Small: it is stored with the task.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Applies it. An error rolls the commit back and faults the task.
    fn apply(self, tx: &Tx, task: &Running<K>) -> impl Future<Output = Result<(Next<K>, Self::Answer), CommitError>> + Send;
}

/// The decisions of a task that commits with closures only: there are none.
#[derive(Debug, Serialize, Deserialize)]
pub enum NoDecision {}

impl<K: TaskKind> Decision<K> for NoDecision {
    const VERSION: u32 = 1;
    type Answer = ();

    async fn apply(self, _: &Tx, _: &Running<K>) -> Result<(Next<K>, ()), CommitError> {
        match self {}
    }
}

/// A definition as registries hold it: the half of the line and the half of the workers.
pub trait DynTask: LineTask {
    /// Runs the phase of the record's checkpoint, or the abort handler, and says how the invocation goes on.
    fn run<'a>(&'a self, invocation: &'a Arc<Invocation>, record: &'a TaskRecord, mode: Mode) -> BoxFuture<'a, Result<wire::Next, Fault>>;
}

/// The erased form of a definition.
pub struct Defined<K>(pub Arc<K>);

fn invalid(why: String) -> CommitError {
    CommitError::Invalid(Violation::Decision { why })
}

impl<K: TaskKind> Running<K> {
    /// The typed form of a live record.
    ///
    /// # Errors
    /// A text that says which part of the record does not have the type of the definition.
    pub(crate) fn of(record: &TaskRecord) -> Result<Self, String> {
        let unreadable =
            |what: &str, error: &dyn std::fmt::Display| format!("the {what} of {} task {} can't be read: {error}", K::NAME, record.id);
        let at = checkpoint(record).ok_or_else(|| format!("{} task {} is over", K::NAME, record.id))?;
        Ok(Self {
            id: record.id.assume(),
            conversation: record.conversation_id,
            input: Arc::new(record.input.to().map_err(|error| unreadable("input", &error))?),
            checkpoint: at.to().map_err(|error| unreadable("checkpoint", &error))?,
            restarts: record.restarts,
        })
    }
}

impl<K: TaskKind> Next<K> {
    /// The form that the line stores.
    ///
    /// # Errors
    /// A checkpoint or result that is not strict JSON.
    pub(crate) fn erase(self) -> Result<NextState, CommitError> {
        let json = |checkpoint: &K::Checkpoint| {
            Json::from_serde(checkpoint)
                .map_err(|error| invalid(format!("the checkpoint of a {} task is not strict JSON: {error}", K::NAME)))
        };
        Ok(match self {
            Self::Stay => NextState::Stay,
            Self::Checkpoint(checkpoint) => NextState::Checkpoint(json(&checkpoint)?),
            Self::Wait { checkpoint, on, policy } => NextState::Wait { checkpoint: json(&checkpoint)?, on, policy },
            Self::Sleep { checkpoint, until } => NextState::Sleep { checkpoint: json(&checkpoint)?, until },
            Self::End(outcome) => NextState::End(outcome.erase(K::NAME)?),
        })
    }
}

impl<R: Serialize> Outcome<R> {
    fn erase(self, kind: &str) -> Result<TaskOutcome, CommitError> {
        let json = |result: &R| {
            Json::from_serde(result).map_err(|error| invalid(format!("the result of a {kind} task is not strict JSON: {error}")))
        };
        let optional = |result: Option<R>| result.as_ref().map(json).transpose();
        Ok(match self {
            Self::Completed(result) => TaskOutcome::Completed { result: json(&result)? },
            Self::Failed { error, result } => TaskOutcome::Failed { error, result: optional(result)? },
            Self::Aborted { reason, result } => TaskOutcome::Aborted { reason, result: optional(result)? },
            Self::Orphaned(reason) => TaskOutcome::Orphaned { reason },
            Self::Faulted(error) => TaskOutcome::Faulted { error },
        })
    }
}

impl<R: DeserializeOwned> Outcome<R> {
    /// The typed form of a stored outcome.
    ///
    /// # Errors
    /// A result that does not have the type.
    pub fn of(outcome: TaskOutcome) -> Result<Self, JsonError> {
        let optional = |result: Option<Json>| result.map(|result| result.to()).transpose();
        Ok(match outcome {
            TaskOutcome::Completed { result } => Self::Completed(result.to()?),
            TaskOutcome::Failed { error, result } => Self::Failed { error, result: optional(result)? },
            TaskOutcome::Aborted { reason, result } => Self::Aborted { reason, result: optional(result)? },
            TaskOutcome::Orphaned { reason } => Self::Orphaned(reason),
            TaskOutcome::Faulted { error } => Self::Faulted(error),
        })
    }
}

impl<K: TaskKind> LineTask for Defined<K> {
    fn name(&self) -> &str {
        K::NAME
    }

    fn version(&self) -> u32 {
        K::VERSION
    }

    fn decision_version(&self) -> u32 {
        <K::Decision as Decision<K>>::VERSION
    }

    fn build(&self) -> &str {
        self.0.build()
    }

    fn migrates(&self) -> bool {
        self.0.migration().is_some()
    }

    fn apply<'a>(&'a self, tx: &'a Tx, record: &'a TaskRecord, decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async move {
            let unreadable = |error| invalid(format!("a decision of {} task {} can't be read: {error}", K::NAME, record.id));
            let decision: K::Decision = decision.to().map_err(unreadable)?;
            let (next, answer) = decision.apply(tx, &Running::of(record).map_err(invalid)?).await?;
            let answer =
                Json::from_serde(&answer).map_err(|error| invalid(format!("an answer of {} is not strict JSON: {error}", K::NAME)))?;
            Ok((next.erase()?, answer))
        })
    }

    fn migrate(&self, from: u32, input: Json, checkpoint: Json) -> Option<Migrated> {
        let migrated = self.0.migration()?(&self.0, from, input, checkpoint);
        let json = |error: JsonError| MigrateError(format!("what {} migrated is not strict JSON: {error}", K::NAME));
        Some(
            migrated.and_then(|(input, checkpoint)| {
                Ok((Json::from_serde(&input).map_err(json)?, Json::from_serde(&checkpoint).map_err(json)?))
            }),
        )
    }
}

impl<K: TaskKind> DynTask for Defined<K> {
    fn run<'a>(&'a self, invocation: &'a Arc<Invocation>, record: &'a TaskRecord, mode: Mode) -> BoxFuture<'a, Result<wire::Next, Fault>> {
        Box::pin(async move {
            let failed = |message| Fault::Failed(TaskError { message, detail: None });
            let task = Running::of(record).map_err(failed)?;
            let runtime = TaskRuntime::new(Arc::clone(invocation), record);
            // Every phase may begin with an effect: not on a worker that nobody hears any more (`protocol.md` 4).
            invocation.effect().await?;
            match mode {
                Mode::Run => self.0.run(task, runtime).await?,
                Mode::Abort => self.0.abort(task, runtime).await?,
            }
            invocation.phase_returned().await
        })
    }
}

/// How a task is created (section 5.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TaskOptions {
    /// Who owns it.
    pub ownership: TaskOwnership,
    /// Its conversation; left out for the owner's, or the transaction's.
    pub conversation: Option<ConversationId>,
    /// Excluded from the abort and idleness of its conversation and from cascades; only where its conversation owns it.
    pub background: bool,
}

impl TaskOptions {
    /// Owned by its conversation.
    #[must_use]
    pub const fn top_level() -> Self {
        Self { ownership: TaskOwnership::Conversation, conversation: None, background: false }
    }

    /// Owned by a task, in the owner's conversation.
    #[must_use]
    pub const fn owned_by<R>(owner: TaskId<R>) -> Self {
        Self { ownership: TaskOwnership::Task { task_id: owner.erase() }, conversation: None, background: false }
    }

    /// In a conversation.
    #[must_use]
    pub const fn in_conversation(self, conversation: ConversationId) -> Self {
        Self { conversation: Some(conversation), ..self }
    }

    /// A background task.
    #[must_use]
    pub const fn background(self) -> Self {
        Self { background: true, ..self }
    }
}

/// Creation of typed tasks inside a commit.
pub trait TxTasks {
    /// Creates a task, `pending` at its first checkpoint.
    ///
    /// # Errors
    /// As [`Tx::create_task_raw`]; an input or checkpoint that is not strict JSON.
    fn create_task<K: TaskKind>(
        &self,
        kind: &K,
        input: K::Input,
        options: TaskOptions,
    ) -> impl Future<Output = Result<TaskId<K::Output>, TxError>> + Send;
}

impl TxTasks for Tx {
    async fn create_task<K: TaskKind>(&self, kind: &K, input: K::Input, options: TaskOptions) -> Result<TaskId<K::Output>, TxError> {
        let json = |what: &str, error: JsonError| {
            TxError::Invalid(Violation::Decision { why: format!("the {what} of a new {} task is not strict JSON: {error}", K::NAME) })
        };
        let first = kind.initial(&input);
        let task = TaskCreate {
            kind: K::NAME.to_owned(),
            version: K::VERSION,
            input: Json::from_serde(&input).map_err(|error| json("input", error))?,
            checkpoint: Json::from_serde(&first).map_err(|error| json("checkpoint", error))?,
            ownership: options.ownership,
            conversation_id: options.conversation,
            background: options.background,
        };
        Ok(self.create_task_raw(task).await?.assume())
    }
}
