//! Section M: usage.

use picofleet_harness::host::ConversationOptions;
use picofleet_harness::usage::UsageState;
use picofleet_harness_tests::{Reply, scenario};
use picofleet_session::SubmissionStatus;
use picofleet_session::message::{Cost, Usage};

use super::frame;

scenario!(s182_every_assistant_entry_counts_in_its_commit, async |kit| {
    let root = kit.root().await;
    let mut watch = kit.watch_root().await;
    // Behind each commit with an assistant entry: what is counted.
    let mut counted = async || {
        let commit = frame(&mut watch, |frame| frame.entries.iter().any(|entry| entry.kind == "pi.assistant")).await;
        assert!(commit.documents.iter().any(|(kind, _)| kind == "pi.usage"), "{commit:?}");
        let usage: UsageState = watch.mount().get("pi.usage").unwrap().to().unwrap();
        let sum = &usage.models["p/m"];
        (sum.input, sum.output, sum.total_tokens)
    };
    kit.stage.give(Reply::error("503 overloaded"));
    kit.stage.give(Reply::text("x"));
    let a = kit.say("a").await;
    assert_eq!(counted().await, (10, 5, 15), "the failed attempt");
    kit.until("a pause", async || root.live().await.unwrap().generation.is_some_and(|generation| generation.retry.is_some())).await;
    kit.advance(2_000);
    assert_eq!(counted().await, (20, 10, 30), "the answer");
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    // A converted part counts with what it knows.
    let b = kit.asking("b", Reply::text("partial").begun(Usage { input: 3, total_tokens: 3, ..Usage::default() })).await;
    kit.until("a partial", async || root.live().await.unwrap().generation.is_some_and(|generation| generation.message.is_some())).await;
    root.abort(false).await.unwrap();
    assert_eq!(counted().await, (23, 10, 33), "the part");
    assert_eq!(crate::reason(&kit.settled(&b).await), "aborted");
    let usage = root.usage().await.unwrap();
    assert_eq!((usage.models.len(), usage.models["p/m"].input, usage.tools.len()), (1, 23, 0));
});

scenario!(s183_an_attempt_that_a_crash_cut_off_before_its_end_adds_nothing, async |kit| {
    let root = kit.root().await;
    kit.asking("a", Reply::text("cut")).await;
    kit.until("a partial", async || root.live().await.unwrap().generation.is_some_and(|generation| generation.message.is_some())).await;
    kit.stop().await;
    kit.stage.give(Reply::text("x"));
    kit.reopen().await;
    let root = kit.root().await;
    kit.until("the answer", async || root.live().await.unwrap().run.is_none()).await;
    let kinds = kit.kinds().await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "pi.assistant").count(), 2, "{kinds:?}");
    // The converted partial had no usage yet.
    assert_eq!(root.usage().await.unwrap().models["p/m"].input, 10);
});

scenario!(x086_the_session_sums_its_conversations, async |kit| {
    let root = kit.root().await;
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&root).await[0].id;
    let fork = root.fork(at, ConversationOptions::ownerless()).await.unwrap();
    assert_eq!(fork.document("pi.usage").await.unwrap().unwrap().to_string(), r#"{"models":{},"tools":{}}"#);
    assert_eq!(kit.harness().usage().await.unwrap(), root.usage().await.unwrap());
    kit.stage.give(Reply::text("y"));
    let b = fork.submit(picofleet_harness::submission::SubmissionDraft::input("b")).await.unwrap();
    kit.settled(&b).await;
    let sum = kit.harness().usage().await.unwrap();
    assert_eq!((sum.models["p/m"].input, sum.models["p/m"].output), (20, 10));
    assert_eq!((sum.models["p/m"].reasoning, sum.models["p/m"].cache_write_1h), (None, None), "reported by nobody");
    kit.turn("c", Reply::text("z").usage(Usage { reasoning: Some(2), cache_write_1h: Some(0), ..Usage::default() })).await;
    kit.turn("d", Reply::text("z").usage(Usage { reasoning: Some(3), ..Usage::default() })).await;
    let sum = kit.harness().usage().await.unwrap();
    assert_eq!((sum.models["p/m"].reasoning, sum.models["p/m"].cache_write_1h), (Some(5), Some(0)));
    let of_fork = fork.usage().await.unwrap();
    assert_eq!((of_fork.models["p/m"].input, of_fork.models["p/m"].reasoning), (10, None), "each keeps its own");
});

// Numbers that no provider can mean: the answer counts without them, and says so.
scenario!(a_usage_that_nobody_can_mean_ends_nothing, async |kit| {
    let cost = |total| Cost { total, ..Cost::default() };
    let hostile = [
        Usage { input: u64::MAX, output: 2, total_tokens: u64::MAX, ..Usage::default() },
        Usage { cache_read: 1 << 53, output: 3, cost: cost(1e300), ..Usage::default() },
        Usage { output: 4, total_tokens: 4, cost: cost(f64::NAN), ..Usage::default() },
        Usage { output: 5, total_tokens: 5, cost: cost(f64::INFINITY), ..Usage::default() },
    ];
    for (number, usage) in hostile.into_iter().enumerate() {
        let record = kit.turn(&format!("a{number}"), Reply::text("x").begun(usage).usage(usage)).await;
        assert_eq!(record.status(), SubmissionStatus::Done, "{usage:?}");
    }
    let root = kit.root().await;
    let sum = root.usage().await.unwrap().models["p/m"];
    assert_eq!((sum.input, sum.output, sum.total_tokens, sum.cost.total), (0, 14, 14, 0.0));
    let entries = kit.entries(&root).await;
    let told = entries.iter().filter(|entry| format!("{:?}", entry.model).contains("usage_out_of_range")).count();
    assert_eq!(told, 4);
});
