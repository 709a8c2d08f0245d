//! Section M: usage.

use picofleet_harness::host::ConversationOptions;
use picofleet_harness_tests::{Reply, scenario};
use picofleet_session::SubmissionStatus;

scenario!(s182_every_assistant_entry_counts, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::error("503 overloaded"));
    kit.stage.give(Reply::text("x"));
    let a = kit.say("a").await;
    kit.until("a pause", async || root.live().await.unwrap().generation.is_some_and(|generation| generation.retry.is_some())).await;
    assert_eq!(root.usage().await.unwrap().models["p/m"].input, 10);
    kit.advance(2_000);
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    let usage = root.usage().await.unwrap();
    let sum = &usage.models["p/m"];
    assert_eq!((sum.input, sum.output, sum.total_tokens), (20, 10, 30));
    assert!(usage.tools.is_empty());
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
    assert_eq!((sum.models["p/m"].reasoning, sum.models["p/m"].cache_write_1h), (None, None));
});
