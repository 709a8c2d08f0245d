//! A session that nobody uses is given up, and one that is given up keeps its invocations.

use picofleet_harness::step::Mode;
use picofleet_harness::usage::USAGE;
use picofleet_harness::wire::{Answer, Begin, HoldId, HostCall, Next, Refusal, Request, Said, WatchCall, WatchId, Watched};
use picofleet_session::{ROOT_CONVERSATION_ID, Standing};

use crate::support::*;

#[tokio::test]
async fn a_line_rests_only_where_nobody_uses_it() {
    both(async |store| {
        let bench = Bench::running(store, &[scripted("k")]).await;
        let rests = async || bench.line.rest().await.unwrap();
        let visit = bench.line.visit().unwrap();
        assert!(!rests().await, "somebody uses it");
        drop(visit);
        let task = bench.task("k").await;
        assert!(!rests().await, "a task is live");
        bench.complete(task).await;
        let watch = bench.line.watch(ROOT_CONVERSATION_ID).await.unwrap();
        assert!(!rests().await, "somebody watches");
        drop(watch);
        let hold = HoldId::random();
        let begun = bench.line.handle(Request::Begin { hold, begin: Box::new(Begin::default()) }).await;
        assert!(matches!(begun, Answer::Begun(_)), "{begun:?}");
        assert!(!bench.line.quiet(), "a closure holds the line");
        assert_eq!(bench.line.handle(Request::Release { hold }).await, Answer::Done);
        while !bench.line.quiet() {
            tokio::task::yield_now().await;
        }
        assert_eq!(bench.line.session().standing(), Standing::Open);
        assert!(rests().await);
        assert!(bench.line.visit().is_none() && bench.line.rests());
        assert_eq!(bench.line.session().standing(), Standing::NotOwner);
        assert_eq!(bench.host(HostCall::Root).await, Answer::Refused(Refusal::AskAgain));
        let bench = bench.killed(&[scripted("k")]).await;
        assert_eq!(bench.status(task).await, "terminal completed");
    })
    .await;
}

/// A host that is gone says nothing any more, and nothing is committed either.
#[tokio::test(start_paused = true)]
async fn a_host_that_is_gone_keeps_no_line_from_resting() {
    let bench = Bench::running(std::sync::Arc::new(picofleet_storage::memory::MemoryStore::new()), &[]).await;
    let edit = async |tx: &picofleet_session::Tx| {
        tx.doc(&USAGE, ROOT_CONVERSATION_ID).await?.draft.key("models").set(j("{}")).map_err(picofleet_session::TxError::from)?;
        Ok::<_, picofleet_session::CommitError>(())
    };
    bench.line.session().commit(edit).await.unwrap();
    let address = USAGE.reader(ROOT_CONVERSATION_ID).address().clone();
    let (begin, watch) = (Box::new(WatchCall::Begin(address)), WatchId::random());
    let begun = bench.line.handle(Request::Watch { watch, by: None, call: begin }).await;
    let Answer::Watched(Watched::Begun(stored)) = begun else { panic!("{begun:?}") };
    let document = stored.record.create.id;
    for _ in 0..2 {
        assert!(!bench.line.quiet(), "it may come again");
        tokio::time::advance(std::time::Duration::from_secs(179)).await;
        assert!(!bench.line.quiet(), "it may come again");
        let next = Box::new(WatchCall::Next { document, seen: 0, timeout_ms: 0 });
        bench.line.handle(Request::Watch { watch, by: None, call: next }).await;
    }
    tokio::time::advance(std::time::Duration::from_secs(181)).await;
    assert!(bench.line.quiet(), "nobody waits for it any more");
}

#[tokio::test]
async fn a_line_that_closes_does_not_rest() {
    let bench = Bench::running(std::sync::Arc::new(picofleet_storage::memory::MemoryStore::new()), &[]).await;
    assert!(bench.line.quiet());
    bench.line.begin_close();
    assert!(!bench.line.quiet());
    assert!(!bench.line.rest().await.unwrap());
}

#[tokio::test]
async fn a_release_leaves_invocations_alone_and_frees_the_line() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let (task, other) = (bench.task("k").await, bench.task("k").await);
        let mut run = bench.reserve(task).await;
        bench.reserve(other).await;
        run.commit(&bench, r#"{"to":{"phase":"b"}}"#).await;
        // A closure that has the line doesn't keep it back.
        let hold = HoldId::random();
        let begun = bench.line.handle(Request::Begin { hold, begin: Box::new(Begin::default()) }).await;
        assert!(matches!(begun, Answer::Begun(_)), "{begun:?}");
        bench.line.release().await;
        assert_eq!(bench.line.cancellations(), [], "nobody is told to stop");
        let said = || Said::Decide { version: 1, decision: j(r#"{"to":{"phase":"c"}}"#), last: true };
        assert_eq!(run.say(&bench, said()).await, Answer::Refused(Refusal::AskAgain));
        let bench = bench.taken_over(&all).await;
        assert_eq!((bench.status(task).await.as_str(), bench.status(other).await.as_str()), ("running", "running"));
        let Answer::Said { next: Some(Next::Continue(record)), .. } = run.say(&bench, said()).await else { panic!("it does not go on") };
        assert_eq!(record.restarts, 0);
    })
    .await;
}

#[tokio::test]
async fn an_abort_handler_goes_on_as_one_over_a_takeover() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let [fresh, midway, memo] = [bench.task("k").await, bench.task("k").await, bench.task("k").await];
        let mut runs = Vec::new();
        for task in [fresh, midway, memo] {
            bench.abort(task).await;
            let run = bench.reserve(task).await;
            assert_eq!(run.mode, Mode::Abort);
            runs.push(run);
        }
        runs[1].commit(&bench, r#"{"to":{"phase":"b"}}"#).await;
        let said = Said::Memo { name: "m".into(), candidate: 7.into() };
        assert!(matches!(runs[2].say(&bench, said).await, Answer::Said { .. }));
        // Twice, so that what a takeover found is there for the next one.
        let bench = bench.taken_over(&all).await.taken_over(&all).await;
        assert_eq!(bench.line.cancellations(), [], "it is not told to stop as a run would be");
        for mut run in runs {
            assert_eq!(run.decide(&bench, r#"{"end":{"status":"aborted"}}"#).await, Next::Stop);
            let record = bench.record(run.task).await;
            assert_eq!((bench.status(run.task).await.as_str(), record.restarts), ("terminal aborted", 0));
        }
    })
    .await;
}

#[tokio::test]
async fn a_run_that_was_marked_stays_a_run_over_a_takeover() {
    both(async |store| {
        let all = [scripted("k")];
        let bench = Bench::running(store, &all).await;
        let task = bench.task("k").await;
        let mut run = bench.reserve(task).await;
        run.commit(&bench, r#"{"to":{"phase":"b"}}"#).await;
        let mark = async |tx: &picofleet_session::Tx| {
            let record = tx.task(task).await?.unwrap();
            tx.put_task(picofleet_session::TaskRecord { abort_requested: true, ..record }).await?;
            Ok::<_, picofleet_session::CommitError>(())
        };
        bench.line.session().commit(mark).await.unwrap();
        let bench = bench.taken_over(&all).await;
        assert_eq!(run.last(&bench, r#"{"to":1}"#).await, Answer::Refused(Refusal::Gone));
        assert!(matches!(run.say(&bench, Said::PhaseEnd(None)).await, Answer::Said { next: Some(Next::Stop), .. }));
        bench.run_abort(task).await;
    })
    .await;
}
