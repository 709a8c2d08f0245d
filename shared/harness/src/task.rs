//! Task definitions as the line sees them: what applies their decisions and migrates their records. No effect runs here.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_session::{CommitError, JoinPolicy, Json, MigrateError, Millis, TaskId, TaskOutcome, TaskRecord, Tx};

use crate::kinds::{COMPACTION, GENERATION, TOOL};
use crate::{compaction, generation, tool};

/// What a decision does with its task.
#[derive(Clone, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub enum NextState {
    /// The checkpoint stays.
    Stay,
    /// On to another checkpoint.
    Checkpoint(Json),
    /// Parked until tasks end.
    Wait {
        /// Where to resume.
        checkpoint: Json,
        /// The tasks.
        on: Vec<TaskId>,
        /// What a failure among them does.
        policy: JoinPolicy,
    },
    /// Parked until a time.
    Sleep {
        /// Where to resume.
        checkpoint: Json,
        /// The time.
        until: Millis,
    },
    /// Over.
    End(TaskOutcome),
    /// What the decision was computed from has changed: nothing is written and the phase runs again.
    Stale,
}

/// What a decision of a built-in task does with it; `C` is its checkpoint.
#[derive(Clone, PartialEq, Debug)]
pub enum Then<C> {
    /// The checkpoint stays.
    Stay,
    /// On to another checkpoint.
    Checkpoint(C),
    /// Parked until tasks end, however they do.
    Wait {
        /// Where to resume.
        checkpoint: C,
        /// The tasks.
        on: Vec<TaskId>,
    },
    /// Parked until a time.
    Sleep {
        /// Where to resume.
        checkpoint: C,
        /// The time.
        until: Millis,
    },
    /// Over.
    End(TaskOutcome),
    /// What the decision was computed from has changed: the phase runs again.
    Stale,
}

impl<C: serde::Serialize> Then<C> {
    fn next(self, record: &TaskRecord) -> Result<NextState, CommitError> {
        let stored = |checkpoint: &C| write("the checkpoint", record, checkpoint);
        Ok(match self {
            Self::Stay => NextState::Stay,
            Self::Checkpoint(checkpoint) => NextState::Checkpoint(stored(&checkpoint)?),
            Self::Wait { checkpoint, on } => NextState::Wait { checkpoint: stored(&checkpoint)?, on, policy: JoinPolicy::AllSettled },
            Self::Sleep { checkpoint, until } => NextState::Sleep { checkpoint: stored(&checkpoint)?, until },
            Self::End(outcome) => NextState::End(outcome),
            Self::Stale => NextState::Stale,
        })
    }
}

/// What an application of a decision gives.
pub type Applied = Result<(NextState, Json), CommitError>;

/// A migrated input and checkpoint.
pub type Migrated = Result<(Json, Json), MigrateError>;

/// The line half of a task definition.
pub trait LineTask: Send + Sync + 'static {
    /// Its name: the kind of its records.
    fn name(&self) -> &str;

    /// The version of its records.
    fn version(&self) -> u32;

    /// Which build of its code this is: with the name and the version it is the definition's identity (`design.md` 13.8). A running task
    /// is handed over where another build or version is there.
    fn build(&self) -> &str {
        ""
    }

    /// Whether it brings records of older versions up. It has to say so, because nobody calls [`LineTask::migrate`] to find out.
    fn migrates(&self) -> bool {
        false
    }

    /// The version of its decisions. A worker speaks this one or the one before (`design.md` 13.8); coordinators are rolled first.
    fn decision_version(&self) -> u32 {
        1
    }

    /// Whether the phase of a checkpoint begins without an effect: the reservation of a task that never ran is then stored with its first
    /// decision, and a crash before that leaves it as it was (`protocol.md` 3).
    fn plans_first(&self, _checkpoint: &Json) -> bool {
        false
    }

    /// The decision that goes on from a checkpoint where nobody has to be asked: the tasks that it waits for are over. `asked` says that
    /// hooks are registered which want to see them first. The line takes it in the commit that ends the last of them, behind its writes:
    /// it may read what the commit leaves, and no tables ([`Tx::task_as_left`]).
    fn goes_on(&self, _checkpoint: &Json, _asked: bool) -> Option<Json> {
        None
    }

    /// Applies a decision: reads and writes the transaction and nothing else.
    fn apply<'a>(&'a self, tx: &'a Tx, record: &'a TaskRecord, decision: Json) -> BoxFuture<'a, Applied>;

    /// Brings a record of an older version up; `None` where the definition can't.
    fn migrate(&self, _from: u32, _input: Json, _checkpoint: Json) -> Option<Migrated> {
        None
    }

    /// The decision of its abort handler where that has no effect, so that an abort needs no worker (`design.md` 7).
    fn abort_decision(&self, _checkpoint: &Json) -> Option<Json> {
        None
    }
}

/// The version and build of a definition.
#[must_use]
pub fn identity(task: &dyn LineTask) -> (u32, String) {
    (task.version(), task.build().to_owned())
}

/// Whether the line half of a definition reads decisions of a version.
#[must_use]
pub fn reads(task: &dyn LineTask, version: u32) -> bool {
    let own = task.decision_version();
    version == own || version.checked_add(1) == Some(own)
}

/// The line halves by name.
#[derive(Clone, Default)]
pub struct LineTasks {
    tasks: HashMap<String, Arc<dyn LineTask>>,
}

impl LineTasks {
    /// The built-in ones.
    #[must_use]
    pub fn built_in() -> Self {
        let mut tasks = Self::default();
        tasks.add(Arc::new(GenerationLine));
        tasks.add(Arc::new(ToolLine));
        tasks.add(Arc::new(CompactionLine));
        tasks
    }

    /// The built-in ones and those of a registry as it is now.
    #[must_use]
    pub fn of(registry: &crate::registry::Registry) -> Self {
        let mut tasks = Self::built_in();
        for task in registry.snapshot().tasks() {
            let task: Arc<dyn LineTask> = Arc::clone(task) as Arc<dyn LineTask>;
            tasks.add(task);
        }
        tasks
    }

    /// Adds one, in the place of one with the same name.
    pub fn add(&mut self, task: Arc<dyn LineTask>) {
        self.tasks.insert(task.name().to_owned(), task);
    }

    /// Takes one out.
    pub fn remove(&mut self, name: &str) {
        self.tasks.remove(name);
    }

    /// A built-in one that is not there; no session is opened then (section 2.2).
    #[must_use]
    pub fn missing(&self) -> Option<&'static str> {
        [GENERATION, TOOL, COMPACTION].into_iter().find(|name| !self.tasks.contains_key(*name))
    }

    /// The one with a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Arc<dyn LineTask>> {
        self.tasks.get(name)
    }
}

/// A decision or checkpoint that can't be read: the task faults with this.
#[derive(Debug, thiserror::Error)]
#[error("{what} of task {task} can't be read: {why}")]
struct Unreadable {
    what: &'static str,
    task: TaskId,
    why: String,
}

fn read<T: serde::de::DeserializeOwned>(what: &'static str, record: &TaskRecord, value: &Json) -> Result<T, CommitError> {
    value.to().map_err(|error| {
        let error = Unreadable { what, task: record.id, why: error.to_string() };
        CommitError::Invalid(picofleet_session::Violation::Decision { why: error.to_string() })
    })
}

fn write<T: serde::Serialize>(what: &'static str, record: &TaskRecord, value: &T) -> Result<Json, CommitError> {
    Json::from_serde(value).map_err(|error| {
        let error = Unreadable { what, task: record.id, why: error.to_string() };
        CommitError::Invalid(picofleet_session::Violation::Decision { why: error.to_string() })
    })
}

/// The checkpoint of a task that has one.
#[must_use]
pub fn checkpoint(record: &TaskRecord) -> Option<&Json> {
    use picofleet_session::TaskState::{Completing, Pending, Running, Sleeping, Terminal, Waiting};
    match &record.state {
        Pending { checkpoint } | Running { checkpoint } | Waiting { checkpoint, .. } | Sleeping { checkpoint, .. } => Some(checkpoint),
        Completing { .. } | Terminal { .. } => None,
    }
}

fn in_phase(checkpoint: &Json, phase: &str) -> bool {
    checkpoint.get("phase").and_then(Json::as_str).as_deref() == Some(phase)
}

fn at<T: serde::de::DeserializeOwned>(record: &TaskRecord) -> Result<T, CommitError> {
    let null = Json::null();
    read("the checkpoint", record, checkpoint(record).unwrap_or(&null))
}

struct GenerationLine;

impl LineTask for GenerationLine {
    fn name(&self) -> &str {
        GENERATION
    }

    fn version(&self) -> u32 {
        1
    }

    fn decision_version(&self) -> u32 {
        generation::DECISION_VERSION
    }

    fn plans_first(&self, checkpoint: &Json) -> bool {
        in_phase(checkpoint, "prepare")
    }

    fn goes_on(&self, checkpoint: &Json, asked: bool) -> Option<Json> {
        let generation::Checkpoint::Tools(round) = checkpoint.to().ok()? else { return None };
        // The next call of a sequential round is made behind the commit that ends the one before.
        if asked || !round.pending.is_empty() { None } else { Json::from_serde(&generation::Decision::RoundDone).ok() }
    }

    fn apply<'a>(&'a self, tx: &'a Tx, record: &'a TaskRecord, decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async move {
            let decision = read("a decision", record, &decision)?;
            let next = generation::apply(tx, record, at(record)?, decision).await?.next(record)?;
            Ok((next, Json::null()))
        })
    }

    fn abort_decision(&self, checkpoint: &Json) -> Option<Json> {
        // In `poll` the provider has to be told, which is an effect.
        if in_phase(checkpoint, "poll") { None } else { Json::from_serde(&generation::Decision::Aborted).ok() }
    }
}

struct ToolLine;

impl LineTask for ToolLine {
    fn name(&self) -> &str {
        TOOL
    }

    fn version(&self) -> u32 {
        1
    }

    fn decision_version(&self) -> u32 {
        tool::DECISION_VERSION
    }

    fn plans_first(&self, checkpoint: &Json) -> bool {
        in_phase(checkpoint, "call")
    }

    fn apply<'a>(&'a self, tx: &'a Tx, record: &'a TaskRecord, decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async move {
            let decision = read("a decision", record, &decision)?;
            let next = tool::apply(tx, record, decision).await?.next(record)?;
            Ok((next, Json::null()))
        })
    }

    fn abort_decision(&self, _checkpoint: &Json) -> Option<Json> {
        Json::from_serde(&tool::Decision::Aborted).ok()
    }
}

struct CompactionLine;

impl LineTask for CompactionLine {
    fn name(&self) -> &str {
        COMPACTION
    }

    fn version(&self) -> u32 {
        1
    }

    fn decision_version(&self) -> u32 {
        compaction::DECISION_VERSION
    }

    fn plans_first(&self, checkpoint: &Json) -> bool {
        in_phase(checkpoint, "select")
    }

    fn apply<'a>(&'a self, tx: &'a Tx, record: &'a TaskRecord, decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async move {
            let decision = read("a decision", record, &decision)?;
            let next = compaction::apply(tx, record, at(record)?, decision).await?.next(record)?;
            Ok((next, Json::null()))
        })
    }

    fn abort_decision(&self, _checkpoint: &Json) -> Option<Json> {
        Json::from_serde(&compaction::Decision::Aborted).ok()
    }
}
