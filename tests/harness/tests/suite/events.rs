//! Section O: agent events as a host gets them.

use std::time::Duration;

use picofleet_harness::events::{AgentEvent, EventSnapshot, MessageChange};
use picofleet_harness::host::{AgentEvents, Conversation, watch_events};
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_session::{EntryDraft, Json, Op, Segment, apply};

/// The events of the next commit that has any.
pub(crate) async fn next(events: &mut AgentEvents) -> Vec<AgentEvent> {
    let next = tokio::time::timeout(Duration::from_secs(60), events.next()).await;
    next.expect("events come").expect("the stream goes on")
}

/// The types of events.
pub(crate) fn types(batch: &[AgentEvent]) -> Vec<String> {
    let name = |event: &AgentEvent| Json::from_serde_envelope(event).unwrap().get("type").unwrap().as_str().unwrap().into_owned();
    batch.iter().map(name).collect()
}

/// The batches up to one that has an event of a type.
pub(crate) async fn until(events: &mut AgentEvents, last: &str) -> Vec<Vec<AgentEvent>> {
    let mut batches = Vec::new();
    loop {
        let batch = next(events).await;
        let found = types(&batch).iter().any(|name| name == last);
        batches.push(batch);
        if found {
            return batches;
        }
    }
}

pub(crate) async fn note(conversation: &Conversation) {
    type BoxError = Box<dyn std::error::Error + Send + Sync>;
    let id = conversation.id();
    let noted: Result<(), BoxError> = conversation
        .commit(async |tx| {
            tx.append_entry(id, EntryDraft::new("note")).await?;
            Ok(())
        })
        .await;
    noted.unwrap();
}

/// The text of a message that is coming in.
fn text(message: &Json) -> String {
    let at = [Segment::from("content"), Segment::from(0), Segment::from("text")];
    message.at(&at).and_then(Json::as_str).unwrap_or_default().into_owned()
}

/// What somebody has of a message who applies what events say.
fn observe(seen: &mut Option<Json>, batch: &[AgentEvent]) {
    let at = |index: usize, field: &str| vec![Segment::from("content"), Segment::from(index), Segment::from(field)];
    for event in batch {
        match event {
            AgentEvent::MessageStart { message } => *seen = Some(message.clone()),
            AgentEvent::MessageUpdate { changes, .. } => {
                let ops = changes.iter().map(|change| match change.clone() {
                    MessageChange::TextDelta { content_index, delta } => Op::Append(at(content_index, "text"), delta.into()),
                    MessageChange::TextStart { content_index, block } => {
                        Op::Splice { path: vec![Segment::from("content")], index: content_index, remove: 0, items: vec![block] }
                    }
                    MessageChange::Message { message } => Op::Replace(message),
                    other => panic!("{other:?} of a plain text"),
                });
                *seen = Some(apply(seen.as_ref(), &ops.collect::<Vec<_>>()).unwrap());
            }
            _ => {}
        }
    }
}

/// The committed part of the response.
async fn committed(kit: &Kit) -> Option<Json> {
    kit.root().await.live().await.unwrap().generation.and_then(|generation| generation.message)
}

const BEGUN: [&str; 5] = ["message_start", "message_end", "submission", "run_start", "turn_start"];

scenario!(s190_a_streamed_answer, async |kit| {
    let root = kit.root().await;
    // Without tools there is nothing to say to the model before the answer.
    root.set_active_tools(Vec::<String>::new()).await.unwrap();
    let mut events = root.events().await.unwrap();
    kit.stage.give(Reply::text("abc").more("def"));
    let a = kit.say("a").await;
    assert_eq!(types(&next(&mut events).await), BEGUN);
    let mut seen = None;
    let first = next(&mut events).await;
    assert_eq!(types(&first), ["message_start"]);
    observe(&mut seen, &first);
    kit.stage.release();
    while seen.as_ref().map(text).as_deref() != Some("abcdef") {
        let batch = next(&mut events).await;
        assert_eq!(types(&batch), ["message_update"]);
        observe(&mut seen, &batch);
    }
    assert_eq!(committed(&kit).await.map(|message| text(&message)).as_deref(), Some("abcdef"));
    kit.stage.release();
    let last = next(&mut events).await;
    assert_eq!(types(&last), ["message_end", "turn_end", "run_end", "submission", "usage_changed"]);
    assert_eq!(last[2], AgentEvent::RunEnd { inputs: vec![a.id()] });
    let AgentEvent::MessageEnd { entry } = &last[0] else { panic!("{last:?}") };
    assert_eq!(picofleet_harness_tests::text(entry), "abcdef");
});

scenario!(s191_one_commit_ends_a_run_and_starts_the_follow_up, async |kit| {
    let a = kit.asking("a", Reply::text("")).await;
    let f = kit.say("f").await;
    let mut events = kit.root().await.events().await.unwrap();
    assert_eq!(events.snapshot().inbox.iter().map(|item| (item.id, item.mode.as_str())).collect::<Vec<_>>(), [(f.id(), "followUp")]);
    kit.stage.give(Reply::text("y"));
    kit.stage.release();
    let batch = next(&mut events).await;
    let both = ["message_start", "message_end", "message_start", "message_end", "turn_end", "run_end", "submission", "submission"];
    assert_eq!(types(&batch), [&both[..], &["inbox_update", "usage_changed", "run_start", "turn_start"]].concat());
    let ids: Vec<_> =
        batch.iter().filter_map(|event| if let AgentEvent::Submission { record } = event { Some(record.id) } else { None }).collect();
    assert_eq!(ids, [a.id(), f.id()]);
    kit.settled(&f).await;
});

scenario!(s193_too_many_batches_become_one_snapshot, async |kit| {
    let root = kit.root().await;
    kit.asking("a", Reply::text("abc").more("def")).await;
    kit.until("the first part", async || committed(&kit).await.is_some_and(|message| text(&message) == "abc")).await;
    let mut slow = root.events().await.unwrap();
    // Who is fast gets everything, and then the slow one has been given everything.
    let mut fast = root.events().await.unwrap();
    for _ in 0..101 {
        note(&root).await;
        assert_eq!(types(&next(&mut fast).await), ["entry_appended"]);
    }
    let batch = next(&mut slow).await;
    let [AgentEvent::Snapshot(snapshot)] = &batch[..] else { panic!("{:?}", types(&batch)) };
    let EventSnapshot { entries, generation, .. } = &**snapshot;
    assert_eq!(entries.as_array().unwrap().len(), slow.snapshot().entries.as_array().unwrap().len() + 101);
    let mut seen = generation.clone().unwrap().message;
    assert_eq!(text(seen.as_ref().unwrap()), "abc");
    kit.stage.release();
    observe(&mut seen, &next(&mut slow).await);
    assert_eq!(text(&seen.unwrap()), "abcdef");
    kit.stage.release();
    until(&mut slow, "run_end").await;
});

scenario!(x094_other_conversations_and_steers_are_no_events_of_a_run, async |kit| {
    let root = kit.root().await;
    let other = kit.harness().create_conversation(picofleet_harness::host::ConversationOptions::ownerless()).await.unwrap();
    let mut events = watch_events(&kit.harness(), root.id()).await.unwrap();
    note(&other).await;
    root.reset(None).await.unwrap();
    assert_eq!(types(&next(&mut events).await), ["entry_appended", "submission"]);
    let a = kit.busy("a").await;
    let steer = kit.steer("b").await;
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    kit.settled(&steer).await;
    kit.settled(&a).await;
    let all: Vec<AgentEvent> = until(&mut events, "run_end").await.into_iter().flatten().collect();
    let runs = |name: &str| types(&all).iter().filter(|other| *other == name).count();
    assert_eq!((runs("run_start"), runs("run_end")), (1, 1));
    assert_eq!((runs("turn_start"), runs("turn_end")), (2, 2));
    assert!(all.contains(&AgentEvent::RunStart { inputs: vec![a.id()] }));
    assert!(all.contains(&AgentEvent::RunEnd { inputs: vec![a.id(), steer.id()] }));
});

scenario!(a_stream_of_events_ends, async |kit| {
    let root = kit.root().await;
    let stopped = root.events().await.unwrap();
    assert_eq!(stopped.stopper().stop().reason(), "stopped");
    assert_eq!(stopped.ended().await.reason(), "stopped");
    let token = tokio_util::sync::CancellationToken::new();
    let mut cancelled = root.events().await.unwrap().until(token.clone());
    token.cancel();
    assert!(cancelled.next().await.is_none());
    assert_eq!(cancelled.end().unwrap().reason(), "cancelled");
    let failing = root.events().await.unwrap();
    let mut closed = root.events().await.unwrap();
    let running = tokio::spawn(failing.run(async |_| Err(std::io::Error::other("no"))));
    note(&root).await;
    assert_eq!(running.await.unwrap().reason(), "listener_error");
    next(&mut closed).await;
    note(&root).await;
    kit.stop().await;
    assert_eq!(closed.ended().await.reason(), "session_closed");
    assert!(closed.next().await.is_none(), "what nobody took is dropped");
    kit.start();
});
