//! Section P: opening and recovery.

use std::sync::Arc;

use picofleet_harness::effects::Fault;
use picofleet_harness::host::HostError;
use picofleet_harness::inspection::{Inspection, Scheduling, TaskView};
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::kinds::{GENERATION, TOOL};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::transport::CallError;
use picofleet_harness::wire::{Read, Request};
use picofleet_harness_tests::{Backing, Kit, Reply, Wire, scenario};
use picofleet_session::{EntryDraft, Json, ROOT_CONVERSATION_ID, SubmissionStatus, TaskOutcome, TaskState};
use tokio::sync::Semaphore;

scenario!(s194_root_is_made_once, async |kit| {
    let before = kit.root().await.config().await.unwrap();
    let _ = kit.disk.written();
    assert_eq!(kit.root().await.id(), ROOT_CONVERSATION_ID);
    assert!(kit.disk.written().is_empty(), "nothing is written for one that is there");
    kit.reopen().await;
    let _ = kit.disk.written();
    assert_eq!(kit.root().await.id(), ROOT_CONVERSATION_ID);
    assert_eq!(kit.root().await.config().await.unwrap(), before);
    assert!(kit.disk.written().is_empty());
    assert_eq!(kit.harness().conversations(Default::default(), 10, None).await.unwrap().items.len(), 1);
});

async fn root_is_absent_until_it_is_asked_for(backing: Backing, wire: Wire) {
    let mut kit = Kit::bare(backing, wire).await;
    kit.start();
    assert!(kit.harness().conversation(ROOT_CONVERSATION_ID).await.unwrap().is_none());
    kit.root().await;
    assert!(kit.harness().conversation(ROOT_CONVERSATION_ID).await.unwrap().is_some());
    kit.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s194_root_is_absent_until_it_is_asked_for() {
    for backing in [Backing::Memory, Backing::Sqlite, Backing::Jsonl, Backing::Postgres] {
        for wire in [Wire::Plain, Wire::Encoded] {
            root_is_absent_until_it_is_asked_for(backing, wire).await;
        }
    }
}

/// A parent makes a child and ends, so that its outcome is held until the child is let go. Clones are one.
#[derive(Clone)]
struct Parent {
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Parent {
    fn new() -> Self {
        Self { begun: Arc::new(Semaphore::new(0)), go: Arc::new(Semaphore::new(0)) }
    }

    async fn begun(&self) {
        let waited = tokio::time::timeout(std::time::Duration::from_secs(60), self.begun.acquire()).await;
        waited.expect("the child runs").unwrap().forget();
    }
}

impl TaskKind for Parent {
    const NAME: &'static str = "test.parent";
    const VERSION: u32 = 1;
    type Input = bool;
    type Checkpoint = Json;
    type Output = u32;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &bool) -> Json {
        Json::object([("phase", "begin")])
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        if *task.input {
            runtime
                .commit(async |tx, running| {
                    tx.create_task(self, false, TaskOptions::owned_by(running.id)).await?;
                    Ok::<_, Fault>(Next::Stay)
                })
                .await?;
            return runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(1)))).await;
        }
        self.begun.add_permits(1);
        tokio::select! {
            go = self.go.acquire() => go.unwrap().forget(),
            () = runtime.cancelled().cancelled() => return Err(Fault::Ended),
        }
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(2)))).await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

fn views(inspection: &Inspection) -> Vec<(&str, TaskView)> {
    inspection.tasks.iter().map(|task| (task.record.kind.as_str(), task.state.clone())).collect()
}

scenario!(s195_an_opening_dispatches_nothing_and_finishes_what_has_drained, async |kit| {
    let parent = Parent::new();
    kit.define(parent.clone()).await;
    kit.stage.give(Reply::call("c1", "safe_gate", "{}"));
    let a = kit.say("a").await;
    kit.gate.begun().await;
    let held = kit.create(&parent, true).await.erase();
    parent.begun().await;
    kit.until("the held outcome", async || matches!(kit.task(held).await.state, TaskState::Completing { .. })).await;
    let tool = kit.tasks(TOOL).await.remove(0);
    let TaskState::Running { checkpoint } = tool.state else { panic!("not running") };

    kit.kill().await;
    let reserved = kit.faults.reserved();
    kit.reopen_paused().await;
    let inspection = kit.harness().inspect().await.unwrap();
    let ready = || TaskView::Ready { migrates: false };
    let waiting = || TaskView::Waiting { on: vec![tool.id] };
    let expected = [(GENERATION, waiting()), (TOOL, ready()), (Parent::NAME, TaskView::Completing), (Parent::NAME, ready())];
    assert_eq!((inspection.scheduling, views(&inspection)), (Scheduling::Paused, expected.to_vec()));
    assert_eq!(kit.task(tool.id).await.state, TaskState::Pending { checkpoint });
    assert_eq!((kit.faults.reserved(), kit.stage.asked().len()), (reserved, 1), "nothing runs");
    kit.harness().resume().await.unwrap();
    kit.gate.begun().await;
    parent.begun().await;

    // The child ends, and the process with the commit that finishes its parent.
    let finish = kit.disk.hold_behind(1);
    parent.go.add_permits(1);
    finish.arrived().await;
    assert!(matches!(kit.task(held).await.state, TaskState::Completing { .. }));
    kit.kill().await;
    kit.reopen_paused().await;
    drop(finish);
    let TaskState::Terminal { outcome } = kit.task(held).await.state else { panic!("it is not over") };
    assert!(matches!(outcome, TaskOutcome::Completed { .. }), "{outcome:?}");
    let inspection = kit.harness().inspect().await.unwrap();
    assert_eq!((inspection.scheduling, views(&inspection)), (Scheduling::Paused, vec![(GENERATION, waiting()), (TOOL, ready())]));

    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    kit.harness().resume().await.unwrap();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
});

scenario!(s195_a_failed_opening_gives_storage_back_and_says_why, async |kit| {
    kit.stage.give(Reply::call("c1", "safe_gate", "{}"));
    let a = kit.say("a").await;
    kit.gate.begun().await;
    kit.kill().await;
    let lines = kit.disk.lines();
    kit.resume = false;
    kit.start();
    // The opening gives the running task back, and that commit is lost.
    kit.disk.lose();
    let refused = kit.transport().call(kit.session(), Request::Read(Read::Conversation(ROOT_CONVERSATION_ID))).await;
    let Err(CallError::Unavailable { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(why.contains("the backend ended before it answered"), "{why}");
    assert_eq!(kit.disk.lines(), lines, "the line is given back");
    // The next call opens it.
    assert!(matches!(kit.tasks(TOOL).await[0].state, TaskState::Pending { .. }));
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
});

scenario!(s196_reads_enable_nothing_and_what_asks_for_progress_does, async |kit| {
    let a = kit.turn("a", Reply::text("x")).await;
    let task = kit.tasks(GENERATION).await[0].id;
    let scheduling = async |kit: &Kit| kit.harness().inspect().await.unwrap().scheduling;
    kit.reopen_paused().await;
    let (harness, root) = (kit.harness(), kit.root().await);
    harness.get_task(task).await.unwrap();
    harness.submission(a.id).await.unwrap().unwrap().status().await.unwrap();
    harness.conversations(Default::default(), 10, None).await.unwrap();
    harness.usage().await.unwrap();
    root.context().await.unwrap();
    root.live().await.unwrap();
    root.config().await.unwrap();
    kit.entries(&root).await;
    kit.watch_root().await;
    root.set_active_tools(["echo"]).await.unwrap();
    assert_eq!(scheduling(&kit).await, Scheduling::Paused);

    root.submit(SubmissionDraft::write(EntryDraft::new("note"))).await.unwrap();
    assert_eq!(scheduling(&kit).await, Scheduling::Running, "submit");
    kit.reopen_paused().await;
    kit.harness().submission(a.id).await.unwrap().unwrap().wait().await.unwrap();
    assert_eq!(scheduling(&kit).await, Scheduling::Running, "a wait for a submission");
    kit.reopen_paused().await;
    kit.harness().wait_for_task(task).await.unwrap();
    assert_eq!(scheduling(&kit).await, Scheduling::Running, "a wait for a task");
    kit.reopen_paused().await;
    kit.harness().wait_for_idle().await.unwrap();
    assert_eq!(scheduling(&kit).await, Scheduling::Running, "a wait for the session");
    kit.reopen_paused().await;
    kit.root().await.wait_for_idle().await.unwrap();
    assert_eq!(scheduling(&kit).await, Scheduling::Running, "a wait for a conversation");
    // Once more changes nothing; behind a close it is refused.
    let harness = kit.harness();
    harness.resume().await.unwrap();
    harness.resume().await.unwrap();
    kit.stop().await;
    assert!(matches!(harness.resume().await, Err(HostError::Unavailable(_))));
});

scenario!(x061_what_was_finished_before_a_restart_runs_no_more, async |kit| {
    let root = kit.root().await;
    let a = kit.turn("a", Reply::text("x")).await;
    let usage = root.usage().await.unwrap();
    let before = kit.entries(&root).await;
    let reserved = kit.faults.reserved();
    kit.reopen().await;
    assert!(kit.harness().inspect().await.unwrap().tasks.is_empty());
    let again = kit.harness().submission(a.id).await.unwrap().unwrap();
    assert_eq!(again.wait().await.unwrap(), a);
    let root = kit.root().await;
    assert_eq!((root.usage().await.unwrap(), kit.entries(&root).await), (usage.clone(), before.clone()));
    assert_eq!((kit.stage.asked().len(), kit.faults.reserved()), (1, reserved), "nothing runs");
    kit.turn("b", Reply::text("y")).await;
    assert_eq!(kit.entries(&root).await[..before.len()], before[..]);
    assert_eq!(root.usage().await.unwrap().models["p/m"].input, 2 * usage.models["p/m"].input);
});

scenario!(x062_nothing_opens_without_the_built_in_tasks, async |kit| {
    kit.stop().await;
    for missing in [GENERATION, TOOL] {
        let whole = kit.tasks.clone();
        kit.tasks.remove(missing);
        let _ = kit.disk.written();
        let lines = kit.disk.lines();
        kit.start();
        let refused = kit.transport().call(kit.session(), Request::Read(Read::Conversation(ROOT_CONVERSATION_ID))).await;
        let Err(CallError::Unavailable { why, .. }) = refused else { panic!("{refused:?}") };
        assert!(why.contains(missing), "{why}");
        assert_eq!((kit.disk.written().len(), kit.disk.lines()), (0, lines), "the session was not opened");
        kit.stop().await;
        kit.tasks = whole;
    }
    kit.start();
    assert_eq!(kit.turn("a", Reply::text("x")).await.status(), SubmissionStatus::Done);
});
