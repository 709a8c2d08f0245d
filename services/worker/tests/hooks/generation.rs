//! What a generation asks (section 7.2).

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use picofleet_harness::hooks::{GenerationHooks, GenerationTask, HookApi, HookError, HookResult, HookScope};
use picofleet_harness::registry::Registry;
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::wire::HostCall;
use picofleet_session::message::{AssistantMessage, Message, UserInput, UserMessage};
use picofleet_session::{
    ConversationId, ConversationOwnership, EntryId, Json, Millis, ROOT_CONVERSATION_ID, Session, SessionOptions, SubmissionRecord,
    SubmissionStatus, TaskCreate, TaskOwnership,
};

use super::engine::{ANSWERS, Engine, Gate, Generation, calls, echo, texts};

fn add(registry: &Registry, hooks: Generation) {
    registry.hooks::<GenerationTask>(None, None, Arc::new(hooks)).unwrap();
}

/// Continues the first `times` final answers with `text`.
fn continues(times: u32, text: &'static str) -> (Generation, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let on_yield = move |_: &AssistantMessage| Ok((count.fetch_add(1, Ordering::SeqCst) < times).then(|| UserInput::from(text.to_owned())));
    (Generation { on_yield: Some(Box::new(on_yield)), ..Generation::default() }, asked)
}

fn answer(record: &SubmissionRecord) -> Option<i64> {
    Json::from_serde(record).unwrap().get("answer").and_then(Json::as_i64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s135_the_first_continuation_wins_and_goes_on_once() {
    let registry = Registry::new();
    add(&registry, Generation { on_yield: Some(Box::new(|_| Err(HookError::new("broken")))), ..Generation::default() });
    let (first, _) = continues(1, "go on");
    let (second, asked) = continues(0, "never");
    add(&registry, first);
    add(&registry, second);
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    let done = engine.turn("hi").await;
    assert_eq!(engine.kinds().await, ["pi.user", "pi.assistant", "pi.user", "pi.assistant"]);
    assert_eq!(texts(&engine.messages("pi.user").await[1]), "go on");
    assert_eq!(answer(&done), engine.entries().await.last().map(|entry| entry.id.get()));
    assert_eq!(engine.document("pi.live").await, Json::object::<&str, Json>([]));
    assert_eq!(asked.load(Ordering::SeqCst), 1, "behind a continuation nobody is asked");
    assert_eq!(engine.reported(), ["broken", "broken"]);
    engine.stop().await;
}

/// Continues the first answer once the gate opens.
struct Late(Gate, AtomicU32);

impl GenerationHooks for Late {
    fn on_yield<'a>(&'a self, _: &'a AssistantMessage, _: &'a HookApi) -> HookResult<'a, UserInput> {
        Box::pin(async move {
            if self.1.fetch_add(1, Ordering::SeqCst) > 0 {
                return Ok(None);
            }
            self.0.begun.notify_one();
            self.0.go.notified().await;
            Ok(Some(UserInput::from("again".to_owned())))
        })
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s136_a_continuation_gives_way_to_what_the_boundary_places() {
    let registry = Registry::new();
    let gate = Gate::default();
    registry.hooks::<GenerationTask>(None, None, Arc::new(Late(gate.clone(), AtomicU32::new(0)))).unwrap();
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    let first = engine.submit(SubmissionDraft::input("hi")).await;
    gate.begun.notified().await;
    let next = engine.submit(SubmissionDraft::input("next").when_busy(WhenBusy::FollowUp)).await;
    gate.go.notify_one();
    let (first, next) = (engine.settled(&first).await, engine.settled(&next).await);
    assert_eq!((first.status(), next.status()), (SubmissionStatus::Done, SubmissionStatus::Done));
    let entries = engine.entries().await;
    assert_eq!(engine.kinds().await, ["pi.user", "pi.assistant", "pi.user", "pi.assistant"]);
    assert_eq!(answer(&first), Some(entries[1].id.get()));
    let users: Vec<String> = engine.messages("pi.user").await.iter().map(texts).collect();
    assert_eq!(users, ["hi", "next"]);
    engine.stop().await;
}

fn user(text: &str) -> Message {
    Message::from(UserMessage { content: UserInput::from(text.to_owned()), timestamp: Millis(1) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_request_replaces_the_messages_of_one_attempt_and_errors_are_skipped() {
    let registry = Registry::new();
    let append = |text: &'static str| {
        let ask = move |messages: &[Message]| Ok(Some([messages.to_vec(), vec![user(text)]].concat()));
        Generation { before_request: Some(Box::new(ask)), ..Generation::default() }
    };
    add(&registry, append("x"));
    add(&registry, Generation { before_request: Some(Box::new(|_| Err(HookError::new("thrown")))), ..Generation::default() });
    add(&registry, Generation { before_request: Some(Box::new(|_| panic!("boom"))), ..Generation::default() });
    add(&registry, append("y"));
    let script =
        "[[turns]]\nerror = \"503 overloaded\"\ntimes = 1\nwhen = { user = \"y\" }\nblocks = [{ type = \"text\", chunks = [\"ok\"] }]\n";
    let (_store, engine) = Engine::new(script, &registry).await;
    engine.turn("hi").await;
    let requests = engine.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2, "every attempt asks");
    for request in &requests {
        let users: Vec<String> = request
            .iter()
            .filter(|message| matches!(message, Message::User(_)))
            .map(|message| texts(&Json::from_serde(message).unwrap()))
            .collect();
        assert_eq!(users, ["hi", "x", "y"], "a chain that is not kept");
    }
    assert_eq!(engine.messages("pi.user").await.len(), 1);
    let reports = engine.reported();
    assert_eq!(reports.len(), 4, "{reports:?}");
    assert!(reports[0] == "thrown" && reports[1].contains("boom"), "{reports:?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_response_sees_every_complete_message() {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    registry.tool(echo("echo", &count)).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let after_response = move |message: &AssistantMessage| {
        log.lock().unwrap().push(Json::from_serde(&message.stop_reason).unwrap().to_string());
        Ok(())
    };
    add(&registry, Generation { after_response: Some(Box::new(|_| Err(HookError::new("observer")))), ..Generation::default() });
    add(&registry, Generation { after_response: Some(Box::new(after_response)), ..Generation::default() });
    let (_store, engine) = Engine::new(&calls(r#"{ type = "toolCall", id = "c", name = "echo", arguments = {} }"#), &registry).await;
    engine.turn("hi").await;
    assert_eq!(*seen.lock().unwrap(), [r#""toolUse""#, r#""stop""#]);
    assert_eq!(engine.reported(), ["observer", "observer"]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x067_after_tools_gets_the_results_in_call_order() {
    let registry = Registry::new();
    let count = Arc::new(AtomicU32::new(0));
    registry.tool(echo("echo", &count)).unwrap();
    type Seen = Vec<(EntryId, Vec<EntryId>)>;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let log = Arc::clone(&seen);
    let after_tools = move |round: &(EntryId, Vec<EntryId>)| {
        log.lock().unwrap().push(round.clone());
        Ok(())
    };
    add(&registry, Generation { after_tools: Some(Box::new(after_tools)), ..Generation::default() });
    let round = r#"
        { type = "toolCall", id = "c1", name = "echo", arguments = { text = "a" } },
        { type = "toolCall", id = "c2", name = "ghost", arguments = {} },
        { type = "toolCall", id = "c3", name = "echo", arguments = { text = "b" } }"#;
    let (_store, engine) = Engine::new(&calls(round), &registry).await;
    engine.turn("hi").await;
    let entries = engine.entries().await;
    let by_call = |call: &str| {
        let found = entries.iter().find(|entry| {
            let message = entry.model.as_ref().and_then(|model| model.first()).map(|message| Json::from_serde(message).unwrap());
            message.is_some_and(|message| message.get("toolCallId").and_then(Json::as_str).as_deref() == Some(call))
        });
        found.unwrap().id
    };
    let assistant = entries.iter().find(|entry| entry.kind == "pi.assistant").unwrap().id;
    assert_eq!(*seen.lock().unwrap(), [(assistant, vec![by_call("c1"), by_call("c2"), by_call("c3")])]);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn x031_a_phase_keeps_its_snapshot_and_the_next_one_takes_a_fresh_one() {
    let registry = Registry::new();
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (inside, log) = (registry.clone(), Arc::clone(&seen));
    let before_request = move |_: &[Message]| {
        let log = Arc::clone(&log);
        let after_response = move |message: &AssistantMessage| {
            log.lock().unwrap().push(texts(&Json::from_serde(message).unwrap()));
            Ok(())
        };
        // The second time the key is taken, and the hook is there already.
        let _ = inside.hooks::<GenerationTask>(
            Some("late"),
            None,
            Arc::new(Generation { after_response: Some(Box::new(after_response)), ..Generation::default() }),
        );
        Ok(None)
    };
    add(&registry, Generation { before_request: Some(Box::new(before_request)), ..Generation::default() });
    let (_store, engine) = Engine::new(ANSWERS, &registry).await;
    engine.turn("hi").await;
    assert_eq!(*seen.lock().unwrap(), Vec::<String>::new(), "the phase that registered it does not ask it");
    engine.turn("again").await;
    assert_eq!(*seen.lock().unwrap(), ["two"]);
    engine.stop().await;
}

/// A conversation that a task of the root owns, and one that nobody does.
async fn owned_conversation(session: &Session) -> (ConversationId, ConversationId) {
    session
        .commit(async |tx| {
            let root = tx.create_root().await?;
            let task = TaskCreate {
                kind: "app.owner".into(),
                version: 1,
                input: Json::null(),
                checkpoint: Json::object([("phase", "a")]),
                ownership: TaskOwnership::Conversation,
                conversation_id: Some(root.id),
                background: true,
            };
            let task = tx.create_task_raw(task).await?;
            let owned = tx.create_conversation(ConversationOwnership::Task { task_id: task }).await?.id;
            let free = tx.create_conversation(ConversationOwnership::Ownerless).await?.id;
            Ok::<_, picofleet_session::CommitError>((owned, free))
        })
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_are_asked_in_their_scope_only() {
    let registry = Registry::new();
    let seen: Arc<Mutex<Vec<(&str, String)>>> = Arc::default();
    let (store, id) = Engine::create().await;
    let scopes = [
        ("root", HookScope::conversation(ROOT_CONVERSATION_ID)),
        ("subtree", HookScope::conversation(ROOT_CONVERSATION_ID).subtree()),
        ("session", HookScope::conversation(ROOT_CONVERSATION_ID).subtree().in_session(id)),
        ("other", HookScope::conversation(ROOT_CONVERSATION_ID).in_session(picofleet_session::SessionId::random())),
    ];
    for (name, scope) in scopes {
        let log = Arc::clone(&seen);
        let after_response = move |message: &AssistantMessage| {
            log.lock().unwrap().push((name, texts(&Json::from_serde(message).unwrap())));
            Ok(())
        };
        let hooks = Generation { after_response: Some(Box::new(after_response)), ..Generation::default() };
        registry.hooks::<GenerationTask>(None, Some(scope), Arc::new(hooks)).unwrap();
    }
    let session = Session::open(&*store, id, SessionOptions::default()).await.unwrap();
    let (owned, free) = owned_conversation(&session).await;
    session.close().await.unwrap();
    let script = r#"
[[turns]]
when = { user = "root" }
blocks = [{ type = "text", chunks = ["root"] }]
[[turns]]
when = { user = "owned" }
blocks = [{ type = "text", chunks = ["owned"] }]
[[turns]]
when = { user = "free" }
blocks = [{ type = "text", chunks = ["free"] }]
"#;
    let engine = Engine::start(&store, id, script, registry);
    for (conversation, text) in [(ROOT_CONVERSATION_ID, "root"), (owned, "owned"), (free, "free"), (owned, "owned")] {
        engine.configure(conversation, Vec::new()).await;
        let draft = SubmissionDraft::input(text);
        let record: SubmissionRecord = engine.host(HostCall::Submit { conversation, draft }).await;
        assert_eq!(engine.settled(&record).await.status(), SubmissionStatus::Done);
    }
    let expected = [("root", "root"), ("subtree", "root"), ("session", "root"), ("subtree", "owned"), ("session", "owned")];
    let expected: Vec<(&str, String)> = expected.iter().chain(&expected[3..]).map(|(name, text)| (*name, (*text).to_owned())).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
    engine.stop().await;
}
