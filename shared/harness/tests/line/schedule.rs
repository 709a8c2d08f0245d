//! Pause, resume, close and the step (sections 2.2 and 5.1).

use picofleet_harness::inspection::Scheduling;
use picofleet_harness::wire::{Answer, HostCall, HostFailure, Next, Read, Refusal, Request, Said};
use picofleet_session::ROOT_CONVERSATION_ID;

use crate::support::*;

#[tokio::test]
async fn s195_open_dispatches_nothing() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::new(store, &all).await;
        let task = bench.task("k").await;
        assert_eq!(bench.runs().await, []);
        assert!(bench.try_reserve(task).await.is_none());
        bench.line.handle(Request::Read(Read::Task(task))).await;
        assert_eq!(bench.inspect().await.scheduling, Scheduling::Paused);
        assert_eq!(bench.runs().await, [], "a viewer enables nothing");
        for _ in 0..2 {
            assert_eq!(bench.host(HostCall::Resume).await, Answer::Done);
            assert_eq!(bench.runs().await, [task]);
        }
        assert_eq!(bench.inspect().await.scheduling, Scheduling::Running);
        bench.line.close().await.unwrap();
        assert!(matches!(bench.host(HostCall::Resume).await, Answer::Failed(HostFailure::Unavailable(_))));
    })
    .await;
}

#[tokio::test]
async fn s195_what_asks_for_progress_enables_scheduling() {
    both(async |store| {
        let all = [scripted("k")];
        let mut bench = Bench::new(store, &all).await;
        let task = bench.task("k").await;
        let calls = [
            HostCall::WaitTask { task, timeout_ms: 1 },
            HostCall::WaitIdle { conversation: None, timeout_ms: 1 },
            HostCall::WaitIdle { conversation: Some(ROOT_CONVERSATION_ID), timeout_ms: 1 },
        ];
        for call in calls {
            bench = bench.killed(&all).await;
            assert_eq!(bench.runs().await, []);
            bench.host(call).await;
            assert_eq!(bench.runs().await, [task]);
        }
    })
    .await;
}

#[tokio::test]
async fn x032_an_unknown_task_is_refused_and_a_terminal_one_answers_at_once() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        bench.complete(task).await;
        let unknown = picofleet_session::TaskId::new(9_999).unwrap();
        for call in [HostCall::WaitTask { task: unknown, timeout_ms: 60_000 }, HostCall::AbortTask { task: unknown }] {
            let Answer::Failed(failure) = bench.host(call).await else { panic!("found") };
            assert_eq!(failure.to_string(), "task 9999 does not exist");
        }
        assert_eq!(bench.abort(task).await, Answer::Value("terminal".into()));
        let Answer::Value(record) = bench.host(HostCall::WaitTask { task, timeout_ms: 60_000 }).await else { panic!("no record") };
        assert_eq!(record.to::<picofleet_session::TaskRecord>().unwrap(), bench.record(task).await);
    })
    .await;
}

#[tokio::test]
async fn s062_x028_a_phase_needs_progress_by_value() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        assert!(matches!(run.decide(&bench, r#"{"to":{"phase":"b","list":[1]}}"#).await, Next::Continue(_)));
        assert_eq!(run.decide(&bench, r#"{"to":{"list":[1],"phase":"b"}}"#).await, Next::Stop);
        assert_eq!(bench.fault(task).await, "the phase returned without durable progress");
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        run.fails(&bench, "boom").await;
        assert_eq!(bench.fault(task).await, "boom");
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        assert!(run.rejected(&bench, r#"{"panic":1}"#).await.contains("panicked"));
        assert!(bench.fault(task).await.contains("panicked"));
    })
    .await;
}

#[tokio::test]
async fn a_closing_line_takes_no_saying_and_gives_back() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        bench.line.begin_close();
        assert_eq!(bench.inspect().await.scheduling, Scheduling::Closing);
        assert_eq!(bench.line.cancellations().len(), 1);
        assert!(!bench.line.joined());
        let late = Said::Decide { version: 1, decision: j(r#"{"to":1}"#), last: true };
        assert_eq!(run.say(&bench, late).await, Answer::Refused(Refusal::Gone));
        run.ends(&bench).await;
        assert!(bench.line.joined());
        let bench = bench.reopened(&all).await;
        assert_eq!(bench.status(task).await, "pending");
        bench.line.resume();
        assert_eq!(bench.reserve(task).await.record.restarts, 0);
    })
    .await;
}
