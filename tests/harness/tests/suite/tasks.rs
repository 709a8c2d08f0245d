//! Tasks of applications (section 5): phases, faults, memos and child tasks, through worker and transport.

use std::sync::{Arc, Mutex};

use picofleet_harness::effects::Fault;
use picofleet_harness::host::AbortTask;
use picofleet_harness::inspection::{Scheduling, TaskView};
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness_tests::{Kit, scenario};
use picofleet_session::{EntryDraft, JoinPolicy, TaskError, TaskId, TaskOutcome, TaskState};
use serde::{Deserialize, Serialize};

/// Does what its input says, and keeps what its handlers saw. Clones are one.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<Vec<u32>>>);

#[derive(Clone, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
enum At {
    Step { n: u32 },
    Joined { children: Vec<TaskId<u32>> },
}

fn fault(message: &str) -> Fault {
    Fault::Failed(TaskError { message: message.to_owned(), detail: None })
}

impl TaskKind for Steps {
    const NAME: &'static str = "steps";
    const VERSION: u32 = 1;
    type Input = String;
    type Checkpoint = At;
    type Output = u32;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &String) -> At {
        At::Step { n: 0 }
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let n = match task.checkpoint {
            At::Step { n } => n,
            At::Joined { children } => {
                self.0.lock().unwrap().push(9);
                let outcomes = runtime.outcomes(&children).await?;
                let sum = outcomes.iter().map(|outcome| if let Outcome::Completed(n) = outcome { *n } else { 0 }).sum();
                return runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(sum)))).await;
            }
        };
        self.0.lock().unwrap().push(n);
        match task.input.as_str() {
            "still" => Ok(()),
            "hangs" | "hangs and aborts badly" => {
                runtime.cancelled().cancelled().await;
                Ok(())
            }
            "throws" => Err(fault("boom")),
            "ends and throws" => {
                runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(7)))).await?;
                Err(fault("too late"))
            }
            "memos" => {
                let before: Option<String> = runtime.memoized("toString").await?;
                let kept = runtime.memo("name", &format!("at {n}")).await?;
                let right = before.is_none() && kept == "at 0";
                step(&runtime, n, u32::from(right)).await
            }
            "children" | "nothing" => {
                let count = if task.input.as_str() == "children" { 2 } else { 0 };
                runtime
                    .commit(async |tx, running| {
                        let mut children = Vec::new();
                        for _ in 0..count {
                            children.push(tx.create_task(self, "steps".to_owned(), TaskOptions::owned_by(running.id)).await?);
                        }
                        let on = children.iter().map(|child| child.erase()).collect();
                        let checkpoint = At::Joined { children };
                        Ok::<_, Fault>(Next::Wait { checkpoint, on, policy: JoinPolicy::AllSettled })
                    })
                    .await
            }
            "itself" => {
                let on = vec![task.id.erase()];
                let checkpoint = At::Joined { children: Vec::new() };
                runtime.commit(async |_, _| Ok::<_, Fault>(Next::Wait { checkpoint, on, policy: JoinPolicy::AllSettled })).await
            }
            "entry" => {
                runtime
                    .commit(async |tx, running| {
                        tx.append_entry(running.conversation, EntryDraft::new("note")).await?;
                        Ok::<_, Fault>(Next::End(Outcome::Completed(1)))
                    })
                    .await
            }
            _ => step(&runtime, n, n + 1).await,
        }
    }

    async fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        if task.input.as_str() == "hangs and aborts badly" {
            return Ok(());
        }
        let aborted = Outcome::Aborted { reason: None, result: None };
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(aborted))).await
    }
}

/// On to the next of three steps, or the end.
async fn step(runtime: &TaskRuntime<Steps>, n: u32, result: u32) -> Result<(), Fault> {
    let next = if n < 2 { Next::Checkpoint(At::Step { n: n + 1 }) } else { Next::End(Outcome::Completed(result)) };
    runtime.commit(async |_, _| Ok::<_, Fault>(next)).await
}

/// Defines the task, runs one, and gives its outcome and what its handlers saw.
async fn ran(kit: &mut Kit, input: &str) -> (TaskId<u32>, Outcome<u32>, Vec<u32>) {
    let steps = Steps::default();
    kit.define(steps.clone()).await;
    let id = kit.create(&steps, input.to_owned()).await;
    let outcome = kit.harness().wait_for_task(id).await.unwrap();
    let seen = steps.0.lock().unwrap().clone();
    (id, outcome, seen)
}

scenario!(s061_one_invocation_runs_every_phase, async |kit| {
    let (id, outcome, seen) = ran(&mut kit, "steps").await;
    assert_eq!((outcome, seen), (Outcome::Completed(3), vec![0, 1, 2]));
    assert_eq!(kit.task(id.erase()).await.restarts, 0);
    // What is over stays as it is.
    let record = kit.task(id.erase()).await;
    kit.reopen().await;
    assert_eq!(kit.task(id.erase()).await, record);
});

scenario!(s062_a_phase_without_progress_faults, async |kit| {
    let (_, outcome, seen) = ran(&mut kit, "still").await;
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains("without durable progress")), "{outcome:?}");
    assert_eq!(seen, [0]);
});

scenario!(s062_a_phase_that_throws_faults, async |kit| {
    let (_, outcome, _) = ran(&mut kit, "throws").await;
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message == "boom"), "{outcome:?}");
});

scenario!(s063_a_committed_outcome_stays, async |kit| {
    let (id, outcome, _) = ran(&mut kit, "ends and throws").await;
    assert_eq!(outcome, Outcome::Completed(7));
    kit.harness().wait_for_idle().await.unwrap();
    kit.reopen().await;
    assert!(matches!(kit.task(id.erase()).await.state, TaskState::Terminal { outcome: TaskOutcome::Completed { .. } }));
});

scenario!(s064_the_first_memo_is_kept, async |kit| {
    let (id, outcome, _) = ran(&mut kit, "memos").await;
    assert_eq!(outcome, Outcome::Completed(1));
    assert_eq!(kit.task(id.erase()).await.memos, None);
});

scenario!(s065_entries_name_their_task, async |kit| {
    let (id, outcome, _) = ran(&mut kit, "entry").await;
    assert_eq!(outcome, Outcome::Completed(1));
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!(entries.iter().map(|entry| entry.by_task_id).collect::<Vec<_>>(), [Some(id.erase())]);
});

scenario!(s075_a_wait_for_nothing_resumes, async |kit| {
    let (_, outcome, seen) = ran(&mut kit, "nothing").await;
    assert_eq!((outcome, seen), (Outcome::Completed(0), vec![0, 9]));
});

scenario!(s092_a_parent_joins_its_children, async |kit| {
    let (id, outcome, seen) = ran(&mut kit, "children").await;
    assert_eq!(outcome, Outcome::Completed(6));
    assert_eq!((seen.len(), seen.last()), (8, Some(&9)));
    let child = kit.task(TaskId::new(id.get() + 1).unwrap()).await;
    assert_eq!((child.owner.is_some(), child.conversation_id), (true, kit.root().await.id()));
});

scenario!(s076_a_wait_for_itself_is_refused, async |kit| {
    let (_, outcome, seen) = ran(&mut kit, "itself").await;
    assert!(matches!(outcome, Outcome::Faulted(_)), "{outcome:?}");
    assert_eq!(seen, [0]);
});

scenario!(s077_s196_an_inspection_starts_nothing_and_a_wait_does, async |kit| {
    let steps = Steps::default();
    kit.define(steps.clone()).await;
    kit.stop().await;
    kit.resume = false;
    kit.start();
    let id = kit.create(&steps, "steps".to_owned()).await;
    let harness = kit.harness();
    for _ in 0..2 {
        let inspection = harness.inspect().await.unwrap();
        assert_eq!(inspection.scheduling, Scheduling::Paused);
        let views: Vec<_> = inspection.tasks.into_iter().map(|task| (task.record.id, task.state)).collect();
        assert_eq!(views, [(id.erase(), TaskView::Ready { migrates: false })]);
    }
    assert!(matches!(kit.task(id.erase()).await.state, TaskState::Pending { .. }));
    assert!(steps.0.lock().unwrap().is_empty());
    assert_eq!(harness.wait_for_task(id).await.unwrap(), Outcome::Completed(3));
    assert_eq!(harness.inspect().await.unwrap().scheduling, Scheduling::Running);
    assert!(!harness.retry_task(id.erase()).await.unwrap());
});

scenario!(s196_resume_is_idempotent, async |kit| {
    let steps = Steps::default();
    kit.define(steps.clone()).await;
    kit.stop().await;
    kit.resume = false;
    kit.start();
    let id = kit.create(&steps, "children".to_owned()).await;
    kit.harness().resume().await.unwrap();
    kit.harness().resume().await.unwrap();
    kit.root().await.wait_for_idle().await.unwrap();
    assert!(kit.task(id.erase()).await.terminal());
    assert!(kit.harness().inspect().await.unwrap().tasks.is_empty());
});

scenario!(s070_a_task_without_code_waits_for_it, async |kit| {
    let steps = Steps::default();
    let id = kit.create(&steps, "steps".to_owned()).await;
    kit.harness().resume().await.unwrap();
    let inspection = kit.harness().inspect().await.unwrap();
    assert_eq!(inspection.tasks[0].state, TaskView::Blocked { reason: "missing_task".to_owned(), error: None });
    kit.define(steps.clone()).await;
    assert_eq!(kit.harness().wait_for_task(id).await.unwrap(), Outcome::Completed(3));
});

/// A task that runs until it is told to stop.
async fn hanging(kit: &mut Kit, input: &str) -> TaskId<u32> {
    let steps = Steps::default();
    kit.define(steps.clone()).await;
    let id = kit.create(&steps, input.to_owned()).await;
    kit.until("the phase", async || !steps.0.lock().unwrap().is_empty()).await;
    id
}

scenario!(s088_an_abort_of_the_conversation_ends_its_task, async |kit| {
    let id = hanging(&mut kit, "hangs").await;
    kit.root().await.abort(false).await.unwrap();
    let record = kit.task(id.erase()).await;
    assert!(matches!(record.state, TaskState::Terminal { outcome: TaskOutcome::Aborted { .. } }), "{record:?}");
});

scenario!(s080_an_abort_handler_without_an_outcome_faults, async |kit| {
    let id = hanging(&mut kit, "hangs and aborts badly").await;
    assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Marked);
    let outcome = kit.harness().wait_for_task(id).await.unwrap();
    assert!(matches!(&outcome, Outcome::Faulted(error) if error.message.contains("without an outcome")), "{outcome:?}");
});

scenario!(s082_a_blocked_task_is_orphaned_at_once, async |kit| {
    kit.stop().await;
    kit.resume = false;
    kit.start();
    let id = kit.create(&Steps::default(), "steps".to_owned()).await;
    assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Marked);
    let orphaned = TaskState::Terminal { outcome: TaskOutcome::Orphaned { reason: "missing_task".to_owned() } };
    assert_eq!(kit.task(id.erase()).await.state, orphaned);
    assert_eq!(kit.harness().inspect().await.unwrap().scheduling, Scheduling::Paused);
    assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Terminal);
});
