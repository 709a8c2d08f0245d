//! Background tasks that tools create (section 7.3), and waits for them.

use std::sync::{Arc, Mutex};

use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Closure, Kit, Reply, scenario};
use picofleet_session::{EntryDraft, Json, SubmissionStatus, TaskId, TaskState};

/// Waits until it is let go, writes a note and ends.
struct Reporter(tokio::sync::Semaphore);

impl TaskKind for Reporter {
    const NAME: &'static str = "test.reporter";
    const VERSION: u32 = 1;
    type Input = String;
    type Checkpoint = Json;
    type Output = String;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &String) -> Json {
        Json::object([("phase", "wait")])
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        tokio::select! {
            permit = self.0.acquire() => permit.unwrap().forget(),
            () = runtime.cancelled().cancelled() => return Err(Fault::Ended),
        }
        runtime
            .commit(async |tx, current| {
                tx.append_entry(current.conversation, EntryDraft::new("report")).await?;
                Ok::<_, Fault>(Next::End(Outcome::Completed((*task.input).clone())))
            })
            .await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

/// Waits for a background task, also in its abort handler.
struct Waiter;

impl TaskKind for Waiter {
    const NAME: &'static str = "test.waiter";
    const VERSION: u32 = 1;
    type Input = TaskId<String>;
    type Checkpoint = Json;
    type Output = String;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &TaskId<String>) -> Json {
        Json::object([("phase", "wait")])
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.wait_for_task(*task.input).await?;
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed("ran".to_owned())))).await
    }

    async fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let outcome = runtime.wait_for_task(*task.input).await?;
        let result = if let Outcome::Completed(text) = outcome { Some(text) } else { None };
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result }))).await
    }
}

/// Registers reporter and waiter, and a tool that makes both; answers the reporter and the ids of both once the tool ran.
async fn background(kit: &mut Kit) -> (Arc<Reporter>, TaskId, TaskId) {
    let reporter = Arc::new(Reporter(tokio::sync::Semaphore::new(0)));
    kit.stop().await;
    kit.registry.task(Arc::clone(&reporter)).unwrap();
    kit.registry.task(Arc::new(Waiter)).unwrap();
    kit.tasks = picofleet_harness::task::LineTasks::of(&kit.registry);
    let made = Arc::new(Mutex::new(None));
    let (kept, kind) = (Arc::clone(&made), Arc::clone(&reporter));
    let tool = Closure::new("begin", move |_, api| {
        let (kept, kind) = (Arc::clone(&kept), Arc::clone(&kind));
        async move {
            let options = TaskOptions::top_level().background();
            let ids = api
                .commit(async |tx| {
                    let reporter = tx.create_task(&*kind, "reported".to_owned(), options).await?;
                    let waiter = tx.create_task(&Waiter, reporter, options).await?;
                    Ok::<_, Fault>((reporter.erase(), waiter.erase()))
                })
                .await?;
            *kept.lock().unwrap() = Some(ids);
            Ok(ToolResult::text("begun"))
        }
    });
    kit.registry.tool(tool).unwrap();
    kit.reopen().await;
    let active_tools = Some(kit.registry.snapshot().tool_names());
    kit.root().await.update(picofleet_harness::config::ConfigPatch { active_tools, ..Default::default() }).await.unwrap();
    kit.stage.give(Reply::call("c1", "begin", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let (task, waiter) = made.lock().unwrap().unwrap();
    (reporter, task, waiter)
}

async fn ended(kit: &Kit, task: TaskId) -> String {
    kit.until("the task's end", async || kit.task(task).await.terminal()).await;
    let TaskState::Terminal { outcome } = kit.task(task).await.state else { panic!("not terminal") };
    Json::from_serde(&outcome).unwrap().to_string()
}

scenario!(a_background_task_of_a_tool_outlives_the_turn_and_an_abort, async |kit| {
    let (reporter, task, waiter) = background(&mut kit).await;
    let root = kit.root().await;
    root.abort(false).await.unwrap();
    assert!(!kit.task(task).await.abort_requested && !kit.task(waiter).await.abort_requested);
    kit.reopen().await;
    reporter.0.add_permits(1);
    assert!(ended(&kit, task).await.contains("reported"));
    assert!(ended(&kit, waiter).await.contains("ran"));
    assert_eq!(kit.kinds().await.last().map(String::as_str), Some("report"));
});

scenario!(an_abort_handler_waits_for_a_background_task, async |kit| {
    let (reporter, task, waiter) = background(&mut kit).await;
    kit.harness().abort_task(waiter).await.unwrap();
    kit.until("the mark", async || kit.task(waiter).await.abort_requested).await;
    assert!(!kit.task(waiter).await.terminal());
    reporter.0.add_permits(1);
    let outcome = ended(&kit, waiter).await;
    assert!(outcome.contains("aborted") && outcome.contains("reported"), "{outcome}");
    assert!(ended(&kit, task).await.contains("completed"));
});
