//! Section P: the end of a session, in order and by a failure of its storage.

use std::sync::{Arc, Mutex};

use picofleet_harness::effects::Fault;
use picofleet_harness::host::{HostError, SubmitError};
use picofleet_harness::kinds::{GENERATION, TOOL};
use picofleet_harness::line::Followed;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{ToolError, ToolResult};
use picofleet_harness::wire::{Answer, HostCall, HostFailure, Refusal, Request, Said};
use picofleet_harness_tests::{Closure, Kit, Reply, scenario};
use picofleet_session::{ConversationId, EntryDraft, ROOT_CONVERSATION_ID, SubmissionStatus, TaskState};
use tokio::sync::Semaphore;

use super::tools::{add, results};

/// Tells that it began and that it is told to stop, and stops only when it is let go.
#[derive(Clone)]
struct Deaf {
    begun: Arc<Semaphore>,
    told: Arc<Semaphore>,
    go: Arc<Semaphore>,
}

async fn next(signal: &Semaphore) {
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), signal.acquire()).await;
    waited.expect("it comes that far").unwrap().forget();
}

impl Deaf {
    async fn add(kit: &Kit) -> Self {
        let [begun, told, go] = std::array::from_fn(|_| Arc::new(Semaphore::new(0)));
        let this = Self { begun, told, go };
        let deaf = this.clone();
        let mut tool = Closure::new("deaf", move |_, api| {
            let deaf = deaf.clone();
            async move {
                deaf.begun.add_permits(1);
                api.cancelled().cancelled().await;
                deaf.told.add_permits(1);
                next(&deaf.go).await;
                Err(ToolError::new("over"))
            }
        });
        tool.spec.replay = picofleet_harness::tool::Replay::Safe;
        add(kit, tool).await;
        this
    }

    /// Makes the root busy with a call of it.
    async fn busy(&self, kit: &Kit) -> picofleet_harness::host::Submission {
        kit.stage.give(Reply::call("c1", "deaf", "{}"));
        let a = kit.say("a").await;
        next(&self.begun).await;
        a
    }
}

fn note(conversation: ConversationId) -> Request {
    let draft = SubmissionDraft::write(EntryDraft::new("note"));
    Request::Host(Box::new(HostCall::Submit { conversation, draft }))
}

scenario!(s197_a_close_is_sealed_before_it_signals_and_joins_what_ignores_that, async |kit| {
    let deaf = Deaf::add(&kit).await;
    let a = deaf.busy(&kit).await;
    let f = kit.say("f").await;
    let tool = kit.tasks(TOOL).await.remove(0);
    let (entries, reserved, lines) = (kit.kinds().await, kit.faults.reserved(), kit.disk.lines());
    let TaskState::Running { checkpoint } = tool.state else { panic!("not running") };
    let _ = kit.disk.written();
    let closing = kit.closing();
    next(&deaf.told).await;
    // It has been told, so the seal is there: nothing is admitted and nothing is reserved.
    assert_eq!(kit.call(note(ROOT_CONVERSATION_ID)).await, Answer::Refused(Refusal::AskAgain));
    let abort = HostCall::AbortTask { task: tool.id };
    assert_eq!(kit.call(Request::Host(Box::new(abort))).await, Answer::Refused(Refusal::AskAgain));
    assert!(kit.disk.written().is_empty());
    assert!(!closing.is_finished() && kit.disk.lines() == lines, "it waits for the handler");
    deaf.go.add_permits(1);
    closing.await.unwrap();
    assert_eq!((kit.disk.lines(), kit.faults.reserved()), (lines - 1, reserved));

    kit.reopen_paused().await;
    let again = kit.task(tool.id).await;
    assert_eq!((again.state, again.restarts), (TaskState::Pending { checkpoint }, 0), "given back, and no restart is counted");
    let (generation, _) = kit.run().await.unwrap();
    let TaskState::Waiting { on, .. } = kit.task(generation).await.state else { panic!("it does not wait") };
    assert_eq!((on, kit.task(generation).await.restarts), (vec![tool.id], 0));
    assert_eq!(kit.kinds().await, entries);
    assert_eq!(f.id(), kit.inbox().await[0].0);
    kit.stage.give(Reply::text("x"));
    kit.harness().resume().await.unwrap();
    next(&deaf.begun).await;
    deaf.go.add_permits(1);
    kit.harness().abort_task(generation).await.unwrap();
    assert_eq!(crate::reason(&kit.settled(&a).await), "aborted");
    assert_eq!(kit.inbox().await.len(), 1);
});

scenario!(s197_a_close_starts_no_abort_handler_and_keeps_the_mark, async |kit| {
    let deaf = Deaf::add(&kit).await;
    let a = deaf.busy(&kit).await;
    let (generation, _) = kit.run().await.unwrap();
    let tool = kit.tasks(TOOL).await.remove(0).id;
    let marking = tokio::spawn({
        let harness = kit.harness();
        async move { harness.abort_task(tool).await }
    });
    next(&deaf.told).await;
    let reserved = kit.faults.reserved();
    let closing = kit.closing();
    kit.until("the seal", async || kit.call(note(ROOT_CONVERSATION_ID)).await == Answer::Refused(Refusal::AskAgain)).await;
    deaf.go.add_permits(1);
    closing.await.unwrap();
    let _ = marking.await.unwrap();
    assert_eq!(kit.faults.reserved(), reserved, "the abort handler was not begun");
    kit.reopen_paused().await;
    let marked = kit.task(tool).await;
    assert!(marked.abort_requested && matches!(marked.state, TaskState::Pending { .. }), "{marked:?}");
    assert!(results(&kit).await.is_empty(), "no outcome was written");
    kit.stage.give(Reply::text("x"));
    kit.harness().resume().await.unwrap();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(results(&kit).await.len(), 1);
    assert!(kit.task(generation).await.terminal());
});

scenario!(s197_a_close_writes_no_outcome, async |kit| {
    let a = kit.busy("a").await;
    let (generation, _) = kit.run().await.unwrap();
    let before = kit.kinds().await;
    kit.stop().await;
    kit.stage.give(Reply::text("x"));
    kit.reopen().await;
    // The unsafe call is not repeated and ends as interrupted; the generation that waited goes on.
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert!(matches!(kit.task(generation).await.state, TaskState::Terminal { .. }));
    let kinds = kit.kinds().await;
    assert_eq!(kinds[..before.len()], before[..]);
    assert_eq!(kinds[before.len()..], ["pi.tool-result", "pi.assistant"]);
});

scenario!(s197_a_closed_session_takes_no_call, async |kit| {
    let root = kit.root().await;
    kit.stop().await;
    let refused = root.submit(SubmissionDraft::input("late")).await.map(|submission| submission.id());
    assert!(matches!(refused, Err(SubmitError::Host(HostError::Unavailable(_)))), "{refused:?}");
    kit.reopen().await;
    assert!(kit.kinds().await.is_empty());
});

scenario!(s197_a_mark_survives_a_close, async |kit| {
    let a = kit.busy("a").await;
    let (generation, _) = kit.run().await.unwrap();
    kit.harness().abort_task(generation).await.unwrap();
    kit.reopen().await;
    assert_eq!(crate::reason(&kit.settled(&a).await), "aborted");
    assert!(kit.task(generation).await.abort_requested);
    assert_eq!(kit.document("pi.live").await, crate::empty());
    let results = kit.kinds().await.iter().filter(|kind| *kind == "pi.tool-result").count();
    assert_eq!((results, kit.stage.asked().len()), (1, 1));
});

/// The tool that takes a memo.
const MEMO: &str = "memo";

type Ends = Arc<Mutex<Vec<(String, bool)>>>;

/// A tool that commits an entry when it is let go, or takes a memo where it is the one for that; it keeps whether it was stored, and fails.
async fn committing(kit: &Kit, name: &'static str, ends: &Ends) -> (Arc<Semaphore>, Arc<Semaphore>) {
    let [go, told]: [Arc<Semaphore>; 2] = std::array::from_fn(|_| Arc::new(Semaphore::new(0)));
    let (ends, inside, tell) = (Arc::clone(ends), Arc::clone(&go), Arc::clone(&told));
    let tool = Closure::new(name, move |_, api| {
        let (ends, go, told) = (Arc::clone(&ends), Arc::clone(&inside), Arc::clone(&tell));
        async move {
            next(&go).await;
            let write = async {
                if name == MEMO {
                    return api.memo("kept", &1).await.is_ok();
                }
                let written = api.commit(async |tx| {
                    tx.append_entry(api.conversation_id(), EntryDraft::new(name)).await?;
                    Ok::<_, Fault>(())
                });
                written.await.is_ok()
            };
            let cancelled = async {
                api.cancelled().cancelled().await;
                told.add_permits(1);
            };
            let (written, ()) = tokio::join!(write, cancelled);
            ends.lock().unwrap().push((name.to_owned(), written));
            Err::<ToolResult, _>(ToolError::new("it fails behind the seal"))
        }
    });
    add(kit, tool).await;
    (go, told)
}

scenario!(x097_an_admitted_commit_settles_and_a_queued_one_is_refused, async |kit| {
    let ends = Ends::default();
    let (first, told) = committing(&kit, "first", &ends).await;
    let (second, _) = committing(&kit, "second", &ends).await;
    let (third, _) = committing(&kit, MEMO, &ends).await;
    kit.stage.give(Reply::call("c1", "first", "{}").and_call("c2", "second", "{}").and_call("c3", MEMO, "{}"));
    kit.say("a").await;
    kit.until("both calls", async || {
        let tasks = kit.tasks(TOOL).await;
        tasks.len() == 3 && tasks.iter().all(|task| format!("{:?}", task.state).contains("execute"))
    })
    .await;
    let queued = |request: &Request| matches!(request, Request::Begin { .. } | Request::Say { said: Said::Memo { .. }, .. });
    let said = || kit.faults.seen().iter().filter(|request| queued(request)).count();
    let admitted = kit.disk.hold();
    first.add_permits(1);
    admitted.arrived().await;
    second.add_permits(1);
    third.add_permits(1);
    kit.until("the queued commits", async || said() == 3).await;
    let closing = kit.closing();
    next(&told).await;
    drop(admitted);
    closing.await.unwrap();
    let mut ended = ends.lock().unwrap().clone();
    ended.sort();
    let expected = [("first".to_owned(), true), (MEMO.to_owned(), false), ("second".to_owned(), false)];
    assert_eq!(ended, expected);
    kit.reopen_paused().await;
    let kinds = kit.kinds().await;
    assert_eq!(kinds.iter().filter(|kind| *kind == "first" || *kind == "second").collect::<Vec<_>>(), ["first"]);
    for task in kit.tasks(TOOL).await {
        assert!(matches!(task.state, TaskState::Pending { .. }) && task.memos.is_none(), "no fault is written, and no memo: {task:?}");
    }
    assert!(results(&kit).await.is_empty());
});

scenario!(one_thread x098_a_failure_of_storage_ends_the_session_and_the_next_opening_recovers, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::text("partial")).await;
    kit.until("a partial", async || root.live().await.unwrap().generation.is_some_and(|generation| generation.message.is_some())).await;
    let mut watch = kit.watch_root().await;
    let (transport, session) = (kit.transport(), kit.session());
    let call = |request: Request| {
        let transport = Arc::clone(&transport);
        tokio::spawn(async move { transport.call(session, request).await.unwrap() })
    };
    let waiting = call(Request::Host(Box::new(HostCall::WaitSubmission { submission: a.id(), timeout_ms: 60_000 })));
    let batch = kit.disk.hold();
    let first = call(note(root.id()));
    batch.arrived().await;
    let others = [call(note(root.id())), call(note(root.id()))];
    batch.lose();
    let Answer::Failed(HostFailure::OutcomeUnknown(why)) = first.await.unwrap() else { panic!("the first call has the error") };
    assert!(why.contains("the backend ended before it answered"), "{why}");
    for other in others {
        let answer = other.await.unwrap();
        // It met the end of the session, or came behind it and opened the next one.
        let ended = answer == Answer::Failed(HostFailure::OutcomeUnknown(why.clone())) || matches!(answer, Answer::Value(_));
        assert!(ended, "{answer:?}");
    }
    assert_eq!(waiting.await.unwrap(), Answer::Refused(Refusal::AskAgain), "a wait ends at once");
    assert!(matches!(until_end(&mut watch).await, Followed::End), "a watch ends");
    kit.stage.release();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.stage.asked().len(), 1, "the request goes on over the failure");
    let ended = kit.reported().iter().filter(|report| report.contains("SessionEnded")).count();
    assert_eq!(ended, 1, "{:?}", kit.reported());
    assert_eq!(kit.tasks(GENERATION).await[0].restarts, 0);
    let notes = kit.kinds().await.iter().filter(|kind| *kind == "note").count();
    assert!(notes <= 2, "what was lost was not written");
});

/// What comes behind the last frame.
async fn until_end(watch: &mut picofleet_harness::line::ConversationWatch) -> Followed {
    loop {
        let followed = tokio::time::timeout(std::time::Duration::from_secs(60), watch.next()).await.expect("the watch goes on");
        if !matches!(followed, Followed::Frame(_)) {
            return followed;
        }
    }
}
