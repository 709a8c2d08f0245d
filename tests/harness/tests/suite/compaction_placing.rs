//! Section K: where a summary that nobody waits for is placed.

use std::sync::Arc;

use picofleet_harness::compaction::CompactionResult;
use picofleet_harness::hooks::{CompactionChoice, CompactionTask};
use picofleet_harness::tool::Control;
use picofleet_harness::tools::{ToolError, ToolResult};
use picofleet_harness_tests::{AskedCompaction, Closure, Kit, Reply, scenario};
use picofleet_models::transcript::collapse_system_messages;
use picofleet_session::{SubmissionId, SubmissionStatus};

use super::compaction_kit::{
    compacted, context, entry, history, keep, newest_summary, policy, result, shown, spent, statuses, summarizing, words, write_state,
};
use super::reason;

async fn last_kinds(kit: &Kit, count: usize) -> Vec<String> {
    let kinds = kit.kinds().await;
    kinds[kinds.len() - count..].to_vec()
}

scenario!(s163_a_summary_waits_for_the_end_of_a_run, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let go = kit.asking("go", Reply::text("x")).await;
    kit.stage.give(Reply::text("SUMMARY"));
    let write = compacted(&kit).await;
    assert_eq!((write_state(&kit, write).await.as_str(), kit.inbox().await), ("queued", vec![(write, "write")]));
    kit.stage.release();
    kit.settled(&go).await;
    assert_eq!(write_state(&kit, write).await, "done");
    assert_eq!(last_kinds(&kit, 3).await, ["pi.user", "pi.assistant", "pi.compaction"]);
    assert_eq!(context(&kit).await, ["<SUMMARY>", "u3", "a3", "go", "x"]);
});

scenario!(s163_a_summary_is_placed_between_two_rounds, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let go = kit.busy("go").await;
    kit.stage.give(Reply::text("SUMMARY"));
    let write = compacted(&kit).await;
    assert_eq!(write_state(&kit, write).await, "queued");
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done, "the same run goes on");
    assert_eq!(write_state(&kit, write).await, "done");
    let kinds = ["pi.user", "pi.assistant", "pi.tool-result", "pi.compaction", "pi.system", "pi.assistant"];
    assert_eq!(last_kinds(&kit, 6).await, kinds);
    let asked = kit.stage.asked().pop().unwrap();
    assert_eq!(shown(&collapse_system_messages(&asked.messages)), ["system", "<SUMMARY>", "u3", "a3", "go", "", "result"]);
});

scenario!(s164_a_reset_makes_a_summary_stale, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let before = spent(&kit).await;
    let task = summarizing(&kit, Reply::text("SUMMARY")).await;
    kit.root().await.reset(None).await.unwrap();
    kit.stage.release();
    let CompactionResult { submission_id: Some(write), .. } = result(&kit, task).await else { panic!("nothing") };
    assert_eq!(write_state(&kit, write).await, "stale");
    assert_eq!(spent(&kit).await, before + 15);
    assert_eq!(kit.kinds().await.iter().filter(|kind| *kind == "pi.compaction").count(), 0);
});

scenario!(s164_a_handoff_makes_a_queued_summary_stale, async |kit| {
    let hand = Closure::new("hand", |_, _| async {
        let control = Control { handoff: Some("go on".to_owned()), ..Control::default() };
        Ok::<_, ToolError>(ToolResult { control: Some(control), ..ToolResult::text("over") })
    });
    kit.registry.tool(hand).unwrap();
    kit.root().await.set_active_tools(["hand"]).await.unwrap();
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let go = kit.asking("go", Reply::call("c1", "hand", "{}")).await;
    kit.stage.give(Reply::text("SUMMARY"));
    let write = compacted(&kit).await;
    kit.stage.release();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(write_state(&kit, write).await, "stale");
    assert_eq!(last_kinds(&kit, 2).await, ["pi.tool-result", "pi.reset"]);
});

/// Two summaries that keep so much, queued in this order, and what a boundary makes of them.
async fn two(kit: &Kit, keeps: [i64; 2]) -> [String; 2] {
    history(kit, 3).await;
    let go = kit.asking("go", Reply::text("x")).await;
    let mut writes: Vec<SubmissionId> = Vec::new();
    for tokens in keeps {
        keep(kit, tokens).await;
        kit.stage.give(Reply::text("SUMMARY"));
        writes.push(compacted(kit).await);
    }
    kit.stage.release();
    kit.settled(&go).await;
    [write_state(kit, writes[0]).await, write_state(kit, writes[1]).await]
}

scenario!(s165_an_older_cut_behind_a_newer_one_is_stale, async |kit| {
    assert_eq!(two(&kit, [150, 350]).await, ["done", "stale"]);
});

scenario!(s165_the_same_cut_twice_is_placed_twice, async |kit| {
    assert_eq!(two(&kit, [150, 150]).await, ["done", "done"]);
});

scenario!(s165_a_newer_cut_behind_an_older_one_is_placed, async |kit| {
    assert_eq!(two(&kit, [350, 150]).await, ["done", "done"]);
    assert_eq!(newest_summary(&kit).await.head, Some(entry(&kit, "u3").await.id));
});

scenario!(s166_the_later_cut_wins_whenever_it_was_selected, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let first = summarizing(&kit, Reply::text("LATER")).await;
    keep(&kit, 350).await;
    kit.stage.give(Reply::text("EARLIER"));
    let second = compacted(&kit).await;
    assert_eq!(context(&kit).await, ["<EARLIER>", "u2", "a2", "u3", "a3"]);
    kit.stage.release();
    let CompactionResult { submission_id: Some(first), .. } = result(&kit, first).await else { panic!("nothing") };
    assert_eq!([write_state(&kit, first).await, write_state(&kit, second).await], ["done", "done"]);
    assert_eq!(newest_summary(&kit).await.head, Some(entry(&kit, "u3").await.id));
    assert_eq!(context(&kit).await, ["<LATER>", "u3", "a3"]);
});

scenario!(s167_a_summary_goes_before_what_waits_in_an_idle_conversation, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let go = kit.busy("go").await;
    let waits = kit.say("waits").await;
    kit.stage.give(Reply::error("401 no"));
    kit.gate.open();
    assert_eq!(reason(&kit.settled(&go).await), "model_error");
    assert_eq!(kit.inbox().await, [(waits.id(), "followUp")]);
    kit.stage.give(Reply::text("SUMMARY"));
    kit.stage.give(Reply::text("x"));
    let write = compacted(&kit).await;
    assert_eq!(kit.settled(&waits).await.status(), SubmissionStatus::Done);
    assert_eq!(write_state(&kit, write).await, "done");
    assert_eq!(last_kinds(&kit, 4).await, ["pi.compaction", "pi.user", "pi.system", "pi.assistant"]);
});

scenario!(a_reset_while_a_hook_thinks_makes_the_selection_again, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let calls = Arc::new(std::sync::atomic::AtomicU32::new(0));
    let (asked, go) = (Arc::clone(&calls), Arc::new(tokio::sync::Semaphore::new(0)));
    let gate = Arc::clone(&go);
    // It blocks its thread until it may go on: a hook of a test has no other way to wait.
    let hook = AskedCompaction::new(move |_| {
        asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        while gate.try_acquire().map(tokio::sync::SemaphorePermit::forget).is_err() {
            std::thread::yield_now();
        }
        Ok(Some(CompactionChoice::Summary("OLD".to_owned())))
    });
    kit.registry.hooks::<CompactionTask>(None, None, Arc::new(hook)).unwrap();
    let root = kit.root().await;
    let task = root.compact(None).await.unwrap();
    kit.until("the hook", async || calls.load(std::sync::atomic::Ordering::SeqCst) == 1).await;
    root.reset(None).await.unwrap();
    go.add_permits(1);
    assert_eq!(result(&kit, task).await, CompactionResult::default(), "the new context has nothing to compact");
    assert_eq!(kit.kinds().await.iter().filter(|kind| *kind == "pi.compaction").count(), 0);
});

scenario!(a_background_compaction_runs_beside_the_request, async |kit| {
    history(&kit, 3).await;
    // 600 tokens of history, and little else: above the background threshold, and below the other one.
    policy(&kit, |policy| {
        policy.keep_recent_tokens = 150;
        policy.reserve_tokens = 90_000;
        policy.background_tokens = 9_900;
    })
    .await;
    let root = kit.root().await;
    kit.stage.change_model(|model| model.context_window = 100_000);
    // Both are held, whichever asks first.
    kit.stage.give(Reply::text("x").held());
    kit.stage.give(Reply::text("x").held());
    let before = kit.stage.asked().len();
    let u4 = kit.say(&words("u4")).await;
    kit.until("both requests", async || kit.stage.asked().len() == before + 2).await;
    let status = statuses(&root).await.remove(0);
    let task = kit.task(status.task_id).await;
    assert_eq!((status.blocking, task.background, task.owner), (false, true, None));
    // An abort of the conversation leaves it alone.
    root.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&u4).await), "aborted");
    assert_eq!(statuses(&root).await.len(), 1);
    // A second one is not started while it is live.
    kit.stage.give(Reply::text("y"));
    let u5 = kit.say("u5").await;
    kit.settled(&u5).await;
    assert_eq!(kit.tasks("pi.compaction").await.len(), 1);
    root.abort(true).await.unwrap();
    assert_eq!(statuses(&root).await, []);
});
