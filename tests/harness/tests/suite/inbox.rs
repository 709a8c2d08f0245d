//! Section H: submissions, inbox, boundaries.

use super::{empty, frame, reason};
use picofleet_harness::config::QueueMode;
use picofleet_harness::host::{HostError, SubmitError, Withdrawn};
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::wire::HostCall;
use picofleet_harness_tests::{Reply, scenario, text};
use picofleet_session::message::Message;
use picofleet_session::{
    DraftHead, EntryDraft, InputState, Json, ROOT_CONVERSATION_ID, SubmissionId, SubmissionState, SubmissionStatus, TaskOutcome, TaskState,
    TaskStatus, WriteState,
};

fn note(text: &str) -> SubmissionDraft {
    SubmissionDraft::write(EntryDraft::new("note").model(vec![user(text)]))
}

fn user(text: &str) -> Message {
    Message::from(picofleet_session::message::UserMessage { content: text.into(), timestamp: picofleet_session::Millis(0) })
}

scenario!(s105_idle_input_is_placed, async |kit| {
    let mut watch = kit.watch_root().await;
    let submission = kit.asking("hi", Reply::text("hello")).await;
    // All of it is one commit.
    let admission = frame(&mut watch, |_| true).await;
    assert_eq!(admission.entries.iter().map(|entry| entry.kind.as_str()).collect::<Vec<_>>(), ["pi.user"]);
    assert_eq!(admission.submissions.iter().map(|record| record.status()).collect::<Vec<_>>(), [SubmissionStatus::Placed]);
    let made = &admission.tasks[0];
    assert_eq!((admission.tasks.len(), made.kind.as_str(), made.state.status()), (1, "pi.generation", TaskStatus::Pending));
    let run = watch.mount().get("pi.live").unwrap().to_string();
    assert_eq!(run, format!(r#"{{"run":{{"taskId":{},"inputs":[{}]}}}}"#, made.id, submission.id()));
    let record = submission.status().await.unwrap();
    let SubmissionState::Input(InputState::Placed { entry }) = record.state else { panic!("{record:?}") };
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!((entries[0].id, entries[0].kind.as_str(), text(&entries[0])), (entry, "pi.user", "hi".to_owned()));
    let (task, inputs) = kit.run().await.unwrap();
    assert_eq!(inputs, [submission.id()]);
    assert_eq!(kit.task(task).await.kind, "pi.generation");
    kit.stage.release();
    assert_eq!(kit.settled(&submission).await.status(), SubmissionStatus::Done);
});

scenario!(s106_idle_write_is_done_without_a_task, async |kit| {
    let mut watch = kit.watch_root().await;
    let draft = EntryDraft::new("note").data("kept");
    let submission = kit.root().await.submit(SubmissionDraft::write(draft)).await.unwrap();
    let record = submission.status().await.unwrap();
    let SubmissionState::Write(WriteState::Done { entry }) = record.state else { panic!("{record:?}") };
    let entries = kit.entries(&kit.root().await).await;
    let expected = format!(r#"{{"id":{entry},"conversationId":1,"kind":"note","data":"kept"}}"#);
    assert_eq!(Json::from_serde(&entries[0]).unwrap().to_string(), expected);
    let commit = frame(&mut watch, |_| true).await;
    assert_eq!((commit.entries.len(), commit.submissions.len(), commit.tasks.len(), commit.documents.len()), (1, 1, 0, 0));
    assert!(kit.harness().inspect().await.unwrap().tasks.is_empty());
    assert_eq!(kit.document("pi.live").await, empty());
    assert_eq!(kit.stage.asked().len(), 0);
});

scenario!(s107_busy_input_with_reject_commits_nothing, async |kit| {
    let a = kit.busy("a").await;
    let _ = kit.disk.written();
    let reject = SubmissionDraft::input("b").when_busy(WhenBusy::Reject);
    let refused = kit.root().await.submit(reject).await.map(|submission| submission.id());
    assert_eq!(refused, Err(SubmitError::Busy(ROOT_CONVERSATION_ID)));
    assert!(kit.disk.written().is_empty(), "nothing is committed");
    assert!(kit.inbox().await.is_empty());
    let next = kit.say("c").await;
    kit.stage.give(Reply::text("x"));
    kit.stage.give(Reply::text("y"));
    kit.gate.open();
    kit.settled(&a).await;
    kit.settled(&next).await;
    let said = kit.said().await;
    assert_eq!(said.iter().filter(|said| said.starts_with("pi.user")).collect::<Vec<_>>(), ["pi.user:a", "pi.user:c"]);
});

scenario!(s108_a_request_id_admits_once, async |kit| {
    let root = kit.root().await;
    let first = kit.asking("a", Reply::text("x")).await;
    let draft = || SubmissionDraft::input("b").request_id("key");
    let (one, two) = (root.submit(draft()).await.unwrap(), root.submit(draft()).await.unwrap());
    assert_eq!(one.id(), two.id());
    let other = root.submit(SubmissionDraft::write(EntryDraft::new("note")).request_id("key")).await.map(|submission| submission.id());
    assert!(matches!(&other, Err(SubmitError::Host(HostError::Invalid { field: Some(field), .. })) if field == "requestId"), "{other:?}");
    assert_eq!(kit.inbox().await, [(one.id(), "followUp")]);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    kit.settled(&first).await;
    kit.settled(&one).await;
});

scenario!(s109_withdrawal_of_placed_settled_queued_and_unknown, async |kit| {
    let placed = kit.asking("a", Reply::text("x")).await;
    let queued = kit.say("b").await;
    let harness = kit.harness();
    let other = harness.create_conversation(picofleet_harness::host::ConversationOptions::ownerless()).await.unwrap();
    assert_eq!(placed.abort().await, Ok(Withdrawn::AlreadyPlaced));
    assert_eq!(harness.abort_submission(queued.id(), Some(other.id())).await, Ok(None));
    assert_eq!(queued.status().await.unwrap().status(), SubmissionStatus::Queued);
    assert_eq!(harness.abort_submission(queued.id(), Some(ROOT_CONVERSATION_ID)).await, Ok(Some(Withdrawn::Aborted)));
    assert_eq!(reason(&queued.status().await.unwrap()), "aborted");
    assert!(kit.inbox().await.is_empty());
    kit.stage.release();
    kit.settled(&placed).await;
    assert_eq!(placed.abort().await, Ok(Withdrawn::Settled));
    assert_eq!(queued.abort().await, Ok(Withdrawn::Settled));
    let unknown = SubmissionId::new(9_999).unwrap();
    assert_eq!(harness.abort_submission(unknown, None).await, Ok(None));
    assert!(harness.submission(unknown).await.unwrap().is_none());
});

scenario!(s110_failed_run_keeps_the_queue_in_order, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::error("401 unauthorized")).await;
    let f1 = kit.say("f1").await;
    let w = root.submit(note("w")).await.unwrap();
    let f2 = kit.say("f2").await;
    let waiting = [(f1.id(), "followUp"), (w.id(), "write"), (f2.id(), "followUp")];
    assert_eq!(kit.inbox().await, waiting);
    kit.stage.release();
    assert_eq!(reason(&kit.settled(&a).await), "model_error");
    assert_eq!(kit.inbox().await, waiting);
    for queued in [&f1, &w, &f2] {
        assert_eq!(queued.status().await.unwrap().status(), SubmissionStatus::Queued);
    }
    let mut watch = kit.watch_root().await;
    let g = kit.asking("g", Reply::text("x")).await;
    let boundary = frame(&mut watch, |_| true).await;
    assert_eq!(boundary.entries.iter().map(|entry| entry.kind.as_str()).collect::<Vec<_>>(), ["note", "pi.user"]);
    let statuses: Vec<_> = boundary.submissions.iter().map(|record| (record.id, record.status())).collect();
    let expected = [(f1.id(), SubmissionStatus::Placed), (w.id(), SubmissionStatus::Done), (g.id(), SubmissionStatus::Queued)];
    assert_eq!((statuses.len(), expected.iter().all(|status| statuses.contains(status))), (3, true), "one commit: {statuses:?}");
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant", "note:w", "pi.user:f1"]);
    assert_eq!(w.status().await.unwrap().status(), SubmissionStatus::Done);
    assert_eq!(f1.status().await.unwrap().status(), SubmissionStatus::Placed);
    assert_eq!(kit.run().await.unwrap().1, [f1.id()]);
    assert_eq!(kit.inbox().await, [(f2.id(), "followUp"), (g.id(), "followUp")]);
    for reply in ["y", "z"] {
        kit.stage.give(Reply::text(reply));
    }
    kit.stage.release();
    for submission in [&f1, &f2, &g] {
        assert_eq!(kit.settled(submission).await.status(), SubmissionStatus::Done);
    }
});

scenario!(s111_follow_up_mode_all_takes_every_follow_up, async |kit| {
    kit.root().await.set_follow_up_mode(Some(QueueMode::All)).await.unwrap();
    let a = kit.asking("a", Reply::error("401 unauthorized")).await;
    let (f1, f2) = (kit.say("f1").await, kit.say("f2").await);
    kit.stage.release();
    kit.settled(&a).await;
    let g = kit.asking("g", Reply::text("x")).await;
    assert_eq!(kit.run().await.unwrap().1, [f1.id(), f2.id(), g.id()]);
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant", "pi.user:f1", "pi.user:f2", "pi.user:g"]);
    assert!(kit.inbox().await.is_empty());
    kit.stage.release();
    for submission in [&f1, &f2, &g] {
        assert_eq!(kit.settled(submission).await.status(), SubmissionStatus::Done);
    }
});

scenario!(s112_steers_and_follow_ups_are_placed_in_id_order, async |kit| {
    kit.root().await.set_steering_mode(Some(QueueMode::All)).await.unwrap();
    let a = kit.asking("a", Reply::error("401 unauthorized")).await;
    let (s1, f1, s2) = (kit.steer("s1").await, kit.say("f1").await, kit.steer("s2").await);
    kit.stage.release();
    kit.settled(&a).await;
    let g = kit.asking("g", Reply::text("x")).await;
    assert_eq!(kit.run().await.unwrap().1, [s1.id(), f1.id(), s2.id()]);
    assert_eq!(kit.said().await[2..], ["pi.user:s1", "pi.user:f1", "pi.user:s2"]);
    assert_eq!(kit.inbox().await, [(g.id(), "followUp")]);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    kit.settled(&g).await;
});

scenario!(s113_a_queued_reset_is_placed_before_an_older_input, async |kit| {
    let a = kit.asking("a", Reply::error("401 unauthorized")).await;
    let f = kit.say("f").await;
    let reset = kit.root().await.reset(None).await.unwrap();
    kit.stage.release();
    kit.settled(&a).await;
    let g = kit.asking("g", Reply::text("x")).await;
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant", "pi.reset", "pi.user:f"]);
    let entries = kit.entries(&kit.root().await).await;
    let entry = entries.iter().find(|entry| entry.kind == "pi.reset").unwrap();
    assert_eq!((entry.head, entry.model.as_ref()), (Some(entry.id), None));
    assert_eq!(reset.status().await.unwrap().status(), SubmissionStatus::Done);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    kit.settled(&f).await;
    kit.settled(&g).await;
});

scenario!(s114_a_reset_carries_its_handoff, async |kit| {
    kit.turn("a", Reply::text("x")).await;
    let reset = kit.root().await.reset(Some("go on here")).await.unwrap();
    assert_eq!(reset.status().await.unwrap().status(), SubmissionStatus::Done);
    let context = kit.root().await.context().await.unwrap();
    assert_eq!(context.entries.len(), 1);
    assert_eq!((context.head.as_ref().unwrap().kind.as_str(), text(&context.entries[0])), ("pi.reset", "go on here".to_owned()));
    assert_eq!(context.contributions.len(), 1);
    let Message::User(message) = &context.messages[0] else { panic!("{context:?}") };
    assert_eq!(message.timestamp, kit.clock.now());
});

fn summary(at: picofleet_session::EntryId) -> SubmissionDraft {
    let entry = EntryDraft::new("summary").model(vec![user("sum")]).head(DraftHead::Entry(at));
    SubmissionDraft::write(entry)
}

scenario!(s115_a_summary_behind_a_reset_is_stale, async |kit| {
    let root = kit.root().await;
    kit.turn("old", Reply::text("x")).await;
    let old = kit.entries(&root).await[0].id;
    let busy = kit.asking("a", Reply::text("y")).await;
    let (reset, late) = (root.reset(None).await.unwrap(), root.submit(summary(old)).await.unwrap());
    kit.stage.release();
    kit.settled(&busy).await;
    assert_eq!(kit.settled(&reset).await.status(), SubmissionStatus::Done);
    assert_eq!(reason(&kit.settled(&late).await), "stale");
    // A stale head is refused at once too.
    assert_eq!(reason(&root.submit(summary(old)).await.unwrap().status().await.unwrap()), "stale");
});

scenario!(s115_a_summary_before_a_reset_is_placed, async |kit| {
    let root = kit.root().await;
    kit.turn("old", Reply::text("x")).await;
    let old = kit.entries(&root).await[0].id;
    let busy = kit.asking("a", Reply::text("y")).await;
    let (early, reset) = (root.submit(summary(old)).await.unwrap(), root.reset(None).await.unwrap());
    kit.stage.release();
    kit.settled(&busy).await;
    assert_eq!(kit.settled(&early).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.settled(&reset).await.status(), SubmissionStatus::Done);
    assert_eq!(root.context().await.unwrap().head.unwrap().kind, "pi.reset");
});

scenario!(s116_an_abort_keeps_queued_writes, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::text("x")).await;
    let (w, f) = (root.submit(note("w")).await.unwrap(), kit.say("f").await);
    root.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&a).await), "aborted");
    assert_eq!(reason(&kit.settled(&f).await), "aborted");
    assert_eq!(kit.inbox().await, [(w.id(), "write")]);
    let g = kit.turn("g", Reply::text("y")).await;
    assert_eq!(g.status(), SubmissionStatus::Done);
    assert_eq!(w.status().await.unwrap().status(), SubmissionStatus::Done);
    let said = kit.said().await;
    assert_eq!(said[said.len() - 3..], ["note:w", "pi.user:g", "pi.assistant:y"]);
});

scenario!(s118_a_queue_survives_a_reopen, async |kit| {
    let first = kit.asking("a", Reply::text("lost")).await;
    let queued = kit.say("f").await;
    kit.stop().await;
    kit.stage.give(Reply::text("one"));
    kit.stage.give(Reply::text("two"));
    kit.reopen().await;
    for submission in [&first, &queued] {
        assert_eq!(kit.settled(submission).await.status(), SubmissionStatus::Done);
    }
    let said = kit.said().await;
    let users: Vec<&String> = said.iter().filter(|said| said.starts_with("pi.user")).collect();
    assert_eq!(users, ["pi.user:a", "pi.user:f"]);
    assert_eq!(said[said.len() - 3..], ["pi.assistant:one", "pi.user:f", "pi.assistant:two"]);
});

scenario!(s119_post_tools_takes_writes_and_the_first_steer, async |kit| {
    let root = kit.root().await;
    let a = kit.busy("a").await;
    let (f, s1, w, s2) = (kit.say("f").await, kit.steer("s1").await, root.submit(note("w")).await.unwrap(), kit.steer("s2").await);
    kit.stage.give(Reply::text("x").held());
    kit.gate.open();
    kit.until("the next request", async || kit.stage.asked().len() == 2).await;
    assert_eq!(kit.run().await.unwrap().1, [a.id(), s1.id()]);
    assert_eq!(kit.inbox().await, [(f.id(), "followUp"), (s2.id(), "steer")]);
    assert_eq!(kit.said().await[2..], ["pi.tool-result", "note:w", "pi.user:s1"]);
    assert_eq!(w.status().await.unwrap().status(), SubmissionStatus::Done);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    for submission in [&a, &s1, &f, &s2] {
        assert_eq!(kit.settled(submission).await.status(), SubmissionStatus::Done);
    }
});

scenario!(s119_post_tools_takes_every_steer_where_the_mode_says_so, async |kit| {
    kit.root().await.set_steering_mode(Some(QueueMode::All)).await.unwrap();
    let a = kit.busy("a").await;
    let (s1, f, s2) = (kit.steer("s1").await, kit.say("f").await, kit.steer("s2").await);
    kit.stage.give(Reply::text("x").held());
    kit.gate.open();
    kit.until("the next request", async || kit.stage.asked().len() == 2).await;
    assert_eq!(kit.run().await.unwrap().1, [a.id(), s1.id(), s2.id()]);
    assert_eq!(kit.inbox().await, [(f.id(), "followUp")]);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    for submission in [&a, &s1, &s2, &f] {
        assert_eq!(kit.settled(submission).await.status(), SubmissionStatus::Done);
    }
});

scenario!(s120_a_reset_at_post_tools_ends_the_run, async |kit| {
    let root = kit.root().await;
    let a = kit.busy("a").await;
    let f = kit.say("f").await;
    root.reset(Some("anew")).await.unwrap();
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    assert_eq!(reason(&kit.settled(&a).await), "reset");
    assert_eq!(kit.settled(&f).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.said().await[2..], ["pi.tool-result", "pi.reset:anew", "pi.user:f", "pi.assistant:x"]);
});

scenario!(s121_a_final_boundary_starts_the_follow_up_in_the_same_commit, async |kit| {
    let a = kit.asking("a", Reply::text("x")).await;
    let f = kit.say("f").await;
    let mut watch = kit.watch_root().await;
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    loop {
        let picofleet_harness::line::Followed::Frame(frame) = watch.next().await else { panic!("no frame") };
        let status = |id| frame.submissions.iter().find(|record| record.id == id).map(|record| record.status());
        if status(a.id()) == Some(SubmissionStatus::Done) {
            assert_eq!(status(f.id()), Some(SubmissionStatus::Placed));
            let live: picofleet_harness::live::LiveState = watch.mount().get("pi.live").unwrap().to().unwrap();
            assert_eq!(live.run.unwrap().inputs, [f.id()]);
            break;
        }
    }
    assert_eq!(kit.settled(&f).await.status(), SubmissionStatus::Done);
});

scenario!(s122_a_dropped_wait_withdraws_nothing_and_a_close_ends_waits, async |kit| {
    let done = kit.harness().submission(SubmissionId::new(1).unwrap()).await.unwrap();
    assert!(done.is_none());
    let settled = kit.turn("z", Reply::text("x")).await;
    let a = kit.asking("a", Reply::text("x")).await;
    assert!(tokio::time::timeout(std::time::Duration::from_millis(1), a.wait()).await.is_err());
    assert_eq!(a.status().await.unwrap().status(), SubmissionStatus::Placed);
    let again = kit.harness().submission(settled.id).await.unwrap().unwrap();
    assert_eq!(again.wait().await.unwrap(), settled);
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.wait().await }
    });
    kit.stop().await;
    let ended = waiting.await.unwrap();
    assert!(matches!(ended, Err(HostError::Unavailable(_))), "{ended:?}");
});

scenario!(x049_abort_of_the_run_task_keeps_the_queue, async |kit| {
    let a = kit.asking("a", Reply::text("x")).await;
    let f = kit.say("f").await;
    let (task, _) = kit.run().await.unwrap();
    kit.harness().abort_task(task).await.unwrap();
    assert_eq!(reason(&kit.settled(&a).await), "aborted");
    assert_eq!(kit.inbox().await, [(f.id(), "followUp")]);
    assert!(matches!(kit.task(task).await.state, TaskState::Terminal { outcome: TaskOutcome::Aborted { .. } }));
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(x050_a_reset_at_a_final_boundary_follows_the_answer, async |kit| {
    let a = kit.asking("a", Reply::text("x")).await;
    let reset = kit.root().await.reset(None).await.unwrap();
    kit.stage.release();
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.settled(&reset).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:x", "pi.reset"]);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(x052_a_user_message_has_the_time_of_its_placement, async |kit| {
    let at = |entry: &picofleet_session::EntryRecord| match &entry.model.as_ref().unwrap()[0] {
        Message::User(message) => message.timestamp,
        other => panic!("{other:?}"),
    };
    let start = kit.clock.now();
    let a = kit.asking("a", Reply::text("x")).await;
    let f = kit.say("f").await;
    kit.advance(5_000);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    kit.settled(&a).await;
    kit.settled(&f).await;
    let entries = kit.entries(&kit.root().await).await;
    let users: Vec<_> = entries.iter().filter(|entry| entry.kind == "pi.user").map(at).collect();
    assert_eq!(users, [start, kit.clock.now()]);
});

// Δ1.3 of another implementation appends at once; the specification's value stands: a busy conversation queues it.
scenario!(x053_a_write_without_model_messages_waits_as_any_other, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::text("x")).await;
    let w = root.submit(SubmissionDraft::write(EntryDraft::new("note").data("seen"))).await.unwrap();
    assert_eq!(kit.inbox().await, [(w.id(), "write")]);
    kit.stage.release();
    kit.settled(&a).await;
    assert_eq!(kit.settled(&w).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(a_key_answers_again_and_refuses_another_call, async |kit| {
    let call = |text: &str| {
        let call = HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft: SubmissionDraft::write(EntryDraft::new(text)) };
        picofleet_harness::wire::Request::Host(Box::new(HostCall::Keyed { key: "k".to_owned(), call: Box::new(call) }))
    };
    let first = kit.call(call("note")).await;
    assert_eq!(kit.call(call("note")).await, first);
    kit.reopen().await;
    assert_eq!(kit.call(call("note")).await, first);
    let other = kit.call(call("other")).await;
    let reused = picofleet_harness::wire::HostFailure::KeyReused { key: "k".to_owned() };
    assert_eq!(other, picofleet_harness::wire::Answer::Failed(reused));
    assert_eq!(kit.kinds().await, ["note"]);
});

scenario!(a_write_to_an_idle_conversation_with_waiting_items_is_placed_behind_a_boundary, async |kit| {
    let root = kit.root().await;
    let a = kit.asking("a", Reply::error("401 unauthorized")).await;
    let f = kit.say("f").await;
    kit.stage.release();
    kit.settled(&a).await;
    kit.stage.give(Reply::text("x"));
    let w = root.submit(note("w")).await.unwrap();
    assert_eq!(kit.settled(&w).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.settled(&f).await.status(), SubmissionStatus::Done);
    assert_eq!(kit.said().await[2..], ["note:w", "pi.user:f", "pi.assistant:x"]);
});

scenario!(a_submission_to_an_unknown_conversation_is_not_found, async |kit| {
    let conversation = picofleet_session::ConversationId::new(9_999).unwrap();
    let call = HostCall::Submit { conversation, draft: SubmissionDraft::input("a") };
    let answer = kit.call(picofleet_harness::wire::Request::Host(Box::new(call))).await;
    let failure = picofleet_harness::wire::HostFailure::NotFound { what: "conversation".to_owned(), id: 9_999 };
    assert_eq!(answer, picofleet_harness::wire::Answer::Failed(failure));
});
