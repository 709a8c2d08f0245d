//! Aborts and joins that last longer than one call waits on the line (section 2.2): who asked waits until they are over.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Fault;
use picofleet_harness::host::{AbortTask, Harness};
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::ToolResult;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, HostCall, Request};
use picofleet_harness_tests::{Closure, Kit, Reply, scenario};
use picofleet_session::{ConversationOwnership, Json, SessionId, SubmissionStatus, TaskId};
use tokio::sync::Semaphore;

/// The bound of a call in these tests.
const BOUND: Duration = Duration::from_millis(20);

/// Counts the waits that are asked for behind an abort.
struct Counting(Arc<dyn Transport>, Arc<AtomicU32>);

impl Transport for Counting {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        let waits = matches!(&request, Request::Host(call)
            if matches!(**call, HostCall::WaitStopped { .. } | HostCall::WaitAborted { .. }));
        self.1.fetch_add(u32::from(waits), Ordering::SeqCst);
        self.0.call(session, request)
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        self.0.beat(beat)
    }
}

/// A host that counts its waits.
fn counting(kit: &Kit) -> (Harness, Arc<AtomicU32>) {
    let waits = Arc::default();
    (Harness::connect(Arc::new(Counting(kit.transport(), Arc::clone(&waits))), kit.session()), waits)
}

/// A run that goes on, however often it is told to stop, until the test lets it go. Starts the kit with the short bound.
async fn stubborn(kit: &mut Kit) -> (TaskId, Arc<Semaphore>) {
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (says, waits) = (Arc::clone(&begun), Arc::clone(&go));
    let tool = Closure::new("stubborn", move |_, _| {
        let (says, waits) = (Arc::clone(&says), Arc::clone(&waits));
        async move {
            says.add_permits(1);
            waits.acquire().await.unwrap().forget();
            Ok(ToolResult::text("done"))
        }
    });
    kit.stop().await;
    kit.wait = BOUND;
    kit.registry.tool(tool).unwrap();
    kit.reopen().await;
    let active_tools = Some(vec!["stubborn".to_owned()]);
    kit.root().await.update(ConfigPatch { active_tools, ..ConfigPatch::default() }).await.unwrap();
    kit.stage.give(Reply::call("c1", "stubborn", "{}"));
    kit.say("go").await;
    begun.acquire().await.unwrap().forget();
    let tasks = kit.harness().inspect().await.unwrap().tasks;
    let call = tasks.iter().find(|task| task.record.kind == "pi.tool").unwrap().record.id;
    (call, go)
}

scenario!(an_abort_of_a_task_waits_past_the_bound_of_a_call, async |kit| {
    let (task, go) = stubborn(&mut kit).await;
    let (host, waits) = counting(&kit);
    let abort = tokio::spawn(async move { host.abort_task(task).await });
    kit.until("three bounded waits", async || waits.load(Ordering::SeqCst) >= 3).await;
    assert!(!abort.is_finished(), "its run goes on");
    assert!(kit.task(task).await.abort_requested);
    go.add_permits(1);
    assert_eq!(abort.await.unwrap().unwrap(), AbortTask::Marked);
    kit.harness().wait_for_idle().await.unwrap();
});

scenario!(an_abort_of_a_conversation_waits_past_the_bound_and_leaves_what_comes_later, async |kit| {
    let (task, go) = stubborn(&mut kit).await;
    let (host, waits) = counting(&kit);
    let root = host.conversation(kit.root().await.id()).await.unwrap().unwrap();
    let abort = tokio::spawn(async move { root.abort(false).await });
    kit.until("three bounded waits", async || waits.load(Ordering::SeqCst) >= 3).await;
    assert!(!abort.is_finished(), "the conversation is not idle");
    let later = kit.say("later").await;
    let asked = waits.load(Ordering::SeqCst);
    kit.until("two more", async || waits.load(Ordering::SeqCst) >= asked + 2).await;
    assert_eq!(later.status().await.unwrap().status(), SubmissionStatus::Queued, "only what was there is withdrawn");
    go.add_permits(1);
    abort.await.unwrap().unwrap();
    assert!(kit.task(task).await.terminal());
    assert_eq!(kit.run().await, None);
});

scenario!(an_abort_that_is_given_up_ends_only_the_wait, async |kit| {
    let (task, go) = stubborn(&mut kit).await;
    let (host, waits) = counting(&kit);
    let abort = tokio::spawn(async move { host.abort_task(task).await });
    kit.until("a bounded wait", async || waits.load(Ordering::SeqCst) >= 1).await;
    abort.abort();
    assert!(abort.await.unwrap_err().is_cancelled());
    assert!(kit.task(task).await.abort_requested);
    go.add_permits(1);
    kit.harness().wait_for_idle().await.unwrap();
    assert!(kit.task(task).await.terminal());
});

/// Hangs until it is told to stop, and needs a worker to abort.
struct Hangs;

impl TaskKind for Hangs {
    const NAME: &'static str = "test.hangs";
    const VERSION: u32 = 1;
    type Input = ();
    type Checkpoint = Json;
    type Output = ();
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, (): &()) -> Json {
        Json::object([("phase", "hang")])
    }

    async fn run(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.cancelled().cancelled().await;
        Err(Fault::Ended)
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

scenario!(a_tool_that_aborts_a_conversation_gives_its_slot_to_what_stops, async |kit| {
    kit.stop().await;
    kit.worker.slots = 1;
    kit.wait = BOUND;
    let made = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&made);
    let tool = Closure::new("stopper", move |_, api| {
        let kept = Arc::clone(&kept);
        async move {
            let (child, task) = api
                .commit(async |tx| {
                    let child = tx.create_conversation(ConversationOwnership::Task { task_id: api.task_id() }).await?.id;
                    let options = TaskOptions::top_level().in_conversation(child);
                    Ok::<_, Fault>((child, tx.create_task(&Hangs, (), options).await?.erase()))
                })
                .await?;
            *kept.lock().unwrap() = Some(task);
            let child = api.conversation(child).await?.unwrap();
            child.abort().await?;
            Ok(ToolResult::text("stopped"))
        }
    });
    kit.registry.tool(tool).unwrap();
    kit.define(Hangs).await;
    let active_tools = Some(vec!["stopper".to_owned()]);
    kit.root().await.update(ConfigPatch { active_tools, ..ConfigPatch::default() }).await.unwrap();
    kit.stage.give(Reply::call("c1", "stopper", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.root().await.submit(SubmissionDraft::input("go")).await.unwrap();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let task = made.lock().unwrap().unwrap();
    assert!(kit.task(task).await.terminal());
});
