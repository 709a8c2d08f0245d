//! Reload of extensions while runs go on (section 7.5).

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Fault;
use picofleet_harness::hooks::{BeforeTool, GenerationTask, ToolTask};
use picofleet_harness::host::{AbortTask, Conversation, ConversationOptions};
use picofleet_harness::inspection::TaskView;
use picofleet_harness::kind::{Next, Outcome};
use picofleet_harness::registry::RegistryError;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tools::{SharedTool, Tool, ToolApi, ToolError, ToolResult, ToolSpec};
use picofleet_harness_tests::script::{Log, Other, Script, at, end, go, phase, put};
use picofleet_harness_tests::{AskedGeneration, AskedTool, Closure, Gate, Kit, Reply, Stage, scenario};
use picofleet_session::{JoinPolicy, Json, SubmissionStatus};

/// The tool `work`, which says its version; behind a gate it says whether somebody disturbed it, too.
fn work(version: &'static str, gate: Option<&Gate>) -> Closure {
    let gate = gate.cloned();
    Closure::new("work", move |_, api| {
        let gate = gate.clone();
        async move {
            if let Some(gate) = gate {
                gate.pass().await;
            }
            let disturbed = if api.cancelled().is_cancelled() { ", disturbed" } else { "" };
            Ok(ToolResult::text(format!("{version}{disturbed}")))
        }
    })
}

async fn offer(kit: &Kit, tools: &[&str]) {
    kit.root().await.set_active_tools(tools.iter().copied()).await.unwrap();
}

/// A turn with one call.
async fn calls(kit: &Kit, name: &str, arguments: &str) {
    kit.stage.give(Reply::call("c", name, arguments));
    assert_eq!(kit.turn("go", Reply::text("done")).await.status(), SubmissionStatus::Done);
}

/// What the tools of a conversation gave, in order.
async fn results(kit: &Kit, conversation: &Conversation) -> Vec<String> {
    let entries = kit.entries(conversation).await;
    entries.iter().filter(|entry| entry.kind == "pi.tool-result").map(|entry| entry.text()).collect()
}

scenario!(a_replaced_tool_is_used_at_once_and_a_running_call_keeps_the_old_one, async |kit| {
    let gate = Gate::new();
    let old = kit.registry.tool(work("old", Some(&gate))).unwrap();
    offer(&kit, &["work"]).await;
    kit.stage.give(Reply::call("c1", "work", "{}"));
    let first = kit.say("go").await;
    gate.begun().await;
    let replaced = kit.registry.batch(|stage| {
        stage.dispose(&old)?;
        stage.tool(work("new", None))
    });
    replaced.unwrap();

    // Another conversation has the new one at once, while the old one runs.
    let config =
        ConfigPatch { model: Some(Some(Stage::model_ref())), active_tools: Some(vec!["work".to_owned()]), ..ConfigPatch::default() };
    let other = kit.harness().create_conversation(ConversationOptions::ownerless().config(config)).await.unwrap();
    kit.stage.give(Reply::call("c1", "work", "{}"));
    kit.stage.give(Reply::text("done"));
    let at_once = other.submit(SubmissionDraft::input("go")).await.unwrap();
    assert_eq!(kit.settled(&at_once).await.status(), SubmissionStatus::Done);
    assert_eq!(results(&kit, &other).await, ["new"]);

    // The same run has it from its next call on.
    kit.stage.give(Reply::call("c2", "work", "{}"));
    kit.stage.give(Reply::text("done"));
    gate.open();
    assert_eq!(kit.settled(&first).await.status(), SubmissionStatus::Done);
    assert_eq!(results(&kit, &kit.root().await).await, ["old", "new"]);
});

scenario!(a_running_phase_keeps_its_hooks_and_the_next_has_the_new_ones, async |kit| {
    let log = Log::default();
    let says = |word: &'static str| {
        let log = log.clone();
        let on_yield = move |_: &_| {
            log.push(word);
            Ok(None)
        };
        Arc::new(AskedGeneration { on_yield: Some(Box::new(on_yield)), ..AskedGeneration::default() })
    };
    let old = kit.registry.hooks::<GenerationTask>(Some("k"), None, says("old")).unwrap();
    let asking = kit.asking("a", Reply::text("one")).await;
    let replaced = kit.registry.batch(|stage| {
        stage.dispose(&old)?;
        stage.hooks::<GenerationTask>(Some("k"), None, says("new"))
    });
    replaced.unwrap();
    kit.stage.release();
    kit.settled(&asking).await;
    kit.turn("b", Reply::text("two")).await;
    assert_eq!(log.words(), ["old", "new"]);
});

/// A hook that writes its letter behind the text of a call.
fn letter(letter: &'static str) -> Arc<AskedTool> {
    Arc::new(AskedTool::before(move |call| {
        let text = call.arguments.get("text").and_then(Json::as_str).unwrap_or_default().into_owned();
        Ok(Some(BeforeTool::arguments(Json::object([("text", format!("{text}{letter}"))]))))
    }))
}

scenario!(keyed_hooks_keep_their_places_and_others_go_to_the_end, async |kit| {
    let registry = &kit.registry;
    let first = registry.hooks::<ToolTask>(Some("first"), None, letter("a")).unwrap();
    let keyless = registry.hooks::<ToolTask>(None, None, letter("b")).unwrap();
    registry.hooks::<ToolTask>(Some("last"), None, letter("c")).unwrap();
    calls(&kit, "echo", r#"{"text":"-"}"#).await;
    let reloaded = registry.batch(|stage| {
        stage.dispose(&first)?;
        stage.dispose(&keyless)?;
        stage.hooks::<ToolTask>(None, None, letter("B"))?;
        stage.hooks::<ToolTask>(Some("first"), None, letter("A"))
    });
    reloaded.unwrap();
    calls(&kit, "echo", r#"{"text":"-"}"#).await;
    assert_eq!(results(&kit, &kit.root().await).await, ["-abc", "-AcB"]);
});

scenario!(a_reload_is_told_to_the_model_only_where_it_changes_what_the_model_sees, async |kit| {
    let section = |key: &'static str, text: &'static str| kit.registry.section(key, false, move |_| Some(text.to_owned())).unwrap();
    let (one, two, tool) = (section("one", "1"), section("two", "2"), kit.registry.tool(work("old", None)).unwrap());
    offer(&kit, &["work", "echo"]).await;
    kit.turn("a", Reply::text("x")).await;
    let systems = async || {
        let entries = kit.entries(&kit.root().await).await;
        let systems = entries.iter().filter(|entry| entry.kind == "pi.system");
        systems.map(|entry| Json::from_serde(&entry.model.as_ref().unwrap()[0]).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(systems().await.len(), 1);

    // In another order, and with other code: the keys and names have their places.
    let same = kit.registry.batch(|stage| {
        for old in [&one, &two, &tool] {
            stage.dispose(old)?;
        }
        stage.tool(work("new", None))?;
        let two = stage.section("two", false, |_| Some("2".to_owned()))?;
        stage.section("one", false, |_| Some("1".to_owned()))?;
        Ok(two)
    });
    let two = same.unwrap().0;
    kit.turn("b", Reply::text("x")).await;
    assert_eq!(systems().await.len(), 1, "nothing that the model sees has changed");

    let other = kit.registry.batch(|stage| {
        stage.dispose(&two)?;
        stage.section("two", false, |_| Some("II".to_owned()))
    });
    other.unwrap();
    kit.turn("c", Reply::text("x")).await;
    let systems = systems().await;
    assert_eq!((systems.len(), systems[1].get("sections")), (2, Some(&Json::object([("two", "II")]))));
    assert_eq!(systems[1].get("toolsAdded"), None);
});

scenario!(a_batch_that_fails_leaves_a_run_what_it_had, async |kit| {
    let old = kit.registry.tool(work("old", None)).unwrap();
    offer(&kit, &["work"]).await;
    let rejected = kit.registry.batch(|stage| -> Result<(), RegistryError> {
        stage.dispose(&old)?;
        stage.tool(work("new", None))?;
        Err(RegistryError::Rejected("not today".to_owned()))
    });
    assert_eq!(rejected.err(), Some(RegistryError::Rejected("not today".to_owned())));
    calls(&kit, "work", "{}").await;
    assert_eq!(results(&kit, &kit.root().await).await, ["old"]);
});

/// A tool whose texts end with a mark.
struct Marked(SharedTool);

impl Tool for Marked {
    fn spec(&self) -> &ToolSpec {
        self.0.spec()
    }

    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>> {
        Box::pin(async move {
            let result = self.0.execute(arguments, api).await?;
            let text = result.content.iter().flatten().find_map(|block| match block {
                picofleet_session::message::UserBlock::Text(text) => Some(text.text.clone()),
                picofleet_session::message::UserBlock::Image(_) => None,
            });
            Ok(ToolResult::text(format!("{}!", text.unwrap_or_default())))
        })
    }
}

scenario!(a_reloaded_tool_keeps_its_wrappers, async |kit| {
    let old = kit.registry.tool(work("old", None)).unwrap();
    kit.registry.wrap_tool("work", "mark", |tool| Ok(Arc::new(Marked(tool)))).unwrap();
    offer(&kit, &["work"]).await;
    calls(&kit, "work", "{}").await;
    let replaced = kit.registry.batch(|stage| {
        stage.dispose(&old)?;
        stage.tool(work("new", None))
    });
    replaced.unwrap();
    calls(&kit, "work", "{}").await;
    assert_eq!(results(&kit, &kit.root().await).await, ["old!", "new!"]);
});

/// The old code: it waits at the gate in phase `a`, whatever it is told, and goes on to `b`.
fn hangs(log: &Log, gate: &Gate) -> Script {
    let gate = gate.clone();
    Script::new(log, move |task, runtime| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            if phase(&task.checkpoint) == "a" { go(&runtime, "b").await } else { end(&runtime, "old").await }
        }
    })
}

/// The new code: it ends at once.
fn ends(log: &Log) -> Script {
    Script::new(log, |_, runtime| async move { end(&runtime, "new").await }).build("2").aborts(|_, runtime| async move {
        put(&runtime, Next::End(Outcome::Aborted { reason: Some("new".to_owned()), result: None })).await
    })
}

scenario!(an_old_handler_that_hangs_keeps_nothing_else_from_the_new_code, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(hangs(&log, &gate)).await;
    let hung = kit.create(&hangs(&log, &gate), "hung".to_owned()).await;
    gate.begun().await;
    kit.replace(ends(&log)).await;
    for name in ["x", "y"] {
        let fresh = kit.create(&ends(&log), name.to_owned()).await;
        assert_eq!(kit.outcome(fresh).await, Outcome::Completed("new".into()));
    }
    assert_eq!(kit.view(hung.erase()).await, TaskView::Running, "nobody disturbs it");
    gate.open();
    assert_eq!(kit.outcome(hung).await, Outcome::Completed("new".into()), "it is handed over at its boundary");
    assert_eq!(log.words(), ["hung:a", "x:a", "y:a", "hung:b"]);
    assert_eq!(kit.reported(), [""; 0]);
});

scenario!(an_abort_runs_the_handler_of_the_new_code_once_the_old_one_has_ended, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    kit.replace(hangs(&log, &gate)).await;
    let hung = kit.create(&hangs(&log, &gate), String::new()).await;
    gate.begun().await;
    kit.replace(ends(&log)).await;
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(hung.erase()).await });
    kit.until("the mark", async || kit.task(hung.erase()).await.abort_requested).await;
    assert_eq!(log.words(), ["a"], "the old one is not overlapped");
    gate.open();
    assert_eq!(abort.await.unwrap().unwrap(), AbortTask::Marked);
    assert_eq!(kit.outcome(hung).await, Outcome::Aborted { reason: Some("new".to_owned()), result: None });
    assert_eq!(log.words(), ["a", "abort"]);
});

scenario!(a_task_that_waited_meanwhile_resumes_in_the_new_code, async |kit| {
    let (log, gate) = (Log::default(), Gate::new());
    let at_gate = gate.clone();
    let other = Other::new(&log, move |_, runtime| {
        let gate = at_gate.clone();
        async move {
            gate.pass().await;
            end(&runtime, 0).await
        }
    });
    let awaited = kit.begin(other, "awaited".to_owned()).await;
    let waits = move |log: &Log| {
        Script::new(log, move |task, runtime| async move {
            if phase(&task.checkpoint) != "a" {
                return end(&runtime, "old").await;
            }
            let on = vec![awaited.erase()];
            runtime.commit(async |_, _| Ok::<_, Fault>(Next::Wait { checkpoint: at("b"), on, policy: JoinPolicy::AllSettled })).await
        })
    };
    gate.begun().await;
    kit.replace(waits(&log)).await;
    let task = kit.create(&waits(&log), "waiter".to_owned()).await;
    kit.until("the wait", async || matches!(kit.view(task.erase()).await, TaskView::Waiting { .. })).await;
    kit.replace(ends(&log)).await;
    gate.open();
    assert_eq!(kit.outcome(task).await, Outcome::Completed("new".into()));
    assert_eq!(log.words(), ["awaited:a", "waiter:a", "waiter:b"]);
});
