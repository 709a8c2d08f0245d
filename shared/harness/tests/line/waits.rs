//! Waits and sleeps (section 5.5).

use picofleet_harness::inspection::TaskView;
use picofleet_harness::step::Mode;
use picofleet_harness::wire::Next;
use picofleet_session::{Millis, TaskId};

use crate::support::*;

fn wait(on: &[TaskId]) -> String {
    let on: Vec<String> = on.iter().map(ToString::to_string).collect();
    format!(r#"{{"wait":[{}],"to":{{"phase":"w"}}}}"#, on.join(","))
}

fn fail_fast(on: &[TaskId]) -> String {
    wait(on).replacen('{', r#"{"failFast":1,"#, 1)
}

#[tokio::test]
async fn s075_a_wait_for_nothing_resumes_at_the_next_pass() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        for decision in [wait(&[]), fail_fast(&[])] {
            let task = bench.task("k").await;
            let mut run = bench.reserve(task).await;
            assert_eq!(run.decide(&bench, &decision).await, Next::Stop);
            assert_eq!(bench.status(task).await, "waiting");
            let resumed = bench.reserve(task).await;
            assert_eq!(picofleet_harness::task::checkpoint(&resumed.record), Some(&j(r#"{"phase":"w"}"#)));
        }
    })
    .await;
}

#[tokio::test]
async fn s076_waits_that_could_never_end_are_refused() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let owner = bench.task("k").await;
        let other = bench.task("k").await;
        let unknown = TaskId::new(9_999).unwrap();
        let owned = bench.conversation(owner).await;
        let (first, second) = (bench.child("k", owner).await, bench.in_conversation("k", owned).await);
        let cases = [
            (first, wait(&[unknown]), format!("task {first} cannot wait for task 9999, which does not exist")),
            (other, wait(&[other]), format!("task {other} cannot wait for itself")),
            (second, wait(&[owner]), "which is on its owner chain".to_owned()),
        ];
        for (task, decision, text) in cases {
            let why = bench.reserve(task).await.rejected(&bench, &decision).await;
            assert!(why.contains(&text), "{why}");
            assert!(bench.fault(task).await.contains(&text));
        }
        let (task, stranger) = (bench.task("k").await, bench.task("k").await);
        let why = bench.reserve(task).await.rejected(&bench, &fail_fast(&[stranger])).await;
        assert!(why.contains("failFast") && why.contains("does not own"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn x034_wait_cycles_are_refused_and_named_diamonds_are_not() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let (a, b, c, d) = (bench.task("k").await, bench.task("k").await, bench.task("k").await, bench.task("k").await);
        for (task, on) in [(a, vec![b, c]), (b, vec![d]), (c, vec![d])] {
            assert_eq!(bench.reserve(task).await.decide(&bench, &wait(&on)).await, Next::Stop);
        }
        assert_eq!(bench.view(a).await, TaskView::Waiting { on: vec![b, c] });
        let why = bench.reserve(d).await.rejected(&bench, &wait(&[a])).await;
        assert!(why.contains("wait cycle") && why.contains(&format!("{d} -> {a}")), "{why}");
        for task in [b, c] {
            bench.complete(task).await;
        }
        assert_eq!(bench.runs().await, [a]);
        // A background task may wait for its conversation's owner.
        let owner = bench.task("k").await;
        let owned = bench.conversation(owner).await;
        let create = create("k", picofleet_session::TaskOwnership::Conversation);
        let background = bench.create(picofleet_session::TaskCreate { background: true, conversation_id: Some(owned), ..create }).await;
        assert_eq!(bench.reserve(background).await.decide(&bench, &wait(&[owner])).await, Next::Stop);
        assert_eq!(bench.status(background).await, "waiting");
    })
    .await;
}

#[tokio::test]
async fn x037_a_sleeper_runs_when_it_is_due_also_after_a_reopen() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let (task, aborted) = (bench.task("k").await, bench.task("k").await);
        for task in [task, aborted] {
            assert_eq!(bench.reserve(task).await.decide(&bench, r#"{"sleep":5000,"to":{"phase":"s"}}"#).await, Next::Stop);
        }
        assert_eq!(bench.view(task).await, TaskView::Sleeping { until: Millis(5_000) });
        let plan = bench.plan().await;
        assert_eq!((plan.runs, plan.next_due), (vec![], Some(Millis(5_000))));
        let bench = bench.killed(&all).await;
        bench.line.resume();
        bench.abort(aborted).await;
        bench.run_abort(aborted).await;
        assert!(bench.try_reserve(task).await.is_none());
        bench.clock.set(Millis(5_000));
        let run = bench.reserve(task).await;
        assert_eq!((run.mode, run.record.restarts), (Mode::Run, 0));
        let late = bench.task("k").await;
        let why = bench.reserve(late).await.rejected(&bench, r#"{"sleep":-1}"#).await;
        assert!(why.contains("cannot sleep until -1"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn s091_an_abort_handler_can_neither_wait_nor_sleep() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        for (decision, text) in [(wait(&[]), "cannot wait"), (r#"{"sleep":5}"#.to_owned(), "cannot sleep")] {
            let task = bench.task("k").await;
            bench.abort(task).await;
            let mut run = bench.reserve(task).await;
            assert!(run.rejected(&bench, &decision).await.contains(text));
            assert!(bench.fault(task).await.contains(text));
        }
    })
    .await;
}
