//! What an inspection shows beyond a task's own state (section 2.2, `design.md` 7 and 13): workers, the registry, quarantine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use picofleet_harness::effects::Fault;
use picofleet_harness::host::{AbortTask, HostError, SubmitError};
use picofleet_harness::inspection::{Scheduling, TaskView};
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind};
use picofleet_harness::registry::{FailureKind, Registry, RegistryFailure};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::task::LineTasks;
use picofleet_harness::tools::ToolError;
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_session::{Json, SubmissionStatus, TaskId, TaskState};

/// Ends at once, and counts its runs.
#[derive(Clone, Default)]
struct Quick(Arc<AtomicU32>);

impl TaskKind for Quick {
    const NAME: &'static str = "test.quick";
    const VERSION: u32 = 1;
    type Input = ();
    type Checkpoint = Json;
    type Output = ();
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, (): &()) -> Json {
        Json::object([("phase", "end")])
    }

    async fn run(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        self.0.fetch_add(1, Ordering::SeqCst);
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(())))).await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

fn no_worker() -> TaskView {
    TaskView::Blocked { reason: "no_worker".to_owned(), error: None }
}

async fn view(kit: &Kit, task: TaskId) -> TaskView {
    let tasks = kit.harness().inspect().await.unwrap().tasks;
    tasks.into_iter().find(|seen| seen.record.id == task).unwrap().state
}

/// Lets the coordinator know a task that the worker has no code for, and creates one.
async fn unmanned(kit: &mut Kit) -> (Quick, TaskId<()>) {
    let (quick, coordinators) = (Quick::default(), Registry::new());
    coordinators.task(Arc::new(quick.clone())).unwrap();
    kit.stop().await;
    kit.tasks = LineTasks::of(&coordinators);
    kit.reopen().await;
    let id = kit.create(&quick, ()).await;
    (quick, id)
}

scenario!(a_task_without_a_worker_shows_it_and_runs_once_there_is_one, async |kit| {
    let (quick, id) = unmanned(&mut kit).await;
    kit.until("no worker", async || view(&kit, id.erase()).await == no_worker()).await;
    assert!(matches!(kit.task(id.erase()).await.state, TaskState::Pending { .. }), "it is ready, and nothing is stored of this");
    kit.registry.task(Arc::new(quick.clone())).unwrap();
    assert_eq!(kit.harness().wait_for_task(id).await.unwrap(), Outcome::Completed(()));
    assert_eq!(quick.0.load(Ordering::SeqCst), 1);
});

scenario!(an_abort_without_a_worker_shows_it_too, async |kit| {
    let (quick, id) = unmanned(&mut kit).await;
    assert_eq!(kit.harness().abort_task(id.erase()).await.unwrap(), AbortTask::Marked);
    kit.until("no worker", async || view(&kit, id.erase()).await == no_worker()).await;
    kit.registry.task(Arc::new(quick.clone())).unwrap();
    assert_eq!(kit.harness().wait_for_task(id).await.unwrap(), Outcome::Aborted { reason: None, result: None });
    assert_eq!(quick.0.load(Ordering::SeqCst), 0);
});

scenario!(a_task_that_waits_or_is_blocked_otherwise_shows_that, async |kit| {
    let a = kit.busy("a").await;
    let views = async || {
        let tasks = kit.harness().inspect().await.unwrap().tasks;
        tasks.into_iter().map(|task| (task.record.kind, task.state)).collect::<Vec<_>>()
    };
    kit.until("the wait for the call", async || {
        let views = views().await;
        assert!(views.iter().all(|(_, view)| !matches!(view, TaskView::Blocked { .. })), "{views:?}");
        matches!(&views[..], [(_, TaskView::Waiting { on }), (tool, TaskView::Running)] if on.len() == 1 && tool == "pi.tool")
    })
    .await;
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    kit.settled(&a).await;
    let (_, id) = unmanned(&mut kit).await;
    kit.stop().await;
    kit.tasks = LineTasks::built_in();
    kit.reopen().await;
    assert_eq!(view(&kit, id.erase()).await, TaskView::Blocked { reason: "missing_task".to_owned(), error: None });
});

scenario!(failures_of_wrappers_are_shown, async |kit| {
    assert_eq!(kit.harness().inspect().await.unwrap().registry, []);
    let wrapper = kit.registry.wrap_tool("echo", "broken", |_| Err(ToolError::new("no sandbox"))).unwrap();
    let failure = RegistryFailure { kind: FailureKind::Tool, name: "echo".to_owned(), error: "no sandbox".to_owned() };
    assert_eq!(kit.harness().inspect().await.unwrap().registry, [failure]);
    wrapper.dispose();
    assert_eq!(kit.harness().inspect().await.unwrap().registry, []);
});

scenario!(a_quarantined_session_shows_what_it_has_and_does_nothing_until_it_is_retried, async |kit| {
    let a = kit.busy("a").await;
    let queued = kit.say("b").await;
    kit.stop().await;
    kit.quarantine().await;
    kit.start();
    let harness = kit.harness();
    let inspection = harness.inspect().await.unwrap();
    assert!(inspection.quarantined);
    assert_eq!(inspection.scheduling, Scheduling::Paused);
    let blocked = TaskView::Blocked { reason: "session_quarantined".to_owned(), error: None };
    let seen: Vec<_> = inspection.tasks.iter().map(|task| task.record.kind.as_str()).collect();
    assert_eq!(seen, ["pi.generation", "pi.tool"]);
    assert!(inspection.tasks.iter().all(|task| task.state == blocked), "{:?}", inspection.tasks);
    let submissions: Vec<_> = inspection.submissions.iter().map(|record| (record.id, record.status())).collect();
    assert_eq!(submissions, [(a.id(), SubmissionStatus::Placed), (queued.id(), SubmissionStatus::Queued)]);

    let refused = HostError::Quarantined(kit.session());
    assert_eq!(harness.root().await.map(|root| root.id()), Err(refused.clone()));
    assert_eq!(harness.wait_for_idle().await, Err(refused.clone()));
    assert!(harness.inspect().await.unwrap().quarantined, "a call does not open it");
    assert_eq!(harness.retry_session().await, Ok(true));
    kit.stage.give(Reply::text("x"));
    kit.stage.give(Reply::text("y"));
    assert!(!harness.inspect().await.unwrap().quarantined);
    assert_eq!(harness.retry_session().await, Ok(false));
    let root = harness.root().await.unwrap();
    let c = root.submit(SubmissionDraft::input("c")).await.map_err(|error: SubmitError| error.to_string()).unwrap();
    kit.stage.give(Reply::text("z"));
    for submission in [&a, &queued, &c] {
        assert_eq!(kit.settled(submission).await.status(), SubmissionStatus::Done);
    }
});
