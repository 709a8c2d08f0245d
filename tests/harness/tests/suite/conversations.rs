//! New conversations and forks (sections 2.2 and 3.7).

use picofleet_harness::host::{ConversationFilter, ConversationOptions, EntryRange, HostError};
use picofleet_harness_tests::{Reply, scenario};
use picofleet_session::message::Message;
use picofleet_session::{ConversationId, Json};

use super::empty;

scenario!(s050_a_fork_of_a_busy_conversation_is_idle, async |kit| {
    let root = kit.root().await;
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&root).await.last().unwrap().id;
    let busy = kit.asking("b", Reply::text("y")).await;
    let queued = kit.say("c").await;
    let fork = root.fork(at, ConversationOptions::ownerless()).await.unwrap();
    let document = async |kind| fork.document(kind).await.unwrap();
    assert_eq!(document("pi.live").await, Some(empty()));
    assert_eq!(document("pi.inbox").await.unwrap().to_string(), r#"{"items":[]}"#);
    assert_eq!(document("pi.usage").await.unwrap().to_string(), r#"{"models":{},"tools":{}}"#);
    assert_eq!(fork.config().await.unwrap(), root.config().await.unwrap());
    assert_eq!(kit.entries(&fork).await.last().unwrap().id, at);
    kit.stage.give(Reply::text("z"));
    kit.stage.release();
    kit.settled(&busy).await;
    kit.settled(&queued).await;
});

scenario!(s051_a_fork_inside_a_round_has_synthesized_results, async |kit| {
    let root = kit.root().await;
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "gate", "{}"));
    let a = kit.say("a").await;
    kit.gate.begun().await;
    let assistant = kit.entries(&root).await.into_iter().find(|entry| entry.kind == "pi.assistant").unwrap();
    let fork = root.fork(assistant.id, ConversationOptions::ownerless()).await.unwrap();
    let messages = fork.context().await.unwrap().messages;
    let behind = messages.iter().skip_while(|message| !matches!(message, Message::Assistant(_))).skip(1);
    let results: Vec<_> = behind
        .map(|message| match message {
            Message::ToolResult(result) => {
                (result.tool_call_id.clone(), result.is_error, Json::from_serde(&result.details).unwrap().to_string())
            }
            other => panic!("{other:?}"),
        })
        .collect();
    let missing = r#"{"reason":"missing_result"}"#.to_owned();
    assert_eq!(results, [("c1".to_owned(), true, missing.clone()), ("c2".to_owned(), true, missing)]);
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    kit.gate.open();
    kit.settled(&a).await;
});

scenario!(s049_a_fork_at_an_entry_that_is_not_visible_is_refused, async |kit| {
    let root = kit.root().await;
    let other = kit.harness().create_conversation(ConversationOptions::ownerless()).await.unwrap();
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&root).await[0].id;
    let refused = other.fork(at, ConversationOptions::ownerless()).await.map(|fork| fork.id());
    assert!(matches!(&refused, Err(HostError::Invalid { field: Some(field), .. }) if field == "at"), "{refused:?}");
    assert_eq!(kit.harness().conversations(ConversationFilter::default(), 100, None).await.unwrap().items.len(), 2);
});

scenario!(an_owned_conversation_is_found_by_its_owner, async |kit| {
    let a = kit.busy("a").await;
    let (task, _) = kit.run().await.unwrap();
    let owned = kit.harness().create_conversation(ConversationOptions::owned_by(task)).await.unwrap();
    let by_task = ConversationFilter { owner_task: Some(task), owner_conversation: None };
    let found = kit.harness().conversations(by_task, 10, None).await.unwrap();
    assert_eq!(found.items.iter().map(|record| record.id).collect::<Vec<_>>(), [owned.id()]);
    let page = kit.harness().conversations(ConversationFilter::default(), 1, None).await.unwrap();
    let next = kit.harness().conversations(ConversationFilter::default(), 1, page.next).await.unwrap();
    assert_eq!((page.items[0].id.get(), next.items[0].id, next.next), (1, owned.id(), None));
    kit.stage.give(Reply::text("x"));
    kit.gate.open();
    kit.settled(&a).await;
});

scenario!(an_unknown_conversation_is_not_found, async |kit| {
    let id = ConversationId::new(9_999).unwrap();
    assert!(kit.harness().conversation(id).await.unwrap().is_none());
    let call = picofleet_harness::wire::HostCall::Patch { conversation: id, patch: empty() };
    let answer = kit.call(picofleet_harness::wire::Request::Host(Box::new(call))).await;
    let failure = picofleet_harness::wire::HostFailure::NotFound { what: "conversation".to_owned(), id: 9_999 };
    assert_eq!(answer, picofleet_harness::wire::Answer::Failed(failure));
    let first = kit.turn("a", Reply::text("x")).await;
    let page = kit.root().await.entries(EntryRange::default(), 1, None).await.unwrap();
    assert_eq!((page.items.len(), page.next.is_some()), (1, true), "{first:?}");
});
