//! Section P: open, close, recovery.

use picofleet_harness::host::HostError;
use picofleet_harness_tests::{Backing, Kit, Reply, Wire, scenario};
use picofleet_session::{SubmissionStatus, TaskState};

scenario!(s194_root_is_made_once, async |kit| {
    let before = kit.root().await.config().await.unwrap();
    assert_eq!(kit.root().await.id().get(), 1);
    kit.reopen().await;
    assert_eq!(kit.root().await.id().get(), 1);
    assert_eq!(kit.root().await.config().await.unwrap(), before);
});

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s194_root_is_absent_until_it_is_asked_for() {
    let mut kit = Kit::bare(Backing::Memory, Wire::Encoded).await;
    kit.start();
    assert!(kit.harness().conversation(picofleet_session::ROOT_CONVERSATION_ID).await.unwrap().is_none());
    kit.root().await;
    assert!(kit.harness().conversation(picofleet_session::ROOT_CONVERSATION_ID).await.unwrap().is_some());
    kit.stop().await;
}

scenario!(s197_a_close_writes_no_outcome, async |kit| {
    let a = kit.busy("a").await;
    let (generation, _) = kit.run().await.unwrap();
    let before = kit.kinds().await;
    kit.stop().await;
    kit.stage.give(Reply::text("x"));
    kit.reopen().await;
    // The unsafe call is not repeated and ends as interrupted; the generation that waited goes on.
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert!(matches!(kit.task(generation).await.state, TaskState::Terminal { .. }));
    let kinds = kit.kinds().await;
    assert_eq!(kinds[..before.len()], before[..]);
    assert_eq!(kinds[before.len()..], ["pi.tool-result", "pi.assistant"]);
});

scenario!(s197_a_closed_session_takes_no_call, async |kit| {
    let root = kit.root().await;
    kit.stop().await;
    let refused = root.submit(picofleet_harness::submission::SubmissionDraft::input("late")).await.map(|submission| submission.id());
    assert!(matches!(refused, Err(picofleet_harness::host::SubmitError::Host(HostError::Unavailable(_)))), "{refused:?}");
    kit.reopen().await;
    assert!(kit.kinds().await.is_empty());
});

scenario!(x061_what_was_finished_before_a_restart_runs_no_more, async |kit| {
    let root = kit.root().await;
    let a = kit.turn("a", Reply::text("x")).await;
    let usage = root.usage().await.unwrap();
    let before = kit.entries(&root).await;
    kit.reopen().await;
    let again = kit.harness().submission(a.id).await.unwrap().unwrap();
    assert_eq!(again.wait().await.unwrap(), a);
    let root = kit.root().await;
    kit.turn("b", Reply::text("y")).await;
    assert_eq!(kit.entries(&root).await[..before.len()], before[..]);
    assert_eq!(kit.stage.asked().len(), 2);
    assert_eq!(root.usage().await.unwrap().models["p/m"].input, 2 * usage.models["p/m"].input);
});

scenario!(s197_a_mark_survives_a_close, async |kit| {
    let a = kit.busy("a").await;
    let (generation, _) = kit.run().await.unwrap();
    kit.harness().abort_task(generation).await.unwrap();
    kit.reopen().await;
    assert_eq!(crate::reason(&kit.settled(&a).await), "aborted");
    assert!(kit.task(generation).await.abort_requested);
    assert_eq!(kit.document("pi.live").await, crate::empty());
    let results = kit.kinds().await.iter().filter(|kind| *kind == "pi.tool-result").count();
    assert_eq!((results, kit.stage.asked().len()), (1, 1));
});
