//! Watches of documents by the invocation of a task, over a transport (sections 5.1 and 9.2).

use std::sync::{Arc, Mutex};

use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_harness::tools::ToolResult;
use picofleet_harness_tests::{Backing, Closure, Kit, Reply, Wire, scenario};
use picofleet_session::{
    ConversationId, Current, DocDefinition, DocToken, Frame, InSession, Json, Latest, MigrateError, Op, ROOT_CONVERSATION_ID,
    SubmissionStatus, TaskId, Watch, WatchEnd, apply, every,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

#[derive(Default, Serialize, Deserialize)]
struct Count {
    n: u32,
    text: String,
}

static COUNT: DocToken<Count, Latest<Current>> = DocToken::new("app.count", 1, definition);
static ABSENT: DocToken<Count, InSession> = DocToken::new("app.absent", 1, definition);

/// The same document in a later version of the application.
#[derive(Serialize, Deserialize)]
struct Doubled {
    n: u32,
    twice: u32,
}

static DOUBLED: DocToken<Doubled, Latest<Current>> = DocToken::new("app.count", 2, || DocDefinition {
    initial: || Doubled { n: 0, twice: 0 },
    migrate: Some(|value, _| {
        let n = value.get("n").and_then(Json::as_i64).and_then(|n| u32::try_from(n).ok()).ok_or_else(|| MigrateError("no n".to_owned()))?;
        Ok(Doubled { n, twice: 2 * n })
    }),
    checkpoint_when: every::<8>,
});

fn definition() -> DocDefinition<Count> {
    DocDefinition { initial: Count::default, migrate: None, checkpoint_when: every::<8> }
}

type Boxed = Box<dyn std::error::Error + Send + Sync>;

/// Watches the count of the root conversation, and gives the watch away together with its runtime. Ends when it is let go.
#[derive(Clone)]
struct Watcher(Arc<Given>);

struct Given {
    watch: Mutex<Option<Watch<Count>>>,
    runtime: Mutex<Option<TaskRuntime<Watcher>>>,
    begun: Semaphore,
    go: Semaphore,
}

impl Watcher {
    fn new() -> Self {
        let (begun, go) = (Semaphore::new(0), Semaphore::new(0));
        Self(Arc::new(Given { watch: Mutex::default(), runtime: Mutex::default(), begun, go }))
    }

    /// Defines it, and runs it until it watches.
    async fn watching(&self, kit: &mut Kit) -> (TaskId<()>, Watch<Count>) {
        kit.define(self.clone()).await;
        count(kit, 0).await;
        self.again(kit).await
    }

    async fn again(&self, kit: &Kit) -> (TaskId<()>, Watch<Count>) {
        let id = kit.create(self, ()).await;
        self.0.begun.acquire().await.unwrap().forget();
        let watch = self.0.watch.lock().unwrap().take().unwrap();
        (id, watch)
    }

    fn runtime(&self) -> TaskRuntime<Self> {
        self.0.runtime.lock().unwrap().clone().unwrap()
    }
}

impl TaskKind for Watcher {
    const NAME: &'static str = "test.watcher";
    const VERSION: u32 = 1;
    type Input = ();
    type Checkpoint = Json;
    type Output = ();
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, (): &()) -> Json {
        Json::object([("phase", "watch")])
    }

    async fn run(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        assert!(runtime.watch_doc(&ABSENT, ()).await?.is_none(), "there is none, and none is made");
        let watch = runtime.watch_doc(&COUNT, ROOT_CONVERSATION_ID).await?.unwrap();
        *self.0.watch.lock().unwrap() = Some(watch);
        *self.0.runtime.lock().unwrap() = Some(runtime.clone());
        self.0.begun.add_permits(1);
        self.0.go.acquire().await.unwrap().forget();
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Completed(())))).await
    }

    async fn abort(&self, _: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(Outcome::Aborted { reason: None, result: None }))).await
    }
}

/// Sets the count, in a commit of the host.
async fn count(kit: &Kit, n: u32) {
    let root = kit.root().await;
    let set = root.commit(async |tx| Ok::<_, Boxed>(tx.doc(&COUNT, root.id()).await?.edit(|value| value.n = n)?));
    set.await.unwrap();
}

async fn next(watch: &mut Watch<Count>) -> Option<Frame<Count>> {
    tokio::time::timeout(std::time::Duration::from_secs(60), watch.next()).await.expect("a frame, or the end")
}

/// Why a watch ended, behind its last frame.
async fn reason(watch: &mut Watch<Count>) -> &'static str {
    assert!(next(watch).await.is_none(), "nothing more is delivered");
    watch.end().as_ref().map_or("none", WatchEnd::reason)
}

scenario!(s184_a_watch_gets_every_commit_with_its_operations, async |kit| {
    let watcher = Watcher::new();
    let (id, mut watch) = watcher.watching(&mut kit).await;
    let begin = watch.value().cloned().unwrap();
    assert_eq!(watch.read().unwrap().unwrap().n, 0);
    let root = kit.root().await;
    for n in 1..=3 {
        count(&kit, n).await;
    }
    let appends = root.commit(async |tx| {
        tx.doc(&COUNT, root.id()).await?.draft.key("text").append("abc")?;
        Ok::<_, Boxed>(())
    });
    appends.await.unwrap();
    // What commits meanwhile changes nothing of what was taken.
    assert_eq!(watch.value(), Some(&begin));
    let mut before = begin.clone();
    let mut seqs = Vec::new();
    for n in 1..=3 {
        let frame = next(&mut watch).await.unwrap();
        assert_eq!(frame.read().unwrap().unwrap().n, n);
        assert!(matches!(&frame.ops[..], [Op::Set(..)]), "{:?}", frame.ops);
        assert_eq!(Some(apply(Some(&before), &frame.ops).unwrap()), frame.value);
        assert_eq!(watch.value(), frame.value.as_ref());
        before = frame.value.unwrap();
        seqs.push(frame.seq);
    }
    let frame = next(&mut watch).await.unwrap();
    assert!(matches!(&frame.ops[..], [Op::Append(_, text)] if &**text == "abc"), "{:?}", frame.ops);
    assert!(seqs.is_sorted() && seqs.last() < Some(&frame.seq), "{seqs:?}");
    assert_eq!(begin.get("n"), Some(&Json::from(0)), "a revision stays as it is");
    watcher.0.go.add_permits(1);
    kit.harness().wait_for_task(id).await.unwrap();
});

scenario!(a_watch_stays_with_its_incarnation_and_ends_with_it, async |kit| {
    let watcher = Watcher::new();
    let (id, mut watch) = watcher.watching(&mut kit).await;
    let root = kit.root().await;
    root.commit(async |tx| Ok::<_, Boxed>(tx.retire_doc(&COUNT, root.id()).await?)).await.unwrap();
    count(&kit, 7).await;
    let last = next(&mut watch).await.unwrap();
    assert_eq!(last.value, None);
    assert!(matches!(&last.ops[..], [Op::Replace(value)] if value.is_null()), "{:?}", last.ops);
    assert_eq!(reason(&mut watch).await, "retired");
    // The next one has the new incarnation.
    let mut again = watcher.runtime().watch_doc(&COUNT, root.id()).await.unwrap().unwrap();
    assert_eq!(again.read().unwrap().unwrap().n, 7);
    count(&kit, 8).await;
    assert_eq!(next(&mut again).await.unwrap().read().unwrap().unwrap().n, 8);
    watcher.0.go.add_permits(1);
    kit.harness().wait_for_task(id).await.unwrap();
});

scenario!(s067_a_watch_stops_with_its_invocation, async |kit| {
    let watcher = Watcher::new();
    let (id, mut watch) = watcher.watching(&mut kit).await;
    let runtime = watcher.runtime();
    // Frames wait that nobody has taken.
    for n in 1..=3 {
        count(&kit, n).await;
    }
    assert_eq!(next(&mut watch).await.unwrap().read().unwrap().unwrap().n, 1);
    watcher.0.go.add_permits(1);
    kit.harness().wait_for_task(id).await.unwrap();
    // Its last saying is committed before the worker knows that the invocation is over.
    kit.until("the end", async || watch.end().is_some()).await;
    count(&kit, 4).await;
    assert_eq!(reason(&mut watch).await, "stopped");
    assert_eq!(watch.read().unwrap().unwrap().n, 1, "the value stays");
    let late = runtime.watch_doc(&COUNT, ROOT_CONVERSATION_ID).await.map(|watch| watch.is_some());
    assert!(matches!(late, Err(Fault::Ended)), "{late:?}");
    assert!(matches!(runtime.task(id.erase()).await, Err(Fault::Ended)));
});

scenario!(s067_an_abort_stops_the_watch_of_the_run, async |kit| {
    let watcher = Watcher::new();
    let (id, mut watch) = watcher.watching(&mut kit).await;
    let harness = kit.harness();
    let abort = tokio::spawn(async move { harness.abort_task(id.erase()).await });
    kit.until("the mark", async || kit.task(id.erase()).await.abort_requested).await;
    watcher.0.go.add_permits(1);
    abort.await.unwrap().unwrap();
    assert_eq!(kit.harness().wait_for_task(id).await.unwrap(), Outcome::Aborted { reason: None, result: None });
    kit.until("the end", async || watch.end().is_some()).await;
    assert_eq!(reason(&mut watch).await, "stopped");
});

scenario!(a_slow_reader_gets_one_frame_for_many_commits, async |kit| {
    const COMMITS: u32 = 250;
    let watcher = Watcher::new();
    let (id, mut watch) = watcher.watching(&mut kit).await;
    for n in 1..=COMMITS {
        count(&kit, n).await;
    }
    let mut value = watch.value().cloned().unwrap();
    let (mut frames, mut folded) = (0, 0);
    while watch.read().unwrap().unwrap().n < COMMITS {
        let frame = next(&mut watch).await.unwrap();
        value = apply(Some(&value), &frame.ops).unwrap();
        assert_eq!(Some(&value), frame.value.as_ref(), "every frame stands on the one before");
        frames += 1;
        folded += u32::from(matches!(&frame.ops[..], [Op::Replace(_)]));
    }
    assert!(frames <= 132, "{frames} frames of {COMMITS} commits");
    assert!(folded >= 1, "what was too much became one frame");
    count(&kit, COMMITS + 1).await;
    assert!(matches!(&next(&mut watch).await.unwrap().ops[..], [Op::Set(..)]), "exact frames follow");
    watcher.0.go.add_permits(1);
    kit.harness().wait_for_task(id).await.unwrap();
});

scenario!(a_watch_shows_its_tokens_version, async |kit| {
    let watcher = Watcher::new();
    let (id, mut old) = watcher.watching(&mut kit).await;
    let root = kit.root().await;
    count(&kit, 1).await;
    let mut watch = watcher.runtime().watch_doc(&DOUBLED, root.id()).await.unwrap().unwrap();
    assert_eq!(watch.read().unwrap().unwrap().twice, 2);
    // Operations on the old version are no operations on the new one.
    count(&kit, 2).await;
    let frame = watch.next().await.unwrap();
    assert!(matches!(&frame.ops[..], [Op::Replace(value)] if Some(value) == frame.value.as_ref()), "{:?}", frame.ops);
    assert_eq!(frame.read().unwrap().unwrap().twice, 4);
    // The stored value is brought up, which changes nothing of what this watch has; then it is changed.
    root.commit(async |tx| Ok::<_, Boxed>(tx.doc(&DOUBLED, root.id()).await.map(|_| ())?)).await.unwrap();
    let edit = root.commit(async |tx| Ok::<_, Boxed>(tx.doc(&DOUBLED, root.id()).await?.edit(|value| value.n = 3)?));
    edit.await.unwrap();
    let frame = watch.next().await.unwrap();
    assert!(matches!(&frame.ops[..], [Op::Set(..)]), "{:?}", frame.ops);
    assert_eq!(frame.read().unwrap().unwrap().n, 3);
    // A token that is too old for what is stored now ends its watch.
    let seen = [next(&mut old).await.unwrap(), next(&mut old).await.unwrap()].map(|frame| frame.read().unwrap().unwrap().n);
    assert_eq!(seen, [1, 2]);
    assert_eq!(reason(&mut old).await, "listener_error");
    watcher.0.go.add_permits(1);
    kit.harness().wait_for_task(id).await.unwrap();
});

scenario!(a_tool_watches_what_its_conversation_counts, async |kit| {
    let begun = Arc::new(Semaphore::new(0));
    let says = Arc::clone(&begun);
    let tool = Closure::new("watch", move |_, api| {
        let says = Arc::clone(&says);
        async move {
            let mut watch = api.watch_doc(&COUNT, api.conversation_id()).await?.unwrap();
            says.add_permits(1);
            while watch.read().unwrap().unwrap().n < 3 {
                watch.next().await.unwrap();
            }
            Ok(ToolResult::text("three"))
        }
    });
    kit.registry.tool(tool).unwrap();
    kit.root().await.set_active_tools(["watch"]).await.unwrap();
    count(&kit, 0).await;
    kit.stage.give(Reply::call("c1", "watch", "{}"));
    kit.stage.give(Reply::text("done"));
    let go = kit.say("go").await;
    begun.acquire().await.unwrap().forget();
    for n in 1..=3 {
        count(&kit, n).await;
    }
    assert_eq!(kit.settled(&go).await.status(), SubmissionStatus::Done);
});

scenario!(an_invocation_has_so_many_watches_and_no_more, async |kit| {
    let watcher = Watcher::new();
    let (id, watch) = watcher.watching(&mut kit).await;
    let runtime = watcher.runtime();
    let mut watches = vec![watch];
    let refused = loop {
        match runtime.watch_doc(&COUNT, ROOT_CONVERSATION_ID).await {
            Ok(watch) => watches.push(watch.unwrap()),
            Err(error) => break error,
        }
        assert!(watches.len() < 1_000);
    };
    assert!(matches!(&refused, Fault::Failed(error) if error.message.contains("watches at most")), "{refused:?}");
    assert_eq!(watches.len(), 64);
    // One that is dropped makes place.
    watches.pop();
    kit.until("place for another", async || runtime.watch_doc(&COUNT, ROOT_CONVERSATION_ID).await.is_ok()).await;
    watcher.0.go.add_permits(1);
    kit.harness().wait_for_task(id).await.unwrap();
});

scenario!(a_watch_goes_on_over_a_takeover_with_one_root_replacement, async |kit| {
    let watcher = Watcher::new();
    let (id, mut watch) = watcher.watching(&mut kit).await;
    count(&kit, 1).await;
    assert_eq!(next(&mut watch).await.unwrap().read().unwrap().unwrap().n, 1);
    kit.take_over().await;
    let again = next(&mut watch).await.unwrap();
    assert!(matches!(&again.ops[..], [Op::Replace(value)] if Some(value) == again.value.as_ref()), "{:?}", again.ops);
    assert_eq!(again.read().unwrap().unwrap().n, 1);
    count(&kit, 2).await;
    let exact = next(&mut watch).await.unwrap();
    assert!(matches!(&exact.ops[..], [Op::Set(..)]), "{:?}", exact.ops);
    assert_eq!(exact.read().unwrap().unwrap().n, 2);
    watcher.0.go.add_permits(1);
    assert_eq!(kit.harness().wait_for_task(id).await.unwrap(), Outcome::Completed(()));
    assert_eq!(kit.task(id.erase()).await.restarts, 0);
});

/// The session goes to an owner that nobody here reaches.
async fn lost_session(wire: Wire) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let watcher = Watcher::new();
    let (_, mut watch) = watcher.watching(&mut kit).await;
    kit.lose().await;
    let conversation = ConversationId::new(1).unwrap();
    let refused = kit.harness().conversation(conversation).await.unwrap().unwrap();
    assert!(refused.set_active_tools(["echo"]).await.is_err(), "its owner here hears that it has lost it");
    let end = tokio::time::timeout(std::time::Duration::from_secs(3_600), watch.next()).await.unwrap();
    assert!(end.is_none());
    assert_eq!(watch.end().unwrap().reason(), "takeover");
    watcher.0.go.add_permits(1);
    kit.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_as_taken_over_where_its_owner_is_not_to_be_reached() {
    for wire in [Wire::Plain, Wire::Encoded] {
        lost_session(wire).await;
    }
}

/// Nothing that the worker sends is answered any more.
async fn cut_off(wire: Wire) {
    let mut kit = Kit::new(Backing::Memory, wire).await;
    let watcher = Watcher::new();
    let (_, mut watch) = watcher.watching(&mut kit).await;
    kit.faults.cut();
    let end = tokio::time::timeout(std::time::Duration::from_secs(3_600), watch.next()).await.unwrap();
    assert!(end.is_none());
    assert_eq!(watch.end().unwrap().reason(), "failed");
    kit.faults.mend();
    watcher.0.go.add_permits(1);
    kit.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_as_failed_where_nobody_answers() {
    for wire in [Wire::Plain, Wire::Encoded] {
        cut_off(wire).await;
    }
}
