//! Section J: tools.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use picofleet_harness::config::{ConfigPatch, ToolExecution};
use picofleet_harness::effects::Retain;
use picofleet_harness::hooks::{BeforeTool, HookApi, HookResult, ToolHooks, ToolTask};
use picofleet_harness::registry::Registration;
use picofleet_harness::tool::{Control, Replay};
use picofleet_harness::tools::{ToolError, ToolResult};
use picofleet_harness_tests::{Closure, Kit, Reply, last_code, scenario};
use picofleet_session::message::{ToolCall, Usage};
use picofleet_session::{EntryDraft, EntryRecord, Json, SubmissionStatus, TaskOutcome, TaskState};

use super::{empty, reason};

fn object(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// Registers a tool and offers it.
async fn add(kit: &Kit, tool: Closure) -> Registration {
    let root = kit.root().await;
    let registration = kit.registry.tool(tool).unwrap();
    let active_tools = Some(kit.registry.snapshot().tool_names());
    root.update(ConfigPatch { active_tools, ..ConfigPatch::default() }).await.unwrap();
    registration
}

async fn results(kit: &Kit) -> Vec<EntryRecord> {
    kit.entries(&kit.root().await).await.into_iter().filter(|entry| entry.kind == "pi.tool-result").collect()
}

fn message(entry: &EntryRecord) -> Json {
    Json::from_serde(&entry.model.as_ref().unwrap()[0]).unwrap()
}

fn call_of(entry: &EntryRecord) -> String {
    message(entry).get("toolCallId").and_then(Json::as_str).unwrap().into_owned()
}

/// The texts of a result, one line each.
fn shown(entry: &EntryRecord) -> String {
    let content = message(entry).get("content").cloned().unwrap();
    let blocks = content.as_array().unwrap();
    blocks.iter().filter_map(|block| Some(block.get("text")?.as_str()?.into_owned())).collect::<Vec<_>>().join("\n")
}

/// One turn with these calls and an answer behind them.
async fn round(kit: &Kit, calls: Reply) -> SubmissionStatus {
    kit.stage.give(calls);
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.settled(&go).await.status()
}

scenario!(s137_one_call, async |kit| {
    let only = ConfigPatch { active_tools: Some(vec!["echo".to_owned()]), ..ConfigPatch::default() };
    kit.root().await.update(only).await.unwrap();
    round(&kit, Reply::call("c1", "echo", r#"{"text":"y"}"#)).await;
    assert_eq!(kit.kinds().await, ["pi.user", "pi.system", "pi.assistant", "pi.tool-result", "pi.assistant"]);
    let entries = kit.entries(&kit.root().await).await;
    let system = message(&entries[1]);
    assert_eq!(system.get("toolsAdded").and_then(Json::as_array).unwrap().iter().count(), 1, "{system}");
    assert!(system.get("sections").is_none(), "{system}");
    let data = entries[3].data.clone().unwrap();
    assert_eq!(data.get("diagnostics"), Some(&object("[]")), "{data}");
    let asked = kit.stage.asked().pop().unwrap().messages;
    let roles: Vec<String> = asked.iter().map(|message| Json::from_serde(message).unwrap().get("role").unwrap().to_string()).collect();
    assert_eq!(roles[roles.len() - 2..], [r#""assistant""#, r#""toolResult""#]);
    assert_eq!(kit.document("pi.live").await, empty());
});

scenario!(s139_a_call_of_a_tool_that_was_not_offered_is_answered_without_a_task, async |kit| {
    round(&kit, Reply::call("c1", "ghost", "{}").and_call("c2", "echo", r#"{"text":"y"}"#)).await;
    let results = results(&kit).await;
    let ghost = results.iter().find(|entry| call_of(entry) == "c1").unwrap();
    assert_eq!(
        (last_code(ghost), shown(ghost)),
        ("tool_unavailable".to_owned(), "<harness>\n[error] Tool ghost is not available\n</harness>".to_owned())
    );
    let echo = results.iter().find(|entry| call_of(entry) == "c2").unwrap();
    assert_eq!((last_code(echo), shown(echo)), (String::new(), "y".to_owned()));
});

scenario!(s140_a_tool_that_went_behind_its_request_is_unavailable, async |kit| {
    let registration = add(&kit, Closure::new("mine", |_, _| async { Ok(ToolResult::text("x")) })).await;
    let go = kit.asking("go", Reply::call("c1", "mine", "{}")).await;
    registration.dispose();
    kit.stage.give(Reply::text("done"));
    kit.stage.release();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(last_code(&results(&kit).await[0]), "tool_unavailable");
});

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
});

scenario!(s142_results_are_appended_as_they_come_and_shown_in_call_order, async |kit| {
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "echo", r#"{"text":"y"}"#));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    kit.until("the other result", async || results(&kit).await.len() == 1).await;
    kit.steer("s").await;
    kit.gate.open();
    kit.settled(&go).await;
    assert_eq!(results(&kit).await.iter().map(call_of).collect::<Vec<_>>(), ["c2", "c1"]);
    let asked = kit.stage.asked().pop().unwrap().messages;
    let last: Vec<Json> = asked[asked.len() - 4..].iter().map(|message| Json::from_serde(message).unwrap()).collect();
    let id = |at: usize| last[at].get("toolCallId").and_then(Json::as_str).unwrap().into_owned();
    assert_eq!((id(1), id(2)), ("c1".to_owned(), "c2".to_owned()));
    assert!(last[3].to_string().contains(r#""s""#), "the steer is behind the results: {}", last[3]);
});

fn lines(name: &str, retain: Retain) -> Closure {
    let mut tool = Closure::new(name, |_, api| async move {
        let text: String = (1..=2_500).map(|line| format!("{line:04}\n")).collect();
        api.output(text.as_bytes())?;
        Ok(ToolResult::default())
    });
    tool.spec.output.retain = retain;
    tool
}

scenario!(s143_x065_running_output_is_bounded_and_is_the_result_where_there_is_no_other, async |kit| {
    add(&kit, lines("head", Retain::Head)).await;
    add(&kit, lines("tail", Retain::Tail)).await;
    add(&kit, Closure::new("nothing", |_, _| async { Ok(ToolResult::default()) })).await;
    round(&kit, Reply::call("c1", "head", "{}").and_call("c2", "tail", "{}").and_call("c3", "nothing", "{}")).await;
    let results = results(&kit).await;
    let of = |id: &str| results.iter().find(|entry| call_of(entry) == id).unwrap();
    let (head, tail) = (shown(of("c1")), shown(of("c2")));
    assert!(head.starts_with("0001\n") && head.contains("2000") && !head.contains("2001"));
    assert!(!tail.contains("0500\n") && tail.contains("0501\n") && tail.contains("2500"));
    for id in ["c1", "c2"] {
        assert_eq!(last_code(of(id)), "truncated");
        assert!(shown(of(id)).contains("500 lines, 2,500 bytes"), "{}", shown(of(id)));
    }
    assert_eq!(message(of("c3")).get("content"), Some(&object("[]")));
});

scenario!(s145_a_tool_that_throws_keeps_its_output_and_the_run_goes_on, async |kit| {
    let task = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&task);
    let throws = Closure::new("throws", move |_, api| {
        *kept.lock().unwrap() = Some(api.task_id());
        async move {
            api.output(b"part")?;
            Err(ToolError::new("broken"))
        }
    });
    add(&kit, throws).await;
    assert_eq!(round(&kit, Reply::call("c1", "throws", "{}")).await, SubmissionStatus::Done);
    let result = results(&kit).await.remove(0);
    assert_eq!((last_code(&result), shown(&result)), ("tool_error".to_owned(), "part\n<harness>\n[error] broken\n</harness>".to_owned()));
    assert_eq!(message(&result).get("isError"), Some(&Json::from(true)));
    let id = task.lock().unwrap().unwrap();
    let TaskState::Terminal { outcome: TaskOutcome::Failed { result: failed, .. } } = kit.task(id).await.state else {
        panic!("not failed")
    };
    assert_eq!(failed, Some(Json::object([("entryId", result.id.get())])));
});

/// Stored and current replay: whether it ran again after a reopen.
async fn replayed(kit: &mut Kit, stored: Replay, current: Option<Replay>) -> (bool, String) {
    let runs = Arc::new(AtomicU32::new(0));
    let tool = |replay| {
        let runs = Arc::clone(&runs);
        let mut tool = Closure::new("replayed", move |arguments, api| {
            let again = runs.fetch_add(1, Ordering::SeqCst) > 0;
            async move {
                if !again {
                    api.output(b"part")?;
                    api.details(object(r#"{"d":1}"#))?.await?;
                    api.cancelled().cancelled().await;
                }
                Ok(ToolResult::text(arguments.to_string()))
            }
        });
        tool.spec.replay = replay;
        tool
    };
    let before = results(kit).await.len();
    let registration = add(kit, tool(stored)).await;
    kit.stage.give(Reply::call("c1", "replayed", r#"{"text":"t"}"#));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    let root = kit.root().await;
    kit.until("details", async || kit.document("pi.live").await.to_string().contains(r#""d":1"#)).await;
    let task = root.live().await.unwrap().tools.unwrap()[0].task_id.unwrap();
    kit.stop().await;
    registration.dispose();
    let again = current.map(|replay| kit.registry.tool(tool(replay)).unwrap());
    kit.reopen().await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let result = results(kit).await.remove(before);
    let failed = matches!(kit.task(task).await.state, TaskState::Terminal { outcome: TaskOutcome::Failed { .. } });
    let code = last_code(&result);
    assert_eq!(failed, code == "interrupted");
    if failed {
        assert!(shown(&result).starts_with("part"), "durable output: {}", shown(&result));
        assert_eq!(message(&result).get("details"), Some(&object(r#"{"d":1}"#)));
    } else {
        assert_eq!(shown(&result), r#"{"text":"t"}"#);
    }
    if let Some(again) = again {
        again.dispose();
    }
    (runs.load(Ordering::SeqCst) == 2, code)
}

scenario!(s148_s149_only_what_was_and_is_safe_runs_again, async |kit| {
    let interrupted = (false, "interrupted".to_owned());
    assert_eq!(replayed(&mut kit, Replay::Safe, Some(Replay::Safe)).await, (true, String::new()));
    assert_eq!(replayed(&mut kit, Replay::Safe, Some(Replay::Unsafe)).await, interrupted);
    assert_eq!(replayed(&mut kit, Replay::Unsafe, Some(Replay::Safe)).await, interrupted);
    assert_eq!(replayed(&mut kit, Replay::Unsafe, Some(Replay::Unsafe)).await, interrupted);
    assert_eq!(replayed(&mut kit, Replay::Safe, None).await, interrupted);
});

scenario!(s151_an_aborted_tool_has_a_result_and_the_run_answers, async |kit| {
    let go = kit.busy("go").await;
    let task = kit.root().await.live().await.unwrap().tools.unwrap()[0].task_id.unwrap();
    kit.stage.give(Reply::text("done"));
    kit.harness().abort_task(task).await.unwrap();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let result = results(&kit).await.remove(0);
    assert!(last_code(&result) == "aborted" && shown(&result).contains("was aborted"), "{}", shown(&result));
    let TaskState::Terminal { outcome: TaskOutcome::Aborted { result: aborted, .. } } = kit.task(task).await.state else {
        panic!("not aborted")
    };
    assert_eq!(aborted, Some(Json::object([("entryId", result.id.get())])));
});

scenario!(s152_an_aborted_round_answers_every_call, async |kit| {
    let sequential = ConfigPatch { tool_execution: Some(Some(ToolExecution::Sequential)), ..ConfigPatch::default() };
    for begun in [2, 1] {
        kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "gate", "{}"));
        let go = kit.say("go").await;
        for _ in 0..begun {
            kit.gate.begun().await;
        }
        let (run, _) = kit.run().await.unwrap();
        kit.harness().abort_task(run).await.unwrap();
        assert_eq!(reason(&kit.settled(&go).await), "aborted");
        assert_eq!(kit.document("pi.live").await, empty());
        let all = results(&kit).await;
        let last = &all[all.len() - 2..];
        assert!(last.iter().all(|entry| message(entry).get("isError") == Some(&Json::from(true))));
        if begun == 1 {
            assert_eq!(last.iter().map(call_of).collect::<Vec<_>>(), ["c1", "c2"]);
        }
        kit.root().await.update(sequential.clone()).await.unwrap();
    }
});

fn controlled(name: &str, control: Option<Control>) -> Closure {
    Closure::new(name, move |_, _| {
        let control = control.clone();
        async move { Ok(ToolResult { control, ..ToolResult::text("ok") }) }
    })
}

scenario!(s154_the_run_terminates_where_every_result_asks_for_it, async |kit| {
    let terminate = || Some(Control { terminate: Some(true), ..Control::default() });
    add(&kit, controlled("a", terminate())).await;
    add(&kit, controlled("b", terminate())).await;
    let both = kit.turn("go", Reply::call("c1", "a", "{}").and_call("c2", "b", "{}")).await;
    assert_eq!(both.status(), SubmissionStatus::Done);
    assert_eq!((kit.kinds().await.pop().as_deref(), kit.stage.asked().len()), (Some("pi.tool-result"), 1));
    round(&kit, Reply::call("c1", "a", "{}").and_call("c2", "echo", r#"{"text":"y"}"#)).await;
    assert_eq!((kit.kinds().await.pop().as_deref(), kit.stage.asked().len()), (Some("pi.assistant"), 3));
});

scenario!(s155_a_handoff_ends_the_run_and_begins_a_context, async |kit| {
    add(&kit, controlled("a", Some(Control { handoff: Some("take over".to_owned()), ..Control::default() }))).await;
    assert_eq!(kit.turn("go", Reply::call("c1", "a", "{}")).await.status(), SubmissionStatus::Done);
    let entries = kit.entries(&kit.root().await).await;
    let reset = entries.last().unwrap();
    assert_eq!((entries[entries.len() - 2].kind.as_str(), reset.kind.as_str()), ("pi.tool-result", "pi.reset"));
    assert_eq!((reset.head, picofleet_harness_tests::text(reset)), (Some(reset.id), "take over".to_owned()));
    assert_eq!(kit.stage.asked().len(), 1);
});

scenario!(s153_s157_what_a_tool_spends_is_counted_and_no_json_faults_it, async |kit| {
    let usage = Usage { input: 3, output: 4, total_tokens: 7, ..Usage::default() };
    let spends = move |usage: Usage| {
        Closure::new("spends", move |_, _| async move { Ok(ToolResult { usage: Some(usage), ..ToolResult::text("ok") }) })
    };
    let first = add(&kit, spends(usage)).await;
    round(&kit, Reply::call("c1", "spends", "{}")).await;
    let json = Json::from_serde(&usage).unwrap();
    assert_eq!(message(&results(&kit).await[0]).get("usage"), Some(&json));
    assert_eq!(kit.document("pi.usage").await.get("tools").and_then(|tools| tools.get("spends")), Some(&json));
    first.dispose();
    let mut broken = usage;
    broken.cost.total = f64::NAN;
    add(&kit, spends(broken)).await;
    assert_eq!(round(&kit, Reply::call("c2", "spends", "{}")).await, SubmissionStatus::Done);
    assert_eq!(results(&kit).await.len(), 1, "a fault has no result entry");
    let asked = Json::from_serde(&kit.stage.asked().pop().unwrap().messages).unwrap();
    let last = asked.as_array().unwrap().iter().last().unwrap().clone();
    assert_eq!((last.get("toolCallId"), last.get("isError")), (Some(&Json::from("c2")), Some(&Json::from(true))));
});

scenario!(x071_added_tools_are_offered_from_the_next_preparation_on, async |kit| {
    let add_tools = Some(vec!["echo".to_owned(), "b".to_owned(), "echo".to_owned()]);
    kit.registry.tool(controlled("b", Some(Control { add_tools, terminate: Some(false), ..Control::default() }))).unwrap();
    let only = ConfigPatch { active_tools: Some(vec!["b".to_owned()]), ..ConfigPatch::default() };
    kit.root().await.update(only).await.unwrap();
    round(&kit, Reply::call("c1", "b", "{}")).await;
    assert_eq!(kit.document("pi.conversation.config").await.get("activeTools"), Some(&object(r#"["b","echo"]"#)));
    assert_eq!(kit.kinds().await.iter().filter(|kind| *kind == "pi.system").count(), 2);
});

/// Takes a memo and blocks the first time.
#[derive(Debug)]
pub(crate) struct Stuck(pub(crate) tokio::sync::Semaphore, pub(crate) AtomicU32, pub(crate) Mutex<Vec<u32>>);

impl ToolHooks for Stuck {
    fn before_tool<'a>(&'a self, _: &'a ToolCall, api: &'a HookApi) -> HookResult<'a, BeforeTool> {
        Box::pin(async move {
            let attempt = self.1.fetch_add(1, Ordering::SeqCst);
            let kept = api.memo("test:attempt", &attempt).await?;
            self.2.lock().unwrap().push(kept);
            if attempt == 0 {
                self.0.add_permits(1);
                api.cancelled().cancelled().await;
            }
            Ok(None)
        })
    }
}

scenario!(x070_a_restart_before_the_intent_asks_again_and_executes_once, async |kit| {
    let stuck = Arc::new(Stuck(tokio::sync::Semaphore::new(0), AtomicU32::new(0), Mutex::default()));
    kit.registry.hooks::<ToolTask>(None, None, stuck.clone()).unwrap();
    kit.stage.give(Reply::call("c1", "echo", r#"{"text":"y"}"#));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    stuck.0.acquire().await.unwrap().forget();
    kit.reopen().await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!(*stuck.2.lock().unwrap(), [0, 0]);
    assert_eq!(results(&kit).await.len(), 1);
});

scenario!(x073_a_conversation_handle_takes_inputs_and_ends_with_its_invocation, async |kit| {
    let kept = Arc::new(Mutex::new(None));
    let inside = Arc::clone(&kept);
    let tool = Closure::new("handle", move |_, api| {
        let kept = Arc::clone(&inside);
        async move {
            let root = api.conversation(api.conversation_id()).await?.unwrap();
            let refused = root.submit(picofleet_harness::submission::SubmissionDraft::write(EntryDraft::new("note"))).await;
            let why = refused.err().map(|fault| fault.to_string()).unwrap_or_default();
            let queued = root.submit(picofleet_harness::submission::SubmissionDraft::input("later")).await?;
            *kept.lock().unwrap() = Some((root, queued));
            Ok(ToolResult::text(why))
        }
    });
    add(&kit, tool).await;
    kit.stage.give(Reply::call("c1", "handle", "{}"));
    kit.stage.give(Reply::text("done"));
    kit.stage.give(Reply::text("then"));
    let go = kit.say("go").await;
    kit.settled(&go).await;
    assert!(shown(&results(&kit).await[0]).contains("accepts only input submissions"));
    let (root, queued) = kept.lock().unwrap().take().unwrap();
    assert!(root.wait_for_idle().await.is_err() && root.abort().await.is_err() && queued.status().await.is_err());
    let record = kit.harness().submission(queued.id()).await.unwrap().unwrap();
    assert_eq!(kit.settled(&record).await.status(), SubmissionStatus::Done);
});
