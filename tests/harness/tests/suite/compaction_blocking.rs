//! Section K: compactions that a generation waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use picofleet_harness::compaction::CompactionReason;
use picofleet_harness::config::{CompactionPolicy, ConfigPatch, RetryPolicy};
use picofleet_harness::events::AgentEvent;
use picofleet_harness::hooks::{CompactionChoice, CompactionTask};
use picofleet_harness_tests::{Asked, AskedCompaction, Kit, Reply, scenario};
use picofleet_session::message::Usage;
use picofleet_session::{Json, SubmissionStatus, TaskId, TaskOutcome, TaskState};

use super::compaction_kit::{compacted, context, history, keep, policy, shown, statuses, words};
use super::events::{types, until};
use super::{detail, empty, reason};

const TOO_LONG: &str = "prompt is too long: 200000 tokens > 100000 maximum";

fn used(tokens: u64) -> Usage {
    Usage { input: tokens, total_tokens: tokens, ..Usage::default() }
}

/// A history whose last answer reports a context above the blocking threshold.
async fn full(kit: &Kit) {
    keep(kit, 150).await;
    history(kit, 2).await;
    kit.turn(&words("u3"), Reply::text(&words("a3")).usage(used(90_000))).await;
}

/// Submits an input whose generation waits for a compaction with a held summary: the generation and the compaction.
async fn blocked(kit: &Kit, summary: Reply) -> (picofleet_harness::host::Submission, TaskId, TaskId) {
    let before = summaries(kit);
    kit.stage.give(summary.held());
    let go = kit.say("go").await;
    kit.until("the request for a summary", async || summaries(kit) > before).await;
    let (generation, _) = kit.run().await.unwrap();
    let compaction = statuses(&kit.root().await).await[0].task_id;
    (go, generation, compaction)
}

/// How many requests for a summary there were.
fn summaries(kit: &Kit) -> usize {
    let summary =
        |asked: &&Asked| asked.messages.len() == 2 && Json::from_serde(&asked.messages).unwrap().to_string().contains("<conversation>");
    kit.stage.asked().iter().filter(summary).count()
}

/// How many requests for an answer there were.
fn answers(kit: &Kit) -> usize {
    kit.stage.asked().len() - summaries(kit)
}

async fn last_kinds(kit: &Kit, count: usize) -> Vec<String> {
    let kinds = kit.kinds().await;
    kinds[kinds.len() - count..].to_vec()
}

scenario!(s169_a_generation_waits_for_the_compaction_of_a_full_context, async |kit| {
    full(&kit).await;
    // The next preparation has a system entry to write.
    kit.registry.section("late", false, |_| Some("Late.".into())).unwrap();
    let root = kit.root().await;
    let (go, generation, compaction) = blocked(&kit, Reply::text("SUMMARY")).await;
    let status = statuses(&root).await.remove(0);
    assert_eq!((status.reason, status.blocking, status.attempt), (CompactionReason::Threshold, true, 1));
    let task = kit.task(compaction).await;
    assert_eq!((task.owner, task.background), (Some(generation), false));
    let waiting = Json::from_serde(&kit.task(generation).await.state).unwrap().to_string();
    let checkpoint = format!(r#"{{"phase":"prepare","attempt":1,"compacted":{compaction}}}"#);
    assert_eq!(waiting, format!(r#"{{"status":"waiting","checkpoint":{checkpoint},"on":[{compaction}],"policy":"allSettled"}}"#));
    assert_eq!(last_kinds(&kit, 1).await, ["pi.user"], "no system entry before the summary");
    kit.stage.give(Reply::text("x"));
    kit.stage.release();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(last_kinds(&kit, 4).await, ["pi.user", "pi.compaction", "pi.system", "pi.assistant"]);
    let TaskState::Terminal { outcome: TaskOutcome::Completed { result } } = kit.task(compaction).await.state else { panic!("{task:?}") };
    let entries = kit.entries(&root).await;
    let marker = &entries[entries.len() - 3];
    assert_eq!(result.to_string(), format!(r#"{{"entryId":{}}}"#, marker.id));
    assert_eq!(marker.data.as_ref().unwrap().to_string(), r#"{"reason":"threshold"}"#);
    assert_eq!(context(&kit).await, ["<SUMMARY>", "u3", "a3", "go", "system", "x"]);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s169_one_compaction_a_generation_even_where_it_does_not_help, async |kit| {
    // Whatever is asked is above the threshold.
    policy(&kit, |policy| {
        policy.keep_recent_tokens = 150;
        policy.reserve_tokens = 99_999;
        policy.enabled = false;
    })
    .await;
    history(&kit, 3).await;
    policy(&kit, |policy| policy.enabled = true).await;
    kit.stage.give(Reply::text(&"long ".repeat(1_000)));
    kit.stage.give(Reply::text("x"));
    let before = answers(&kit);
    let go = kit.say(&words("u4")).await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!((kit.tasks("pi.compaction").await.len(), answers(&kit)), (1, before + 1));
    // The summary is longer than what came since: another one would make no room, before whichever request.
    kit.turn(&words("u5"), Reply::text(&words("a5"))).await;
    kit.turn(&words("u6"), Reply::text(&words("a6"))).await;
    assert_eq!((kit.tasks("pi.compaction").await.len(), answers(&kit)), (1, before + 3));
});

scenario!(s170_the_request_is_sent_whatever_becomes_of_the_compaction, async |kit| {
    full(&kit).await;
    // Failed, faulted, and declined.
    for summary in [Some(Reply::error("401 no")), Some(Reply::text("S").broken()), None] {
        let declines = summary.is_none().then(|| {
            let hook = AskedCompaction::new(|_| Ok(Some(CompactionChoice::Decline)));
            kit.registry.hooks::<CompactionTask>(None, None, Arc::new(hook)).unwrap()
        });
        summary.into_iter().for_each(|reply| kit.stage.give(reply));
        kit.stage.give(Reply::text("x").usage(used(90_000)));
        let (before, compactions) = (answers(&kit), kit.tasks("pi.compaction").await.len());
        let go = kit.say("go").await;
        assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
        assert_eq!((answers(&kit), kit.tasks("pi.compaction").await.len()), (before + 1, compactions + 1));
        assert_eq!(kit.document("pi.live").await, empty());
        if let Some(declines) = declines {
            declines.dispose();
        }
    }
    // Aborted by itself.
    let (go, _, compaction) = blocked(&kit, Reply::text("S")).await;
    kit.stage.give(Reply::text("x").usage(used(90_000)));
    kit.harness().abort_task(compaction).await.unwrap();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    // Empty: what is to stay grows while a hook thinks, so that the selection is made again and finds nothing.
    let (root, calls) = (kit.root().await, Arc::new(AtomicU32::new(0)));
    let grow = Arc::clone(&calls);
    let handle = tokio::runtime::Handle::current();
    let hook = AskedCompaction::new(move |_| {
        grow.fetch_add(1, Ordering::SeqCst);
        let root = root.clone();
        let policy = CompactionPolicy { keep_recent_tokens: 100_000, ..CompactionPolicy::default() };
        let patch = ConfigPatch { compaction: Some(Some(policy)), ..ConfigPatch::default() };
        tokio::task::block_in_place(|| handle.block_on(async { root.update(patch).await.unwrap() }));
        Ok(None)
    });
    kit.registry.hooks::<CompactionTask>(None, None, Arc::new(hook)).unwrap();
    kit.stage.give(Reply::text("x"));
    let go = kit.say("go").await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "the second selection had nothing to ask about");
    assert!(!kit.kinds().await.contains(&"pi.compaction".to_owned()));
});

scenario!(s170_an_abort_of_the_generation_aborts_its_compaction_first, async |kit| {
    full(&kit).await;
    let (go, generation, compaction) = blocked(&kit, Reply::text("S")).await;
    let before = kit.entries(&kit.root().await).await.len();
    kit.root().await.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    for task in [generation, compaction] {
        let TaskState::Terminal { outcome } = kit.task(task).await.state else { panic!("{task} is live") };
        assert!(matches!(outcome, TaskOutcome::Aborted { .. }), "{outcome:?}");
    }
    assert_eq!(kit.entries(&kit.root().await).await.len(), before, "no entry is written");
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s171_a_request_that_does_not_fit_is_made_again_behind_a_compaction, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    root.set_retry_policy(Some(RetryPolicy { max_retries: 1, ..RetryPolicy::default() })).await.unwrap();
    kit.stage.give(Reply::error(TOO_LONG));
    let before = answers(&kit);
    let (go, generation, compaction) = blocked(&kit, Reply::text("SUMMARY")).await;
    // The held reply is the second one: the first request did not fit.
    let stored = Json::from_serde(&kit.task(generation).await.state).unwrap().to_string();
    let checkpoint = format!(r#""checkpoint":{{"phase":"prepare","attempt":1,"compacted":{compaction},"overflow":"{TOO_LONG}"}}"#);
    assert!(stored.contains(&checkpoint), "{stored}");
    assert_eq!(statuses(&root).await[0].reason, CompactionReason::Overflow);
    assert!(root.live().await.unwrap().generation.is_none());
    // Behind it the attempt is the first one still, and may be retried once.
    kit.stage.give(Reply::error("503 overloaded"));
    kit.stage.release();
    let paused = async || root.live().await.unwrap().generation.is_some_and(|generation| generation.retry.is_some());
    kit.until("a pause", paused).await;
    assert_eq!(root.live().await.unwrap().generation.unwrap().attempt, 1);
    let stored = Json::from_serde(&kit.task(generation).await.state).unwrap().to_string();
    assert!(stored.contains(&format!(r#"{{"phase":"retry","attempt":1,"compacted":{compaction},"until":"#)), "{stored}");
    kit.stage.give(Reply::text("x"));
    kit.advance(2_000);
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let kinds = ["pi.user", "pi.assistant", "pi.compaction", "pi.system", "pi.assistant", "pi.assistant"];
    assert_eq!(last_kinds(&kit, 6).await, kinds);
    assert_eq!(answers(&kit), before + 3);
    assert_eq!(shown(&kit.stage.asked().last().unwrap().messages), ["<SUMMARY>", "u3", "a3", "go", "system"]);
});

scenario!(s172_a_second_overflow_ends_the_run, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    kit.stage.give(Reply::error(TOO_LONG));
    kit.stage.give(Reply::text("SUMMARY"));
    let again = "prompt is too long: 150000 tokens > 100000 maximum";
    kit.stage.give(Reply::error(again));
    let go = kit.say("go").await;
    let record = kit.settled(&go).await;
    assert_eq!((reason(&record), detail(&record)), ("model_error", again.to_owned()));
    assert_eq!(kit.tasks("pi.compaction").await.len(), 1);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s172_an_overflow_that_nothing_helps_ends_the_run, async |kit| {
    let overflows = async |kit: &Kit, compactions: usize| {
        let before = answers(kit);
        kit.stage.give(Reply::error(TOO_LONG));
        let go = kit.say("go").await;
        let record = kit.settled(&go).await;
        assert_eq!((reason(&record), detail(&record)), ("model_error", TOO_LONG.to_owned()));
        assert_eq!((answers(kit), kit.tasks("pi.compaction").await.len()), (before + 1, compactions));
    };
    history(&kit, 3).await;
    // No cut.
    overflows(&kit, 0).await;
    // No policy.
    policy(&kit, |policy| (policy.keep_recent_tokens, policy.enabled) = (150, false)).await;
    overflows(&kit, 0).await;
    // A compaction without an entry.
    policy(&kit, |policy| policy.enabled = true).await;
    let hook = AskedCompaction::new(|_| Ok(Some(CompactionChoice::Decline)));
    kit.registry.hooks::<CompactionTask>(None, None, Arc::new(hook)).unwrap();
    overflows(&kit, 1).await;
});

scenario!(x080_usage_from_before_a_summary_is_not_looked_at, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    kit.stage.give(Reply::call("c1", "gate", "{}").usage(used(90_000)));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    kit.stage.give(Reply::text("SUMMARY"));
    compacted(&kit).await;
    // What is kept of the new context has something to compact again.
    keep(&kit, 50).await;
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(last_kinds(&kit, 3).await, ["pi.compaction", "pi.system", "pi.assistant"]);
    assert_eq!(kit.tasks("pi.compaction").await.len(), 1, "the answer that reported it is older than the summary");
});

scenario!(x095_a_blocking_compaction_starts_behind_its_run_and_ends_before_it, async |kit| {
    history(&kit, 3).await;
    keep(&kit, 150).await;
    let root = kit.root().await;
    let mut events = root.events().await.unwrap();
    // The commit of an overflow has other events, too.
    kit.stage.give(Reply::error(TOO_LONG));
    let (go, _, task_id) = blocked(&kit, Reply::text("S")).await;
    let started = until(&mut events, "compaction_start").await;
    let run = &["message_start", "message_end", "submission", "run_start", "turn_start"][..];
    let overflow = &["message_start", "message_end", "usage_changed", "compaction_start"][..];
    assert_eq!(started.iter().map(|batch| types(batch)).collect::<Vec<_>>(), [run, overflow]);
    let reason = CompactionReason::Overflow;
    assert_eq!(started[1].last(), Some(&AgentEvent::CompactionStart { task_id, reason, blocking: true }));
    root.abort(false).await.unwrap();
    let ended = until(&mut events, "run_end").await;
    let run = &["turn_end", "run_end", "submission"][..];
    assert_eq!(ended.iter().map(|batch| types(batch)).collect::<Vec<_>>(), [&["compaction_end"][..], run]);
    assert_eq!(ended[0], [AgentEvent::CompactionEnd { task_id, reason }]);
    assert_eq!(ended[1][1], AgentEvent::RunEnd { inputs: vec![go.id()] });
});
