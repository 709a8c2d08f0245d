//! Calls that wait for the line of their session, and closures that it does not wait for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Fault;
use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::{Next, Running, TaskOptions};
use picofleet_harness::line::RESTART_LIMIT;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::ToolResult;
use picofleet_harness::wire::{HostCall, Request};
use picofleet_harness_tests::{Act, Closure, Kit, Owner, Reply, last_code, scenario, status};
use picofleet_session::{EntryDraft, Json, SubmissionStatus};
use tokio::sync::Notify;

async fn offer(kit: &Kit, tool: Closure) {
    let name = tool.spec.name.clone();
    kit.registry.tool(tool).unwrap();
    kit.root().await.update(ConfigPatch { active_tools: Some(vec![name.clone()]), ..ConfigPatch::default() }).await.unwrap();
    kit.stage.give(Reply::call("c1", &name, "{}"));
    kit.stage.give(Reply::text("done"));
}

scenario!(a_tool_that_waits_while_it_shows_something_stands_in_nobodys_way, async |kit| {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (says, waits) = (Arc::clone(&begun), Arc::clone(&go));
    let tool = Closure::new("shows", move |_, api| {
        let (says, waits) = (Arc::clone(&says), Arc::clone(&waits));
        async move {
            says.notify_one();
            waits.notified().await;
            let _shown = api.details(Json::object([("n", 1)]))?;
            api.conversation(api.conversation_id()).await?.unwrap();
            Ok(ToolResult::text("shown"))
        }
    });
    offer(&kit, tool).await;
    let run = kit.say("go").await;
    begun.notified().await;
    // Another session opens, which takes as long as the test wants: the calls of the tool don't wait for it.
    let opening = kit.tap.hold_opening();
    let (transport, other) = (kit.transport(), kit.other_session().await);
    let opens = tokio::spawn(async move { transport.call(other, Request::Host(Box::new(HostCall::Inspect))).await });
    opening.arrived().await;
    go.notify_one();
    assert_eq!(kit.settled(&run).await.status(), SubmissionStatus::Done);
    assert!(!opens.is_finished());
    opening.release();
    opens.await.unwrap().unwrap();
});

scenario!(a_call_whose_closure_is_too_late_runs_again_and_says_nothing_else, async |kit| {
    kit.stop().await;
    kit.hold = Duration::from_millis(250);
    kit.start();
    let first = Arc::new(AtomicBool::new(true));
    let mut tool = Closure::new("late", move |_, api| {
        let first = Arc::clone(&first);
        async move {
            let late = first.swap(false, Ordering::SeqCst);
            api.commit(async |tx| {
                if late {
                    // Until the line does not wait any longer.
                    std::future::pending::<()>().await;
                }
                tx.append_entry(picofleet_session::ROOT_CONVERSATION_ID, EntryDraft::new("note")).await?;
                Ok::<_, Fault>(())
            })
            .await?;
            Ok(ToolResult::text("in time"))
        }
    });
    tool.spec.replay = Replay::Safe;
    offer(&kit, tool).await;
    let run = kit.say("go").await;
    assert_eq!(kit.settled(&run).await.status(), SubmissionStatus::Done);
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!(entries.iter().filter(|entry| entry.kind == "note").count(), 1);
    let results: Vec<_> = entries.iter().filter(|entry| entry.kind == "pi.tool-result").map(last_code).collect();
    assert_eq!(results, [""], "not an error of the tool");
});

scenario!(a_worker_that_stops_faults_no_task_whose_handler_obeys, async |kit| {
    let owner = kit.owner().await;
    let task = kit.add("t", TaskOptions::top_level()).await;
    kit.ran(&owner, &["t:0"]).await;
    kit.stop().await;
    assert_eq!(status(&kit.stored(task.erase()).await), "pending");
    kit.start();
    kit.harness().resume().await.unwrap();
    kit.until("the phase again", async || owner.log() == ["t:0", "t:0"]).await;
    assert_eq!(kit.task(task.erase()).await.restarts, 0);
});

scenario!(a_task_whose_closures_are_always_too_late_is_parked, async |kit| {
    let owner = kit.owner().await;
    let task = kit.add("t", TaskOptions::top_level()).await;
    kit.ran(&owner, &["t:0"]).await;
    kit.stop().await;
    kit.hold = Duration::from_millis(20);
    for _ in 0..=RESTART_LIMIT {
        let late = async |_: &picofleet_session::Tx, _: &Running<Owner>| {
            std::future::pending::<()>().await;
            Ok::<_, Fault>(Next::Stay)
        };
        owner.tell("t", Act::new(move |_, runtime| Box::pin(async move { runtime.commit(late).await })));
    }
    kit.start();
    kit.harness().resume().await.unwrap();
    let parked = TaskView::Blocked { reason: "restart_limit".to_owned(), error: None };
    kit.until("the end of its restarts", async || kit.harness().inspect().await.unwrap().tasks[0].state == parked).await;
    assert_eq!((owner.log().len(), kit.task(task.erase()).await.restarts), (1 + 5, RESTART_LIMIT));
});
