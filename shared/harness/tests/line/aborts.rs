//! Aborts and cascades (section 5.4).

use std::sync::Arc;

use picofleet_harness::step::Mode;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::wire::{Answer, HostCall, Next, Refusal, Request, Said};
use picofleet_session::storage::Store;
use picofleet_session::{InvocationId, ROOT_CONVERSATION_ID, TaskId};
use picofleet_storage::memory::{Faults, MemoryStore};

use crate::support::*;

/// Asks for an abort and ends the run that it waits for.
async fn abort_run(bench: &Bench, run: &Run) {
    let (answer, ()) = tokio::join!(bench.abort(run.task), async {
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
        run.ends(bench).await;
    });
    assert_eq!(answer, Answer::Value("marked".into()));
}

#[tokio::test]
async fn s079_a_run_with_progress_starts_no_further_phase_once_it_is_marked() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        run.commit(&bench, r#"{"to":{"phase":"b"}}"#).await;
        bench
            .line
            .session()
            .commit(async |tx| {
                let record = tx.task(task).await?.unwrap();
                tx.put_task(picofleet_session::TaskRecord { abort_requested: true, ..record }).await?;
                Ok::<_, picofleet_session::CommitError>(())
            })
            .await
            .unwrap();
        assert_eq!(run.last(&bench, r#"{"to":1}"#).await, Answer::Refused(Refusal::Gone));
        assert!(matches!(run.say(&bench, Said::PhaseEnd(None)).await, Answer::Said { next: Some(Next::Stop), .. }));
        bench.run_abort(task).await;
    })
    .await;
}

#[tokio::test]
async fn x041_the_mark_wins_over_a_fault() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        abort_run(&bench, &run).await;
        assert_eq!(run.fails(&bench, "boom").await, Answer::Refused(Refusal::Gone));
        bench.run_abort(task).await;
        assert_eq!(bench.status(task).await, "terminal aborted");
    })
    .await;
}

#[tokio::test]
async fn s080_an_abort_handler_without_an_outcome_faults() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let (returns, throws) = (bench.task("k").await, bench.task("k").await);
        bench.abort(returns).await;
        bench.abort(throws).await;
        bench.reserve(returns).await.decide(&bench, r#"{"to":1}"#).await;
        bench.reserve(throws).await.fails(&bench, "boom").await;
        assert_eq!(bench.fault(returns).await, "the abort handler returned without an outcome");
        assert_eq!(bench.fault(throws).await, "boom");
    })
    .await;
}

#[tokio::test]
async fn x040_a_mark_that_lands_while_the_reservation_is_in_storage_starts_no_phase() {
    let faults = Faults::new();
    let store: Arc<dyn Store> = Arc::new(MemoryStore::with_faults(faults.clone()));
    let bench = Bench::running(store, &[scripted("k")]).await;
    let task = bench.task("k").await;
    bench.plan().await;
    let hold = faults.hold();
    let invocation = InvocationId::random();
    let reserve = bench.line.handle(Request::Reserve { task, invocation, worker: bench.worker, definition: None });
    let abort = async {
        hold.arrived().await;
        let abort = bench.abort(task);
        tokio::pin!(abort);
        // It is queued for the line, behind the reservation and before anything later.
        assert!(futures::poll!(&mut abort).is_pending());
        tokio::task::yield_now().await;
        assert!(futures::poll!(&mut abort).is_pending());
        hold.release();
        abort.await
    };
    let (reserved, aborted) = tokio::join!(reserve, abort);
    assert_eq!(reserved, Answer::Refused(Refusal::NotReady));
    assert_eq!(aborted, Answer::Value("marked".into()));
    bench.run_abort(task).await;
}

#[tokio::test]
async fn s083_a_cascade_goes_down_and_ends_bottom_up() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let a = bench.task("k").await;
        let b = bench.child("k", a).await;
        let owned = bench.conversation(b).await;
        let x = bench.in_conversation("k", owned).await;
        assert_eq!(bench.abort(a).await, Answer::Value("marked".into()));
        assert!(!bench.record(b).await.abort_requested, "the cascade is a later commit");
        // X046: already now nothing below may start.
        assert!(bench.try_reserve(x).await.is_none());
        for task in [x, b, a] {
            assert_eq!(bench.plan().await.aborts, [task]);
            bench.run_abort(task).await;
        }
    })
    .await;
}

#[tokio::test]
async fn s089_marks_that_a_crash_lost_are_derived_again() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let parent = bench.task("k").await;
        let child = bench.child("k", parent).await;
        bench.reserve(parent).await.decide(&bench, &format!(r#"{{"wait":[{child}],"to":1}}"#)).await;
        bench.abort(parent).await;
        let bench = bench.killed(&all).await;
        assert!(!bench.record(child).await.abort_requested);
        bench.line.resume();
        bench.run_abort(child).await;
        bench.run_abort(parent).await;
    })
    .await;
}

#[tokio::test]
async fn s081_a_kill_matrix_of_an_abort() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        bench.reserve(task).await;
        // No mark stored: the run resumes.
        let bench = bench.killed(&all).await;
        bench.line.resume();
        let run = bench.reserve(task).await;
        assert_eq!(run.mode, Mode::Run);
        abort_run(&bench, &run).await;
        // Marked and killed, also in the handler: only the handler runs.
        let mut bench = bench;
        for _ in 0..2 {
            bench = bench.killed(&all).await;
            bench.line.resume();
            assert_eq!(bench.reserve(task).await.mode, Mode::Abort);
        }
        let bench = bench.killed(&all).await;
        bench.line.resume();
        bench.run_abort(task).await;
        let bench = bench.killed(&all).await;
        bench.line.resume();
        let plan = bench.plan().await;
        assert_eq!((plan.runs, plan.aborts), (vec![], vec![]));
    })
    .await;
}

async fn end_aborts(bench: &Bench, order: Vec<TaskId>) {
    for task in &order {
        let changed = bench.line.changed();
        loop {
            let notified = changed.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if bench.plan().await.aborts.contains(task) {
                break;
            }
            notified.await;
        }
        bench.run_abort(*task).await;
    }
    bench.plan().await;
}

#[tokio::test]
async fn s087_the_abort_of_a_conversation_stops_at_background_work_unless_it_is_asked_for() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let (front, back) = (bench.task("k").await, bench.background("k").await);
        let child = bench.child("k", back).await;
        let owned = bench.conversation(back).await;
        let below = bench.in_conversation("k", owned).await;
        let abort = |background| HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background };
        let (answer, ()) = tokio::join!(bench.host(abort(false)), end_aborts(&bench, vec![front]));
        assert_eq!(answer, Answer::Done);
        for task in [back, child, below] {
            assert!(!bench.record(task).await.abort_requested);
        }
        let (answer, ()) = tokio::join!(bench.host(abort(true)), end_aborts(&bench, vec![child, below, back]));
        assert_eq!(answer, Answer::Done);
        for task in [back, child, below] {
            assert_eq!(bench.status(task).await, "terminal aborted");
        }
        // The anchor is over; what is below it is reached all the same.
        let later = bench.in_conversation("k", owned).await;
        let (answer, ()) = tokio::join!(bench.host(abort(true)), end_aborts(&bench, vec![later]));
        assert_eq!(answer, Answer::Done);
    })
    .await;
}

#[tokio::test]
async fn s088_the_queued_inputs_of_every_reached_conversation_are_withdrawn() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k"), scripted("pi.generation")]).await;
        let anchor = bench.background("k").await;
        let owned = bench.conversation(anchor).await;
        let submit = async |text: &str| {
            let call = HostCall::Submit { conversation: owned, draft: SubmissionDraft::input(text) };
            let Answer::Value(record) = bench.host(call).await else { panic!("not admitted") };
            record.to::<picofleet_session::SubmissionRecord>().unwrap()
        };
        let (placed, queued) = (submit("one").await, submit("two").await);
        let status = async |id| bench.line.session().store().submission(id).await.unwrap().unwrap().status();
        assert_eq!(status(queued.id).await, picofleet_session::SubmissionStatus::Queued);
        assert_eq!(status(placed.id).await, picofleet_session::SubmissionStatus::Placed);
        let abort = bench.host(HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background: false });
        assert_eq!(abort.await, Answer::Done);
        assert_eq!(status(queued.id).await, picofleet_session::SubmissionStatus::Queued, "behind a boundary");
        assert_eq!(bench.abort(anchor).await, Answer::Value("marked".into()));
        assert_eq!(status(queued.id).await, picofleet_session::SubmissionStatus::Unanswered);
    })
    .await;
}
