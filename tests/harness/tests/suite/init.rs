//! Initializations of conversations in the commit that makes them (sections 2.2 and 7.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures::future::BoxFuture;
use picofleet_harness::config::{CONFIG, ConfigPatch};
use picofleet_harness::effects::HoldError;
use picofleet_harness::host::{ConversationFilter, ConversationOptions, Harness, HostError};
use picofleet_harness::kind::{TaskOptions, TxTasks as _};
use picofleet_harness::registry::ConversationSetup;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Request};
use picofleet_harness_tests::{Backing, Kit, Reply, Stage, Wire, scenario};
use picofleet_session::{
    AsOf, CommitError, ConversationId, ConversationRecord, Current, DocDefinition, DocToken, EntryDraft, Latest, Rewindable, SessionId,
    TaskId, Tx, TxError, every,
};
use serde::{Deserialize, Serialize};

/// What a closure of these tests says.
#[derive(Debug)]
enum Refused {
    Host(HostError),
    #[expect(dead_code, reason = "shown where an assertion fails")]
    Commit(CommitError),
    #[expect(dead_code, reason = "shown where an assertion fails")]
    Hold(HoldError),
    Said,
}

impl From<HoldError> for Refused {
    fn from(error: HoldError) -> Self {
        Self::Hold(error)
    }
}

impl From<HostError> for Refused {
    fn from(error: HostError) -> Self {
        Self::Host(error)
    }
}

impl From<CommitError> for Refused {
    fn from(error: CommitError) -> Self {
        Self::Commit(error)
    }
}

impl From<TxError> for Refused {
    fn from(error: TxError) -> Self {
        Self::Commit(error.into())
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Words {
    words: Vec<String>,
}

/// The setup of a kit makes it; forks get the present value.
static SETTINGS: DocToken<Words, Latest<Current>> = DocToken::new("app.settings", 1, definition);
/// Forks get the value of the fork point.
static NOTES: DocToken<Words, Rewindable<AsOf>> = DocToken::new("app.notes", 1, definition);

fn definition() -> DocDefinition<Words> {
    DocDefinition { initial: Words::default, migrate: None, checkpoint_when: every::<8> }
}

async fn add<S: picofleet_session::Scope<At = ConversationId>>(
    tx: &Tx,
    token: &DocToken<Words, S>,
    at: ConversationId,
    word: &str,
) -> Result<(), TxError> {
    tx.doc(token, at).await?.edit(|value| value.words.push(word.to_owned()))
}

async fn words<S: picofleet_session::Scope<At = ConversationId>>(
    kit: &Kit,
    token: &DocToken<Words, S>,
    at: ConversationId,
) -> Option<Vec<String>> {
    let stored = kit.harness().document(token.address(at)).await.unwrap()?;
    Some(token.read_stored(at, stored).unwrap().words)
}

/// Makes the settings, and fails where it is told to.
struct Setup(Arc<AtomicBool>);

impl ConversationSetup for Setup {
    fn setup<'a>(&'a self, tx: &'a Tx, conversation: &'a ConversationRecord, _: &'a [String]) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move {
            if self.0.load(Ordering::SeqCst) {
                return Err(TxError::ReadAfterWrite);
            }
            let fork = if conversation.parent.is_some() { "setup of a fork" } else { "setup" };
            add(tx, &SETTINGS, conversation.id, fork).await
        })
    }
}

/// A setup in the kit's registry, and what lets it fail.
fn set_up(kit: &Kit) -> Arc<AtomicBool> {
    let fails = Arc::<AtomicBool>::default();
    kit.registry.setup("app", Setup(Arc::clone(&fails))).unwrap();
    fails
}

async fn conversations(kit: &Kit) -> Vec<i64> {
    let all = kit.harness().conversations(ConversationFilter::default(), 100, None).await.unwrap();
    all.items.iter().map(|record| record.id.get()).collect()
}

/// A task that nothing runs.
struct Nothing;

impl picofleet_harness::kind::TaskKind for Nothing {
    const NAME: &'static str = "test.nothing";
    const VERSION: u32 = 1;
    type Input = ();
    type Checkpoint = picofleet_session::Json;
    type Output = ();
    type Decision = picofleet_harness::kind::NoDecision;
    type Hooks = ();

    fn initial(&self, (): &()) -> picofleet_session::Json {
        picofleet_session::Json::object([("phase", "none")])
    }

    async fn run(
        &self,
        _: picofleet_harness::kind::Running<Self>,
        _: picofleet_harness::runtime::TaskRuntime<Self>,
    ) -> Result<(), picofleet_harness::effects::Fault> {
        Ok(())
    }

    async fn abort(
        &self,
        _: picofleet_harness::kind::Running<Self>,
        _: picofleet_harness::runtime::TaskRuntime<Self>,
    ) -> Result<(), picofleet_harness::effects::Fault> {
        Ok(())
    }
}

scenario!(s199_init_runs_behind_the_setups_in_the_commit_that_makes_the_conversation, async |kit| {
    set_up(&kit);
    let patch = ConfigPatch { model: Some(Some(Stage::model_ref())), ..ConfigPatch::default() };
    let mut task = None;
    let made = kit
        .harness()
        .create_conversation_with(ConversationOptions::ownerless().config(patch), async |tx, id| {
            assert!(matches!(tx.conversation(id).await, Err(TxError::ReadAfterWrite)), "tables are not read");
            assert!(matches!(tx.task(TaskId::new(1).unwrap()).await, Err(TxError::ReadAfterWrite)));
            // The setups have run, the configuration was changed, and both can be changed again.
            assert_eq!(tx.doc(&SETTINGS, id).await?.read()?.words, ["setup"]);
            add(tx, &SETTINGS, id, "init").await?;
            let config = tx.doc(&CONFIG, id).await?;
            let before = config.read()?;
            assert_eq!(before.model, Some(Stage::model_ref()));
            assert_eq!(before.active_tools, ["echo", "output", "fail", "gate", "safe_gate"]);
            config.edit(|config| config.active_tools = vec!["gate".to_owned()])?;
            add(tx, &NOTES, id, "new").await?;
            tx.append_entry(id, EntryDraft::new("note")).await?;
            task = Some(tx.create_task(&Nothing, (), TaskOptions::top_level()).await?);
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    assert_eq!(words(&kit, &SETTINGS, made.id()).await.unwrap(), ["setup", "init"]);
    assert_eq!(words(&kit, &NOTES, made.id()).await.unwrap(), ["new"]);
    assert_eq!(made.active_tools().await.unwrap(), ["gate"]);
    assert_eq!(made.model().await.unwrap(), Some(Stage::model_ref()));
    let entries = kit.entries(&made).await;
    assert_eq!(entries.iter().map(|entry| (entry.kind.as_str(), entry.by_task_id)).collect::<Vec<_>>(), [("note", None)]);
    assert_eq!(kit.task(task.unwrap().erase()).await.conversation_id, made.id());
    for kind in ["pi.live", "pi.inbox", "pi.usage"] {
        assert!(made.document(kind).await.unwrap().is_some(), "{kind}");
    }
    // An init that writes nothing makes the conversation all the same.
    let plain = kit.harness().create_conversation_with(ConversationOptions::ownerless(), async |_, _| Ok::<_, Refused>(())).await.unwrap();
    assert_eq!(words(&kit, &SETTINGS, plain.id()).await.unwrap(), ["setup"]);
    assert_eq!(conversations(&kit).await, [1, made.id().get(), plain.id().get()]);
});

scenario!(s199_init_of_a_fork_finds_and_changes_what_was_copied, async |kit| {
    set_up(&kit);
    let root = kit.root().await;
    let note = async |word: &'static str| root.commit(async |tx| Ok::<_, Boxed>(add(tx, &NOTES, root.id(), word).await?)).await.unwrap();
    note("before").await;
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&root).await.last().unwrap().id;
    note("behind").await;
    root.set_active_tools(["echo"]).await.unwrap();
    let fork = root
        .fork_with(at, ConversationOptions::ownerless(), async |tx, id| {
            let notes = tx.doc(&NOTES, id).await?;
            assert_eq!(notes.read()?.words, ["before"]);
            notes.edit(|value| value.words.push("fork".to_owned()))?;
            assert_eq!(tx.doc(&SETTINGS, id).await?.read()?.words, ["setup of a fork"]);
            assert_eq!(tx.doc(&CONFIG, id).await?.read()?.active_tools.len(), 5, "the configuration at the fork point");
            Ok::<_, Refused>(())
        })
        .await
        .unwrap();
    assert_eq!(words(&kit, &NOTES, fork.id()).await.unwrap(), ["before", "fork"]);
    assert_eq!(words(&kit, &NOTES, root.id()).await.unwrap(), ["before", "behind"]);
    // What init does not touch is copied as by any fork; what it retires is not there.
    let other = root.fork_with(at, ConversationOptions::ownerless(), async |_, _| Ok::<_, Refused>(())).await.unwrap();
    assert_eq!(words(&kit, &NOTES, other.id()).await.unwrap(), ["before"]);
    let without = root
        .fork_with(at, ConversationOptions::ownerless(), async |tx, id| Ok::<_, Refused>(tx.retire_doc(&NOTES, id).await?))
        .await
        .unwrap();
    assert_eq!(words(&kit, &NOTES, without.id()).await, None);
    assert_eq!(kit.entries(&fork).await, kit.entries(&root).await);
    let hidden = fork
        .fork_with(picofleet_session::EntryId::new(9_999).unwrap(), ConversationOptions::ownerless(), async |_, _| panic!("not called"));
    let hidden: Result<_, Refused> = hidden.await.map(|fork| fork.id());
    assert!(matches!(&hidden, Err(Refused::Host(HostError::Invalid { field: Some(field), .. })) if field == "at"), "{hidden:?}");
});

type Boxed = Box<dyn std::error::Error + Send + Sync>;

scenario!(x023_an_init_that_throws_makes_nothing, async |kit| {
    set_up(&kit);
    let root = kit.root().await;
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&root).await[0].id;
    let mut ids = Vec::new();
    let throws = async |ids: &mut Vec<ConversationId>, tx: &Tx, id: ConversationId| {
        ids.push(id);
        add(tx, &NOTES, id, "lost").await?;
        tx.append_entry(id, EntryDraft::new("lost")).await?;
        Err(Refused::Said)
    };
    let harness = kit.harness();
    let created = harness.create_conversation_with(ConversationOptions::ownerless(), async |tx, id| throws(&mut ids, tx, id).await);
    let created = created.await.map(|made| made.id());
    assert!(matches!(&created, Err(Refused::Said)), "{created:?}");
    let forked = root.fork_with(at, ConversationOptions::ownerless(), async |tx, id| throws(&mut ids, tx, id).await);
    assert!(matches!(forked.await.map(|made| made.id()), Err(Refused::Said)));
    assert_eq!(ids.len(), 2);
    assert_eq!(conversations(&kit).await, [1]);
    for id in &ids {
        assert!(kit.harness().conversation(*id).await.unwrap().is_none());
        assert_eq!(words(&kit, &NOTES, *id).await, None);
        assert_eq!(words(&kit, &SETTINGS, *id).await, None);
    }
    // The line goes on, and the ids are not given again.
    let next = kit.harness().create_conversation(ConversationOptions::ownerless()).await.unwrap();
    assert!(ids.iter().all(|id| next.id() > *id));
});

scenario!(x023_a_setup_that_throws_makes_nothing_and_calls_no_init, async |kit| {
    let fails = set_up(&kit);
    fails.store(true, Ordering::SeqCst);
    let called = AtomicU32::new(0);
    let harness = kit.harness();
    let created = harness.create_conversation_with(ConversationOptions::ownerless(), async |_, _| {
        called.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Refused>(())
    });
    let created = created.await.map(|made| made.id());
    assert!(matches!(created, Err(Refused::Host(_))), "{created:?}");
    assert_eq!(called.load(Ordering::SeqCst), 0);
    assert_eq!(conversations(&kit).await, [1]);
});

scenario!(a_tool_that_init_activates_is_registered, async |kit| {
    let root = kit.root().await;
    let activate = async |tx: &Tx, id: ConversationId, names: &[&str]| -> Result<(), Refused> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Ok(tx.doc(&CONFIG, id).await?.edit(|config| config.active_tools = names)?)
    };
    let refused = kit
        .harness()
        .create_conversation_with(ConversationOptions::ownerless(), async |tx, id| activate(tx, id, &["echo", "ghost"]).await)
        .await
        .map(|made| made.id());
    assert!(
        matches!(&refused, Err(Refused::Host(HostError::Invalid { field: Some(field), why })) if field == "activeTools[1]" && why.contains("ghost")),
        "{refused:?}"
    );
    assert_eq!(conversations(&kit).await, [1]);
    // What was active already is not looked at again, and nothing else is checked: a fork keeps a name that is not registered any more.
    let raw = root.commit(async |tx| activate(tx, root.id(), &["ghost", "echo"]).await.map_err(|error| Boxed::from(format!("{error:?}"))));
    raw.await.unwrap();
    kit.turn("a", Reply::text("x")).await;
    let at = kit.entries(&root).await.last().unwrap().id;
    let fork = root
        .fork_with(at, ConversationOptions::ownerless(), async |tx, id| activate(tx, id, &["gate", "ghost", "ghost"]).await)
        .await
        .unwrap();
    assert_eq!(fork.active_tools().await.unwrap(), ["gate", "ghost", "ghost"]);
});

scenario!(init_of_a_key_runs_once, async |kit| {
    let calls = AtomicU32::new(0);
    let options = || ConversationOptions::ownerless().key("one");
    let init = async |tx: &Tx, id: ConversationId| {
        calls.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Refused>(add(tx, &NOTES, id, "once").await?)
    };
    let made = kit.harness().create_conversation_with(options(), init).await.unwrap().id();
    assert_eq!(kit.harness().create_conversation_with(options(), init).await.unwrap().id(), made);
    kit.reopen().await;
    assert_eq!(kit.harness().create_conversation_with(options(), init).await.unwrap().id(), made);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(words(&kit, &NOTES, made).await.unwrap(), ["once"]);
    // Another call under the key, also the same one without an init, is refused.
    let other = kit.harness().create_conversation(options()).await.map(|made| made.id());
    assert!(matches!(&other, Err(HostError::Invalid { field: Some(field), .. }) if field == "key"), "{other:?}");
    let unknown = ConversationOptions::owned_by(TaskId::new(9_999).unwrap());
    let unknown = kit.harness().create_conversation_with(unknown, init).await.map(|made| made.id());
    assert!(matches!(&unknown, Err(Refused::Host(HostError::NotFound { id: 9_999, .. }))), "{unknown:?}");
    assert_eq!(conversations(&kit).await, [1, made.get()]);
});

/// Loses the first answer to an end of a closure.
struct Lossy(Arc<dyn Transport>, AtomicBool);

impl Transport for Lossy {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let loses = matches!(request, Request::Finish { .. }) && !self.1.swap(true, Ordering::SeqCst);
            let answer = self.0.call(session, request).await?;
            if loses { Err(CallError::NoAnswer(session)) } else { Ok(answer) }
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        self.0.beat(beat)
    }
}

scenario!(a_lost_answer_makes_no_second_conversation, async |kit| {
    let host = Harness::connect(Arc::new(Lossy(kit.transport(), AtomicBool::new(false))), kit.session());
    let calls = AtomicU32::new(0);
    let init = async |tx: &Tx, id: ConversationId| {
        calls.fetch_add(1, Ordering::SeqCst);
        Ok::<_, Refused>(add(tx, &NOTES, id, "once").await?)
    };
    let made = host.create_conversation_with(ConversationOptions::ownerless(), init).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(conversations(&kit).await, [1, made.id().get()]);
});

scenario!(an_init_that_takes_too_long_makes_nothing, async |kit| {
    kit.hold = std::time::Duration::from_millis(50);
    kit.restart().await;
    let harness = kit.harness();
    let held = harness.create_conversation_with(ConversationOptions::ownerless(), async |tx, id| {
        add(tx, &NOTES, id, "lost").await?;
        std::future::pending::<Result<(), Refused>>().await
    });
    let held = held.await.map(|made| made.id());
    assert!(matches!(&held, Err(Refused::Host(HostError::Unavailable(why))) if why.contains("did not wait")), "{held:?}");
    assert_eq!(conversations(&kit).await, [1]);
});

/// The root is made lazily, with an init that runs only then.
async fn root_once(backing: Backing, wire: Wire) {
    let mut kit = Kit::bare(backing, wire).await;
    set_up(&kit);
    kit.start();
    let failed = kit.harness().root_with(async |_, _| Err(Refused::Said)).await.map(|root| root.id());
    assert!(matches!(failed, Err(Refused::Said)), "{failed:?}");
    assert_eq!(conversations(&kit).await, [] as [i64; 0]);
    let init = async |tx: &Tx, id: ConversationId| Ok::<_, Refused>(add(tx, &SETTINGS, id, "init").await?);
    let root = kit.harness().root_with(init).await.unwrap();
    assert_eq!(root.id(), picofleet_session::ROOT_CONVERSATION_ID);
    assert_eq!(words(&kit, &SETTINGS, root.id()).await.unwrap(), ["setup", "init"]);
    for _ in 0..2 {
        let again = kit.harness().root_with(async |_, _| -> Result<(), Refused> { panic!("the root is there") }).await.unwrap();
        assert_eq!(again.id(), root.id());
        kit.reopen().await;
    }
    assert_eq!(words(&kit, &SETTINGS, root.id()).await.unwrap(), ["setup", "init"]);
    kit.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s194_init_of_the_root_runs_once() {
    for backing in [Backing::Memory, Backing::Sqlite, Backing::Jsonl, Backing::Postgres] {
        for wire in [Wire::Plain, Wire::Encoded] {
            Box::pin(root_once(backing, wire)).await;
        }
    }
}

scenario!(a_conversation_that_a_commit_of_a_host_makes_has_the_setups_of_the_application, async |kit| {
    let fails = set_up(&kit);
    let make = async |kit: &Kit| {
        let ownership = picofleet_session::ConversationOwnership::Ownerless;
        kit.root().await.commit(async |tx| Ok::<_, Refused>(tx.create_conversation(ownership).await?.id)).await
    };
    let made = make(&kit).await.unwrap();
    assert_eq!(words(&kit, &SETTINGS, made).await.unwrap(), ["setup"]);
    let before = conversations(&kit).await;
    fails.store(true, std::sync::atomic::Ordering::SeqCst);
    make(&kit).await.unwrap_err();
    assert_eq!(conversations(&kit).await, before, "a setup that throws makes nothing");
});
