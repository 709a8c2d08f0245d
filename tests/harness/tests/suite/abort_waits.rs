//! Abort handlers that compensate through background tasks and wait for them (section 5.5).

use picofleet_harness::effects::Fault;
use picofleet_harness::host::AbortTask;
use picofleet_harness::kind::{Next, Outcome, TaskOptions, TxTasks as _};
use picofleet_harness_tests::{ABORTED, Act, Kit, Owner, scenario};
use picofleet_session::TaskId;

const TOP: TaskOptions = TaskOptions::top_level();

/// Creates a background task with this name, once for the task that is aborted, waits for it, and takes over its result.
fn compensates(owner: &Owner, helper: &'static str) -> Act {
    let owner = owner.clone();
    Act::new(move |task, runtime| async move {
        let known: Option<TaskId<u32>> = runtime.memoized("helper").await?;
        let id = match known {
            Some(id) => id,
            None => {
                let mut made = None;
                runtime
                    .commit(async |tx, _| {
                        made = Some(tx.create_task(&owner, helper.to_owned(), TOP.background()).await?);
                        Ok::<_, Fault>(Next::Checkpoint(task.checkpoint.next()))
                    })
                    .await?;
                runtime.memo("helper", &made.unwrap()).await?
            }
        };
        owner.note(format!("waits for {helper}"));
        let outcome = runtime.wait_for_task(id).await?;
        let result = if let Outcome::Completed(n) = outcome { Some(n) } else { None };
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result }))).await
    })
}

/// Aborts a task, whose handler then waits for its helper.
async fn waiting(kit: &Kit, owner: &Owner, task: TaskId<u32>) {
    owner.tell("t:abort", compensates(owner, "helper"));
    assert_eq!(kit.harness().abort_task(task.erase()).await.unwrap(), AbortTask::Marked);
    kit.ran(owner, &["waits for helper", "helper:0"]).await;
}

const COMPENSATED: Outcome<u32> = Outcome::Aborted { reason: None, result: Some(7) };

scenario!(s091_an_abort_handler_that_waits_waits_again_behind_a_kill, async |kit| {
    let owner = kit.owner().await;
    let task = kit.add("t", TOP).await;
    kit.ran(&owner, &["t:0"]).await;
    waiting(&kit, &owner, task).await;
    kit.kill().await;
    owner.tell("t:abort", compensates(&owner, "helper"));
    kit.reopen().await;
    kit.until("the second wait", async || owner.log().iter().filter(|line| *line == "waits for helper").count() == 2).await;
    owner.tell("helper", Act::end(Outcome::Completed(7)));
    assert_eq!(kit.outcome(task).await, COMPENSATED);
    assert_eq!(kit.tasks("test.owner").await.len(), 2, "one helper");
});

scenario!(s091_an_abort_handler_that_waits_leaves_its_slot_to_what_it_waits_for, async |kit| {
    kit.worker.slots = 1;
    let owner = kit.owner().await;
    let task = kit.add("t", TOP).await;
    kit.ran(&owner, &["t:0"]).await;
    waiting(&kit, &owner, task).await;
    owner.tell("helper", Act::end(Outcome::Completed(7)));
    assert_eq!(kit.outcome(task).await, COMPENSATED);
});

scenario!(s091_no_cascade_reaches_what_an_abort_handler_waits_for, async |kit| {
    let owner = kit.owner().await;
    let parent = kit.add("p", TOP).await;
    kit.ran(&owner, &["p:0"]).await;
    let task = kit.add("t", TaskOptions::owned_by(parent)).await;
    kit.ran(&owner, &["t:0"]).await;
    owner.tell("t:abort", compensates(&owner, "helper"));
    // All of the conversation's foreground work is marked, too.
    let root = kit.root().await;
    let aborts = tokio::spawn(async move { root.abort(false).await });
    kit.ran(&owner, &["waits for helper", "helper:0"]).await;
    let helper = kit.tasks("test.owner").await.pop().unwrap();
    assert!(helper.background && !helper.abort_requested, "{helper:?}");
    assert_eq!(kit.state(parent).await, "running", "its handler comes behind that of what it owns");
    assert_eq!(owner.aborts(), ["t"]);
    owner.tell("helper", Act::end(Outcome::Completed(7)));
    aborts.await.unwrap().unwrap();
    assert_eq!(kit.outcome(task).await, COMPENSATED);
    assert_eq!(kit.outcome(parent).await, ABORTED);
    assert_eq!(owner.aborts(), ["t", "p"]);
});
