//! Recovery, restarts and parking (design 6).

use std::sync::Arc;

use picofleet_harness::inspection::TaskView;
use picofleet_harness::line::{LineReport, RESTART_LIMIT};
use picofleet_harness::step::Mode;
use picofleet_harness::wire::{Answer, Definition, HostCall, Next, Refusal, Request, Said};
use picofleet_session::InvocationId;
use picofleet_session::storage::{Rejection, Store};
use picofleet_storage::memory::{Fault, Faults, MemoryStore};

use crate::support::*;

#[tokio::test]
async fn s068_a_kill_in_an_effect_phase_leaves_the_task_pending_where_it_was() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        run.say(&bench, Said::Memo { name: "m".into(), candidate: 7.into() }).await;
        assert!(matches!(run.decide(&bench, r#"{"to":{"phase":"b"}}"#).await, Next::Continue(_)));
        let bench = bench.killed(&all).await;
        assert_eq!(bench.status(task).await, "pending");
        let record = bench.record(task).await;
        assert_eq!((record.memos, record.restarts), (Some(j(r#"{"m":7}"#)), 0));
        bench.line.resume();
        let mut run = bench.reserve(task).await;
        assert_eq!((run.record.restarts, run.mode), (1, Mode::Run));
        assert_eq!(picofleet_harness::task::checkpoint(&run.record), Some(&j(r#"{"phase":"b"}"#)));
        run.decide(&bench, r#"{"end":{"status":"completed","result":1}}"#).await;
        let receipt = bench.record(task).await;
        let bench = bench.killed(&all).await;
        bench.line.resume();
        assert_eq!(bench.runs().await, []);
        assert_eq!(bench.record(task).await, receipt);
    })
    .await;
}

#[tokio::test]
async fn a_repeated_reserve_of_an_invocation_that_is_over_reserves_nothing() {
    both(async |store| {
        let all = [scripted("k")];
        let mut bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        let late = Request::Reserve { task, invocation: run.invocation, worker: bench.worker, definition: None };
        assert!(matches!(bench.line.handle(late.clone()).await, Answer::Reserved(_)), "a lost answer is given again");
        assert_eq!(run.decide(&bench, r#"{"to":{"phase":"b"},"sleep":0}"#).await, Next::Stop);
        for reopened in [false, true] {
            if reopened {
                bench = bench.killed(&all).await;
                bench.line.resume();
            }
            assert_eq!(bench.runs().await, [task]);
            assert_eq!(bench.line.handle(late.clone()).await, Answer::Refused(Refusal::NotReady), "reopened: {reopened}");
        }
        bench.complete(task).await;
    })
    .await;
}

/// Replaced between the look of a worker and its reservation: the line knows the code by the name that the worker gives it.
#[tokio::test]
async fn code_of_another_build_hands_over_at_its_next_boundary() {
    both(async |store| {
        let all = [Scripted { build: "new", ..scripted("k") }];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        for (build, goes_on) in [("old", false), ("new", true)] {
            bench.plan().await;
            let (invocation, definition) = (InvocationId::random(), Definition { version: 1, build: build.into() });
            let reserve = Request::Reserve { task, invocation, worker: bench.worker, definition: Some(definition) };
            assert!(matches!(bench.line.handle(reserve).await, Answer::Reserved(_)), "{build}");
            let decision = Said::Decide { version: 1, decision: j(&format!(r#"{{"to":{{"phase":"{build}"}}}}"#)), last: true };
            let said = bench.line.handle(Request::Say { task, invocation, number: 1, said: decision }).await;
            let Answer::Said { next: Some(next), .. } = said else { panic!("{said:?}") };
            assert_eq!(matches!(next, Next::Continue(_)), goes_on, "{build}");
        }
    })
    .await;
}

#[tokio::test]
async fn s069_a_reservation_that_was_not_stored_leaves_the_task_pending() {
    let faults = Faults::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_faults(faults.clone()));
    let all = [scripted("k")];
    let bench = Bench::running(store, &all).await;
    let task = bench.task("k").await;
    bench.plan().await;
    faults.push(Fault::LostBefore);
    let request = Request::Reserve { task, invocation: picofleet_session::InvocationId::random(), worker: bench.worker, definition: None };
    assert_eq!(bench.line.handle(request).await, Answer::Refused(Refusal::AskAgain));
    let bench = bench.killed(&all).await;
    assert_eq!(bench.status(task).await, "pending");
    bench.line.resume();
    assert_eq!(bench.reserve(task).await.record.restarts, 0);
}

/// Cuts a task off a number of times; each but the first reservation counts one.
async fn cut_off(mut bench: Bench, all: &[Scripted], task: picofleet_session::TaskId, times: u32) -> Bench {
    for _ in 0..times {
        bench.line.resume();
        bench.reserve(task).await;
        bench = bench.killed(all).await;
        // A process that dies before it reserves anything neither counts nor forgets.
        bench = bench.killed(all).await;
    }
    bench.line.resume();
    bench
}

#[tokio::test]
async fn x038_five_cut_offs_park_a_task_until_it_is_retried() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::new(store, &all).await;
        let task = bench.task("k").await;
        let bench = cut_off(bench, &all, task, RESTART_LIMIT).await;
        assert_eq!(bench.runs().await, []);
        assert_eq!(bench.runs().await, []);
        assert!(bench.try_reserve(task).await.is_none());
        assert_eq!(*bench.reports.lock().unwrap(), [LineReport::RestartLimit { task }]);
        assert_eq!(bench.view(task).await, TaskView::Blocked { reason: "restart_limit".into(), error: None });
        assert_eq!((bench.status(task).await.as_str(), bench.record(task).await.restarts), ("pending", RESTART_LIMIT));
        // It stays parked, and is not reported again.
        let bench = bench.killed(&all).await;
        bench.line.resume();
        assert_eq!(bench.runs().await, []);
        assert_eq!(*bench.reports.lock().unwrap(), []);
        assert_eq!(bench.host(HostCall::RetryTask { task }).await, Answer::Value("retried".into()));
        assert_eq!(bench.host(HostCall::RetryTask { task }).await, Answer::Value("not_parked".into()));
        assert_eq!(bench.reserve(task).await.record.restarts, 0);
    })
    .await;
}

#[tokio::test]
async fn x038_progress_and_an_orderly_close_count_nothing() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::new(store, &all).await;
        let task = bench.task("k").await;
        let bench = cut_off(bench, &all, task, RESTART_LIMIT - 1).await;
        let mut run = bench.reserve(task).await;
        assert_eq!(run.record.restarts, RESTART_LIMIT - 1);
        run.commit(&bench, r#"{"to":{"phase":"b"}}"#).await;
        assert_eq!(bench.record(task).await.restarts, 0);
        let mut bench = bench.reopened(&all).await;
        for _ in 0..RESTART_LIMIT + 1 {
            bench.line.resume();
            assert_eq!(bench.reserve(task).await.record.restarts, 0);
            bench = bench.reopened(&all).await;
        }
    })
    .await;
}

#[tokio::test]
async fn x038_a_parked_task_is_aborted_and_a_lost_abort_handler_faults() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::new(store, &all).await;
        let task = bench.task("k").await;
        let bench = cut_off(bench, &all, task, RESTART_LIMIT).await;
        bench.plan().await;
        assert_eq!(bench.abort(task).await, Answer::Value("marked".into()));
        bench.run_abort(task).await;
        assert_eq!(bench.status(task).await, "terminal aborted");

        let task = bench.task("k").await;
        bench.abort(task).await;
        let bench = cut_off(bench, &all, task, RESTART_LIMIT).await;
        bench.plan().await;
        assert!(bench.fault(task).await.contains("abort handler was lost 5 times"));
    })
    .await;
}

#[tokio::test]
async fn the_lease_of_an_invocation_ends_it_only_with_the_next_reservation() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut first = bench.reserve(task).await;
        bench.line.expire(task, first.invocation);
        assert_eq!(bench.runs().await, [task]);
        first.commit(&bench, r#"{"to":{"phase":"b"}}"#).await;
        assert_eq!(bench.runs().await, [], "it was alive after all");
        bench.line.expire(task, first.invocation);
        let second = bench.reserve(task).await;
        assert_eq!(second.record.restarts, 1);
        let late = Said::Decide { version: 1, decision: j(r#"{"to":1}"#), last: true };
        assert_eq!(first.say(&bench, late).await, Answer::Refused(Refusal::Gone));
        let (cancels, gone) = bench.line.beat(bench.worker, &[(task, first.invocation), (task, second.invocation)], false);
        assert_eq!((cancels, gone), (vec![], vec![first.invocation]));
    })
    .await;
}

#[tokio::test]
async fn a_reservation_that_no_worker_was_heard_naming_counts_no_restart() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        for _ in 0..RESTART_LIMIT + 1 {
            let run = bench.reserve(task).await;
            assert_eq!(run.record.restarts, 0);
            bench.line.expire(task, run.invocation);
        }
        let run = bench.reserve(task).await;
        bench.line.beat(bench.worker, &[(task, run.invocation)], false);
        bench.line.expire(task, run.invocation);
        assert_eq!(bench.reserve(task).await.record.restarts, 1);
    })
    .await;
}

#[tokio::test]
async fn a_draining_worker_hands_over_at_the_next_boundary() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        bench.line.beat(bench.worker, &[(task, run.invocation)], true);
        assert_eq!(run.decide(&bench, r#"{"to":{"phase":"b"}}"#).await, Next::Stop);
        assert_eq!(bench.status(task).await, "pending");
        // What had no boundary in time is reservable at once, and no restart either.
        let other = Bench { worker: picofleet_harness::wire::WorkerId(picofleet_session::InvocationId::random()), ..bench };
        let run = other.reserve(task).await;
        run.ends(&other).await;
        assert_eq!(other.reserve(task).await.record.restarts, 0);
    })
    .await;
}

#[tokio::test]
async fn x035_a_fault_that_storage_refuses_is_not_written_and_the_phase_runs_again() {
    let faults = Faults::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_faults(faults.clone()));
    let bench = Bench::running(store, &[scripted("k")]).await;
    let task = bench.task("k").await;
    let mut run = bench.reserve(task).await;
    faults.push(Fault::Rejected(Rejection::IdTaken { id: 1, owner: "task" }));
    assert!(matches!(run.fails(&bench, "boom").await, Answer::Refused(Refusal::Rejected(_))));
    assert_eq!(bench.status(task).await, "running");
    let mut run = bench.reserve(task).await;
    assert_eq!(run.record.restarts, 0);
    run.fails(&bench, "boom").await;
    assert_eq!(bench.fault(task).await, "boom");
}

#[tokio::test]
async fn s103_s089_a_held_outcome_whose_work_has_drained_ends_at_open_without_a_definition() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let (drained, holding) = (bench.task("k").await, bench.task("k").await);
        let (child, stays) = (bench.child("k", drained).await, bench.child("k", holding).await);
        bench.complete(drained).await;
        bench.complete(holding).await;
        bench.complete(child).await;
        assert_eq!(bench.status(drained).await, "completing completed");
        let bench = bench.killed(&[]).await;
        assert_eq!(bench.status(drained).await, "terminal completed");
        assert_eq!((bench.status(holding).await.as_str(), bench.status(stays).await.as_str()), ("completing completed", "pending"));
    })
    .await;
}

#[tokio::test]
async fn a_decision_version_that_the_line_does_not_read_loses_the_invocation_not_the_task() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        let newer = |version| Said::Decide { version, decision: j(r#"{"to":{"phase":"b"}}"#), last: true };
        // The one before is read; two behind and one ahead are not.
        let mut run = bench.reserve(task).await;
        assert!(matches!(run.say(&bench, newer(0)).await, Answer::Said { .. }));
        for restarts in 1..=RESTART_LIMIT {
            let answer = run.say(&bench, newer(2)).await;
            assert!(matches!(&answer, Answer::Refused(Refusal::Protocol(why)) if why.contains("roll coordinators first")), "{answer:?}");
            assert_eq!(bench.record(task).await.ended_at, None);
            if restarts < RESTART_LIMIT {
                run = bench.reserve(task).await;
                assert_eq!(run.record.restarts, restarts);
            }
        }
        bench.plan().await;
        assert_eq!(bench.runs().await, []);
        assert!(matches!(bench.view(task).await, TaskView::Blocked { reason, .. } if reason == "restart_limit"));
    })
    .await;
}

#[tokio::test]
async fn a_reservation_that_is_asked_for_again_while_it_is_in_storage_is_given_once() {
    let faults = Faults::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_faults(faults.clone()));
    let all = [scripted("k")];
    let bench = Bench::running(store, &all).await;
    let task = bench.task("k").await;
    bench.plan().await;
    let hold = faults.hold();
    let invocation = picofleet_session::InvocationId::random();
    let request = || picofleet_harness::wire::Request::Reserve { task, invocation, worker: bench.worker, definition: None };
    let both = async { tokio::join!(bench.line.handle(request()), bench.line.handle(request())) };
    let released = async {
        hold.arrived().await;
        hold.release();
    };
    let (answers, ()) = tokio::join!(both, released);
    for answer in [answers.0, answers.1] {
        assert!(matches!(&answer, Answer::Reserved(reservation) if reservation.record.restarts == 0), "{answer:?}");
    }
}

#[tokio::test]
async fn an_invocation_that_says_another_thing_under_a_number_is_lost_and_its_task_parks_in_the_end() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        for restarts in 0..RESTART_LIMIT {
            let run = bench.reserve(task).await;
            assert_eq!(run.record.restarts, restarts);
            let say = async |candidate: i64| {
                let said = Said::Memo { name: "m".into(), candidate: candidate.into() };
                let request = picofleet_harness::wire::Request::Say { task, invocation: run.invocation, number: 1, said };
                bench.line.handle(request).await
            };
            assert!(matches!(say(1).await, Answer::Said { .. }));
            assert!(matches!(say(2).await, Answer::Refused(Refusal::Protocol(_))));
        }
        bench.plan().await;
        assert!(matches!(bench.view(task).await, TaskView::Blocked { reason, .. } if reason == "restart_limit"));
    })
    .await;
}
