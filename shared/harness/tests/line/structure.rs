//! Ownership of new work and held outcomes (section 5.5).

use picofleet_harness::inspection::TaskView;
use picofleet_harness::wire::{Answer, HostCall, Next};
use picofleet_session::{
    CommitError, ConversationOwnership, ROOT_CONVERSATION_ID, TaskCreate, TaskId, TaskOutcome, TaskOwnership, TaskState,
};

use crate::support::*;

async fn refused(bench: &Bench, task: TaskCreate) -> String {
    let made = bench.line.session().commit(async |tx| Ok::<_, CommitError>(tx.create_task_raw(task).await?)).await;
    made.unwrap_err().to_string()
}

#[tokio::test]
async fn s092_s093_a_child_is_in_its_owners_conversation() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let owner = bench.task("k").await;
        let child = bench.record(bench.child("k", owner).await).await;
        assert_eq!((child.owner, child.conversation_id, child.background), (Some(owner), ROOT_CONVERSATION_ID, false));
        assert_eq!(bench.record(owner).await.owner, None);
        let other = bench.conversation(owner).await;
        let owned = create("k", TaskOwnership::Task { task_id: owner });
        let elsewhere = TaskCreate { conversation_id: Some(other), ..owned.clone() };
        assert!(refused(&bench, elsewhere).await.contains("owner's conversation"));
        assert!(refused(&bench, TaskCreate { background: true, ..owned }).await.contains("cannot be background"));
        let missing = TaskOwnership::Task { task_id: TaskId::new(9_999).unwrap() };
        assert!(refused(&bench, create("k", missing)).await.contains("does not exist"));
    })
    .await;
}

#[tokio::test]
async fn s094_an_owner_that_ends_owns_nothing_new() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let (marked, held, over) = (bench.task("k").await, bench.task("k").await, bench.task("k").await);
        bench.child("k", held).await;
        bench.complete(held).await;
        bench.complete(over).await;
        bench.abort(marked).await;
        for (owner, state) in [(marked, "abort-marked"), (held, "completing"), (over, "terminal")] {
            assert!(refused(&bench, create("k", TaskOwnership::Task { task_id: owner })).await.contains(state));
            let ownership = ConversationOwnership::Task { task_id: owner };
            let made = bench.line.session().commit(async |tx| Ok::<_, CommitError>(tx.create_conversation(ownership).await?)).await;
            assert!(made.unwrap_err().to_string().contains(state));
        }
    })
    .await;
}

#[tokio::test]
async fn s095_a_finishing_commit_can_create_no_child_but_work_in_a_conversation_it_owns() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let end = r#"{"children":1,"end":{"status":"completed","result":null}}"#;
        bench.reserve(task).await.rejected(&bench, end).await;
        assert!(bench.fault(task).await.contains("is completing"));
        assert_eq!(bench.inspect().await.tasks.len(), 0, "nothing of it was written");

        let task = bench.task("k").await;
        let owned = bench.conversation(task).await;
        let end = format!(r#"{{"in":{owned},"end":{{"status":"completed","result":1}}}}"#);
        assert_eq!(bench.reserve(task).await.decide(&bench, &end).await, Next::Stop);
        assert_eq!(bench.status(task).await, "completing completed");
    })
    .await;
}

#[tokio::test]
async fn s099_a_held_outcome_becomes_terminal_with_the_last_child() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        let child = run.commit(&bench, r#"{"children":1}"#).await;
        let child = TaskId::new(child.as_array().unwrap().iter().next().unwrap().as_i64().unwrap()).unwrap();
        run.decide(&bench, r#"{"end":{"status":"completed","result":5}}"#).await;
        let outcome = TaskOutcome::Completed { result: 5.into() };
        assert_eq!(bench.record(task).await.state, TaskState::Completing { outcome: outcome.clone() });
        assert_eq!(bench.view(task).await, TaskView::Completing);
        let idle = HostCall::WaitIdle { conversation: Some(ROOT_CONVERSATION_ID), timeout_ms: 1 };
        assert_eq!(bench.host(idle.clone()).await, Answer::Value(false.into()));
        bench.complete(child).await;
        bench.plan().await;
        assert_eq!(bench.record(task).await.state, TaskState::Terminal { outcome });
        assert_eq!(bench.host(idle).await, Answer::Value(true.into()));
    })
    .await;
}

#[tokio::test]
async fn s085_a_failed_owner_ends_behind_its_aborted_child() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let child = bench.child("k", task).await;
        bench.reserve(task).await.decide(&bench, r#"{"end":{"status":"failed","error":{"message":"no"}}}"#).await;
        assert_eq!(bench.status(task).await, "completing failed");
        bench.run_abort(child).await;
        bench.plan().await;
        assert_eq!((bench.status(child).await.as_str(), bench.status(task).await.as_str()), ("terminal aborted", "terminal failed"));
    })
    .await;
}

#[tokio::test]
async fn s097_s098_fail_fast_marks_the_others_on_a_held_failure() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut children = Vec::new();
        for _ in 0..4 {
            children.push(bench.child("k", task).await);
        }
        let on: Vec<String> = children.iter().map(ToString::to_string).collect();
        let wait = format!(r#"{{"wait":[{}],"to":1,"failFast":1}}"#, on.join(","));
        bench.reserve(task).await.decide(&bench, &wait).await;
        let below = bench.child("k", children[1]).await;
        bench.reserve(children[1]).await.decide(&bench, r#"{"end":{"status":"failed","error":{"message":"no"}}}"#).await;
        assert_eq!(bench.status(children[1]).await, "completing failed");
        assert_eq!(bench.plan().await.aborts.len(), 4, "three siblings, and the work below");
        for child in [below, children[0], children[2], children[3]] {
            bench.run_abort(child).await;
        }
        assert_eq!(bench.runs().await, [task]);
        assert!(!bench.record(task).await.abort_requested);
        let mut statuses = Vec::new();
        for child in children {
            statuses.push(bench.status(child).await);
        }
        assert_eq!(statuses, ["terminal aborted", "terminal failed", "terminal aborted", "terminal aborted"]);
    })
    .await;
}
