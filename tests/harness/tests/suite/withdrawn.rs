//! What is queued below a cancelled owner is withdrawn (section 5.4), whenever it was queued and however the owner is cancelled.

use std::sync::Arc;

use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::Fault;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{ToolError, ToolResult};
use picofleet_harness_tests::{Closure, Kit, Reply, Stage, Subagent, scenario};
use picofleet_session::{ConversationOwnership, SubmissionStatus};
use tokio::sync::Semaphore;

use super::reason;
use super::subagents::{ask, only_child};

/// Tells of a call's cancellation, and ends only when it is let go.
#[derive(Clone)]
struct Stubborn {
    begun: Arc<Semaphore>,
    cancelled: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl Stubborn {
    fn new(kit: &Kit) -> Self {
        let [begun, cancelled, go] = std::array::from_fn(|_| Arc::new(Semaphore::new(0)));
        let this = Self { begun, cancelled, go };
        let tool = this.clone();
        let run = move |_, api: picofleet_harness::tools::ToolApi| {
            let this = tool.clone();
            async move {
                this.begun.add_permits(1);
                api.cancelled().cancelled().await;
                this.cancelled.add_permits(1);
                this.go.acquire().await.unwrap().forget();
                Err::<ToolResult, _>(ToolError::new("over"))
            }
        };
        kit.registry.tool(Closure::new("stubborn", run)).unwrap();
        this
    }

    async fn begun(&self) {
        next(&self.begun).await;
    }

    async fn cancelled(&self) {
        next(&self.cancelled).await;
    }
}

async fn next(signal: &Semaphore) {
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), signal.acquire()).await;
    waited.expect("the tool comes that far").unwrap().forget();
}

fn only(tool: &str) -> ConfigPatch {
    ConfigPatch { model: Some(Some(Stage::model_ref())), active_tools: Some(vec![tool.to_owned()]), ..ConfigPatch::default() }
}

scenario!(an_input_that_comes_behind_the_mark_is_withdrawn_too, async |kit| {
    let stubborn = Stubborn::new(&kit);
    kit.registry.tool(Subagent::new("sub", only("stubborn"))).unwrap();
    let root = kit.root().await;
    root.update(only("sub")).await.unwrap();
    kit.stage.give(ask("sub", "child?"));
    kit.stage.give(Reply::call("c2", "stubborn", "{}"));
    let go = kit.say("go").await;
    stubborn.begun().await;
    let child = only_child(&kit, root.id()).await;

    let abort = tokio::spawn(async move { root.abort(false).await });
    stubborn.cancelled().await;
    let late = child.submit(SubmissionDraft::input("late")).await.unwrap();
    let record = late.status().await.unwrap();
    assert_eq!((record.status(), reason(&record)), (SubmissionStatus::Unanswered, "aborted"));
    assert!(child.inbox().await.unwrap().items.is_empty());
    assert!(child.live().await.unwrap().run.is_some(), "it was busy all the while");

    stubborn.go.add_permits(1);
    abort.await.unwrap().unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    assert_eq!(kit.stage.asked().len(), 2);
});

scenario!(a_held_failure_withdraws_what_waits_below_it, async |kit| {
    let stubborn = Stubborn::new(&kit);
    let tool = stubborn.clone();
    let careless = Closure::new("careless", move |_, api| {
        let stubborn = tool.clone();
        async move {
            let task = api.task_id();
            let child = api
                .commit(async |tx| {
                    let child = tx.create_conversation(ConversationOwnership::Task { task_id: task }).await?.id;
                    tx.doc(&CONFIG, child).await?.edit(|value| only("stubborn").apply(value))?;
                    Ok::<_, Fault>(child)
                })
                .await?;
            let child = api.conversation(child).await?.unwrap();
            child.submit(SubmissionDraft::input("child?")).await?;
            stubborn.begun().await;
            child.submit(SubmissionDraft::input("waits").request_id("waits")).await?;
            Err::<ToolResult, _>(ToolError::new("broken"))
        }
    });
    kit.registry.tool(careless).unwrap();
    kit.root().await.update(only("careless")).await.unwrap();
    kit.stage.give(Reply::call("c1", "careless", "{}"));
    kit.stage.give(Reply::call("c2", "stubborn", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    stubborn.cancelled().await;
    let child = only_child(&kit, kit.root().await.id()).await;
    let waits = child.submit(SubmissionDraft::input("waits").request_id("waits")).await.unwrap();
    let record = waits.status().await.unwrap();
    assert_eq!((record.status(), reason(&record)), (SubmissionStatus::Unanswered, "aborted"));

    stubborn.go.add_permits(1);
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.stage.asked().len(), 3, "what waited was never asked");
});
