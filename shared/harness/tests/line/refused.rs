//! Storage refuses what the scheduler decided about one task, without effect: the rest of the session goes on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use picofleet_harness::line::LineReport;
use picofleet_harness::step::Mode;
use picofleet_harness::wire::{Answer, Refusal};
use picofleet_session::storage::{Rejection, Store, Write};
use picofleet_session::{TaskId, TaskRecord, TaskState};
use picofleet_storage::memory::{Fault, Faults, MemoryStore};

use crate::support::*;

/// A store that refuses every batch with a record that is picked, and counts them.
#[derive(Clone, Default)]
struct Refusing {
    picked: Arc<Mutex<Option<TaskId>>>,
    count: Arc<AtomicUsize>,
}

impl Refusing {
    fn store(&self, state: impl Fn(&TaskRecord) -> bool + Send + Sync + 'static) -> Arc<dyn Store> {
        let (faults, this) = (Faults::new(), self.clone());
        faults.choose(move |_, batch| {
            let picked = *this.picked.lock().unwrap();
            let mut writes = batch.commits.iter().flat_map(|commit| &commit.writes);
            let refused = writes.any(|write| matches!(write, Write::Task(task) if Some(task.id) == picked && state(task)));
            refused.then(|| {
                this.count.fetch_add(1, Ordering::SeqCst);
                Fault::Rejected(Rejection::IdTaken { id: 1, owner: "task" })
            })
        });
        Arc::new(MemoryStore::with_faults(faults))
    }

    fn refuse(&self, task: Option<TaskId>) {
        *self.picked.lock().unwrap() = task;
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

/// A task whose held outcome becomes terminal with the next plan.
async fn drained(bench: &Bench) -> TaskId {
    let task = bench.task("k").await;
    let child = bench.child("k", task).await;
    bench.complete(task).await;
    bench.complete(child).await;
    task
}

fn reported(bench: &Bench) -> Vec<TaskId> {
    let of = |report: &LineReport| if let LineReport::Refused { task, .. } = report { *task } else { panic!("{report:?}") };
    bench.reports.lock().unwrap().iter().map(of).collect()
}

fn terminal(task: &TaskRecord) -> bool {
    matches!(task.state, TaskState::Terminal { .. })
}

#[tokio::test(start_paused = true)]
async fn a_finish_that_storage_refuses_keeps_nothing_else_back_and_is_tried_again() {
    let refusing = Refusing::default();
    let bench = Bench::running(refusing.store(terminal), &[scripted("k")]).await;
    let task = drained(&bench).await;
    refusing.refuse(Some(task));
    let other = bench.task("k").await;
    let plan = bench.plan().await;
    assert_eq!((plan.runs, reported(&bench)), (vec![other], vec![task]));
    assert!(plan.next_due.is_some(), "it says when it is tried again");
    assert_eq!(bench.status(task).await, "completing completed");
    bench.complete(other).await;
    assert_eq!(refusing.count(), 1, "it is not tried with every plan");
    tokio::time::advance(Duration::from_secs(1)).await;
    bench.plan().await;
    assert_eq!((refusing.count(), reported(&bench)), (2, vec![task]), "tried again, reported once");
    refusing.refuse(None);
    tokio::time::advance(Duration::from_secs(1)).await;
    bench.plan().await;
    assert_eq!(bench.status(task).await, "terminal completed");
}

#[tokio::test(start_paused = true)]
async fn an_opening_whose_cleanup_storage_refuses_opens_all_the_same() {
    let (refusing, all) = (Refusing::default(), [scripted("k")]);
    let bench = Bench::running(refusing.store(terminal), &all).await;
    let task = drained(&bench).await;
    refusing.refuse(Some(task));
    let bench = bench.killed(&all).await;
    assert_eq!((refusing.count(), reported(&bench)), (1, vec![task]));
    assert_eq!(bench.status(task).await, "completing completed");
}

#[tokio::test(start_paused = true)]
async fn a_mark_that_storage_refuses_keeps_no_other_back_and_its_task_does_not_run() {
    let refusing = Refusing::default();
    let bench = Bench::running(refusing.store(|task| task.abort_requested), &[scripted("k")]).await;
    let owner = bench.task("k").await;
    let (one, two) = (bench.child("k", owner).await, bench.child("k", owner).await);
    refusing.refuse(Some(one));
    assert_eq!(bench.abort(owner).await, Answer::Value("marked".into()));
    let plan = bench.plan().await;
    assert_eq!((plan.runs, plan.aborts), (vec![], vec![two]), "the one that is not marked yet does not run either");
    assert_eq!((bench.record(one).await.abort_requested, bench.record(two).await.abort_requested), (false, true));
    assert_eq!(reported(&bench), [one]);
    refusing.refuse(None);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(bench.plan().await.aborts, [one, two]);
}

#[tokio::test(start_paused = true)]
async fn an_orphan_that_storage_refuses_keeps_nothing_else_back() {
    let (refusing, all) = (Refusing::default(), [scripted("k"), scripted("gone")]);
    let bench = Bench::running(refusing.store(terminal), &all).await;
    let orphan = bench.task("gone").await;
    bench.child("gone", orphan).await;
    bench.abort(orphan).await;
    let bench = bench.killed(&all[..1]).await;
    bench.line.resume();
    let other = bench.task("k").await;
    refusing.refuse(Some(orphan));
    assert_eq!(bench.runs().await, [other]);
    assert_eq!((bench.status(orphan).await.as_str(), reported(&bench)), ("pending", vec![orphan]));
}

#[tokio::test(start_paused = true)]
async fn x035_a_step_that_storage_refuses_runs_again_less_and_less_often() {
    let refusing = Refusing::default();
    let bench = Bench::running(refusing.store(terminal), &[scripted("k")]).await;
    let task = bench.task("k").await;
    refusing.refuse(Some(task));
    let mut paused = Vec::new();
    for _ in 0..3 {
        let mut run = bench.reserve(task).await;
        assert_eq!(run.record.restarts, 0, "nothing was lost");
        assert!(matches!(run.fails(&bench, "boom").await, Answer::Refused(Refusal::Rejected(_))));
        let began = tokio::time::Instant::now();
        while bench.runs().await.is_empty() {
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        paused.push(began.elapsed());
    }
    assert!(paused.windows(2).all(|pair| pair[0] * 2 <= pair[1] + Duration::from_millis(10)) && !paused[0].is_zero(), "{paused:?}");
    let mut run = bench.reserve(task).await;
    run.fails(&bench, "boom").await;
    assert_eq!((bench.runs().await, reported(&bench)), (vec![], vec![task]));
    // An abort does not wait for it.
    assert_eq!(bench.abort(task).await, Answer::Value("marked".into()));
    assert_eq!(bench.plan().await.aborts, [task]);
    refusing.refuse(None);
    assert_eq!(bench.reserve(task).await.mode, Mode::Abort);
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_storage_refuses_too_is_not_repeated_at_once() {
    let refusing = Refusing::default();
    let bench = Bench::running(refusing.store(terminal), &[scripted("k")]).await;
    let task = bench.task("k").await;
    refusing.refuse(Some(task));
    let mut run = bench.reserve(task).await;
    let end =
        picofleet_harness::wire::Said::Decide { version: 1, decision: j(r#"{"end":{"status":"completed","result":null}}"#), last: true };
    assert!(matches!(run.say(&bench, end).await, Answer::Refused(Refusal::Rejected(_))));
    assert_eq!((refusing.count(), reported(&bench)), (2, vec![task]), "the decision and the fault");
    assert_eq!(bench.runs().await, []);
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(bench.runs().await, [task]);
}
