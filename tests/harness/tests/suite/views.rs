//! Section N: views of conversations as a host gets them.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::host::{ConversationOptions, Harness, HostError, ViewWatch};
use picofleet_harness::kind::TaskOptions;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::usage::USAGE;
use picofleet_harness::view::ConversationView;
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Follow, FollowCall, Request, WatchCall, WatchId};
use picofleet_harness_tests::{Kit, Reply, scenario};
use picofleet_session::{DraftHead, EntryDraft, EntryId, Frame, Json, SessionId, apply, ops_to_json};
use tokio_util::sync::CancellationToken;

use super::events::{next as next_events, note, types};

async fn next(watch: &mut ViewWatch) -> Frame<ConversationView> {
    tokio::time::timeout(Duration::from_secs(60), watch.next()).await.expect("a frame comes").expect("the watch goes on")
}

/// The kinds of a view's entries.
fn kinds(view: &Json) -> Vec<String> {
    let entries = view.get("entries").unwrap().as_array().unwrap();
    entries.iter().map(|entry| entry.get("kind").unwrap().as_str().unwrap().into_owned()).collect()
}

/// Appends a note with a head.
async fn mark(kit: &Kit, head: EntryId) {
    type BoxError = Box<dyn std::error::Error + Send + Sync>;
    let root = kit.root().await;
    let id = root.id();
    let marked: Result<(), BoxError> = root
        .commit(async |tx| {
            tx.append_entry(id, EntryDraft::new("mark").head(DraftHead::Entry(head))).await?;
            Ok(())
        })
        .await;
    marked.unwrap();
}

scenario!(s184_a_watch_gives_each_commit_exactly, async |kit| {
    let root = kit.root().await;
    let mut watch = root.watch().await.unwrap();
    let acquired = watch.value().unwrap().clone();
    let blocked = root.watch().await.unwrap();
    let (begun, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let stopper = blocked.stopper();
    let running = tokio::spawn(blocked.run({
        let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
        async move |_| {
            begun.notify_one();
            go.notified().await;
            Ok::<_, std::io::Error>(())
        }
    }));
    kit.turn("a", Reply::text("x")).await;
    begun.notified().await;
    kit.turn("b", Reply::text("y")).await;
    assert_eq!(watch.value(), Some(&acquired), "nothing was taken yet, and no commit waited for who was called");
    let mut seen = acquired;
    while kinds(&seen) != ["pi.user", "pi.system", "pi.assistant", "pi.user", "pi.assistant"] {
        let frame = next(&mut watch).await;
        seen = apply(Some(&seen), &frame.ops).unwrap();
        assert_eq!(Some(&seen), frame.value.as_ref());
        assert_eq!(watch.value(), frame.value.as_ref());
    }
    let live = root.view_state().await.unwrap().value();
    assert_eq!(live.get("entries"), seen.get("entries"));
    assert_eq!(stopper.stop().reason(), "stopped");
    go.notify_one();
    assert_eq!(running.await.unwrap().reason(), "stopped");
});

scenario!(s185_too_many_frames_become_one, async |kit| {
    let root = kit.root().await;
    let (mut slow, mut fast) = (root.watch().await.unwrap(), root.watch().await.unwrap());
    for round in 0..2 {
        if round == 1 {
            // One that was taken is not folded.
            note(&root).await;
            assert_eq!(next(&mut fast).await.ops.len(), 1);
            assert!(ops_to_json(&next(&mut slow).await.ops).to_string().starts_with(r#"[["p","#));
        }
        let mut newest = Json::null();
        for _ in 0..101 {
            note(&root).await;
            newest = next(&mut fast).await.value.unwrap();
        }
        let folded = next(&mut slow).await;
        assert_eq!(ops_to_json(&folded.ops), Json::array([Json::array([Json::from("r"), newest.clone()])]));
        assert_eq!(folded.value, Some(newest));
    }
});

scenario!(s187_a_watch_ends_alone, async |kit| {
    let root = kit.root().await;
    let failing = root.watch().await.unwrap();
    let token = CancellationToken::new();
    let mut cancelled = root.watch().await.unwrap().until(token.clone());
    let mut closed = root.watch().await.unwrap();
    let running = tokio::spawn(failing.run(async |_| Err(std::io::Error::other("no"))));
    note(&root).await;
    assert_eq!(running.await.unwrap().reason(), "listener_error");
    token.cancel();
    assert!(cancelled.next().await.is_none());
    assert_eq!(cancelled.end().unwrap().reason(), "cancelled");
    next(&mut closed).await;
    note(&root).await;
    let state = root.view_state().await.unwrap();
    kit.stop().await;
    while state.end().is_none() {
        let now = state.mount();
        let _ = state.newer(&now).await;
    }
    assert!(closed.next().await.is_none(), "what nobody took is dropped");
    assert_eq!(closed.end().unwrap().reason(), "session_closed");
    kit.start();
});

scenario!(s188_a_view_mounts_the_active_entries_and_the_built_in_documents, async |kit| {
    let root = kit.root().await;
    let mut watch = root.watch().await.unwrap();
    let other = kit.harness().create_conversation(ConversationOptions::ownerless()).await.unwrap();
    note(&other).await;
    let docs: Vec<String> = watch.value().unwrap().get("docs").unwrap().as_object().unwrap().keys().map(str::to_owned).collect();
    let mut sorted = docs.clone();
    sorted.sort();
    assert_eq!(sorted, ["pi.conversation.config", "pi.inbox", "pi.live", "pi.usage"]);
    for length in 0..3 {
        let before = watch.value().unwrap().clone();
        note(&root).await;
        let frame = next(&mut watch).await;
        let view = frame.value.clone().unwrap();
        let entry = view.get("entries").unwrap().as_array().unwrap().get(length).unwrap().clone();
        let splice = Json::array([Json::from("p"), Json::array(["entries"]), Json::from(length), Json::from(0), Json::array([entry])]);
        assert_eq!(ops_to_json(&frame.ops), Json::array([splice]));
        for kind in &docs {
            let of = |view: &Json| view.get("docs").unwrap().get(kind).unwrap().clone();
            assert!(of(&before).same_revision(&of(&view)), "{kind} is shared");
        }
    }
    let entries: Vec<EntryId> = kit.entries(&root).await.iter().map(|entry| entry.id).collect();
    mark(&kit, entries[1]).await;
    let frame = next(&mut watch).await;
    assert_eq!(kinds(&frame.value.clone().unwrap()), ["mark", "note", "note"], "the marker is first and keeps what is behind its head");
    let op = ops_to_json(&frame.ops).to_string();
    assert!(op.starts_with(r#"[["p",["entries"],0,1,[{"#), "{op}");
    root.reset(None).await.unwrap();
    assert_eq!(kinds(&next(&mut watch).await.value.unwrap()), ["pi.reset"]);
    root.set_active_tools(["echo"]).await.unwrap();
    let frame = next(&mut watch).await;
    assert!(ops_to_json(&frame.ops).to_string().contains(r#"["docs","pi.conversation.config""#));
    assert_eq!(frame.read().unwrap().unwrap().docs.len(), 4);
});

scenario!(s189_what_was_seen_stays_and_nothing_begins_behind_a_close, async |kit| {
    let root = kit.root().await;
    let state = root.view_state().await.unwrap();
    let before = state.mount();
    note(&root).await;
    let after = state.newer(&before).await.unwrap();
    assert_eq!(kinds(&state.value()), ["note"]);
    kit.stop().await;
    while state.end().is_none() {
        let _ = state.newer(&after).await;
    }
    assert_eq!(state.end().unwrap().reason(), "session_closed");
    assert_eq!(kinds(&state.value()), ["note"], "the last value is kept");
    assert!(matches!(root.watch().await, Err(HostError::Unavailable(_))));
    assert!(matches!(root.events().await, Err(HostError::Unavailable(_))));
    kit.start();
});

scenario!(x088_frames_lead_from_the_acquisition_to_each_value, async |kit| {
    let root = kit.root().await;
    let mut watch = root.watch().await.unwrap();
    let mut seen = watch.value().unwrap().clone();
    kit.stage.give(Reply::call("c1", "output", r#"{"text":"hi"}"#));
    kit.turn("a", Reply::text("x")).await;
    loop {
        let frame = next(&mut watch).await;
        seen = apply(Some(&seen), &frame.ops).unwrap();
        assert_eq!(frame.value.as_ref(), Some(&seen));
        if kinds(&seen) == ["pi.user", "pi.system", "pi.assistant", "pi.tool-result", "pi.assistant"] {
            break;
        }
    }
});

scenario!(x089_a_head_before_the_active_range_shows_what_is_mounted, async |kit| {
    let root = kit.root().await;
    note(&root).await;
    let first = kit.entries(&root).await[0].id;
    root.reset(None).await.unwrap();
    let mut watch = root.watch().await.unwrap();
    note(&root).await;
    assert_eq!(kinds(&next(&mut watch).await.value.unwrap()), ["pi.reset", "note"]);
    mark(&kit, first).await;
    assert_eq!(kinds(&next(&mut watch).await.value.unwrap()), ["mark", "note"], "the older note is not mounted");
    drop(watch);
    // Once nobody watches any more the mount is gone, and a new one reads what is active.
    kit.until("a fresh mount", async || kinds(&kit.root().await.view_state().await.unwrap().value()) == ["mark", "note", "note"]).await;
});

scenario!(a_conversation_that_is_not_there_can_not_be_watched, async |kit| {
    let root = kit.root().await;
    drop(root.watch().await.unwrap());
    let missing = picofleet_session::ConversationId::new(999).unwrap();
    let watched = picofleet_harness::host::watch_events(&kit.harness(), missing).await.map(drop);
    assert!(matches!(watched, Err(HostError::NotFound { id: 999, .. })), "{watched:?}");
});

/// Leads a host to whoever has the session.
struct Led(Mutex<Arc<dyn Transport>>);

impl Led {
    fn to(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.0.lock().unwrap())
    }
}

impl Transport for Led {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        let to = self.to();
        Box::pin(async move { to.call(session, request).await })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        let to = self.to();
        Box::pin(async move { to.beat(beat).await })
    }
}

scenario!(a_watch_goes_on_over_a_takeover, async |kit| {
    let led = Arc::new(Led(Mutex::new(kit.transport())));
    let harness = Harness::connect(Arc::clone(&led) as Arc<dyn Transport>, kit.session());
    let root = harness.root().await.unwrap();
    let (mut watch, mut events) = (root.watch().await.unwrap(), root.events().await.unwrap());
    note(&root).await;
    next(&mut watch).await;
    next_events(&mut events).await;

    // Nothing is missing: the next frame stands on the last one.
    kit.take_over().await;
    *led.0.lock().unwrap() = kit.transport();
    drop(root.view_state().await.unwrap());
    note(&root).await;
    let frame = next(&mut watch).await;
    assert!(ops_to_json(&frame.ops).to_string().starts_with(r#"[["p",["entries"],1,0,"#), "{:?}", frame.ops);
    assert_eq!(types(&next_events(&mut events).await), ["entry_appended"]);

    // A commit of another conversation hides what was before it, and nothing was missed: nobody is told anything.
    let other = kit.harness().create_conversation(ConversationOptions::ownerless()).await.unwrap();
    note(&other).await;
    kit.take_over().await;
    note(&kit.harness().conversation(other.id()).await.unwrap().unwrap()).await;
    *led.0.lock().unwrap() = kit.transport();
    let (state, head) = (root.view_state().await.unwrap(), kit.reader().await.head().await.unwrap());
    kit.until("the reader's look", async || state.mount().at().0 >= head.seq).await;
    drop(state);
    note(&root).await;
    let frame = next(&mut watch).await;
    assert!(ops_to_json(&frame.ops).to_string().starts_with(r#"[["p",["entries"],2,0,"#), "{:?}", frame.ops);
    assert_eq!(types(&next_events(&mut events).await), ["entry_appended"]);

    // The new owner committed before the reader came: it gets the whole.
    kit.take_over().await;
    note(&kit.root().await).await;
    *led.0.lock().unwrap() = kit.transport();
    let frame = next(&mut watch).await;
    let value = frame.value.clone().unwrap();
    assert_eq!(kinds(&value), ["note", "note", "note", "note"]);
    assert_eq!(ops_to_json(&frame.ops), Json::array([Json::array([Json::from("r"), value])]));
    assert_eq!(types(&next_events(&mut events).await), ["snapshot"]);
});

/// What comes between the messages of readers and the session.
struct Between {
    to: Arc<dyn Transport>,
    /// Two begin at once.
    both: Option<tokio::sync::Barrier>,
    /// Readers of a conversation that asked for frames.
    readers: Mutex<Vec<WatchId>>,
    /// Readers panic from now on.
    broken: AtomicBool,
}

impl Between {
    fn new(to: Arc<dyn Transport>, both: Option<tokio::sync::Barrier>) -> Arc<Self> {
        Arc::new(Self { to, both, readers: Mutex::default(), broken: AtomicBool::new(false) })
    }
}

impl Transport for Between {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let (begins, reads) = match &request {
                Request::Follow(Follow { reader, call: FollowCall::Next { after, timeout_ms }, .. }) => {
                    if after.is_some() && *timeout_ms > 0 {
                        self.readers.lock().unwrap().push(*reader);
                    }
                    (after.is_none(), true)
                }
                Request::Watch { call, .. } => (false, matches!(**call, WatchCall::Next { .. })),
                _ => (false, false),
            };
            assert!(!reads || !self.broken.load(Ordering::Acquire), "it is broken");
            let answer = self.to.call(session, request).await;
            if let (true, Some(both)) = (begins, &self.both) {
                both.wait().await;
            }
            answer
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        self.to.beat(beat)
    }
}

scenario!(two_who_begin_at_once_share_one_mount, async |kit| {
    let between = Between::new(kit.transport(), Some(tokio::sync::Barrier::new(2)));
    let root = Harness::connect(Arc::clone(&between) as Arc<dyn Transport>, kit.session()).root().await.unwrap();
    let (one, other) = tokio::join!(root.watch(), root.watch());
    let (mut one, mut other) = (one.unwrap(), other.unwrap());
    for _ in 0..2 {
        note(&root).await;
        assert_eq!(next(&mut one).await.value, next(&mut other).await.value);
    }
    let readers: HashSet<WatchId> = between.readers.lock().unwrap().iter().copied().collect();
    assert_eq!(readers.len(), 1, "one reads for both");
});

scenario!(observers_hear_of_a_reader_that_panics, async |kit| {
    let between = Between::new(kit.transport(), None);
    let harness = Harness::connect(Arc::clone(&between) as Arc<dyn Transport>, kit.session());
    let root = harness.root().await.unwrap();
    let (mut watch, mut events, state) = (root.watch().await.unwrap(), root.events().await.unwrap(), root.view_state().await.unwrap());
    let mut usage = harness.watch_doc(&USAGE, root.id()).await.unwrap().expect("it is there");
    between.broken.store(true, Ordering::Release);
    // What ends the call that waits.
    kit.turn("a", Reply::text("x")).await;
    let ends = async {
        while watch.next().await.is_some() {}
        while events.next().await.is_some() {}
        while usage.next().await.is_some() {}
    };
    tokio::time::timeout(Duration::from_secs(60), ends).await.expect("they end");
    for end in [watch.end(), events.end(), state.end(), usage.end()] {
        assert_eq!(end.unwrap().reason(), "failed");
    }
});

scenario!(a_newer_view_shows_something_else, async |kit| {
    let _owner = kit.owner().await;
    let root = kit.root().await;
    let state = root.view_state().await.unwrap();
    let before = state.mount();
    // It touches the conversation, and nothing that is mounted.
    kit.add("a", TaskOptions::top_level()).await;
    let other = kit.harness().create_conversation(ConversationOptions::ownerless()).await.unwrap();
    note(&other).await;
    let newer = state.newer(&before);
    let noted = async {
        // Whoever comes now is given what was committed before.
        drop(root.view_state().await.unwrap());
        note(&root).await;
    };
    let (newer, ()) = tokio::join!(newer, noted);
    assert_eq!(kinds(&newer.unwrap().view()), ["note"], "the first that shows something else");
});

scenario!(a_host_watches_a_document, async |kit| {
    let (harness, root) = (kit.harness(), kit.root().await);
    let mut watch = harness.watch_doc(&USAGE, root.id()).await.unwrap().expect("it is there");
    let mut seen = watch.value().unwrap().clone();
    kit.turn("a", Reply::text("x")).await;
    let frame = tokio::time::timeout(Duration::from_secs(60), watch.next()).await.unwrap().unwrap();
    seen = apply(Some(&seen), &frame.ops).unwrap();
    assert_eq!(frame.value, Some(seen.clone()));
    assert_eq!(frame.read().unwrap().unwrap(), root.usage().await.unwrap());
    assert_eq!(kit.document("pi.usage").await, seen);
    let missing = picofleet_session::ConversationId::new(999).unwrap();
    assert!(harness.watch_doc(&USAGE, missing).await.unwrap().is_none(), "a watch makes no document");
    let ends = tokio::spawn(async move { watch.run(async |_| Ok::<_, std::io::Error>(())).await });
    kit.stop().await;
    assert_eq!(ends.await.unwrap().reason(), "session_closed");
    kit.start();
});
