//! Inspection and idle waits (section 2.2).

use picofleet_harness::inspection::{Scheduling, TaskView};
use picofleet_harness::wire::{Answer, HostCall};
use picofleet_session::{ConversationId, ROOT_CONVERSATION_ID};

use crate::support::*;

#[tokio::test]
async fn s077_inspect_shows_every_live_task_and_changes_nothing() {
    both(async |store| {
        let newer = Scripted { version: 2, migrates: Migrates::Yes, ..scripted("new") };
        let bench = Bench::running(store, &[scripted("k"), newer.clone()]).await;
        let (running, ready, missing) = (bench.task("k").await, bench.task("new").await, bench.task("gone").await);
        let waiting = bench.task("k").await;
        let (done, live) = (bench.child("k", waiting).await, bench.child("k", waiting).await);
        let _run = bench.reserve(running).await;
        bench.reserve(waiting).await.decide(&bench, &format!(r#"{{"wait":[{done},{live}],"to":1}}"#)).await;
        bench.complete(done).await;
        let head = bench.line.session().store().head().await.unwrap();
        let inspection = bench.inspect().await;
        assert_eq!(inspection.scheduling, Scheduling::Running);
        let shown: Vec<_> = inspection.tasks.iter().map(|task| (task.record.id, task.state.clone())).collect();
        let expected = [
            (running, TaskView::Running),
            (ready, TaskView::Ready { migrates: true }),
            (missing, TaskView::Blocked { reason: "missing_task".into(), error: None }),
            (waiting, TaskView::Waiting { on: vec![live] }),
            (live, TaskView::Ready { migrates: false }),
        ];
        assert_eq!(shown, expected);
        assert_eq!(newer.migrations.load(std::sync::atomic::Ordering::SeqCst), 0);
        assert_eq!(bench.line.session().store().head().await.unwrap(), head);
        // A marked one waits for its live owned work.
        let other = bench.child("k", waiting).await;
        bench.abort(waiting).await;
        assert_eq!(bench.view(waiting).await, TaskView::Waiting { on: vec![live, other] });
    })
    .await;
}

async fn idle(bench: &Bench, conversation: Option<ConversationId>) -> bool {
    match bench.host(HostCall::WaitIdle { conversation, timeout_ms: 1 }).await {
        Answer::Value(idle) => idle.to().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn s104_idleness_waits_for_the_foreground_below() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let background = bench.background("k").await;
        let owned = bench.conversation(background).await;
        let below = bench.in_conversation("k", owned).await;
        assert!(idle(&bench, Some(ROOT_CONVERSATION_ID)).await);
        assert!(idle(&bench, None).await);
        assert!(!idle(&bench, Some(owned)).await, "its own work counts");
        let blocked = bench.task("gone").await;
        assert!(!idle(&bench, Some(ROOT_CONVERSATION_ID)).await);
        assert!(!idle(&bench, None).await);
        bench.abort(blocked).await;
        bench.complete(below).await;
        assert!(idle(&bench, Some(owned)).await);
        let unknown = HostCall::WaitIdle { conversation: ConversationId::new(9_999).ok(), timeout_ms: 1 };
        assert!(matches!(bench.host(unknown).await, Answer::Failed(_)));
        // A wait ends with the commit that it waits for, not with its time.
        let task = bench.task("k").await;
        let wait = bench.host(HostCall::WaitIdle { conversation: None, timeout_ms: 60_000 });
        let (answer, ()) = tokio::join!(wait, bench.complete(task));
        assert_eq!(answer, Answer::Value(true.into()));
    })
    .await;
}
