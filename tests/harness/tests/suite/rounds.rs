//! Rounds of tools: their order, their end, and what a result asks for (sections 8.3 and 8.4).

use std::sync::{Arc, Mutex};

use picofleet_harness::config::{ConfigPatch, ToolExecution};
use picofleet_harness::kinds::{GENERATION, TOOL};
use picofleet_harness::live::{LiveState, SlotStatus};
use picofleet_harness::tool::Control;
use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Closure, Kit, Reply, scenario};
use picofleet_session::message::Usage;
use picofleet_session::{InputState, Json, SubmissionState, SubmissionStatus, TaskOutcome, TaskState};

use super::tools::{add, call_of, message, object, results, round};
use super::{empty, frame, reason};

async fn sequential(kit: &Kit) {
    let patch = ConfigPatch { tool_execution: Some(Some(ToolExecution::Sequential)), ..ConfigPatch::default() };
    kit.root().await.update(patch).await.unwrap();
}

/// A tool that logs when it begins and when it ends; where others run beside it, it waits for both to begin.
fn logged(name: &'static str, log: &Arc<Mutex<Vec<String>>>, meet: Option<&Arc<tokio::sync::Barrier>>) -> Closure {
    let (log, meet) = (Arc::clone(log), meet.cloned());
    Closure::new(name, move |_, _| {
        let (log, meet) = (Arc::clone(&log), meet.clone());
        async move {
            log.lock().unwrap().push(format!("start {name}"));
            if let Some(meet) = meet {
                meet.wait().await;
            }
            log.lock().unwrap().push(format!("end {name}"));
            Ok(ToolResult::text(name))
        }
    })
}

scenario!(s141_calls_run_beside_each_other, async |kit| {
    let (log, meet) = (Arc::default(), Arc::new(tokio::sync::Barrier::new(2)));
    add(&kit, logged("a", &log, Some(&meet))).await;
    add(&kit, logged("b", &log, Some(&meet))).await;
    assert_eq!(round(&kit, Reply::call("c1", "a", "{}").and_call("c2", "b", "{}")).await, SubmissionStatus::Done);
    assert!(log.lock().unwrap()[..2].iter().all(|line| line.starts_with("start")));
});

scenario!(s141_calls_run_one_after_the_other_where_somebody_wants_it, async |kit| {
    let log = Arc::default();
    let first = add(&kit, logged("a", &log, None)).await;
    add(&kit, logged("b", &log, None)).await;
    let root = kit.root().await;
    let sequential = Some(Some(ToolExecution::Sequential));
    root.update(ConfigPatch { tool_execution: sequential, ..ConfigPatch::default() }).await.unwrap();
    let calls = || Reply::call("c1", "b", "{}").and_call("c2", "a", "{}");
    round(&kit, calls()).await;
    let expected = ["start b", "end b", "start a", "end a"];
    assert_eq!(*log.lock().unwrap(), expected);
    // One tool that wants to run alone is enough.
    root.update(ConfigPatch { tool_execution: Some(None), ..ConfigPatch::default() }).await.unwrap();
    first.dispose();
    let mut alone = logged("a", &log, None);
    alone.spec.sequential = true;
    add(&kit, alone).await;
    log.lock().unwrap().clear();
    round(&kit, calls()).await;
    assert_eq!(*log.lock().unwrap(), expected);
    // Also where it comes behind one that does not.
    kit.stage.give(Reply::call("c3", "gate", "{}").and_call("c4", "a", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    let slots = root.live().await.unwrap().tools.unwrap();
    assert_eq!(slots.iter().map(|slot| slot.task_id.is_some()).collect::<Vec<_>>(), [true, false]);
    kit.gate.open();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
});

scenario!(s141_the_next_task_is_made_when_the_one_before_is_terminal, async |kit| {
    sequential(&kit).await;
    let mut watch = kit.watch_root().await;
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "gate", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    let (generation, _) = kit.run().await.unwrap();
    let first = kit.tasks(TOOL).await;
    assert_eq!(first.len(), 1);
    let mut over = false;
    kit.gate.open();
    frame(&mut watch, |frame| {
        let made = frame.tasks.iter().any(|task| task.kind == TOOL && task.id != first[0].id);
        assert!(!made || over, "the second task is there and the first one is not over");
        // Set behind the look: the commit that ends the first makes no second.
        over |= frame.tasks.iter().any(|task| task.id == first[0].id && task.terminal());
        made
    })
    .await;
    kit.gate.open();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let tools = kit.tasks(TOOL).await;
    assert_eq!(tools.iter().map(|task| task.owner).collect::<Vec<_>>(), [Some(generation); 2], "their generation owns them");
    // The one behind the round too is the conversation's.
    let generations = kit.tasks(GENERATION).await;
    assert_eq!(generations.iter().map(|task| (task.owner, task.background)).collect::<Vec<_>>(), [(None, false); 2]);
});

scenario!(s142_results_are_appended_as_they_come_and_shown_in_call_order, async |kit| {
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "echo", r#"{"text":"y"}"#));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    kit.until("the other result", async || results(&kit).await.len() == 1).await;
    kit.steer("s").await;
    // Another set of tools makes a system entry in front of the next request.
    kit.root().await.set_active_tools(["echo", "gate"]).await.unwrap();
    kit.gate.open();
    kit.settled(&go).await;
    assert_eq!(results(&kit).await.iter().map(call_of).collect::<Vec<_>>(), ["c2", "c1"]);
    let asked = kit.stage.asked().pop().unwrap().messages;
    let last: Vec<Json> = asked[asked.len() - 5..].iter().map(|message| Json::from_serde(message).unwrap()).collect();
    let field = |at: usize, name: &str| last[at].get(name).and_then(Json::as_str).unwrap().into_owned();
    let roles: Vec<String> = (0..5).map(|at| field(at, "role")).collect();
    assert_eq!(roles, ["assistant", "toolResult", "toolResult", "user", "system"]);
    assert_eq!((field(1, "toolCallId"), field(2, "toolCallId"), field(3, "content")), ("c1".into(), "c2".into(), "s".into()));
});

scenario!(s152_an_aborted_parallel_round_ends_behind_its_tools, async |kit| {
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "gate", "{}"));
    let go = kit.say("go").await;
    for _ in 0..2 {
        kit.gate.begun().await;
    }
    let (run, _) = kit.run().await.unwrap();
    let mut watch = kit.watch_root().await;
    kit.harness().abort_task(run).await.unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    let mut over = Vec::new();
    frame(&mut watch, |frame| {
        over.extend(frame.tasks.iter().filter(|task| task.terminal()).map(|task| task.kind.clone()));
        over.contains(&GENERATION.to_owned())
    })
    .await;
    assert_eq!(over, [TOOL, TOOL, GENERATION], "both tools end first");
    let tools = kit.tasks(TOOL).await;
    for task in tools.iter().chain([&kit.task(run).await]) {
        assert!(matches!(task.state, TaskState::Terminal { outcome: TaskOutcome::Aborted { .. } }), "{task:?}");
    }
    let results = results(&kit).await;
    assert_eq!((tools.len(), results.len()), (2, 2));
    assert!(results.iter().all(|entry| picofleet_harness_tests::last_code(entry) == "aborted"));
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s152_an_aborted_sequential_round_answers_every_call, async |kit| {
    sequential(&kit).await;
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "gate", "{}").and_call("c3", "gate", "{}"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    let (run, _) = kit.run().await.unwrap();
    kit.harness().abort_task(run).await.unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    assert!(matches!(kit.task(run).await.state, TaskState::Terminal { outcome: TaskOutcome::Aborted { .. } }));
    let results = results(&kit).await;
    assert_eq!(results.iter().map(call_of).collect::<Vec<_>>(), ["c1", "c2", "c3"]);
    assert!(results.iter().all(|entry| message(entry).get("isError") == Some(&Json::from(true))));
    assert_eq!(kit.tasks(TOOL).await.len(), 1, "the other calls never had a task");
    assert_eq!(kit.document("pi.live").await, empty());
});

fn controlled(name: &str, control: Option<Control>) -> Closure {
    Closure::new(name, move |_, _| {
        let control = control.clone();
        async move { Ok(ToolResult { control, ..ToolResult::text("ok") }) }
    })
}

fn spends(usage: Usage) -> Closure {
    Closure::new("spends", move |_, _| async move { Ok(ToolResult { usage: Some(usage), ..ToolResult::text("ok") }) })
}

scenario!(s153_a_tool_whose_result_is_no_json_faults_and_the_run_goes_on, async |kit| {
    let mut usage = Usage { input: 3, ..Usage::default() };
    usage.cost.total = f64::NAN;
    add(&kit, spends(usage)).await;
    let mut watch = kit.watch_root().await;
    assert_eq!(round(&kit, Reply::call("c1", "spends", "{}")).await, SubmissionStatus::Done);
    frame(&mut watch, |frame| frame.tasks.iter().any(|task| task.kind == TOOL && task.terminal())).await;
    let live: LiveState = watch.mount().get("pi.live").unwrap().to().unwrap();
    let slot = live.tools.unwrap().remove(0);
    assert_eq!((slot.status, slot.entry), (SlotStatus::Done, None));
    let task = kit.tasks(TOOL).await.remove(0);
    assert!(matches!(task.state, TaskState::Terminal { outcome: TaskOutcome::Faulted { .. } }), "{task:?}");
    assert!(results(&kit).await.is_empty(), "a fault has no result entry");
    let asked = Json::from_serde(&kit.stage.asked().pop().unwrap().messages).unwrap();
    let last = asked.as_array().unwrap().iter().last().unwrap().clone();
    assert_eq!((last.get("toolCallId"), last.get("isError")), (Some(&Json::from("c1")), Some(&Json::from(true))));
    assert_eq!(kit.document("pi.usage").await.get("tools"), Some(&empty()));
});

scenario!(s154_the_run_terminates_where_every_result_asks_for_it, async |kit| {
    let terminate = |terminate| Some(Control { terminate, ..Control::default() });
    add(&kit, controlled("a", terminate(Some(true)))).await;
    add(&kit, controlled("b", terminate(Some(true)))).await;
    let both = kit.turn("go", Reply::call("c1", "a", "{}").and_call("c2", "b", "{}")).await;
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!((entries.last().unwrap().kind.as_str(), kit.stage.asked().len()), ("pi.tool-result", 1));
    let SubmissionState::Input(InputState::Done { answer, .. }) = both.state else { panic!("{both:?}") };
    assert_eq!(answer, entries.iter().find(|entry| entry.kind == "pi.assistant").unwrap().id, "the message that called");
    assert_eq!(kit.document("pi.live").await, empty());
    round(&kit, Reply::call("c1", "a", "{}").and_call("c2", "echo", r#"{"text":"y"}"#)).await;
    assert_eq!((kit.kinds().await.pop().as_deref(), kit.stage.asked().len()), (Some("pi.assistant"), 3));
});

scenario!(s155_a_handoff_ends_the_run_and_begins_a_context, async |kit| {
    let handoff = |text: &str| Some(Control { handoff: Some(text.to_owned()), ..Control::default() });
    add(&kit, controlled("a", handoff("first"))).await;
    add(&kit, controlled("b", handoff("take over"))).await;
    let calls = Reply::call("c1", "a", "{}").and_call("c2", "b", "{}");
    assert_eq!(kit.turn("go", calls).await.status(), SubmissionStatus::Done);
    let entries = kit.entries(&kit.root().await).await;
    let reset = entries.last().unwrap();
    assert_eq!((entries[entries.len() - 2].kind.as_str(), reset.kind.as_str()), ("pi.tool-result", "pi.reset"));
    assert_eq!(reset.head, Some(reset.id));
    assert_eq!(picofleet_harness_tests::text(reset), "take over", "the last one in call order");
    assert_eq!(kit.stage.asked().len(), 1);
});

scenario!(s157_what_a_tool_spends_is_on_its_result_and_counted_with_it, async |kit| {
    let usage = Usage { input: 3, output: 4, total_tokens: 7, ..Usage::default() };
    add(&kit, spends(usage)).await;
    let mut watch = kit.watch_root().await;
    round(&kit, Reply::call("c1", "spends", "{}")).await;
    let json = Json::from_serde(&usage).unwrap();
    assert_eq!(message(&results(&kit).await[0]).get("usage"), Some(&json));
    let commit = frame(&mut watch, |frame| frame.entries.iter().any(|entry| entry.kind == "pi.tool-result")).await;
    assert!(commit.documents.iter().any(|(kind, _)| kind == "pi.usage"), "counted in the commit of the result: {commit:?}");
    let counted = watch.mount().get("pi.usage").unwrap().get("tools").and_then(|tools| tools.get("spends")).cloned();
    assert_eq!(counted, Some(json));
});

scenario!(x071_added_tools_are_offered_from_the_next_preparation_on, async |kit| {
    let add_tools = Some(vec!["echo".to_owned(), "b".to_owned(), "echo".to_owned()]);
    kit.registry.tool(controlled("b", Some(Control { add_tools, terminate: Some(false), ..Control::default() }))).unwrap();
    kit.registry.tool(controlled("c", Some(Control { terminate: None, ..Control::default() }))).unwrap();
    let only = ConfigPatch { active_tools: Some(vec!["b".to_owned(), "c".to_owned()]), ..ConfigPatch::default() };
    kit.root().await.update(only).await.unwrap();
    round(&kit, Reply::call("c1", "b", "{}").and_call("c2", "c", "{}")).await;
    assert_eq!(kit.stage.asked().len(), 2, "neither false nor nothing asks for the end");
    assert_eq!(kit.document("pi.conversation.config").await.get("activeTools"), Some(&object(r#"["b","c","echo"]"#)));
    let entries = kit.entries(&kit.root().await).await;
    let systems: Vec<_> = entries.iter().filter(|entry| entry.kind == "pi.system").collect();
    let added = message(systems[1]).get("toolsAdded").and_then(Json::as_array).unwrap().iter().next().unwrap().clone();
    assert_eq!((systems.len(), added.get("name")), (2, Some(&Json::from("echo"))));
    assert!(systems[1].id > entries.iter().find(|entry| entry.kind == "pi.tool-result").unwrap().id);
    // Nothing asks for nothing too.
    round(&kit, Reply::call("c3", "echo", r#"{"text":"y"}"#)).await;
    assert_eq!(kit.stage.asked().len(), 4);
});
