//! Storage that is damaged, fails or is full: whoever waits hears of it, and nothing is tried for ever in silence.

use std::time::Duration;

use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness_tests::{Disk, Kit, Reply, scenario};
use picofleet_session::storage::{Rejection, TaskQuery};
use picofleet_session::{SubmissionId, SubmissionStatus, TaskOutcome, TaskState};

/// Says something, and lets something happen to the disk right before the admission is stored.
async fn admitted(kit: &Kit, then: impl FnOnce(&Disk)) -> SubmissionId {
    let batch = kit.disk.hold();
    let root = kit.root().await;
    let saying = tokio::spawn(async move { root.submit(SubmissionDraft::input("b")).await });
    batch.arrived().await;
    then(&kit.disk);
    drop(batch);
    saying.await.unwrap().unwrap().id()
}

// A worker that can't read the transcript has nothing to decide: the task ends with the damage as its error.
scenario!(a_transcript_that_is_damaged_ends_the_answer, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    kit.restart().await;
    kit.root().await;
    let said = admitted(&kit, |disk| disk.damage("EntryRecord")).await;
    let stored = async || kit.stored_submission(said).await.status();
    kit.until("the end of the answer", async || stored().await == SubmissionStatus::Unanswered).await;
    let tasks = kit.reader().await.scan_tasks(TaskQuery::default(), 100, None).await.unwrap();
    let task = tasks.items.last().unwrap();
    let TaskState::Terminal { outcome: TaskOutcome::Faulted { error } } = &task.state else { panic!("{task:?}") };
    assert!(error.message.contains("a test damaged it") && error.message.contains("picofleet doctor"), "{error:?}");
    assert_eq!(kit.stage.asked().len(), 1, "nothing was asked of the model");
});

// A commit that is refused for damage would be refused again and again: the session is over, and says why.
scenario!(a_commit_that_meets_damage_ends_the_session, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    let said = kit.asking("b", Reply::text("y")).await;
    kit.disk.refuse_all(Some(Rejection::Damaged { store: "the store".to_owned() }));
    kit.stage.release();
    kit.until("the end of the session", async || kit.reported().iter().any(|report| report.contains("the store is corrupt"))).await;
    // Whoever opens it again, once that is mended, goes on.
    kit.disk.refuse_all(None);
    kit.stage.give(Reply::text("y"));
    kit.until("the answer", async || kit.stored_submission(said.id()).await.settled()).await;
});

// What may be read the next time is tried again; nothing of the task is lost.
scenario!(a_transcript_that_can_not_be_read_for_a_while_costs_nothing, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    kit.restart().await;
    kit.root().await;
    kit.stage.give(Reply::text("y"));
    let said = admitted(&kit, |disk| disk.fail("EntryRecord")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    kit.disk.mend();
    let stored = async || kit.stored_submission(said).await.status();
    kit.until("the answer", async || stored().await == SubmissionStatus::Done).await;
});

// A full disk is waited for, and the report says what is waited for.
scenario!(a_full_disk_is_reported_and_waited_for, async |kit| {
    let said = kit.asking("a", Reply::text("x")).await;
    kit.disk.refuse_all(Some(Rejection::DiskFull { store: "the store".to_owned() }));
    kit.stage.release();
    kit.until("the report", async || kit.reported().iter().any(|report| report.contains("the disk is full; free space"))).await;
    kit.disk.refuse_all(None);
    kit.stage.give(Reply::text("y"));
    kit.settled(&said).await;
});
