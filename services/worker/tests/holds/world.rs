//! One session, its line, and a transport that counts and loses messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_fleet::{LineServer, Local};
use picofleet_harness::config::ModelRef;
use picofleet_harness::effects::{Fault, HoldError, HostCommit, Invocation, Models, Services, Slots, commit};
use picofleet_harness::line::{LineOptions, SessionLine};
use picofleet_harness::registry::Registry;
use picofleet_harness::task::{Applied, LineTask, LineTasks, NextState};
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Request, Said, WorkerId};
use picofleet_models::model::Model;
use picofleet_models::provider::Provider;
use picofleet_session::storage::{EntryQuery, SessionCreate, Store};
use picofleet_session::{
    Clock, CommitError, ConversationId, Current, DocDefinition, DocToken, DraftError, EntryRecord, InvocationId, Json, Latest, Millis,
    ROOT_CONVERSATION_ID, Session, SessionId, SessionOptions, TaskCreate, TaskId, TaskOwnership, TaskRecord, Tx, TxError, every,
};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

pub(crate) const ROOT: ConversationId = ROOT_CONVERSATION_ID;

/// A small document.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) text: String,
    pub(crate) items: Vec<Json>,
}

/// Delta after delta, copied to forks.
pub(crate) static NOTE: DocToken<Note, Latest<Current>> =
    DocToken::new("test.note", 1, || DocDefinition { initial: Note::default, migrate: None, checkpoint_when: every::<50> });

/// The same with a newer definition.
pub(crate) static NOTE_2: DocToken<Note, Latest<Current>> = DocToken::new("test.note", 2, || DocDefinition {
    initial: Note::default,
    migrate: Some(|value, _| {
        let mut note: Note = value.to().map_err(|error| picofleet_session::MigrateError(error.to_string()))?;
        note.text.push_str(" of 2");
        Ok(note)
    }),
    checkpoint_when: every::<50>,
});

/// What can go wrong with a commit here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Oops {
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(transparent)]
    Hold(#[from] HoldError),
    #[error(transparent)]
    Commit(#[from] CommitError),
    #[error(transparent)]
    Tx(#[from] TxError),
    #[error(transparent)]
    Draft(#[from] DraftError),
    #[error("said")]
    Said,
}

struct NoModels;

impl Models for NoModels {
    fn find(&self, _model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        None
    }
}

/// A task that only closures drive.
struct Idle;

impl LineTask for Idle {
    fn name(&self) -> &'static str {
        "test.idle"
    }

    fn version(&self) -> u32 {
        1
    }

    fn apply<'a>(&'a self, _tx: &'a Tx, _record: &'a TaskRecord, _decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async { Ok((NextState::Stay, Json::null())) })
    }
}

struct Server(SessionLine);

impl LineServer for Server {
    fn handle(&self, _session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move { Ok(self.0.handle(request).await) })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        Box::pin(async move { Ok(BeatAnswer { counter: beat.counter, ..BeatAnswer::default() }) })
    }
}

/// Counts messages, and loses the answers to the ends of closures.
pub(crate) struct Counted {
    local: Local,
    pub(crate) messages: AtomicU32,
    pub(crate) lose: AtomicU32,
}

impl Transport for Counted {
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            self.messages.fetch_add(1, Ordering::SeqCst);
            let ends = matches!(&request, Request::Finish { .. } | Request::Say { said: Said::Finish(_), .. });
            let answer = self.local.call(session, request).await?;
            let lost = ends && self.lose.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
            if lost { Err(CallError::NoAnswer(session)) } else { Ok(answer) }
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        self.local.beat(beat)
    }
}

/// One session with a running task.
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) line: SessionLine,
    pub(crate) id: SessionId,
    pub(crate) counted: Arc<Counted>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) task: TaskId,
    pub(crate) invocation: Invocation,
    pub(crate) invocation_id: InvocationId,
    pub(crate) name: &'static str,
    _directory: Option<TempDir>,
}

/// Every backend, plain and encoded, with this bound of a hold.
pub(crate) async fn worlds(hold: Duration) -> Vec<World> {
    let mut worlds = Vec::new();
    for (name, encoded) in [("memory plain", false), ("memory encoded", true)] {
        worlds.push(World::new(name, Arc::new(MemoryStore::new()), None, encoded, hold).await);
    }
    for (name, encoded) in [("sqlite plain", false), ("sqlite encoded", true)] {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(directory.path().join("s.sqlite"), SqliteOptions::default()).unwrap();
        worlds.push(World::new(name, Arc::new(store), Some(directory), encoded, hold).await);
    }
    worlds
}

/// A bound that no test runs into.
pub(crate) const LONG: Duration = Duration::from_secs(60);

impl World {
    async fn new(name: &'static str, store: Arc<dyn Store>, directory: Option<TempDir>, encoded: bool, hold: Duration) -> Self {
        let id = store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id;
        let options = LineOptions { hold, ..LineOptions::default() };
        let clock = Clock::manual(Millis(1_000));
        let session = Session::open(&*store, id, options.session(SessionOptions { clock, ..SessionOptions::default() })).await.unwrap();
        let mut tasks = LineTasks::built_in();
        tasks.add(Arc::new(Idle));
        let line = SessionLine::open(session, tasks, options).await.unwrap();
        line.resume();
        let server: Arc<dyn LineServer> = Arc::new(Server(line.clone()));
        let local = if encoded { Local::encoded(server) } else { Local::plain(server) };
        let counted = Arc::new(Counted { local, messages: AtomicU32::new(0), lose: AtomicU32::new(0) });
        let transport: Arc<dyn Transport> = Arc::<Counted>::clone(&counted);
        let task = line
            .session()
            .commit(async |tx| {
                tx.create_root().await?;
                tx.doc(&NOTE, ROOT).await?.draft.key("text").set("old")?;
                tx.append_entry(ROOT, picofleet_session::EntryDraft::new("first")).await?;
                tx.create_task_raw(idle(TaskOwnership::Conversation, Some(ROOT))).await.map_err(CommitError::from)
            })
            .await
            .unwrap();
        let invocation_id = InvocationId::random();
        let reserve = Request::Reserve { task, invocation: invocation_id, worker: WorkerId(InvocationId::random()), definition: None };
        let answer = transport.call(id, reserve).await.unwrap();
        assert!(matches!(answer, Answer::Reserved(_)), "{answer:?}");
        let services = Services::new(Registry::new(), Arc::new(NoModels));
        let slot = Slots::new(1).take().await;
        let invocation = Invocation::new(Arc::clone(&transport), id, task, invocation_id, CancellationToken::new(), services, slot);
        counted.messages.store(0, Ordering::SeqCst);
        Self { store, line, id, counted, transport, task, invocation, invocation_id, name, _directory: directory }
    }

    /// A commit of a host over the transport.
    pub(crate) async fn host<R>(&self, change: impl AsyncFnOnce(&Tx) -> Result<R, Oops>) -> Result<R, Oops> {
        commit(&self.transport, self.id, HostCommit { conversation: Some(ROOT), ..HostCommit::default() }, change).await
    }

    /// The newest sequence.
    pub(crate) async fn seq(&self) -> i64 {
        self.line.session().store().head().await.unwrap().seq.0
    }

    /// The kinds of the entries of a conversation, oldest first.
    pub(crate) async fn kinds(&self, conversation: ConversationId) -> Vec<String> {
        self.entries(conversation).await.into_iter().map(|entry| entry.kind).collect()
    }

    pub(crate) async fn entries(&self, conversation: ConversationId) -> Vec<EntryRecord> {
        let mut page = self.line.session().store().scan_entries(EntryQuery::all(conversation), 1_000, None).await.unwrap();
        page.items.reverse();
        page.items
    }

    pub(crate) async fn note(&self) -> Note {
        self.line.session().snapshot(&NOTE, ROOT).await.unwrap().unwrap()
    }

    pub(crate) async fn record(&self) -> TaskRecord {
        self.line.session().store().task(self.task).await.unwrap().unwrap()
    }

    pub(crate) fn messages(&self) -> u32 {
        self.counted.messages.swap(0, Ordering::SeqCst)
    }
}

/// A task to be created.
pub(crate) fn idle(ownership: TaskOwnership, conversation_id: Option<ConversationId>) -> TaskCreate {
    TaskCreate {
        kind: "test.idle".into(),
        version: 1,
        input: Json::null(),
        checkpoint: at("start"),
        ownership,
        conversation_id,
        background: false,
    }
}

/// A checkpoint.
pub(crate) fn at(phase: &str) -> Json {
    Json::object([("phase", Json::from(phase))])
}
