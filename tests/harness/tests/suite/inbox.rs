//! Section H: submissions, inbox, boundaries.

use picofleet_harness::config::QueueMode;
use picofleet_harness::host::{HostError, SubmitError, Withdrawn};
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::wire::HostCall;
use picofleet_harness_tests::{Reply, scenario, text};
use picofleet_session::message::Message;
use picofleet_session::{
    DraftHead, EntryDraft, InputState, Json, ROOT_CONVERSATION_ID, SubmissionId, SubmissionRecord, SubmissionState, SubmissionStatus,
    TaskOutcome, TaskState, WriteState,
};

fn note(text: &str) -> SubmissionDraft {
    SubmissionDraft::write(EntryDraft::new("note").model(vec![user(text)]))
}

fn user(text: &str) -> Message {
    Message::User(picofleet_session::message::UserMessage { content: text.into(), timestamp: picofleet_session::Millis(0) })
}

fn reason(record: &SubmissionRecord) -> &str {
    match &record.state {
        SubmissionState::Input(InputState::Unanswered { reason, .. }) | SubmissionState::Write(WriteState::Unanswered { reason, .. }) => {
            reason
        }
        _ => "",
    }
}

fn empty() -> Json {
    Json::object::<&str, Json>([])
}

scenario!(s105_idle_input_is_placed, async |kit| {
    let submission = kit.asking("hi", Reply::text("hello")).await;
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
    let draft = EntryDraft::new("note").data("kept");
    let submission = kit.root().await.submit(SubmissionDraft::write(draft)).await.unwrap();
    let record = submission.status().await.unwrap();
    let SubmissionState::Write(WriteState::Done { entry }) = record.state else { panic!("{record:?}") };
    let entries = kit.entries(&kit.root().await).await;
    let expected = format!(r#"{{"id":{entry},"conversationId":1,"kind":"note","data":"kept"}}"#);
    assert_eq!(Json::from_serde(&entries[0]).unwrap().to_string(), expected);
    assert_eq!(kit.document("pi.live").await, empty());
    assert_eq!(kit.stage.asked().len(), 0);
});
