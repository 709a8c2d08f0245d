//! What a tool task asks, and what a running tool may use (sections 7.2 and 7.3).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use picofleet_harness::hooks::{
    BeforeTool, GenerationHooks, GenerationTask, HookApi, HookError, HookResult, Observed, ToolHooks, ToolTask,
};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::SubmissionDraft;
use picofleet_harness::tool::Control;
use picofleet_harness::tools::{ToolError, ToolResult};
use picofleet_harness::wire::{HostCall, Read};
use picofleet_session::message::{AssistantMessage, ToolCall, Usage};
use picofleet_session::{Json, ROOT_CONVERSATION_ID, SubmissionStatus, TaskId, TaskRecord};

use super::engine::{Engine, Gate, Tooled, Tooling, calls, echo, texts, tool};

fn add(registry: &Registry, hooks: Tooling) {
    registry.hooks::<ToolTask>(None, None, Arc::new(hooks)).unwrap();
}

fn before(ask: impl Fn(&ToolCall) -> Result<Option<BeforeTool>, HookError> + Send + Sync + 'static) -> Tooling {
    Tooling { before: Some(Box::new(ask)), ..Tooling::default() }
}

fn after(ask: impl Fn(&ToolResult) -> Result<Option<ToolResult>, HookError> + Send + Sync + 'static) -> Tooling {
    Tooling { after: Some(Box::new(ask)), ..Tooling::default() }
}

fn object(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

const ONE_CALL: &str = r#"{ type = "toolCall", id = "c1", name = "echo", arguments = { text = "a" } }"#;

/// Runs one turn with `echo` and these hooks: the result's code and text, how often it executed, and the reports.
async fn one_call(hooks: Vec<Tooling>, call: &str, prepare: fn(Json) -> Result<Json, ToolError>) -> (String, String, u32, Vec<String>) {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    registry.tool(Tooled { prepare, ..echo("echo", &count) }).unwrap();
    for hooks in hooks {
        add(&registry, hooks);
    }
    let (_store, engine) = Engine::new(&calls(call), &registry).await;
    engine.turn("go").await;
    let (code, text) = engine.results().await.remove(0);
    let reported = engine.reported();
    let stored = engine.messages("pi.assistant").await[0].get("content").unwrap().as_array().unwrap().iter().next().unwrap().clone();
    assert!(
        call.contains("text = \"a\"") == (stored.get("arguments") == Some(&object(r#"{"text":"a"}"#))),
        "{stored} is what the model sent"
    );
    engine.stop().await;
    (code, text, count.load(Ordering::SeqCst), reported)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s147_before_tool_is_a_chain_of_arguments_and_the_first_block_wins() {
    let replace = |from: &'static str, to: &'static str| {
        before(move |call| {
            assert_eq!(call.arguments, object(from));
            Ok(Some(BeforeTool::arguments(object(to))))
        })
    };
    let chain = vec![replace(r#"{"text":"a"}"#, r#"{"text":"b"}"#), before(|_| Ok(None)), replace(r#"{"text":"b"}"#, r#"{"text":"c"}"#)];
    let (code, text, count, _) = one_call(chain, ONE_CALL, Ok).await;
    assert_eq!((code.as_str(), text.as_str(), count), ("", r#"{"text":"c"}"#, 1));

    let never = || before(|_| panic!("a handler behind a block is not asked"));
    let (code, text, count, _) = one_call(vec![before(|_| Ok(Some(BeforeTool::block("no")))), never()], ONE_CALL, Ok).await;
    assert_eq!((code.as_str(), count), ("blocked", 0));
    assert_eq!(text, "<harness>\n[error] Tool call blocked: no\n</harness>");

    let (code, text, count, reports) = one_call(vec![before(|_| Err(HookError::new("thrown"))), never()], ONE_CALL, Ok).await;
    assert_eq!((code.as_str(), count, reports.len()), ("blocked", 0, 0));
    assert!(text.contains("thrown"), "{text}");

    let (code, text, count, _) = one_call(vec![before(|_| panic!("boom"))], ONE_CALL, Ok).await;
    assert!(code == "blocked" && text.contains("boom") && count == 0, "{code} {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s146_arguments_are_repaired_coerced_and_validated_before_and_after_the_hooks() {
    let wrong = vec![before(|_| Ok(Some(BeforeTool::arguments(object(r#"{"n":[]}"#)))))];
    let (code, _, count, _) = one_call(wrong, ONE_CALL, Ok).await;
    assert_eq!((code.as_str(), count), ("invalid_arguments", 0), "after the hooks");

    let asked = vec![before(|_| panic!("invalid arguments are not shown to hooks"))];
    let call = r#"{ type = "toolCall", id = "c1", name = "echo", arguments = { n = [] } }"#;
    let (code, _, count, _) = one_call(asked, call, Ok).await;
    assert_eq!((code.as_str(), count), ("invalid_arguments", 0), "before the hooks");

    let call = r#"{ type = "toolCall", id = "c1", name = "echo", arguments = { n = "7" } }"#;
    let (code, text, _, _) = one_call(Vec::new(), call, Ok).await;
    assert_eq!((code.as_str(), text.as_str()), ("", r#"{"n":7}"#), "coerced");

    let (code, text, _, _) = one_call(Vec::new(), ONE_CALL, |_| Ok(object(r#"{"text":"repaired"}"#))).await;
    assert_eq!((code.as_str(), text.as_str()), ("", r#"{"text":"repaired"}"#));

    for repair in [|_| Err(ToolError::new("no repair")), |_| panic!("no repair")] {
        let (code, text, count, _) = one_call(Vec::new(), ONE_CALL, repair).await;
        assert!(code == "invalid_arguments" && text.contains("no repair") && count == 0, "{code} {text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x067_after_tool_is_a_chain_and_its_errors_are_reported() {
    let chain = vec![
        after(|_| Ok(Some(ToolResult::text("first")))),
        after(|_| Err(HookError::new("thrown"))),
        after(|result| {
            let text = Json::from_serde(&result.content).unwrap().to_string();
            assert!(text.contains("first"), "{text}");
            Ok(Some(ToolResult { is_error: true, ..ToolResult::text("x\n".repeat(3_000)) }))
        }),
    ];
    let (code, text, count, reports) = one_call(chain, ONE_CALL, Ok).await;
    assert_eq!((code.as_str(), count, reports), ("truncated", 1, vec!["thrown".to_owned()]), "bounded behind the chain");
    assert!(text.starts_with("x\nx\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s139_a_call_of_a_tool_that_was_not_offered_is_answered_without_a_task() {
    let registry = Registry::new();
    add(&registry, before(|call| panic!("{} has no task", call.name)));
    let call = r#"{ type = "toolCall", id = "c1", name = "ghost", arguments = {} }"#;
    let (_store, engine) = Engine::new(&calls(call), &registry).await;
    engine.turn("go").await;
    let text = "<harness>\n[error] Tool ghost is not available\n</harness>".to_owned();
    assert_eq!(engine.results().await, [("tool_unavailable".to_owned(), text)]);
    engine.stop().await;
}

/// Disposes a registration once an answer came.
struct Disposes(picofleet_harness::registry::Registration);

impl GenerationHooks for Disposes {
    fn after_response<'a>(&'a self, _: &'a AssistantMessage, _: &'a HookApi) -> Observed<'a> {
        Box::pin(async {
            self.0.dispose();
            Ok(())
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s140_a_tool_that_went_behind_its_request_is_unavailable() {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    let registration = registry.tool(echo("echo", &count)).unwrap();
    registry.hooks::<GenerationTask>(None, None, Arc::new(Disposes(registration))).unwrap();
    let (_store, engine) = Engine::new(&calls(ONE_CALL), &registry).await;
    engine.turn("go").await;
    assert_eq!(engine.results().await[0].0, "tool_unavailable");
    assert_eq!(count.load(Ordering::SeqCst), 0);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_whose_wrapper_fails_is_not_offered_and_reported() {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    registry.tool(echo("echo", &count)).unwrap();
    registry.wrap_tool("echo", "broken", |_| Err(ToolError::new("broken"))).unwrap();
    let (_store, engine) = Engine::new(&calls(ONE_CALL), &registry).await;
    engine.turn("go").await;
    assert_eq!(engine.results().await[0].0, "tool_unavailable");
    assert_eq!(engine.reported()[0], r#"tool "echo" is absent because a wrapper failed: broken"#);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s064_the_first_memo_is_kept_and_ends_with_the_task() {
    let registry = Registry::new();
    let task: Arc<Mutex<Option<TaskId>>> = Arc::default();
    let seen = Arc::clone(&task);
    let memos = tool("echo", move |_, api| {
        *seen.lock().unwrap() = Some(api.task_id());
        async move {
            assert_eq!(api.memoized::<String>("toString").await?, None);
            assert_eq!(api.memo("toString", &"a".to_owned()).await?, "a");
            assert_eq!(api.memo("toString", &"b".to_owned()).await?, "a");
            assert_eq!(api.memoized::<String>("toString").await?.as_deref(), Some("a"));
            assert!(api.memoized::<u32>("toString").await.is_err(), "another type");
            Ok(ToolResult::text("ok"))
        }
    });
    registry.tool(memos).unwrap();
    let (_store, engine) = Engine::new(&calls(ONE_CALL), &registry).await;
    engine.turn("go").await;
    assert_eq!(engine.results().await, [(String::new(), "ok".to_owned())]);
    let id = task.lock().unwrap().unwrap();
    let record: TaskRecord = engine.read(Read::Task(id)).await;
    assert!(record.terminal() && record.memos.is_none(), "{record:?}");
    engine.stop().await;
}

/// Takes a memo, says so, and blocks the first time.
struct Stuck(Gate, AtomicU32, Arc<Mutex<Vec<u32>>>);

impl ToolHooks for Stuck {
    fn before_tool<'a>(&'a self, _: &'a ToolCall, api: &'a HookApi) -> HookResult<'a, BeforeTool> {
        Box::pin(async move {
            let attempt = self.1.fetch_add(1, Ordering::SeqCst);
            let kept = api.memo("test:attempt", &attempt).await?;
            self.2.lock().unwrap().push(kept);
            if attempt == 0 {
                self.0.begun.notify_one();
                api.cancelled().cancelled().await;
                return Err(HookError::new("cut off"));
            }
            Ok(None)
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x070_a_restart_before_the_intent_asks_again_and_executes_once() {
    let registry = Registry::new();
    let (gate, kept, count) = (Gate::default(), Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU32::new(0)));
    registry.tool(echo("echo", &count)).unwrap();
    registry.hooks::<ToolTask>(None, None, Arc::new(Stuck(gate.clone(), AtomicU32::new(0), Arc::clone(&kept)))).unwrap();
    let (store, engine) = Engine::new(&calls(ONE_CALL), &registry).await;
    let submission = engine.submit(SubmissionDraft::input("go")).await;
    gate.begun.notified().await;
    let session = engine.session;
    let reports = Arc::clone(&engine.reports);
    engine.stop().await;
    assert!(reports.lock().unwrap().is_empty(), "an error of an invocation that is over is not reported");
    let engine = Engine::start(&store, session, &calls(ONE_CALL), registry);
    engine.coordinator.resume(session).await.unwrap();
    assert_eq!(engine.settled(&submission).await.status(), SubmissionStatus::Done);
    assert_eq!(*kept.lock().unwrap(), [0, 0]);
    assert_eq!((count.load(Ordering::SeqCst), engine.results().await[0].0.as_str()), (1, ""));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x068_details_replace_each_other_and_settle_with_their_commit() {
    let registry = Registry::new();
    let last = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&last);
    let details = tool("echo", move |arguments, api| {
        let kept = Arc::clone(&kept);
        async move {
            api.details(object(r#"{"a":1,"b":1}"#))?.await?;
            api.details(object(r#"{"a":2}"#))?.await?;
            let promise = api.details(object(r#"{"a":3}"#))?;
            *kept.lock().unwrap() = Some(tokio::spawn(promise));
            let details = arguments.get("n").map(|_| Json::null());
            Ok(ToolResult { details, ..ToolResult::text("ok") })
        }
    });
    registry.tool(details).unwrap();
    let round = r#"{ type = "toolCall", id = "c1", name = "echo", arguments = {} }"#;
    let (_store, engine) = Engine::new(&calls(round), &registry).await;
    engine.turn("go").await;
    let promise = last.lock().unwrap().take().unwrap();
    assert_eq!(promise.await.unwrap(), Ok(()), "with the result");
    assert_eq!(engine.messages("pi.tool-result").await[0].get("details"), Some(&object(r#"{"a":3}"#)));
    engine.stop().await;

    let round = r#"{ type = "toolCall", id = "c1", name = "echo", arguments = { n = 1 } }"#;
    let (_store, engine) = Engine::new(&calls(round), &registry).await;
    engine.turn("go").await;
    assert_eq!(engine.messages("pi.tool-result").await[0].get("details"), Some(&Json::null()), "an explicit null is kept");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x068_details_that_were_not_committed_fail_when_the_call_is_aborted() {
    let registry = Registry::new();
    let gate = Gate::default();
    let waiting = Arc::new(Mutex::new(None));
    let (inside, kept) = (gate.clone(), Arc::clone(&waiting));
    let aborted = tool("echo", move |_, api| {
        let (gate, kept) = (inside.clone(), Arc::clone(&kept));
        async move {
            gate.begun.notify_one();
            api.cancelled().cancelled().await;
            *kept.lock().unwrap() = Some(tokio::spawn(api.details(1)?));
            Ok(ToolResult::default())
        }
    });
    registry.tool(aborted).unwrap();
    let (_store, engine) = Engine::new(&calls(ONE_CALL), &registry).await;
    let submission = engine.submit(SubmissionDraft::input("go")).await;
    gate.begun.notified().await;
    engine
        .call(picofleet_harness::wire::Request::Host(Box::new(HostCall::Abort { conversation: ROOT_CONVERSATION_ID, background: false })))
        .await;
    assert_eq!(engine.settled(&submission).await.status(), SubmissionStatus::Unanswered);
    engine.stop().await;
    let promise = waiting.lock().unwrap().take().unwrap();
    assert!(promise.await.unwrap().is_err());
}

fn controlled(name: &str, control: Option<Control>) -> Tooled {
    tool(name, move |_, _| {
        let control = control.clone();
        async move { Ok(ToolResult { control, ..ToolResult::text("ok") }) }
    })
}

const TWO_CALLS: &str = r#"
    { type = "toolCall", id = "c1", name = "a", arguments = {} },
    { type = "toolCall", id = "c2", name = "b", arguments = {} }"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x071_added_tools_are_offered_from_the_next_preparation_on() {
    let registry = Registry::new();
    let add_tools = Some(vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]);
    registry.tool(controlled("a", Some(Control { add_tools, terminate: Some(false), ..Control::default() }))).unwrap();
    registry.tool(controlled("b", None)).unwrap();
    let (_store, engine) = Engine::new(&calls(r#"{ type = "toolCall", id = "c1", name = "a", arguments = {} }"#), &registry).await;
    engine.configure(ROOT_CONVERSATION_ID, vec!["a".into()]).await;
    engine.turn("go").await;
    let config = engine.document("pi.conversation.config").await;
    assert_eq!(config.get("activeTools"), Some(&object(r#"["a","b"]"#)));
    let systems = engine.messages("pi.system").await;
    assert_eq!(systems.len(), 2);
    let added = systems[1].get("toolsAdded").unwrap().as_array().unwrap().iter().next().unwrap().clone();
    assert_eq!(added.get("name").and_then(Json::as_str).as_deref(), Some("b"));
    assert_eq!(engine.messages("pi.assistant").await.len(), 2, "terminate: false is no request");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s154_the_run_terminates_where_every_result_asks_for_it() {
    let terminate = || Some(Control { terminate: Some(true), ..Control::default() });
    for (second, kind, answers) in [(terminate(), "pi.tool-result", 1), (None, "pi.assistant", 2)] {
        let registry = Registry::new();
        registry.tool(controlled("a", terminate())).unwrap();
        registry.tool(controlled("b", second)).unwrap();
        let (_store, engine) = Engine::new(&calls(TWO_CALLS), &registry).await;
        let done = engine.turn("go").await;
        assert_eq!(engine.kinds().await.last().map(String::as_str), Some(kind));
        let assistants: Vec<i64> =
            engine.entries().await.iter().filter(|entry| entry.kind == "pi.assistant").map(|entry| entry.id.get()).collect();
        assert_eq!(assistants.len(), answers);
        assert_eq!(Json::from_serde(&done).unwrap().get("answer").and_then(Json::as_i64), assistants.last().copied());
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s155_a_handoff_ends_the_run_and_begins_a_context() {
    let registry = Registry::new();
    registry.tool(controlled("a", Some(Control { handoff: Some("first".into()), ..Control::default() }))).unwrap();
    registry.tool(controlled("b", Some(Control { handoff: Some("take over".into()), ..Control::default() }))).unwrap();
    let (_store, engine) = Engine::new(&calls(TWO_CALLS), &registry).await;
    engine.turn("go").await;
    let entries = engine.entries().await;
    let kinds = engine.kinds().await;
    assert_eq!(kinds[kinds.len() - 2..], ["pi.tool-result", "pi.reset"]);
    let reset = entries.last().unwrap();
    assert_eq!(reset.head, Some(reset.id));
    assert_eq!(texts(&engine.messages("pi.reset").await[0]), "take over", "the last one in call order");
    assert_eq!(engine.requests.lock().unwrap().len(), 1);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s157_what_a_tool_spends_is_on_its_result_and_counted() {
    let registry = Registry::new();
    let usage = Usage { input: 3, output: 4, total_tokens: 7, ..Usage::default() };
    let spent = usage;
    let spends = tool("echo", move |_, _| {
        let usage = Some(spent);
        async move { Ok(ToolResult { usage, ..ToolResult::text("ok") }) }
    });
    registry.tool(spends).unwrap();
    let (_store, engine) = Engine::new(&calls(ONE_CALL), &registry).await;
    engine.turn("go").await;
    let usage = Json::from_serde(&usage).unwrap();
    assert_eq!(engine.messages("pi.tool-result").await[0].get("usage"), Some(&usage));
    assert_eq!(engine.document("pi.usage").await.get("tools").and_then(|tools| tools.get("echo")), Some(&usage));
    engine.stop().await;
}
