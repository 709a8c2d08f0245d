//! Section K: the process is killed while it compacts.

use std::sync::Arc;

use picofleet_harness::compaction::CompactionResult;
use picofleet_harness::hooks::{CompactionChoice, CompactionHooks, CompactionRequest, CompactionTask, HookApi, HookResult};
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_session::{SubmissionStatus, TaskState};
use tokio::sync::Semaphore;

use super::compaction_kit::{compacted, context, history, keep, result, spent, statuses, summarizing, write_state};

/// Waits until it is let go, and then declines nothing.
struct Stuck {
    begun: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

impl CompactionHooks for Stuck {
    fn before_compact<'a>(&'a self, _: &'a CompactionRequest, _: &'a HookApi) -> HookResult<'a, CompactionChoice> {
        Box::pin(async move {
            self.begun.add_permits(1);
            self.go.acquire().await.unwrap().forget();
            Ok(None)
        })
    }
}

async fn next(semaphore: &Semaphore) {
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), semaphore.acquire()).await;
    waited.expect("the hook is asked").unwrap().forget();
}

async fn again(kit: &mut Kit) {
    kit.kill().await;
    kit.reopen().await;
}

scenario!(s175_a_kill_in_the_selection_selects_and_asks_again, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let (begun, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let hook = Stuck { begun: Arc::clone(&begun), go: Arc::clone(&go) };
    kit.registry.hooks::<CompactionTask>(None, None, Arc::new(hook)).unwrap();
    let task = kit.root().await.compact(None).await.unwrap();
    next(&begun).await;
    again(&mut kit).await;
    next(&begun).await;
    kit.stage.give(Reply::text("SUMMARY"));
    go.add_permits(1);
    result(&kit, task).await;
    assert_eq!(context(&kit).await, ["<SUMMARY>", "u3", "a3"]);
});

scenario!(s175_a_kill_in_the_request_asks_the_same_again, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let (before, asked) = (spent(&kit).await, kit.stage.asked().len());
    let task = summarizing(&kit, Reply::text("LOST")).await;
    kit.stage.give(Reply::text("SUMMARY"));
    again(&mut kit).await;
    result(&kit, task).await;
    let requests = kit.stage.asked();
    assert_eq!(requests.len(), asked + 2);
    assert_eq!((&requests[asked].messages, &requests[asked].options), (&requests[asked + 1].messages, &requests[asked + 1].options));
    assert_eq!(spent(&kit).await, before + 15, "only the answered attempt");
    assert_eq!(context(&kit).await, ["<SUMMARY>", "u3", "a3"]);
});

scenario!(s175_a_kill_in_the_pause_keeps_its_end, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    kit.stage.give(Reply::error("503 overloaded"));
    let task = root.compact(None).await.unwrap();
    kit.until("a pause", async || statuses(&root).await.iter().any(|status| status.retry.is_some())).await;
    let TaskState::Sleeping { until, .. } = kit.task(task.erase()).await.state else { panic!("it does not sleep") };
    kit.advance(1_000);
    again(&mut kit).await;
    let root = kit.root().await;
    let TaskState::Sleeping { until: after, .. } = kit.task(task.erase()).await.state else { panic!("it does not sleep") };
    assert_eq!((after, statuses(&root).await[0].retry.as_ref().unwrap().at), (until, until));
    kit.stage.give(Reply::text("SUMMARY"));
    kit.advance(1_000);
    result(&kit, task).await;
    assert_eq!(context(&kit).await, ["<SUMMARY>", "u3", "a3"]);
});

scenario!(s175_a_queued_summary_survives_a_kill, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let go = kit.asking("go", Reply::text("lost")).await;
    kit.stage.give(Reply::text("SUMMARY"));
    let write = compacted(&kit).await;
    kit.stage.give(Reply::text("x"));
    again(&mut kit).await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(write_state(&kit, write).await, "done");
    let placed = kit.kinds().await.iter().filter(|kind| *kind == "pi.compaction").count();
    assert_eq!((placed, kit.kinds().await.last().map(String::as_str) == Some("pi.compaction")), (1, true));
});

scenario!(s175_behind_the_placement_nothing_repeats, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    kit.stage.give(Reply::text("SUMMARY"));
    // The commit that places it is stored, and its answer is not heard any more.
    let task = kit.root().await.compact(None).await.unwrap();
    kit.until("the placement", async || kit.kinds().await.contains(&"pi.compaction".to_owned())).await;
    let (before, asked, kinds) = (spent(&kit).await, kit.stage.asked().len(), kit.kinds().await);
    again(&mut kit).await;
    assert!(matches!(result(&kit, task).await, CompactionResult { submission_id: Some(_), .. }));
    kit.turn("go", Reply::text("x")).await;
    assert_eq!((spent(&kit).await, kit.stage.asked().len()), (before + 15, asked + 1));
    assert_eq!(kit.kinds().await[..kinds.len()], kinds);
});
