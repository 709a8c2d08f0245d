//! A named conversation that outlives its creator's turns (section 7.3): registry document, anchor task and child in one commit of a tool.

use std::collections::BTreeMap;

use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::Fault;
use picofleet_harness::host::ConversationOptions;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{ToolApi, ToolResult};
use picofleet_harness_tests::{Closure, Kit, Reply, Stage, scenario};
use picofleet_session::{
    ConversationId, ConversationOwnership, DocDefinition, DocToken, Initial, Json, Latest, SubmissionStatus, TaskId, TaskOutcome,
    TaskState, every,
};
use serde::{Deserialize, Serialize};

/// The anchors of a conversation by their names; a fork begins without any.
static NAMES: DocToken<Names, Latest<Initial>> =
    DocToken::new("app.names", 1, || DocDefinition { initial: Names::default, migrate: None, checkpoint_when: every::<8> });

#[derive(Default, Serialize, Deserialize)]
struct Names {
    named: BTreeMap<String, Named>,
}

#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
struct Named {
    anchor: TaskId,
    conversation: ConversationId,
}

/// Ends at once; what it owns keeps it from its end.
#[derive(Clone)]
struct Anchor;

impl TaskKind for Anchor {
    const NAME: &'static str = "test.anchor";
    const VERSION: u32 = 1;
    type Input = String;
    type Checkpoint = Json;
    type Output = ();
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &String) -> Json {
        Json::object([("phase", "end")])
    }

    async fn run(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(())))).await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

/// The named child, made where there is none.
async fn child(api: &ToolApi, name: &str) -> Result<ConversationId, Fault> {
    let config =
        ConfigPatch { model: Some(Some(Stage::model_ref())), active_tools: Some(vec!["gate".to_owned()]), ..ConfigPatch::default() };
    let parent = api.conversation_id();
    api.commit(async |tx| {
        let names = tx.doc(&NAMES, parent).await?;
        if let Some(named) = names.read()?.named.get(name) {
            return Ok::<_, Fault>(named.conversation);
        }
        let anchor = tx.create_task(&Anchor, name.to_owned(), TaskOptions::top_level().background()).await?.erase();
        let conversation = tx.create_conversation(ConversationOwnership::Task { task_id: anchor }).await?.id;
        tx.doc(&CONFIG, conversation).await?.edit(|value| config.apply(value))?;
        names.edit(|value| value.named.insert(name.to_owned(), Named { anchor, conversation }))?;
        Ok(conversation)
    })
    .await
}

/// Lets the tool speak to the child `helper`, and gives what the registry has then.
async fn spoken(kit: &Kit, prompt: &str, replies: [Reply; 2]) -> Named {
    kit.stage.give(Reply::call("c1", "speak", &format!(r#"{{"text":"{prompt}"}}"#)));
    for reply in replies {
        kit.stage.give(reply);
    }
    let go = kit.say("go").await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let root = kit.root().await.id();
    let stored = kit.harness().document(NAMES.address(root)).await.unwrap().unwrap();
    let names = NAMES.read_stored(root, stored).unwrap().named;
    assert_eq!(names.len(), 1);
    names["helper"]
}

async fn start(kit: &mut Kit) {
    kit.stop().await;
    let tool = Closure::new("speak", |arguments, api| async move {
        let prompt = arguments.get("text").and_then(Json::as_str).unwrap_or_default().into_owned();
        let child = child(&api, "helper").await?;
        let child = api.conversation(child).await?.unwrap();
        let draft = SubmissionDraft::input(prompt).request_id(format!("speak-{}", api.task_id()));
        child.submit(draft).await?;
        Ok(ToolResult::text("sent"))
    });
    kit.registry.tool(tool).unwrap();
    kit.define(Anchor).await;
    let active_tools = Some(vec!["speak".to_owned()]);
    kit.root().await.update(ConfigPatch { active_tools, ..ConfigPatch::default() }).await.unwrap();
}

fn completed(state: &TaskState) -> bool {
    matches!(state, TaskState::Terminal { outcome: TaskOutcome::Completed { .. } })
}

scenario!(a_named_child_outlives_the_turn_an_abort_and_a_reopen, async |kit| {
    start(&mut kit).await;
    // Parent and child ask at the same time: both get the same answer.
    let busy = Reply::call("g1", "gate", "{}");
    let named = spoken(&kit, "one", [Reply::text("x"), Reply::text("x")]).await;
    kit.until("the child's first turn", async || completed(&kit.task(named.anchor).await.state)).await;
    let child = kit.conversation(named.conversation).await;
    child.wait_for_idle().await.unwrap();
    assert!(kit.task(named.anchor).await.background);

    // The same name is the same child; a later run of it is its own ordinary work.
    kit.stage.give(busy);
    let work = child.submit(SubmissionDraft::input("work")).await.unwrap();
    kit.gate.begun().await;
    kit.harness().wait_for_idle().await.unwrap();
    kit.root().await.abort(false).await.unwrap();
    assert_eq!(work.status().await.unwrap().status(), SubmissionStatus::Placed, "an ordinary abort stops at the anchor");
    let root = kit.root().await;
    let at = kit.entries(&root).await.last().unwrap().id;
    let fork = root.fork(at, ConversationOptions::ownerless()).await.unwrap();
    assert!(kit.harness().document(NAMES.address(fork.id())).await.unwrap().is_none(), "a fork has no names");
    root.abort(true).await.unwrap();
    assert_eq!(crate::reason(&kit.settled(&work).await), "aborted", "an abort with background reaches it");

    kit.reopen().await;
    assert_eq!(spoken(&kit, "two", [Reply::text("x"), Reply::text("x")]).await, named);
    let child = kit.conversation(named.conversation).await;
    child.wait_for_idle().await.unwrap();
    let texts: Vec<String> =
        kit.entries(&child).await.iter().filter(|entry| entry.kind == "pi.user").map(picofleet_harness_tests::text).collect();
    assert_eq!(texts, ["one", "work", "two"]);
});
