//! Custom tasks of the simulation: a job that fans out to parts and joins them.

use std::sync::Arc;

use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_session::{JoinPolicy, Millis, TaskError, TaskId};
use serde::{Deserialize, Serialize};

use super::World;

/// A job: makes parts, waits for them, and sums them up.
pub(crate) struct Job(pub World);

/// A part of a job: works, may sleep, may fail.
pub(super) struct Part(pub World);

/// What a job does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct JobInput {
    /// How many parts.
    pub parts: u32,
    /// A failure among them ends the others.
    pub fail_fast: bool,
}

/// Where a job is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub(crate) enum JobPhase {
    /// It makes its parts.
    Begin,
    /// It reads how they ended.
    Collect {
        /// The parts.
        parts: Vec<TaskId>,
    },
}

/// What a part does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct PartInput {
    /// It sleeps so long first, in milliseconds.
    pub sleep: Option<i64>,
    /// It fails.
    pub fails: bool,
}

/// Where a part is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub(super) enum PartPhase {
    /// It goes to sleep, or on.
    Begin,
    /// It works.
    Work,
}

impl TaskKind for Job {
    const NAME: &'static str = "sim.job";
    const VERSION: u32 = 1;
    type Input = JobInput;
    type Checkpoint = JobPhase;
    type Output = u32;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &JobInput) -> JobPhase {
        JobPhase::Begin
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        match &task.checkpoint {
            JobPhase::Begin => {
                let part = Part(self.0.clone());
                let policy = if task.input.fail_fast { JoinPolicy::FailFast } else { JoinPolicy::AllSettled };
                let inputs: Vec<PartInput> = (0..task.input.parts)
                    .map(|_| PartInput {
                        sleep: self.0.once_in(2).then(|| i64::try_from(self.0.below(60_000)).unwrap_or(0)),
                        fails: self.0.once_in(6),
                    })
                    .collect();
                runtime
                    .commit(async |tx, current| {
                        let mut parts = Vec::new();
                        for input in inputs {
                            parts.push(tx.create_task(&part, input, TaskOptions::owned_by(current.id)).await?.erase());
                        }
                        Ok::<_, Fault>(Next::Wait { checkpoint: JobPhase::Collect { parts: parts.clone() }, on: parts, policy })
                    })
                    .await
            }
            JobPhase::Collect { parts } => {
                let outcomes = runtime.outcomes::<u32>(&parts.iter().map(|part| part.assume()).collect::<Vec<_>>()).await?;
                let done = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Completed(_))).count();
                let done = u32::try_from(done).unwrap_or(u32::MAX);
                runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(done)))).await
            }
        }
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        self.0.count("abort handler");
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

impl TaskKind for Part {
    const NAME: &'static str = "sim.part";
    const VERSION: u32 = 1;
    type Input = PartInput;
    type Checkpoint = PartPhase;
    type Output = u32;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &PartInput) -> PartPhase {
        PartPhase::Begin
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        match task.checkpoint {
            PartPhase::Begin => {
                let sleep = task.input.sleep;
                runtime
                    .commit(async |tx, _| {
                        Ok::<_, Fault>(match sleep {
                            Some(sleep) => Next::Sleep { checkpoint: PartPhase::Work, until: Millis(tx.now().0 + sleep) },
                            None => Next::Checkpoint(PartPhase::Work),
                        })
                    })
                    .await
            }
            PartPhase::Work => {
                let effect = self.0.effect(task.id.erase());
                let mark: u32 = runtime.memo("mark", &u32::try_from(self.0.below(1_000)).unwrap_or(0)).await?;
                tokio::select! {
                    biased;
                    () = runtime.cancelled().cancelled() => return Err(Fault::Failed(TaskError { message: "stopped".into(), detail: None })),
                    () = tokio::time::sleep(self.0.pause(5_000)) => {}
                }
                // What it came to is said until the line answers, which may be long behind the end of the task that it brings.
                drop(effect);
                let fails = task.input.fails;
                runtime
                    .commit(async |_, _| {
                        Ok::<_, Fault>(Next::End(if fails {
                            Outcome::Failed { error: TaskError { message: "declined".into(), detail: None }, result: None }
                        } else {
                            Outcome::Completed(mark)
                        }))
                    })
                    .await
            }
        }
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        self.0.count("abort handler");
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

/// Both kinds.
#[must_use]
pub(super) fn kinds(world: &World) -> (Arc<Job>, Arc<Part>) {
    (Arc::new(Job(world.clone())), Arc::new(Part(world.clone())))
}
