//! Blocked tasks, migration and handover (section 5.4).

use std::sync::atomic::Ordering;

use picofleet_harness::inspection::TaskView;
use picofleet_harness::line::LineReport;
use picofleet_harness::wire::{Answer, HostCall, Next};
use picofleet_session::{TaskOutcome, TaskState};

use crate::support::*;

fn blocked(reason: &str) -> TaskView {
    TaskView::Blocked { reason: reason.into(), error: None }
}

fn version(version: u32, migrates: Migrates) -> Scripted {
    Scripted { version, migrates, ..scripted("k") }
}

async fn orphaned(bench: &Bench, task: picofleet_session::TaskId) -> String {
    match bench.record(task).await.state {
        TaskState::Terminal { outcome: TaskOutcome::Orphaned { reason } } => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn s070_a_task_without_a_definition_waits_for_one() {
    both(async |store| {
        let bench = Bench::running(store, &[]).await;
        let task = bench.task("k").await;
        assert_eq!(bench.runs().await, []);
        assert!(bench.try_reserve(task).await.is_none());
        assert_eq!(bench.view(task).await, blocked("missing_task"));
        assert_eq!(bench.status(task).await, "pending");
        assert_eq!(bench.host(HostCall::WaitIdle { conversation: None, timeout_ms: 1 }).await, Answer::Value(false.into()));
        bench.line.set_tasks(tasks(&[scripted("k")]));
        assert_eq!(bench.view(task).await, TaskView::Ready { migrates: false });
        bench.complete(task).await;
        assert_eq!(bench.host(HostCall::WaitIdle { conversation: None, timeout_ms: 1 }).await, Answer::Value(true.into()));
    })
    .await;
}

#[tokio::test]
async fn s071_migration_happens_once_with_the_reservation() {
    both(async |store| {
        let newer = version(2, Migrates::Yes);
        let bench = Bench::running(store, std::slice::from_ref(&newer)).await;
        let task = bench.task("k").await;
        assert_eq!(bench.view(task).await, TaskView::Ready { migrates: true });
        bench.plan().await;
        assert_eq!((newer.migrations.load(Ordering::SeqCst), bench.record(task).await.version), (0, 1));
        bench.reserve(task).await;
        let record = bench.record(task).await;
        assert_eq!(newer.migrations.load(Ordering::SeqCst), 1);
        assert_eq!((record.version, record.state), (2, TaskState::Running { checkpoint: j(r#"{"from":1,"was":{"phase":"a"}}"#) }));
    })
    .await;
}

#[tokio::test]
async fn x029_a_task_of_a_newer_version_waits_for_a_fitting_definition() {
    both(async |store| {
        let bench = Bench::running(store, &[version(0, Migrates::Yes)]).await;
        let task = bench.task("k").await;
        assert_eq!(bench.view(task).await, blocked("task_too_old"));
        assert_eq!(bench.runs().await, []);
        bench.line.set_tasks(tasks(&[scripted("k")]));
        assert_eq!(bench.runs().await, [task]);
    })
    .await;
}

#[tokio::test]
async fn a_failed_migration_is_reported_once_and_tried_again_with_another_definition() {
    both(async |store| {
        for (migrates, error) in [(Migrates::Fails, "no way"), (Migrates::Panics, "the migration of k panicked")] {
            let failing = version(2, migrates);
            let bench = Bench::running(std::sync::Arc::clone(&store), std::slice::from_ref(&failing)).await;
            let task = bench.task("k").await;
            for _ in 0..2 {
                bench.plan().await;
                assert!(bench.try_reserve(task).await.is_none());
            }
            assert_eq!(bench.runs().await, []);
            assert_eq!(failing.migrations.load(Ordering::SeqCst), 1);
            let reports = bench.reports.lock().unwrap().clone();
            let [LineReport::MigrationFailed { task: reported, error: why }] = &reports[..] else { panic!("{reports:?}") };
            assert_eq!(*reported, task);
            assert!(why.contains(error), "{why}");
            assert_eq!(bench.view(task).await, TaskView::Blocked { reason: "migration_failed".into(), error: Some(why.clone()) });
            bench.line.set_tasks(tasks(&[version(2, Migrates::Yes)]));
            bench.reserve(task).await;
        }
    })
    .await;
}

#[tokio::test]
async fn s073_a_replaced_definition_takes_the_task_over_at_the_next_boundary() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut old = bench.reserve(task).await;
        bench.line.set_tasks(tasks(&[scripted("k")]));
        assert!(matches!(old.decide(&bench, r#"{"to":{"phase":"b"}}"#).await, Next::Continue(_)), "the same definition");
        bench.line.set_tasks(tasks(&[Scripted { build: "2", ..scripted("k") }]));
        old.commit(&bench, r#"{"to":{"phase":"c"}}"#).await;
        assert!(bench.try_reserve(task).await.is_none(), "the two never overlap");
        assert_eq!(old.decide(&bench, r#"{"to":{"phase":"d"}}"#).await, Next::Stop);
        assert_eq!(bench.record(task).await.state, TaskState::Pending { checkpoint: j(r#"{"phase":"d"}"#) });
        let run = bench.reserve(task).await;
        assert_eq!(run.record.restarts, 0);
        assert_eq!(*bench.reports.lock().unwrap(), []);
    })
    .await;
}

#[tokio::test]
async fn s074_a_replacement_that_cannot_take_the_task_leaves_it_with_the_old_code() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut old = bench.reserve(task).await;
        let mut phase = 0;
        for unfit in [tasks(&[version(0, Migrates::Yes)]), tasks(&[version(2, Migrates::No)]), tasks(&[])] {
            bench.line.set_tasks(unfit);
            for _ in 0..2 {
                phase += 1;
                let next = old.decide(&bench, &format!(r#"{{"to":{{"phase":"p","n":{phase}}}}}"#)).await;
                assert!(matches!(next, Next::Continue(_)));
            }
        }
        let reported = |current: Option<u32>| LineReport::NotHandedOver { task, current: current.map(|version| (version, String::new())) };
        assert_eq!(*bench.reports.lock().unwrap(), [reported(Some(0)), reported(Some(2)), reported(None)]);
        bench.line.set_tasks(tasks(&[version(2, Migrates::Yes)]));
        assert_eq!(old.decide(&bench, r#"{"to":1}"#).await, Next::Stop);
        assert_eq!(bench.reserve(task).await.record.version, 2);
    })
    .await;
}

#[tokio::test]
async fn s082_aborting_a_blocked_task_orphans_it_in_the_marking_commit() {
    both(async |store| {
        let cases = [
            (vec![], "missing_task"),
            (vec![version(0, Migrates::Yes)], "task_too_old"),
            (vec![version(2, Migrates::No)], "migration_failed"),
        ];
        for (all, reason) in cases {
            let bench = Bench::new(std::sync::Arc::clone(&store), &all).await;
            let task = bench.task("k").await;
            let before = bench.line.session().store().head().await.unwrap().seq;
            assert_eq!(bench.abort(task).await, Answer::Value("marked".into()));
            assert_eq!(bench.line.session().store().head().await.unwrap().seq.0, before.0 + 1, "one commit, paused");
            assert_eq!(orphaned(&bench, task).await, reason);
            assert!(bench.record(task).await.abort_requested);
        }
        let bench = Bench::running(store, &[scripted("child")]).await;
        let task = bench.task("k").await;
        let child = bench.child("child", task).await;
        bench.abort(task).await;
        assert_eq!(bench.status(task).await, "pending");
        bench.run_abort(child).await;
        bench.plan().await;
        assert_eq!((bench.status(child).await.as_str(), orphaned(&bench, task).await.as_str()), ("terminal aborted", "missing_task"));
    })
    .await;
}

#[tokio::test]
async fn x043_a_running_task_whose_definition_is_gone_is_orphaned_once_its_run_has_joined() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let run = bench.reserve(task).await;
        bench.line.set_tasks(tasks(&[]));
        let (answer, ()) = tokio::join!(bench.abort(task), async {
            let changed = bench.line.changed();
            loop {
                let notified = changed.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if bench.line.cancellations().len() == 1 {
                    break;
                }
                notified.await;
            }
            bench.plan().await;
            assert_eq!(bench.status(task).await, "running");
            run.ends(&bench).await;
        });
        assert_eq!(answer, Answer::Value("marked".into()));
        bench.plan().await;
        assert_eq!(orphaned(&bench, task).await, "missing_task");
    })
    .await;
}

#[tokio::test]
async fn x044_a_marked_task_without_a_definition_is_orphaned_only_when_scheduling_resumes() {
    both(async |store| {
        let bench = Bench::new(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        bench.abort(task).await;
        let bench = bench.killed(&[]).await;
        bench.plan().await;
        assert_eq!(bench.status(task).await, "pending");
        bench.line.resume();
        bench.plan().await;
        assert_eq!(orphaned(&bench, task).await, "missing_task");
    })
    .await;
}
