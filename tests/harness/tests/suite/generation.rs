//! Section I: generation.

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_harness::config::{ConfigPatch, RetryPolicy};
use picofleet_harness::frame::{DocumentFrame, Frame};
use picofleet_harness::hooks::{GenerationHooks, GenerationTask};
use picofleet_harness::host::{Conversation, SubmitError};
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::task::{Applied, LineTask};
use picofleet_harness_tests::{Kit, Reply, scenario, text};
use picofleet_models::model::ThinkingLevel;
use picofleet_session::message::{Message, StopReason};
use picofleet_session::{InputState, Json, Millis, Settlement, SubmissionState, SubmissionStatus, TaskOutcome, TaskRecord, TaskState, Tx};

use super::{detail, empty, frame, reason};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// When the pause before the next attempt ends, once there is one.
async fn retry_at(root: &Conversation) -> Option<Millis> {
    root.live().await.unwrap().generation.and_then(|generation| generation.retry).map(|retry| retry.at)
}

/// When a deferred response is asked for again.
async fn poll_at(root: &Conversation) -> Option<Millis> {
    root.live().await.unwrap().generation.and_then(|generation| generation.deferred).map(|deferred| deferred.poll_at)
}

async fn partial(root: &Conversation) -> bool {
    let generation = root.live().await.unwrap().generation;
    generation.and_then(|generation| generation.message).is_some_and(|message| message.to_string().contains("partial"))
}

scenario!(s123_one_answer_with_a_system_section, async |kit| {
    kit.registry.section("preamble", false, |_| Some("Be brief.".into())).unwrap();
    let root = kit.root().await;
    let a = kit.turn("a", Reply::text("x")).await;
    let entries = kit.entries(&root).await;
    assert_eq!(entries.iter().map(|entry| entry.kind.as_str()).collect::<Vec<_>>(), ["pi.user", "pi.system", "pi.assistant"]);
    let task = entries[1].by_task_id.unwrap();
    assert_eq!((entries[0].by_task_id, entries[2].by_task_id), (None, Some(task)));
    let SubmissionState::Input(InputState::Done { answer, .. }) = a.state else { panic!("{a:?}") };
    assert_eq!(answer, entries[2].id);
    let TaskState::Terminal { outcome: TaskOutcome::Completed { result } } = kit.task(task).await.state else { panic!("not completed") };
    assert_eq!(result.to_string(), format!(r#"{{"entryId":{answer}}}"#));
    assert_eq!(kit.document("pi.live").await, empty());
    kit.turn("b", Reply::text("y")).await;
    assert_eq!(kit.kinds().await[3..], ["pi.user", "pi.assistant"]);
});

scenario!(s124_no_model_ends_the_run, async |kit| {
    let root = kit.root().await;
    let unknown = picofleet_harness::config::ModelRef { provider: "p".to_owned(), model_id: "unknown".to_owned() };
    for (number, model) in [None, Some(unknown)].into_iter().enumerate() {
        root.set_model(model).await.unwrap();
        let mut watch = kit.watch_root().await;
        let a = kit.say("a").await;
        let picofleet_harness::line::Followed::Frame(frame) = watch.next().await else { panic!("no frame") };
        let task = frame.tasks[0].id;
        assert_eq!(reason(&kit.settled(&a).await), "no_model");
        assert_eq!(kit.kinds().await, vec!["pi.user"; number + 1]);
        let TaskState::Terminal { outcome: TaskOutcome::Failed { error, .. } } = kit.task(task).await.state else { panic!("not failed") };
        assert_eq!(error.detail.unwrap().to_string(), r#"{"reason":"no_model"}"#);
        assert_eq!(kit.document("pi.live").await, empty());
    }
});

scenario!(s125_a_retryable_error_is_retried, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::error("503 overloaded"));
    let a = kit.say("a").await;
    kit.until("a pause", async || retry_at(&root).await.is_some()).await;
    let retry = root.live().await.unwrap().generation.unwrap().retry.unwrap();
    assert_eq!((retry.at, retry.error.as_str()), (Millis(kit.clock.now().0 + 2_000), "503 overloaded"));
    kit.stage.give(Reply::text("x").held());
    kit.advance(2_000);
    kit.until("the second request", async || kit.stage.asked().len() == 2).await;
    assert_eq!(root.live().await.unwrap().generation.unwrap().attempt, 2);
    kit.stage.release();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    let entries = kit.entries(&root).await;
    let stops: Vec<StopReason> = entries
        .iter()
        .filter_map(|entry| match entry.model.as_ref()?.first()? {
            Message::Assistant(message) => Some(message.stop_reason),
            _ => None,
        })
        .collect();
    assert_eq!(stops, [StopReason::Error, StopReason::Stop]);
});

scenario!(s126_retries_end, async |kit| {
    let root = kit.root().await;
    root.set_retry_policy(Some(RetryPolicy { max_retries: 1, ..RetryPolicy::default() })).await.unwrap();
    kit.stage.give(Reply::error("503 overloaded"));
    kit.stage.give(Reply::error("503 overloaded"));
    let a = kit.say("a").await;
    kit.until("a pause", async || retry_at(&root).await.is_some()).await;
    kit.advance(2_000);
    let record = kit.settled(&a).await;
    assert_eq!((reason(&record), detail(&record)), ("model_error", "503 overloaded".to_owned()));
    assert_eq!(kit.stage.asked().len(), 2);
});

scenario!(s127_no_retry_where_none_is_wanted_or_none_can_help, async |kit| {
    let record = kit.turn("a", Reply::error("401 unauthorized")).await;
    assert_eq!((reason(&record), detail(&record)), ("model_error", "401 unauthorized".to_owned()));
    kit.root().await.set_retry_policy(Some(RetryPolicy { enabled: false, ..RetryPolicy::default() })).await.unwrap();
    let record = kit.turn("b", Reply::error("503 overloaded")).await;
    assert_eq!((reason(&record), detail(&record)), ("model_error", "503 overloaded".to_owned()));
    assert_eq!(kit.stage.asked().len(), 2);
});

scenario!(s128_a_pause_survives_a_reopen, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::error("503 overloaded"));
    let a = kit.say("a").await;
    kit.until("a pause", async || retry_at(&root).await.is_some()).await;
    let (task, _) = kit.run().await.unwrap();
    let until = kit.clock.now().0 + 2_000;
    let record = Json::from_serde(&kit.task(task).await).unwrap();
    let checkpoint = record.get("state").and_then(|state| state.get("checkpoint")).unwrap().to_string();
    assert_eq!(checkpoint, format!(r#"{{"phase":"retry","attempt":1,"until":{until}}}"#));
    kit.advance(1_999);
    kit.reopen().await;
    kit.stage.give(Reply::text("x"));
    // A whole turn of another conversation passes without a request of this one.
    let other = kit.harness().create_conversation(picofleet_harness::host::ConversationOptions::ownerless()).await.unwrap();
    let missing = other.submit(picofleet_harness::submission::SubmissionDraft::input("b")).await.unwrap();
    assert_eq!(reason(&kit.settled(&missing).await), "no_model");
    assert_eq!(kit.stage.asked().len(), 1);
    kit.advance(1);
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.stage.asked().len(), 2);
});

scenario!(s129_a_deferred_response_is_polled, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::deferred(None));
    let a = kit.say("a").await;
    kit.until("a poll", async || poll_at(&root).await.is_some()).await;
    let first = poll_at(&root).await.unwrap();
    assert_eq!(first.0, kit.clock.now().0 + 5_000);
    kit.stage.give(Reply::deferred(Some(0)));
    kit.advance(5_000);
    kit.until("the next poll", async || poll_at(&root).await.is_some_and(|at| at > first)).await;
    kit.stage.give(Reply::text("x"));
    kit.advance(5_000);
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.stage.fetched().len(), 2);
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:x"]);
});

scenario!(s130_an_abort_while_polling_cancels_the_response, async |kit| {
    let root = kit.root().await;
    for refuses in [false, true] {
        if refuses {
            kit.stage.refuse_cancel();
        }
        let before = kit.stage.cancelled().len();
        kit.stage.give(Reply::deferred(None));
        let a = kit.say("a").await;
        kit.until("a poll", async || poll_at(&root).await.is_some()).await;
        root.abort(false).await.unwrap();
        assert_eq!(reason(&kit.settled(&a).await), "aborted");
        assert_eq!(kit.stage.cancelled().len(), before + 1);
        assert_eq!(kit.reported().len(), usize::from(refuses), "a refusal is only reported: {:?}", kit.reported());
        assert_eq!(kit.document("pi.live").await, empty());
    }
    assert_eq!(kit.said().await, ["pi.user:a", "pi.user:a"]);
});

scenario!(s131_an_abort_keeps_the_committed_part, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::text("partial text")).await;
    kit.until("a partial", async || partial(&root).await).await;
    root.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&a).await), "aborted");
    let entries = kit.entries(&root).await;
    let last = entries.last().unwrap();
    let Message::Assistant(message) = &last.model.as_ref().unwrap()[0] else { panic!("{last:?}") };
    assert_eq!((message.stop_reason, text(last)), (StopReason::Aborted, "partial text".to_owned()));
    assert_eq!(entries.iter().filter(|entry| entry.kind == "pi.assistant").count(), 1);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s132_a_crash_mid_stream_keeps_the_committed_part_and_asks_again, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::text("partial text")).await;
    kit.until("a partial", async || partial(&root).await).await;
    kit.stop().await;
    kit.stage.give(Reply::text("x"));
    kit.reopen().await;
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:partial text", "pi.assistant:x"]);
});

scenario!(s133_a_message_that_is_no_json_faults_the_task, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::text("partial text").broken()).await;
    kit.until("a partial", async || partial(&root).await).await;
    let (task, _) = kit.run().await.unwrap();
    kit.stage.release();
    let record = kit.settled(&a).await;
    let TaskState::Terminal { outcome: TaskOutcome::Faulted { error } } = kit.task(task).await.state else { panic!("not faulted") };
    assert_eq!((reason(&record), detail(&record)), ("faulted", error.message));
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:partial text"]);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(x055_a_poll_over_a_reopen_uses_the_stored_handle, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::deferred(None));
    let a = kit.say("a").await;
    kit.until("a poll", async || poll_at(&root).await.is_some()).await;
    kit.reopen().await;
    kit.stage.give(Reply::deferred(None));
    let root = kit.root().await;
    let first = poll_at(&root).await.unwrap();
    kit.advance(5_000);
    kit.until("the next poll", async || poll_at(&root).await.is_some_and(|at| at > first)).await;
    assert_eq!(kit.stage.asked().len(), 1);
    assert_eq!(kit.stage.fetched().len(), 1);
    kit.stage.remove_model();
    kit.advance(5_000);
    assert_eq!(reason(&kit.settled(&a).await), "no_model");
});

scenario!(x056_a_deferred_response_commits_no_partial, async |kit| {
    let root = kit.root().await;
    let mut watch = kit.watch_root().await;
    kit.stage.give(Reply::deferred(None));
    kit.say("a").await;
    loop {
        let picofleet_harness::line::Followed::Frame(_) = watch.next().await else { panic!("no frame") };
        let live: picofleet_harness::live::LiveState = watch.mount().get("pi.live").unwrap().to().unwrap();
        let Some(generation) = live.generation else { continue };
        assert_eq!(generation.message, None);
        if generation.deferred.is_some() {
            break;
        }
    }
    root.abort(false).await.unwrap();
});

scenario!(x058_options_are_pinned_by_attempt_and_the_policy_is_read_when_it_is_needed, async |kit| {
    let root = kit.root().await;
    let options = |ms| Json::object([("timeoutMs", Json::from(ms))]);
    root.set_stream_options(options(1)).await.unwrap();
    root.set_retry_policy(Some(RetryPolicy { enabled: false, ..RetryPolicy::default() })).await.unwrap();
    let a = kit.asking("a", Reply::error("503 overloaded")).await;
    // Both change while the request runs: the policy counts for it, the options for the next attempt.
    let patch = ConfigPatch { retry: Some(None), stream_options: Some(Some(options(2))), ..ConfigPatch::default() };
    root.update(patch).await.unwrap();
    root.set_thinking_level(ThinkingLevel::High).await.unwrap();
    kit.stage.release();
    kit.until("a pause", async || retry_at(&root).await.is_some()).await;
    kit.stage.give(Reply::text("x"));
    kit.advance(2_000);
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    let asked: Vec<_> = kit.stage.asked().iter().map(|asked| (asked.options.timeout_ms, asked.options.reasoning)).collect();
    assert_eq!(asked, [(Some(1), None), (Some(2), Some(ThinkingLevel::High))]);
});

scenario!(x059_what_settled_the_input_before_the_run_ended_stays, async |kit| {
    let root = kit.root().await;
    for aborts in [false, true] {
        let a = kit.asking("a", Reply::text("x")).await;
        let settled: Result<_, BoxError> = root
            .commit(async |tx| {
                let settlement = Settlement::Unanswered { reason: "by_the_application".to_owned(), detail: None };
                Ok(tx.settle_submission(a.id(), settlement).await?)
            })
            .await;
        settled.unwrap();
        let before = a.status().await.unwrap();
        assert_eq!(reason(&before), "by_the_application");
        let (task, _) = kit.run().await.unwrap();
        if aborts {
            kit.harness().abort_task(task).await.unwrap();
        } else {
            kit.stage.release();
        }
        kit.harness().wait_for_task(task).await.unwrap();
        assert_eq!(a.status().await.unwrap(), before);
        assert_eq!(kit.document("pi.live").await, empty());
    }
    assert_eq!(kit.said().await[..2], ["pi.user:a", "pi.assistant:x"]);
    assert_eq!(kit.turn("b", Reply::text("y")).await.status(), SubmissionStatus::Done);
});

/// A definition of the generation that is older than the stored tasks.
struct OlderGeneration;

impl LineTask for OlderGeneration {
    fn name(&self) -> &'static str {
        "pi.generation"
    }

    fn version(&self) -> u32 {
        0
    }

    fn apply<'a>(&'a self, _tx: &'a Tx, _record: &'a TaskRecord, _decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async { panic!("a blocked task decides nothing") })
    }
}

scenario!(s134_a_run_that_is_blocked_by_its_version_stays_busy_until_it_is_aborted, async |kit| {
    let a = kit.asking("a", Reply::text("x")).await;
    let (task, _) = kit.run().await.unwrap();
    kit.stop().await;
    kit.tasks.add(Arc::new(OlderGeneration));
    kit.reopen().await;
    let root = kit.root().await;
    let reject = SubmissionDraft::input("b").when_busy(WhenBusy::Reject);
    let refused = root.submit(reject).await.map(|submission| submission.id());
    assert_eq!(refused, Err(SubmitError::Busy(root.id())));
    kit.harness().abort_task(task).await.unwrap();
    assert_eq!(reason(&kit.settled(&a).await), "task_too_old");
    let TaskState::Terminal { outcome } = kit.task(task).await.state else { panic!("not terminal") };
    assert_eq!(outcome, TaskOutcome::Orphaned { reason: "task_too_old".to_owned() });
    assert_eq!(kit.document("pi.live").await, empty());
    assert_eq!(kit.stage.asked().len(), 1);
});

/// Whether a commit only shows more of a response.
fn shows_a_part(frame: &Frame) -> bool {
    let part = |op: &Json| {
        let path: Vec<Json> =
            op.as_array().and_then(|op| op.iter().nth(1)?.as_array().map(|path| path.iter().take(2).cloned().collect()))?;
        Some(path == ["generation", "message"].map(Json::from))
    };
    let ops = |change: &DocumentFrame| match change {
        DocumentFrame::Ops(ops) => ops.as_array().is_some_and(|ops| ops.iter().all(|op| part(op) == Some(true))),
        DocumentFrame::Value(_) | DocumentFrame::Retired | DocumentFrame::Stored => false,
    };
    let records = frame.entries.is_empty() && frame.submissions.is_empty() && frame.tasks.is_empty();
    records && frame.documents.iter().all(|(kind, change)| kind == "pi.live" && ops(change))
}

/// The commits of a turn at the store, without those that only show more of a response. The first one admits the input, the last one
/// settles it.
async fn commits(kit: &Kit, input: &str) -> i64 {
    let mut watch = kit.watch_root().await;
    let submission = kit.say(input).await;
    let (mut first, mut parts) = (None, 0);
    let last = frame(&mut watch, |frame| {
        first.get_or_insert(frame.at.0.0);
        parts += i64::from(shows_a_part(frame));
        frame.submissions.iter().any(|record| record.id == submission.id() && record.settled())
    })
    .await;
    // Every batch of the store has the next number, also where this conversation sees nothing of it.
    last.at.0.0 - first.unwrap() + 1 - parts
}

/// The least of a few turns: a beat that comes while a reservation is in memory stores it with a commit of its own.
async fn least(kit: &Kit, input: &str, replies: impl Fn() -> Vec<Reply>) -> i64 {
    let mut least = i64::MAX;
    for _ in 0..4 {
        replies().into_iter().for_each(|reply| kit.stage.give(reply));
        least = least.min(commits(kit, input).await);
    }
    least
}

scenario!(a_turn_costs_a_known_number_of_commits, async |kit| {
    assert_eq!(least(&kit, "a", || vec![Reply::text("x")]).await, 3);
    // A part of a response that was shown in time changes nothing of it.
    let root = kit.root().await;
    let mut shown = i64::MAX;
    for _ in 0..4 {
        kit.stage.give(Reply::text("partial").held());
        let (counted, ()) = tokio::join!(commits(&kit, "part"), async {
            kit.until("a partial", async || partial(&root).await).await;
            kit.stage.release();
        });
        shown = shown.min(counted);
    }
    assert_eq!(shown, 3);
    let call = || vec![Reply::call("c1", "echo", r#"{"text":"y"}"#), Reply::text("z")];
    assert_eq!(least(&kit, "b", call).await, 7);
    // A hook that may want to see the round is asked between its last result and its end.
    kit.registry.hooks::<GenerationTask>(None, None, Arc::new(Unasked)).unwrap();
    assert_eq!(least(&kit, "c", call).await, 9);
});

/// Has nothing to say.
struct Unasked;

impl GenerationHooks for Unasked {}
