//! Commits that `protocol.md` 3 merges: a reservation without an effect with its first decision, and the end of a task with its owner's
//! step.

use picofleet_harness::step::Mode;
use picofleet_harness::wire::{Answer, Next, Refusal, Request, Said};
use picofleet_session::{InvocationId, TaskId};

use crate::support::*;

const END: &str = r#"{"end":{"status":"completed","result":null}}"#;

fn planning() -> Scripted {
    Scripted { plans_first: true, ..scripted("k") }
}

async fn commits(bench: &Bench) -> i64 {
    bench.line.session().store().head().await.unwrap().seq.0
}

#[tokio::test]
async fn a_reservation_without_an_effect_is_stored_with_its_first_decision() {
    both(async |store| {
        let bench = Bench::running(store, &[planning()]).await;
        let task = bench.task("k").await;
        let before = commits(&bench).await;
        let invocation = InvocationId::random();
        let ask = |invocation| Request::Reserve { task, invocation, worker: bench.worker, definition: None };
        bench.plan().await;
        let first = bench.line.handle(ask(invocation)).await;
        assert!(matches!(&first, Answer::Reserved(reservation) if reservation.record.started_at.is_some()), "{first:?}");
        assert_eq!(bench.line.handle(ask(invocation)).await, first, "the same again");
        assert_eq!(bench.line.handle(ask(InvocationId::random())).await, Answer::Refused(Refusal::NotReady), "nobody else");
        assert_eq!((commits(&bench).await, bench.status(task).await.as_str()), (before, "pending"));
        assert!(bench.line.holds(task, invocation) && bench.runs().await.is_empty());
        let said = Said::Decide { version: 1, decision: j(r#"{"to":{"phase":"b"}}"#), last: true };
        let answer = bench.line.handle(Request::Say { task, invocation, number: 1, said }).await;
        assert!(matches!(answer, Answer::Said { next: Some(Next::Continue(_)), .. }), "{answer:?}");
        assert_eq!((commits(&bench).await, bench.status(task).await.as_str()), (before + 1, "running"));
        let row = bench.line.session().store().invocation(task).await.unwrap().unwrap();
        assert_eq!((row.invocation, row.number), (invocation, 1));
        assert!(bench.record(task).await.started_at.is_some());
    })
    .await;
}

#[tokio::test]
async fn a_kill_before_the_first_decision_leaves_the_task_as_it_was() {
    both(async |store| {
        let all = [planning()];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        bench.reserve(task).await;
        let bench = bench.killed(&all).await;
        let record = bench.record(task).await;
        assert_eq!((bench.status(task).await.as_str(), record.restarts, record.started_at), ("pending", 0, None));
        assert!(bench.line.resume());
        let mut run = bench.reserve(task).await;
        assert_eq!(run.decide(&bench, END).await, Next::Stop);
    })
    .await;
}

#[tokio::test]
async fn a_lost_one_is_stored_the_next_time_so_that_restarts_are_counted() {
    both(async |store| {
        let bench = Bench::running(store, &[planning()]).await;
        let task = bench.task("k").await;
        let lost = bench.reserve(task).await;
        bench.line.beat(bench.worker, &[(task, lost.invocation)], false);
        bench.line.expire(task, lost.invocation);
        let again = bench.reserve(task).await;
        assert_eq!((again.record.restarts, bench.record(task).await.restarts), (1, 1));
        assert_eq!(bench.status(task).await, "running");
    })
    .await;
}

#[tokio::test]
async fn one_that_a_beat_names_is_stored_so_that_it_lives_on_and_is_counted() {
    both(async |store| {
        let all = [planning()];
        let bench = Bench::running(store, &all).await;
        let (taken, lost) = (bench.task("k").await, bench.task("k").await);
        let mut run = bench.reserve(taken).await;
        let named = bench.reserve(lost).await;
        bench.line.beat(bench.worker, &[(taken, run.invocation), (lost, named.invocation)], false);
        assert!(bench.runs().await.is_empty());
        for (task, invocation) in [(taken, run.invocation), (lost, named.invocation)] {
            let row = bench.line.session().store().invocation(task).await.unwrap().unwrap();
            assert_eq!((bench.status(task).await.as_str(), row.invocation, row.number), ("running", invocation, 0));
        }
        let bench = bench.taken_over(&all).await;
        assert_eq!(run.decide(&bench, END).await, Next::Stop);
        assert_eq!(bench.status(taken).await, "terminal completed");
        let bench = bench.killed(&all).await;
        assert!(bench.line.resume());
        assert_eq!(bench.reserve(lost).await.record.restarts, 1);
    })
    .await;
}

#[tokio::test]
async fn a_first_saying_that_leaves_the_checkpoint_stores_the_reservation() {
    both(async |store| {
        let bench = Bench::running(store, &[planning()]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        let stays = Said::Decide { version: 1, decision: j("{}"), last: false };
        assert!(matches!(run.say(&bench, stays).await, Answer::Said { .. }));
        assert_eq!(bench.status(task).await, "running");
        assert!(bench.record(task).await.started_at.is_some());
        let memo = bench.task("k").await;
        let mut run = bench.reserve(memo).await;
        let said = Said::Memo { name: "m".to_owned(), candidate: 1.into() };
        assert!(matches!(run.say(&bench, said).await, Answer::Said { .. }));
        assert_eq!(bench.status(memo).await, "running");
    })
    .await;
}

#[tokio::test]
async fn an_owner_that_is_cancelled_before_the_first_decision_aborts_a_task_that_never_ran() {
    both(async |store| {
        let bench = Bench::running(store, &[planning(), scripted("owner")]).await;
        let owner = bench.task("owner").await;
        let mut owning = bench.reserve(owner).await;
        let task = bench.child("k", owner).await;
        let mut run = bench.reserve(task).await;
        owning.decide(&bench, r#"{"end":{"status":"faulted","error":{"message":"no"}}}"#).await;
        // The cascade has not marked it yet.
        assert!(!bench.record(task).await.abort_requested);
        let ask = Request::Reserve { task, invocation: run.invocation, worker: bench.worker, definition: None };
        assert_eq!(bench.line.handle(ask).await, Answer::Refused(Refusal::NotReady), "the answer was lost");
        let decide = Said::Decide { version: 1, decision: j(END), last: true };
        assert_eq!(run.say(&bench, decide).await, Answer::Refused(Refusal::Gone));
        bench.line.beat(bench.worker, &[(task, run.invocation)], false);
        bench.plan().await;
        assert_eq!((bench.status(task).await.as_str(), bench.record(task).await.abort_requested), ("pending", true));
        assert!(matches!(run.say(&bench, Said::PhaseEnd(None)).await, Answer::Said { next: Some(Next::Stop), .. }));
        bench.run_abort(task).await;
        bench.plan().await;
        assert_eq!(bench.status(owner).await, "terminal faulted");
    })
    .await;
}

#[tokio::test]
async fn a_mark_before_the_first_decision_aborts_a_task_that_never_ran() {
    both(async |store| {
        let bench = Bench::running(store, &[planning()]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        // The call waits until the invocation has joined, which it does when it is told that it may not commit any more.
        let (abort, ()) = tokio::join!(bench.abort(task), async {
            while !bench.record(task).await.abort_requested {
                tokio::task::yield_now().await;
            }
            let decide = Said::Decide { version: 1, decision: j(END), last: true };
            assert_eq!(run.say(&bench, decide).await, Answer::Refused(Refusal::Gone));
            assert_eq!(bench.status(task).await, "pending");
            let ended = run.say(&bench, Said::PhaseEnd(None)).await;
            assert!(matches!(ended, Answer::Said { next: Some(Next::Stop), .. }), "{ended:?}");
        });
        assert_eq!(abort, Answer::Value("marked".into()));
        let mut handler = bench.reserve(task).await;
        assert_eq!(handler.mode, Mode::Abort);
        assert_eq!(handler.decide(&bench, r#"{"end":{"status":"aborted"}}"#).await, Next::Stop);
        assert_eq!(bench.status(task).await, "terminal aborted");
    })
    .await;
}

#[tokio::test]
async fn a_phase_that_fails_before_its_first_decision_faults_its_task() {
    both(async |store| {
        let bench = Bench::running(store, &[planning()]).await;
        let task = bench.task("k").await;
        bench.reserve(task).await.fails(&bench, "boom").await;
        assert_eq!(bench.fault(task).await, "boom");
        let task = bench.task("k").await;
        let why = bench.reserve(task).await.rejected(&bench, r#"{"panic":1}"#).await;
        assert!(why.contains("panicked"), "{why}");
        assert!(bench.fault(task).await.contains("panicked"));
    })
    .await;
}

/// A task that waits for two children of its own.
async fn waiting(bench: &Bench) -> (TaskId, [TaskId; 2]) {
    let owner = bench.task("p").await;
    let mut run = bench.reserve(owner).await;
    let children = [bench.child("k", owner).await, bench.child("k", owner).await];
    let [a, b] = children.map(TaskId::get);
    run.decide(bench, &format!(r#"{{"wait":[{a},{b}],"to":{{"phase":"w"}}}}"#)).await;
    (owner, children)
}

fn owner(goes_on: &'static str) -> Scripted {
    Scripted { goes_on: Some(goes_on), ..scripted("p") }
}

#[tokio::test]
async fn an_owner_goes_on_in_the_commit_that_ends_the_last_of_its_tasks() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k"), owner(END)]).await;
        let (owner, [first, second]) = waiting(&bench).await;
        bench.complete(first).await;
        assert_eq!(bench.status(owner).await, "waiting");
        let mut run = bench.reserve(second).await;
        let before = commits(&bench).await;
        run.decide(&bench, END).await;
        assert_eq!(commits(&bench).await, before + 1);
        assert_eq!(bench.status(owner).await, "terminal completed");
    })
    .await;
}

#[tokio::test]
async fn an_owner_that_is_to_stop_or_whose_task_faulted_does_not_go_on_by_itself() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k"), owner(END)]).await;
        let (faulted, [first, second]) = waiting(&bench).await;
        bench.complete(first).await;
        bench.reserve(second).await.fails(&bench, "boom").await;
        assert_eq!(bench.status(faulted).await, "waiting");
        bench.complete(faulted).await;
        let (marked, [first, second]) = waiting(&bench).await;
        bench.complete(first).await;
        let mut run = bench.reserve(second).await;
        bench.abort(marked).await;
        assert_eq!(run.decide(&bench, END).await, Next::Stop);
        assert_eq!((bench.status(second).await.as_str(), bench.status(marked).await.as_str()), ("terminal completed", "waiting"));
    })
    .await;
}

#[tokio::test]
async fn a_step_of_an_owner_that_fails_leaves_the_end_of_its_task_alone() {
    both(async |store| {
        for fails in [r#"{"panic":1}"#, r#"{"wait":[9999],"to":{"phase":"w"}}"#] {
            let bench = Bench::running(std::sync::Arc::clone(&store), &[scripted("k"), owner(fails)]).await;
            let (owner, [first, second]) = waiting(&bench).await;
            bench.complete(first).await;
            bench.complete(second).await;
            assert_eq!((bench.status(second).await.as_str(), bench.status(owner).await.as_str()), ("terminal completed", "waiting"));
            bench.complete(owner).await;
        }
    })
    .await;
}
