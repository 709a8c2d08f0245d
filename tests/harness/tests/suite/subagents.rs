//! Foreground subagents (section 7.3).

use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::Fault;
use picofleet_harness::host::{Conversation, ConversationFilter};
use picofleet_harness::live::LIVE;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::ToolError;
use picofleet_harness_tests::{Closure, Kit, Reply, Stage, Subagent, last_code, scenario, text};
use picofleet_session::message::Message;
use picofleet_session::{ConversationId, ConversationOwnership, EntryRecord, Json, SubmissionStatus, TaskId};

use super::reason;

/// Registers subagent `a`, whose conversations have `b`, whose conversations have `c`, whose conversations have the gate tools.
pub(crate) async fn register(kit: &Kit) {
    for (name, tools) in [("a", &["b", "safe_gate"][..]), ("b", &["c"]), ("c", &["gate", "safe_gate"])] {
        let config = ConfigPatch {
            model: Some(Some(Stage::model_ref())),
            active_tools: Some(tools.iter().map(|&tool| tool.to_owned()).collect()),
            ..ConfigPatch::default()
        };
        kit.registry.tool(Subagent::new(name, config)).unwrap();
    }
    let active = ConfigPatch { active_tools: Some(vec!["a".to_owned()]), ..ConfigPatch::default() };
    kit.root().await.update(active).await.unwrap();
}

pub(crate) fn ask(name: &str, prompt: &str) -> Reply {
    Reply::call("c1", name, &format!(r#"{{"prompt":"{prompt}"}}"#))
}

/// The conversations that the tasks of one own.
async fn children(kit: &Kit, of: ConversationId) -> Vec<(ConversationId, TaskId)> {
    let filter = ConversationFilter { owner_conversation: Some(of), ..ConversationFilter::default() };
    let records = kit.harness().conversations(filter, 10, None).await.unwrap().items;
    records.iter().map(|record| (record.id, record.owner.unwrap().task_id)).collect()
}

pub(crate) async fn only_child(kit: &Kit, of: ConversationId) -> Conversation {
    let children = children(kit, of).await;
    assert_eq!(children.len(), 1, "{children:?}");
    kit.conversation(children[0].0).await
}

fn results(entries: &[EntryRecord]) -> Vec<&EntryRecord> {
    entries.iter().filter(|entry| entry.kind == "pi.tool-result").collect()
}

fn message(entry: &EntryRecord) -> Json {
    Json::from_serde(&entry.model.as_ref().unwrap()[0]).unwrap()
}

scenario!(a_subagent_answers_its_call_and_counts_its_own_usage, async |kit| {
    register(&kit).await;
    for reply in [ask("a", "child?"), Reply::text("child!"), Reply::text("done")] {
        kit.stage.give(reply);
    }
    let a = kit.say("go").await;
    assert_eq!(kit.settled(&a).await.status(), SubmissionStatus::Done);
    let root = kit.root().await;
    let child = only_child(&kit, root.id()).await;
    let entries = kit.entries(&root).await;
    let result = message(results(&entries)[0]);
    assert!(result.to_string().contains("child!"), "{result}");
    assert_eq!(result.get("details"), Some(&Json::object([("conversationId", child.id().get())])));
    let said = kit.entries(&child).await;
    assert_eq!(said.iter().filter(|entry| entry.kind != "pi.system").map(text).collect::<Vec<_>>(), ["child?", "child!"]);
    assert_eq!(root.usage().await.unwrap().models["p/m"].input, 20);
    assert!(root.usage().await.unwrap().tools.is_empty());
    assert_eq!(child.usage().await.unwrap().models["p/m"].input, 10);
    assert_eq!(kit.harness().usage().await.unwrap().models["p/m"].input, 30);
    assert!(kit.stage.asked()[1].messages.iter().all(|message| !matches!(message, Message::Assistant(_))), "a context of its own");
});

scenario!(three_subagents_deep_need_one_slot, async |kit| {
    kit.stop().await;
    kit.worker.slots = 1;
    kit.reopen().await;
    register(&kit).await;
    let replies =
        [ask("a", "1"), ask("b", "2"), ask("c", "3"), Reply::text("three"), Reply::text("two"), Reply::text("one"), Reply::text("done")];
    for reply in replies {
        kit.stage.give(reply);
    }
    let go = kit.say("go").await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let mut at = kit.root().await;
    for answer in ["one", "two", "three"] {
        let entries = kit.entries(&at).await;
        assert!(message(results(&entries)[0]).to_string().contains(answer), "{answer}");
        at = only_child(&kit, at.id()).await;
    }
});

scenario!(x074_a_rerun_finds_the_child_and_its_submission, async |kit| {
    register(&kit).await;
    kit.stage.give(ask("a", "child?"));
    kit.stage.give(Reply::call("c2", "safe_gate", "{}"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    kit.stop().await;
    kit.stage.give(Reply::text("child!"));
    kit.stage.give(Reply::text("done"));
    kit.reopen().await;
    kit.gate.begun().await;
    kit.gate.open();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let root = kit.root().await;
    let child = only_child(&kit, root.id()).await;
    let entries = kit.entries(&child).await;
    assert_eq!(entries.iter().filter(|entry| entry.kind == "pi.user").count(), 1);
    assert!(message(results(&kit.entries(&root).await)[0]).to_string().contains("child!"));
    let (_, task) = children(&kit, root.id()).await[0];
    let again = child.submit(SubmissionDraft::input("child?").request_id(Subagent::request_id(task))).await.unwrap();
    assert_eq!(again.status().await.unwrap().status(), SubmissionStatus::Done, "the request id has its submission");
});

scenario!(s083_an_abort_of_the_parent_reaches_the_work_of_its_subagents, async |kit| {
    register(&kit).await;
    for reply in [ask("a", "1"), ask("b", "2"), ask("c", "3"), Reply::call("c2", "gate", "{}")] {
        kit.stage.give(reply);
    }
    let go = kit.say("go").await;
    tokio::select! {
        () = kit.gate.begun() => {}
        record = kit.settled(&go) => panic!("{record:?}: {:?}", kit.entries(&kit.root().await).await),
    }
    kit.root().await.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    let mut at = kit.root().await;
    for _ in 0..3 {
        let entries = kit.entries(&at).await;
        assert_eq!(results(&entries).into_iter().map(last_code).collect::<Vec<_>>(), ["aborted"]);
        assert!(at.live().await.unwrap().run.is_none());
        at = only_child(&kit, at.id()).await;
    }
    assert_eq!(kit.stage.asked().len(), 4);
});

/// Begins a subagent's work and throws.
fn careless() -> Closure {
    Closure::new("careless", |_, api| async move {
        let task = api.task_id();
        let child = api
            .commit(async |tx| {
                let child = tx.create_conversation(ConversationOwnership::Task { task_id: task }).await?.id;
                let config = ConfigPatch { model: Some(Some(Stage::model_ref())), ..ConfigPatch::default() };
                tx.doc(&CONFIG, child).await?.edit(|value| config.apply(value))?;
                Ok::<_, Fault>(child)
            })
            .await?;
        let child = api.conversation(child).await?.unwrap();
        child.submit(SubmissionDraft::input("child?")).await?;
        while api.snapshot(&LIVE, child.id()).await?.is_none_or(|live| live.tools.is_none()) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        Err(ToolError::new("broken"))
    })
}

scenario!(a_failed_call_aborts_the_work_of_its_child, async |kit| {
    kit.registry.tool(careless()).unwrap();
    let active = ConfigPatch { active_tools: Some(vec!["careless".to_owned()]), ..ConfigPatch::default() };
    kit.root().await.update(active).await.unwrap();
    kit.stage.give(Reply::call("c1", "careless", "{}"));
    kit.stage.give(Reply::call("c2", "gate", "{}"));
    let go = kit.say("go").await;
    kit.stage.give(Reply::text("done"));
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let root = kit.root().await;
    assert_eq!(results(&kit.entries(&root).await).into_iter().map(last_code).collect::<Vec<_>>(), ["tool_error"]);
    let child = only_child(&kit, root.id()).await;
    assert_eq!(results(&kit.entries(&child).await).into_iter().map(last_code).collect::<Vec<_>>(), ["aborted"]);
    assert!(child.live().await.unwrap().run.is_none(), "over before its owner");
});
