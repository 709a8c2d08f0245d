//! Section J: tools.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Retain;
use picofleet_harness::hooks::{BeforeTool, HookApi, HookResult, ToolHooks, ToolTask};
use picofleet_harness::kinds::TOOL;
use picofleet_harness::registry::Registration;
use picofleet_harness::tool::Replay;
use picofleet_harness::tools::{ToolError, ToolResult};
use picofleet_harness_tests::{Closure, Kit, Reply, last_code, scenario};
use picofleet_session::message::ToolCall;
use picofleet_session::{EntryDraft, EntryRecord, Json, SubmissionStatus, TaskOutcome, TaskState};

use super::empty;

pub(super) fn object(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// Registers a tool and offers it.
pub(super) async fn add(kit: &Kit, tool: Closure) -> Registration {
    let root = kit.root().await;
    let registration = kit.registry.tool(tool).unwrap();
    let active_tools = Some(kit.registry.snapshot().tool_names());
    root.update(ConfigPatch { active_tools, ..ConfigPatch::default() }).await.unwrap();
    registration
}

pub(super) async fn results(kit: &Kit) -> Vec<EntryRecord> {
    kit.entries(&kit.root().await).await.into_iter().filter(|entry| entry.kind == "pi.tool-result").collect()
}

pub(super) fn message(entry: &EntryRecord) -> Json {
    Json::from_serde(&entry.model.as_ref().unwrap()[0]).unwrap()
}

pub(super) fn call_of(entry: &EntryRecord) -> String {
    message(entry).get("toolCallId").and_then(Json::as_str).unwrap().into_owned()
}

/// The texts of a result, one line each.
pub(super) fn shown(entry: &EntryRecord) -> String {
    let content = message(entry).get("content").cloned().unwrap();
    let blocks = content.as_array().unwrap();
    blocks.iter().filter_map(|block| Some(block.get("text")?.as_str()?.into_owned())).collect::<Vec<_>>().join("\n")
}

/// One turn with these calls and an answer behind them.
pub(super) async fn round(kit: &Kit, calls: Reply) -> SubmissionStatus {
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
    let tasks = kit.tasks(TOOL).await;
    assert_eq!((tasks.len(), tasks[0].input.get("callId")), (1, Some(&Json::from("c2"))), "the other call never had a task");
});

scenario!(s140_a_tool_that_went_behind_its_request_is_unavailable, async |kit| {
    let registration = add(&kit, Closure::new("mine", |_, _| async { Ok(ToolResult::text("x")) })).await;
    let go = kit.asking("go", Reply::call("c1", "mine", "{}")).await;
    registration.dispose();
    kit.stage.give(Reply::text("done"));
    kit.stage.release();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let result = &results(&kit).await[0];
    assert_eq!((last_code(result), message(result).get("isError")), ("tool_unavailable".to_owned(), Some(&Json::from(true))));
});

scenario!(s140_a_tool_that_is_only_deactivated_behind_its_request_executes, async |kit| {
    let go = kit.asking("go", Reply::call("c1", "echo", r#"{"text":"y"}"#)).await;
    kit.root().await.set_active_tools(["gate"]).await.unwrap();
    kit.stage.give(Reply::text("done"));
    kit.stage.release();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let result = &results(&kit).await[0];
    assert_eq!((last_code(result), shown(result)), (String::new(), "y".to_owned()));
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

/// Stored and current replay: whether it ran again after a kill, and the code of the result.
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
    kit.kill().await;
    registration.dispose();
    let again = current.map(|replay| kit.registry.tool(tool(replay)).unwrap());
    kit.reopen_paused().await;
    let TaskState::Pending { checkpoint } = kit.task(task).await.state else { panic!("not pending") };
    let word = Json::from_serde(&stored).unwrap();
    assert_eq!(checkpoint, object(&format!(r#"{{"phase":"execute","arguments":{{"text":"t"}},"replay":{word}}}"#)));
    kit.harness().resume().await.unwrap();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let result = results(kit).await.remove(before);
    assert_eq!(results(kit).await.len(), before + 1);
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

scenario!(s151_an_aborted_tool_has_a_result_of_its_progress_and_the_run_answers, async |kit| {
    let tool = Closure::new("slow", |_, api| async move {
        api.output(b"part")?;
        api.details(object(r#"{"d":1}"#))?.await?;
        api.cancelled().cancelled().await;
        Err(ToolError::new("cancelled"))
    });
    add(&kit, tool).await;
    kit.stage.give(Reply::call("c1", "slow", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.until("details", async || kit.document("pi.live").await.to_string().contains(r#""d":1"#)).await;
    let task = kit.root().await.live().await.unwrap().tools.unwrap()[0].task_id.unwrap();
    kit.harness().abort_task(task).await.unwrap();
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    let result = results(&kit).await.remove(0);
    assert!(shown(&result).starts_with("part\n<harness>") && shown(&result).contains("was aborted"), "{}", shown(&result));
    assert_eq!((last_code(&result).as_str(), message(&result).get("details")), ("aborted", Some(&object(r#"{"d":1}"#))));
    let TaskState::Terminal { outcome: TaskOutcome::Aborted { result: aborted, .. } } = kit.task(task).await.state else {
        panic!("not aborted")
    };
    assert_eq!(aborted, Some(Json::object([("entryId", result.id.get())])));
    assert_eq!(kit.said().await.last().map(String::as_str), Some("pi.assistant:done"));
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
    let runs = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&runs);
    let counted = Closure::new("counted", move |_, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok(ToolResult::text("ok")) }
    });
    add(&kit, counted).await;
    kit.stage.give(Reply::call("c1", "counted", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    stuck.0.acquire().await.unwrap().forget();
    kit.kill().await;
    kit.reopen().await;
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
    assert_eq!((stuck.2.lock().unwrap().as_slice(), runs.load(Ordering::SeqCst)), ([0, 0].as_slice(), 1));
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
    let late = picofleet_harness::submission::SubmissionDraft::input("late");
    assert!(root.submit(late).await.is_err() && root.wait_for_idle().await.is_err() && root.abort().await.is_err());
    assert!(queued.status().await.is_err() && queued.wait().await.is_err() && queued.abort().await.is_err());
    let record = kit.harness().submission(queued.id()).await.unwrap().unwrap();
    assert_eq!(kit.settled(&record).await.status(), SubmissionStatus::Done);
});
