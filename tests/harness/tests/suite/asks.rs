//! What tasks ask hooks and prompt sections (sections 7.2 and 7.4).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Retain;
use picofleet_harness::hooks::{BeforeTool, GenerationHooks, GenerationTask, HookApi, HookError, HookResult, ToolTask};
use picofleet_harness::registry::{PromptInput, PromptSection};
use picofleet_harness::tools::{DetailsCommitted, ToolError, ToolResult};
use picofleet_harness_tests::{AskedGeneration, AskedTool, Closure, Kit, Reply, last_code, scenario};
use picofleet_session::message::{AssistantMessage, UserInput};
use picofleet_session::{EntryId, EntryRecord, InputState, Json, SubmissionRecord, SubmissionState, SubmissionStatus};
use tokio::sync::Semaphore;

use super::tools::{add, call_of, message, object, results, round, shown};
use super::{empty, frame, reason};

fn ask(kit: &Kit, hooks: impl GenerationHooks + 'static) {
    kit.registry.hooks::<GenerationTask>(None, None, Arc::new(hooks)).unwrap();
}

fn yields(ask: impl Fn() -> Result<Option<UserInput>, HookError> + Send + Sync + 'static) -> AskedGeneration {
    AskedGeneration { on_yield: Some(Box::new(move |_| ask())), after_tools: None }
}

fn answer(record: &SubmissionRecord) -> EntryId {
    let SubmissionState::Input(InputState::Done { answer, .. }) = record.state else { panic!("{record:?}") };
    answer
}

async fn without_tools(kit: &Kit) {
    kit.root().await.update(ConfigPatch { active_tools: Some(Vec::new()), ..ConfigPatch::default() }).await.unwrap();
}

async fn wait(signal: &Semaphore) {
    let waited = tokio::time::timeout(std::time::Duration::from_secs(60), signal.acquire()).await;
    waited.expect("it comes that far").unwrap().forget();
}

scenario!(s135_the_first_continuation_wins_and_goes_on_once, async |kit| {
    without_tools(&kit).await;
    let (left, asked) = (AtomicU32::new(1), Arc::new(AtomicU32::new(0)));
    let last = Arc::clone(&asked);
    ask(&kit, yields(|| Err(HookError::new("broken"))));
    ask(
        &kit,
        yields(move || {
            let goes_on = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            Ok(goes_on.then(|| "go on".to_owned().into()))
        }),
    );
    ask(
        &kit,
        yields(move || {
            last.fetch_add(1, Ordering::SeqCst);
            Ok(None)
        }),
    );
    let a = kit.asking("a", Reply::text("x")).await;
    let (first, _) = kit.run().await.unwrap();
    kit.stage.give(Reply::text("y").held());
    kit.stage.release();
    kit.until("the second request", async || kit.stage.asked().len() == 2).await;
    let (second, inputs) = kit.run().await.unwrap();
    assert!(second != first && inputs == [a.id()], "the run is handed to a successor");
    assert!(kit.task(first).await.terminal());
    kit.stage.release();
    let done = kit.settled(&a).await;
    assert_eq!(kit.said().await, ["pi.user:a", "pi.assistant:x", "pi.user:go on", "pi.assistant:y"]);
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!(entries.len(), 4);
    assert_eq!(answer(&done), entries[3].id);
    assert_eq!((entries[1].by_task_id, entries[3].by_task_id), (Some(first), Some(second)));
    assert_eq!(kit.document("pi.live").await, empty());
    assert_eq!(asked.load(Ordering::SeqCst), 1, "behind a continuation nobody is asked");
    assert_eq!(kit.reported(), ["broken", "broken"]);
});

/// Continues an answer once it is let go, where it is armed.
struct Late {
    armed: AtomicBool,
    begun: Semaphore,
    go: Semaphore,
}

impl GenerationHooks for Late {
    fn on_yield<'a>(&'a self, _: &'a AssistantMessage, _: &'a HookApi) -> HookResult<'a, UserInput> {
        Box::pin(async move {
            if !self.armed.swap(false, Ordering::SeqCst) {
                return Ok(None);
            }
            self.begun.add_permits(1);
            wait(&self.go).await;
            Ok(Some("again".to_owned().into()))
        })
    }
}

scenario!(s136_a_continuation_gives_way_to_what_the_boundary_places, async |kit| {
    without_tools(&kit).await;
    let late = Arc::new(Late { armed: AtomicBool::new(true), begun: Semaphore::new(0), go: Semaphore::new(0) });
    kit.registry.hooks::<GenerationTask>(None, None, late.clone()).unwrap();
    // A user item.
    kit.stage.give(Reply::text("x"));
    kit.stage.give(Reply::text("y"));
    let a = kit.say("a").await;
    wait(&late.begun).await;
    let f = kit.say("f").await;
    late.go.add_permits(1);
    let (a, f) = (kit.settled(&a).await, kit.settled(&f).await);
    let said = ["pi.user:a", "pi.assistant:x", "pi.user:f", "pi.assistant:y"];
    assert_eq!(kit.said().await, said);
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!((answer(&a), answer(&f)), (entries[1].id, entries[3].id));
    // A reset.
    late.armed.store(true, Ordering::SeqCst);
    kit.stage.give(Reply::text("z"));
    let b = kit.say("b").await;
    wait(&late.begun).await;
    let reset = kit.root().await.reset(None).await.unwrap();
    late.go.add_permits(1);
    let b = kit.settled(&b).await;
    assert_eq!(kit.settled(&reset).await.status(), SubmissionStatus::Done);
    let said = [&said[..], &["pi.user:b", "pi.assistant:z", "pi.reset"]].concat();
    assert_eq!(kit.said().await, said);
    let entries = kit.entries(&kit.root().await).await;
    assert_eq!((answer(&b), kit.document("pi.live").await), (entries[5].id, empty()));
    // What was dropped is not tried again.
    kit.turn("c", Reply::text("w")).await;
    assert_eq!(kit.said().await, [&said[..], &["pi.user:c", "pi.assistant:w"]].concat());
    assert_eq!(kit.stage.asked().len(), 4);
});

/// Runs one call of a tool that answers with its arguments, among these hooks: the result, and how often it executed.
async fn one_call(kit: &Kit, hooks: Vec<AskedTool>, arguments: &str, prepare: fn(Json) -> Result<Json, ToolError>) -> (EntryRecord, u32) {
    let count = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&count);
    let mut tool = Closure::new("asked", move |arguments, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ToolResult::text(arguments.to_string())) }
    });
    tool.prepare = prepare;
    let mut kept = vec![add(kit, tool).await];
    for hooks in hooks {
        kept.push(kit.registry.hooks::<ToolTask>(None, None, Arc::new(hooks)).unwrap());
    }
    assert_eq!(round(kit, Reply::call("c1", "asked", arguments)).await, SubmissionStatus::Done);
    let result = results(kit).await.pop().unwrap();
    let entries = kit.entries(&kit.root().await).await;
    let calling = entries.iter().rev().find(|entry| entry.id < result.id && entry.kind == "pi.assistant").unwrap();
    let content = message(calling).get("content").cloned().unwrap();
    let stored = content.as_array().unwrap().iter().next().unwrap().clone();
    assert_eq!(stored.get("arguments"), Some(&object(arguments)), "the stored call keeps what the model sent");
    kept.iter().for_each(picofleet_harness::registry::Registration::dispose);
    (result, count.load(Ordering::SeqCst))
}

fn replaces(from: &'static str, to: &'static str) -> AskedTool {
    AskedTool::before(move |call| {
        assert_eq!(call.arguments, object(from));
        Ok(Some(BeforeTool::arguments(object(to))))
    })
}

scenario!(s146_arguments_are_repaired_coerced_and_validated_before_and_after_the_hooks, async |kit| {
    let text = r#"{"text":"a"}"#;
    let wrong = vec![AskedTool::before(|_| Ok(Some(BeforeTool::arguments(object(r#"{"n":[]}"#)))))];
    let (result, count) = one_call(&kit, wrong, text, Ok).await;
    assert_eq!((last_code(&result).as_str(), count), ("invalid_arguments", 0), "after the hooks");

    let unasked = vec![AskedTool::before(|_| panic!("invalid arguments are not shown to hooks"))];
    let (result, count) = one_call(&kit, unasked, r#"{"n":[]}"#, Ok).await;
    assert_eq!((last_code(&result).as_str(), count), ("invalid_arguments", 0), "before the hooks");

    let (result, count) = one_call(&kit, vec![replaces(r#"{"n":7}"#, r#"{"n":"8"}"#)], r#"{"n":"7"}"#, Ok).await;
    assert_eq!((last_code(&result).as_str(), shown(&result).as_str(), count), ("", r#"{"n":8}"#, 1), "coerced both times");

    let repaired = vec![replaces(r#"{"text":"repaired"}"#, r#"{"text":"hooked"}"#)];
    let (result, _) = one_call(&kit, repaired, text, |_| Ok(object(r#"{"text":"repaired"}"#))).await;
    assert_eq!(shown(&result), r#"{"text":"hooked"}"#, "the repair comes first");

    for repair in [|_| Err(ToolError::new("no repair")), |_| panic!("no repair")] {
        let (result, count) = one_call(&kit, Vec::new(), text, repair).await;
        assert_eq!((last_code(&result).as_str(), count), ("invalid_arguments", 0));
        assert!(shown(&result).contains("no repair"), "{}", shown(&result));
    }
});

scenario!(s147_before_tool_is_a_chain_of_arguments_and_the_first_block_wins, async |kit| {
    let text = r#"{"text":"a"}"#;
    let chain = vec![replaces(text, r#"{"text":"b"}"#), AskedTool::before(|_| Ok(None)), replaces(r#"{"text":"b"}"#, r#"{"text":"c"}"#)];
    let (result, count) = one_call(&kit, chain, text, Ok).await;
    assert_eq!((last_code(&result).as_str(), shown(&result).as_str(), count), ("", r#"{"text":"c"}"#, 1));

    let asked = Arc::new(AtomicU32::new(0));
    let later = || {
        let asked = Arc::clone(&asked);
        AskedTool::before(move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            Ok(None)
        })
    };
    let blocks = vec![AskedTool::before(|_| Ok(Some(BeforeTool::block("no")))), later()];
    let (result, count) = one_call(&kit, blocks, text, Ok).await;
    assert_eq!((last_code(&result).as_str(), count), ("blocked", 0));
    assert_eq!(shown(&result), "<harness>\n[error] Tool call blocked: no\n</harness>");

    let (result, count) = one_call(&kit, vec![AskedTool::before(|_| Err(HookError::new("thrown"))), later()], text, Ok).await;
    assert_eq!((last_code(&result).as_str(), count), ("blocked", 0));
    assert!(shown(&result).contains("Tool call blocked: thrown"), "{}", shown(&result));

    let (result, count) = one_call(&kit, vec![AskedTool::before(|_| panic!("boom")), later()], text, Ok).await;
    assert_eq!((last_code(&result).as_str(), count), ("blocked", 0));
    assert!(shown(&result).contains("boom"), "{}", shown(&result));
    assert_eq!(asked.load(Ordering::SeqCst), 0, "a handler behind a block is not asked");
    assert!(kit.reported().is_empty(), "{:?}", kit.reported());
});

scenario!(x067_after_tool_is_a_chain_and_its_errors_are_reported, async |kit| {
    let chain = vec![
        AskedTool::after(|result| {
            assert_eq!(Json::from_serde(&result.content).unwrap().to_string(), r#"[{"type":"text","text":"{\"text\":\"a\"}"}]"#);
            Ok(Some(ToolResult::text("first")))
        }),
        AskedTool::after(|_| Err(HookError::new("thrown"))),
        AskedTool::after(|result| {
            assert!(Json::from_serde(&result.content).unwrap().to_string().contains("first"));
            Ok(Some(ToolResult { is_error: true, ..ToolResult::text("x\n".repeat(3_000)) }))
        }),
    ];
    let (result, count) = one_call(&kit, chain, r#"{"text":"a"}"#, Ok).await;
    assert_eq!((last_code(&result).as_str(), count), ("truncated", 1), "bounded behind the chain");
    assert!(shown(&result).starts_with("x\nx\n"));
    assert_eq!(message(&result).get("isError"), Some(&Json::from(true)));
    assert_eq!(kit.reported(), ["thrown"]);
});

/// A calling message with its results.
type Round = (EntryId, Vec<EntryId>);

scenario!(x067_after_tools_gets_the_results_in_call_order, async |kit| {
    let seen: Arc<Mutex<Vec<Round>>> = Arc::default();
    let log = Arc::clone(&seen);
    let after_tools = move |round: &Round| {
        log.lock().unwrap().push(round.clone());
        Ok(())
    };
    ask(&kit, AskedGeneration { after_tools: Some(Box::new(after_tools)), ..AskedGeneration::default() });
    // The results are appended in another order than the calls.
    kit.stage.give(Reply::call("c1", "gate", "{}").and_call("c2", "ghost", "{}").and_call("c3", "echo", r#"{"text":"b"}"#));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    kit.gate.begun().await;
    kit.until("the other results", async || results(&kit).await.len() == 2).await;
    assert!(seen.lock().unwrap().is_empty());
    kit.gate.open();
    kit.settled(&go).await;
    let results = results(&kit).await;
    let of = |call: &str| results.iter().find(|entry| call_of(entry) == call).unwrap().id;
    let assistant = kit.entries(&kit.root().await).await.iter().find(|entry| entry.kind == "pi.assistant").unwrap().id;
    assert!(of("c1") > of("c3"));
    assert_eq!(*seen.lock().unwrap(), [(assistant, vec![of("c1"), of("c2"), of("c3")])]);
});

type Waits = Arc<Mutex<Vec<tokio::task::JoinHandle<Result<(), ToolError>>>>>;

fn keep(waits: &Waits, promise: DetailsCommitted) {
    waits.lock().unwrap().push(tokio::spawn(promise));
}

scenario!(x068_details_replace_each_other_and_settle_with_their_commit, async |kit| {
    let waits = Waits::default();
    let inside = Arc::clone(&waits);
    let details = Closure::new("details", move |arguments, api| {
        let waits = Arc::clone(&inside);
        async move {
            // The first settles with the commit of a later one at the latest.
            let early = api.details(object(r#"{"a":1,"b":1}"#))?;
            api.details(object(r#"{"a":2}"#))?.await?;
            early.await?;
            keep(&waits, api.details(object(r#"{"a":3}"#))?);
            let details = arguments.get("n").map(|_| Json::null());
            Ok(ToolResult { details, ..ToolResult::text("ok") })
        }
    });
    add(&kit, details).await;
    let mut watch = kit.watch_root().await;
    round(&kit, Reply::call("c1", "details", "{}")).await;
    let mut shown = Vec::new();
    while shown.last() != Some(&object(r#"{"a":2}"#)) {
        frame(&mut watch, |_| true).await;
        let tools = watch.mount().get("pi.live").unwrap().get("tools").and_then(Json::as_array);
        shown.extend(tools.and_then(|tools| tools.iter().next()?.get("details").cloned()));
    }
    assert!(shown.iter().all(|shown| shown.get("a") != Some(&Json::from(2)) || shown.get("b").is_none()), "replaced as a whole: {shown:?}");
    round(&kit, Reply::call("c2", "details", r#"{"n":1}"#)).await;
    let results = results(&kit).await;
    assert_eq!(message(&results[0]).get("details"), Some(&object(r#"{"a":3}"#)), "the last value");
    assert_eq!(message(&results[1]).get("details"), Some(&Json::null()), "an explicit null is kept");
    let waits = std::mem::take(&mut *waits.lock().unwrap());
    for wait in waits {
        assert_eq!(wait.await.unwrap(), Ok(()), "with the result");
    }
});

scenario!(x068_details_that_were_not_committed_fail_when_the_call_is_aborted, async |kit| {
    let (begun, waits) = (Arc::new(Semaphore::new(0)), Waits::default());
    let (inside, kept) = (Arc::clone(&begun), Arc::clone(&waits));
    let tool = Closure::new("aborted", move |_, api| {
        let (begun, waits) = (Arc::clone(&inside), Arc::clone(&kept));
        async move {
            begun.add_permits(1);
            api.cancelled().cancelled().await;
            keep(&waits, api.details(1)?);
            Ok(ToolResult::default())
        }
    });
    add(&kit, tool).await;
    kit.stage.give(Reply::call("c1", "aborted", "{}"));
    let go = kit.say("go").await;
    wait(&begun).await;
    kit.root().await.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    let waiting = waits.lock().unwrap().pop().unwrap();
    assert!(waiting.await.unwrap().is_err());
    assert_eq!(message(&results(&kit).await[0]).get("details"), None);
});

/// Waits for the end of its invocation and throws then.
struct Throws(Arc<Semaphore>);

impl PromptSection for Throws {
    fn render<'a>(&'a self, input: &'a PromptInput) -> BoxFuture<'a, Result<Option<String>, HookError>> {
        Box::pin(async move {
            self.0.add_permits(1);
            input.read.cancelled().cancelled().await;
            Err(HookError::new("cut off"))
        })
    }
}

scenario!(x085_an_error_of_a_section_after_the_cancellation_propagates, async |kit| {
    let begun = Arc::new(Semaphore::new(0));
    kit.registry.prompt("slow", true, Throws(Arc::clone(&begun))).unwrap();
    let go = kit.say("go").await;
    wait(&begun).await;
    kit.root().await.abort(false).await.unwrap();
    assert_eq!(reason(&kit.settled(&go).await), "aborted");
    assert_eq!(kit.said().await, ["pi.user:go"]);
    assert_eq!(kit.kinds().await, ["pi.user"], "nothing was made of what was rendered");
    assert!(kit.reported().is_empty() && kit.stage.asked().is_empty());
});

/// A tool that says the same in two ways: as running output and as its result.
fn said(name: &str, limits: (usize, usize), said: &'static [u8], explicit: Option<ToolResult>) -> Closure {
    let mut tool = Closure::new(name, move |_, api| {
        let explicit = explicit.clone();
        async move {
            api.output(said)?;
            Ok(explicit.unwrap_or_default())
        }
    });
    tool.spec.output.retain = Retain::Tail;
    (tool.spec.output.max_bytes, tool.spec.output.max_lines) = limits;
    tool
}

scenario!(x065_the_tail_of_texts_is_kept_and_images_stay, async |kit| {
    let block = |text: &str| object(&format!(r#"{{"type":"text","text":"{text}"}}"#)).to().unwrap();
    let image = object(r#"{"type":"image","data":"aGk=","mimeType":"image/png"}"#);
    let content = Some(vec![block("a\\nb\\nc"), image.to().unwrap(), block("\\u001b[1mx"), block("y\\n\\u001b[1mx\\nz")]);
    add(&kit, said("explicit", (50_000, 2), b"unseen", Some(ToolResult { content, ..ToolResult::default() }))).await;
    add(&kit, said("running", (50_000, 9), b"\x1b[1ma\tb\r\n\x07c", None)).await;
    add(&kit, said("long", (6, 9), "x\naäöü€".as_bytes(), None)).await;
    let calls = Reply::call("c1", "explicit", "{}").and_call("c2", "running", "{}").and_call("c3", "long", "{}");
    round(&kit, calls).await;
    let results = results(&kit).await;
    let of = |id: &str| results.iter().find(|entry| call_of(entry) == id).unwrap();
    let blocks: Vec<Json> = message(of("c1")).get("content").and_then(Json::as_array).unwrap().iter().cloned().collect();
    assert_eq!(blocks[0].get("text"), Some(&Json::from("b\nc")), "bounded by lines");
    assert_eq!(blocks[1], image, "in its place");
    assert_eq!(blocks[2].get("text"), Some(&Json::from("\u{1b}[1mx")), "explicit text keeps its control characters");
    assert_eq!(blocks[3].get("text"), Some(&Json::from("\u{1b}[1mx\nz")), "also what is bounded");
    assert_eq!((blocks.len(), last_code(of("c1")).as_str()), (5, "truncated"));
    assert_eq!((shown(of("c2")).as_str(), last_code(of("c2")).as_str()), ("[1ma\tb\nc", ""));
    // Six bytes back is the middle of a character.
    assert!(shown(of("c3")).starts_with("ü€\n<harness>"), "{}", shown(of("c3")));
    assert_eq!(last_code(of("c3")), "truncated");
});
