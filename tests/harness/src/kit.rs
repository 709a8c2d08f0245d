//! An engine of one coordinator and one worker, and what a test does with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use picofleet_coordinator::{Coordinator, Options};
use picofleet_fleet::Local;
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Services;
use picofleet_harness::host::{Conversation, Harness, Submission};
use picofleet_harness::kind::{Outcome, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::line::{ConversationWatch, Invocations, LineOptions, LineReport};
use picofleet_harness::registry::{Registration, Registry};
use picofleet_harness::submission::{SubmissionDraft, WhenBusy};
use picofleet_harness::task::LineTasks;
use picofleet_harness::transport::{CallError, Transport};
use picofleet_harness::wire::{Answer, HostCall, Refusal, Request};
use picofleet_session::storage::{SessionCreate, SessionReader, Store};
use picofleet_session::{
    Clock, ConversationId, EntryDraft, Millis, ROOT_CONVERSATION_ID, Session, SessionId, SessionOptions, SubmissionId, SubmissionRecord,
    TaskId, TaskRecord,
};
use picofleet_storage::conformance::Database;
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::postgres::{PostgresOptions, PostgresStore};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use picofleet_worker::Worker;
use serde::de::DeserializeOwned;
use tempfile::TempDir;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{Disk, Faults, Gate, Reply, Stage, Tap};

/// The longest that a test waits for a condition. It only ends a test that can't succeed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// When the clock of a kit begins.
const START: Millis = Millis(1_000_000);

/// Where records are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// In memory; a reopen goes on with the same store.
    Memory,
    /// In a file of a temporary directory; a reopen opens the file again.
    Sqlite,
    /// In the files of a temporary directory, in the same way.
    Jsonl,
    /// In a database that all kits of the process share; a reopen connects again.
    Postgres,
}

/// How messages travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wire {
    /// As they are.
    Plain,
    /// Encoded and decoded.
    Encoded,
}

/// A running engine over one session, with a configured root conversation.
pub struct Kit {
    /// The model.
    pub stage: Stage,
    /// Holds the calls of gate tools.
    pub gate: Gate,
    /// The clock of line and worker.
    pub clock: Clock,
    /// What the worker has registered.
    pub registry: Registry,
    /// The line halves of tasks.
    pub tasks: LineTasks,
    /// What goes wrong between worker and coordinator.
    pub faults: Faults,
    /// What storage does.
    pub tap: Tap,
    /// What goes wrong between the session and its store.
    pub disk: Disk,
    /// How long a closure may hold a line; as of the next start. Long, so that no test depends on its machine.
    pub hold: Duration,
    /// How the worker works.
    pub worker: picofleet_worker::Options,
    /// Whether a session that opens goes on with its work by itself; as of the next start.
    pub resume: bool,
    /// For how long nobody uses a session until it rests; as of the next start.
    pub idle: Duration,
    /// The longest that one call waits on the line; as of the next start.
    pub wait: Duration,
    wire: Wire,
    reports: Arc<Mutex<Vec<String>>>,
    /// What [`Kit::replace`] registered, by name.
    defined: Mutex<HashMap<&'static str, Registration>>,
    store: Arc<dyn Store>,
    backing: Backing,
    directory: Option<TempDir>,
    session: SessionId,
    engine: Option<Engine>,
}

struct Engine {
    coordinator: Coordinator,
    transport: Arc<dyn Transport>,
    /// What the worker and everything that it runs hold, and nobody else.
    held: Weak<dyn Transport>,
    worker: JoinHandle<()>,
    stop: CancellationToken,
    /// Coordinators that lost the session. What they send reaches the worker, so that they go with it.
    earlier: Vec<Coordinator>,
}

impl Kit {
    /// An engine with a root conversation that has a model and every tool.
    pub async fn new(backing: Backing, wire: Wire) -> Self {
        let mut kit = Self::bare(backing, wire).await;
        kit.start();
        let patch = ConfigPatch {
            model: Some(Some(Stage::model_ref())),
            active_tools: Some(kit.registry.snapshot().tool_names()),
            ..ConfigPatch::default()
        };
        kit.root().await.update(patch).await.unwrap();
        kit
    }

    /// A session and nothing that runs yet: [`Kit::start`].
    pub async fn bare(backing: Backing, wire: Wire) -> Self {
        let files = matches!(backing, Backing::Sqlite | Backing::Jsonl);
        let directory = files.then(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
        let store = store(backing, directory.as_ref()).await;
        let session = store.create(SessionCreate::new(START)).await.unwrap().session.id;
        Self::over((backing, store, directory), session, wire)
    }

    pub(crate) fn over((backing, store, directory): (Backing, Arc<dyn Store>, Option<TempDir>), session: SessionId, wire: Wire) -> Self {
        let clock = Clock::manual(START);
        let (stage, gate, registry) = (Stage::new(clock.clone()), Gate::new(), Registry::new());
        crate::tools::register(&registry, &gate);
        let tasks = LineTasks::of(&registry);
        let (faults, tap, worker) = (Faults::default(), Tap::default(), picofleet_worker::Options::default());
        let (disk, reports, defined) = (Disk::default(), Arc::default(), Mutex::default());
        let (hold, resume, wait, engine) = (PATIENCE, true, LineOptions::default().wait, None);
        Self {
            stage,
            gate,
            clock,
            registry,
            tasks,
            faults,
            tap,
            disk,
            hold,
            worker,
            resume,
            idle: Options::new().idle,
            wait,
            wire,
            reports,
            defined,
            backing,
            store,
            directory,
            session,
            engine,
        }
    }

    /// Starts coordinator and worker. The session opens with the first call.
    pub fn start(&mut self) {
        assert!(self.engine.is_none(), "the kit runs already");
        let reports = Arc::clone(&self.reports);
        let on_report = move |report: &LineReport| reports.lock().unwrap().push(format!("{report:?}"));
        let options = Options {
            clock: self.clock.clone(),
            tasks: self.tasks.clone(),
            line: LineOptions { hold: self.hold, wait: self.wait, on_report: Some(Arc::new(on_report)), ..LineOptions::of(&self.registry) },
            sweep: Duration::from_millis(20),
            resume: self.resume,
            idle: self.idle,
        };
        let (coordinator, outgoing) = Coordinator::new(self.disk.before(self.tap.over(Arc::clone(&self.store))), options);
        let transport = self.between(coordinator.clone());
        let reports = Arc::clone(&self.reports);
        let services = Services::new(self.registry.clone(), Arc::new(self.stage.clone()))
            .with_clock(self.clock.clone())
            .with_report(move |error| reports.lock().unwrap().push(error.to_string()));
        let stop = CancellationToken::new();
        let between = self.faults.between(Arc::clone(&transport));
        let held = Arc::downgrade(&between);
        let worker = Worker::new(between, services, self.worker.clone());
        let worker = tokio::spawn(worker.run(outgoing.hints, outgoing.signals, stop.clone()));
        self.engine = Some(Engine { coordinator, transport, worker, stop, held, earlier: Vec::new() });
    }

    /// Another coordinator takes the session over, and the messages of worker and hosts go to it. It counts the invocations of the worker
    /// as alive, and sends the worker nothing.
    pub async fn take_over(&mut self) {
        let options = Options {
            clock: self.clock.clone(),
            tasks: self.tasks.clone(),
            line: LineOptions { wait: self.wait, invocations: Invocations::Live, ..LineOptions::of(&self.registry) },
            sweep: Duration::from_millis(20),
            resume: self.resume,
            idle: self.idle,
        };
        let (coordinator, _) = Coordinator::new(Arc::clone(&self.store), options);
        let transport = self.between(coordinator.clone());
        coordinator.open(self.session).await.unwrap();
        self.faults.lead_to(Arc::clone(&transport));
        let engine = self.engine.as_mut().expect("the kit runs");
        let lost = std::mem::replace(&mut engine.transport, transport);
        engine.earlier.push(std::mem::replace(&mut engine.coordinator, coordinator));
        // The earlier one hears of it with the first commit that is refused.
        let note = HostCall::Submit { conversation: ROOT_CONVERSATION_ID, draft: SubmissionDraft::write(EntryDraft::new("late")) };
        let refused = lost.call(self.session, Request::Host(Box::new(note))).await;
        let lost = matches!(refused, Ok(Answer::Refused(Refusal::AskAgain)) | Err(CallError::Unavailable { .. }));
        assert!(lost, "the earlier owner has lost the session: {refused:?}");
    }

    /// Somebody else opens the session, whom nobody here can reach.
    pub async fn lose(&self) {
        Session::open(&*self.store, self.session, SessionOptions::default()).await.unwrap();
    }

    fn between(&self, coordinator: Coordinator) -> Arc<dyn Transport> {
        let server = Arc::new(coordinator);
        match self.wire {
            Wire::Plain => Arc::new(Local::plain(server)),
            Wire::Encoded => Arc::new(Local::encoded(server)),
        }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().expect("the kit runs")
    }

    /// Stops worker and coordinator, where they run.
    pub async fn stop(&mut self) {
        if let Some(engine) = self.engine.take() {
            engine.stop.cancel();
            engine.worker.await.unwrap();
            engine.coordinator.close().await;
            drop(engine.earlier);
        }
    }

    /// Loses worker and coordinator as they are, behind a crash of the [`Tap`].
    pub async fn crash_at_tap(&mut self) {
        self.tap.crashed().await;
        if let Some(engine) = self.engine.take() {
            engine.worker.abort();
            assert!(engine.worker.await.unwrap_err().is_cancelled());
        }
    }

    /// Ends worker and coordinator where they are: nothing is handed back and nothing is closed.
    pub async fn kill(&mut self) {
        let engine = self.engine.take().expect("the kit runs");
        engine.worker.abort();
        assert!(engine.worker.await.is_err_and(|ended| ended.is_cancelled()), "the worker ended by itself");
        // What it ran may be on another thread still.
        self.until("the end of what runs", async || engine.held.strong_count() == 0).await;
    }

    /// Begins to close the coordinator, while the worker goes on.
    pub fn closing(&self) -> JoinHandle<()> {
        let coordinator = self.engine().coordinator.clone();
        tokio::spawn(async move { coordinator.close().await })
    }

    /// What line and worker reported so far.
    pub fn reported(&self) -> Vec<String> {
        self.reports.lock().unwrap().clone()
    }

    /// Stops, opens the store again, starts, and opens the session, so that its work goes on; see [`Kit::reopen_paused`].
    pub async fn reopen(&mut self) {
        self.restart().await;
        if self.resume {
            self.engine().coordinator.resume(self.session).await.unwrap();
        }
    }

    /// Stops, opens the store again and starts; the session opens as [`Kit::resume`] says.
    pub async fn restart(&mut self) {
        self.stop().await;
        if self.directory.is_some() || self.backing == Backing::Postgres {
            self.store.close().await.unwrap();
            self.store = store(self.backing, self.directory.as_ref()).await;
        }
        self.start();
    }

    /// Another session of the store, empty.
    pub async fn other_session(&self) -> SessionId {
        self.store.create(SessionCreate::new(START)).await.unwrap().session.id
    }

    /// A task as it is stored, also where nothing runs.
    pub async fn stored(&self, id: TaskId) -> TaskRecord {
        self.store.reader(self.session).await.unwrap().task(id).await.unwrap().expect("the task is there")
    }

    /// A submission as it is stored.
    pub async fn stored_submission(&self, id: SubmissionId) -> SubmissionRecord {
        self.store.reader(self.session).await.unwrap().submission(id).await.unwrap().expect("the submission is there")
    }

    /// Replaces the line halves of tasks while everything runs.
    pub async fn set_tasks(&mut self, tasks: LineTasks) {
        self.tasks = tasks.clone();
        self.engine().coordinator.set_tasks(tasks).await;
    }

    /// As [`Kit::reopen`], but its work waits until somebody asks for progress, from now on at every start.
    pub async fn reopen_paused(&mut self) {
        self.resume = false;
        self.reopen().await;
    }

    /// The session's host surface, as of this start.
    pub fn harness(&self) -> Harness {
        Harness::connect(Arc::clone(&self.engine().transport), self.session)
    }

    /// What carries messages to the session, for a test that stands in between.
    pub fn transport(&self) -> Arc<dyn Transport> {
        Arc::clone(&self.engine().transport)
    }

    /// Quarantines the session, as openings that kill their owner do. The kit must not run.
    pub async fn quarantine(&self) {
        assert!(self.engine.is_none(), "the kit runs");
        self.store.set_quarantined(self.session, true).await.unwrap();
    }

    /// The session's id.
    pub const fn session(&self) -> SessionId {
        self.session
    }

    /// The root conversation.
    pub async fn root(&self) -> Conversation {
        self.harness().root().await.unwrap()
    }

    /// Registers a task definition, and starts again with it.
    pub async fn define<K: TaskKind>(&mut self, kind: K) {
        self.registry.task(Arc::new(kind)).unwrap();
        self.tasks = LineTasks::of(&self.registry);
        self.reopen().await;
    }

    /// Registers a task definition in the place of one with its name, and creates a task of it.
    pub async fn begin<K: TaskKind>(&mut self, kind: K, input: K::Input) -> TaskId<K::Output> {
        let kind = Arc::new(kind);
        self.put(Arc::clone(&kind)).await;
        self.create(&*kind, input).await
    }

    /// Registers a task definition in the place of one with its name, for coordinator and worker, while they run.
    pub async fn replace<K: TaskKind>(&mut self, kind: K) {
        self.put(Arc::new(kind)).await;
    }

    async fn put<K: TaskKind>(&mut self, kind: Arc<K>) {
        let before = self.defined().remove(K::NAME);
        let (_, registration) = self
            .registry
            .batch(|stage| {
                before.iter().try_for_each(|before| stage.dispose(before))?;
                stage.task(kind)
            })
            .unwrap();
        self.defined().insert(K::NAME, registration);
        self.share().await;
    }

    /// Removes a task definition that [`Kit::replace`] registered, while coordinator and worker run.
    pub async fn remove<K: TaskKind>(&mut self) {
        let before = self.defined().remove(K::NAME);
        before.expect("it is registered").dispose();
        self.share().await;
    }

    async fn share(&mut self) {
        self.tasks = LineTasks::of(&self.registry);
        if let Some(engine) = &self.engine {
            engine.coordinator.set_tasks(self.tasks.clone()).await;
        }
    }

    fn defined(&self) -> MutexGuard<'_, HashMap<&'static str, Registration>> {
        self.defined.lock().unwrap()
    }

    /// The session as storage has it.
    pub async fn reader(&self) -> Arc<dyn SessionReader> {
        self.store.reader(self.session).await.unwrap()
    }

    /// Creates a task in a commit of the host, over the transport.
    pub async fn create<K: TaskKind>(&self, kind: &K, input: K::Input) -> TaskId<K::Output> {
        let created: Result<_, Box<dyn std::error::Error + Send + Sync>> =
            self.root().await.commit(async |tx| Ok(tx.create_task(kind, input, TaskOptions::top_level()).await?)).await;
        created.unwrap()
    }

    /// Sends a message as it is.
    pub async fn call(&self, request: Request) -> Answer {
        self.engine().transport.call(self.session, request).await.unwrap()
    }

    /// Follows a conversation.
    pub async fn watch(&self, conversation: ConversationId) -> ConversationWatch {
        self.engine().coordinator.watch(self.session, conversation).await.unwrap()
    }

    /// Follows the root conversation.
    pub async fn watch_root(&self) -> ConversationWatch {
        self.watch(ROOT_CONVERSATION_ID).await
    }

    /// Sets the clock forward.
    pub fn advance(&self, milliseconds: i64) {
        self.clock.set(Millis(self.clock.now().0 + milliseconds));
    }

    /// Submits an input to the root conversation.
    pub async fn say(&self, text: &str) -> Submission {
        self.root().await.submit(SubmissionDraft::input(text)).await.unwrap()
    }

    /// Submits a steer to the root conversation.
    pub async fn steer(&self, text: &str) -> Submission {
        self.root().await.submit(SubmissionDraft::input(text).when_busy(WhenBusy::Steer)).await.unwrap()
    }

    /// Waits for a submission.
    pub async fn settled(&self, submission: &Submission) -> SubmissionRecord {
        let again = self.harness().submission(submission.id()).await.unwrap().expect("the submission is there");
        match tokio::time::timeout(PATIENCE, again.wait()).await {
            Ok(record) => record.unwrap(),
            Err(_) => {
                let live = self.harness().inspect().await;
                panic!("submission {} does not settle: {:?}; live work: {live:#?}", submission.id(), again.status().await)
            }
        }
    }

    /// Waits for the end of a task.
    pub async fn outcome<R: DeserializeOwned>(&self, task: TaskId<R>) -> Outcome<R> {
        match tokio::time::timeout(PATIENCE, self.harness().wait_for_task(task)).await {
            Ok(outcome) => outcome.unwrap(),
            Err(_) => panic!("task {task} does not end: {:?}", self.task(task.erase()).await),
        }
    }

    /// Gives an answer, submits an input, and waits until it is settled.
    pub async fn turn(&self, input: &str, reply: Reply) -> SubmissionRecord {
        self.stage.give(reply);
        let submission = self.say(input).await;
        self.settled(&submission).await
    }

    /// Waits until a condition over committed state holds.
    pub async fn until(&self, what: &str, condition: impl AsyncFn() -> bool) {
        let look = async {
            while !condition().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, look).await.is_ok(), "{what} does not come");
    }

    /// Makes the root conversation busy with a call of the gate tool, and waits until it began.
    pub async fn busy(&self, input: &str) -> Submission {
        self.stage.give(Reply::call("c1", "gate", "{}"));
        let submission = self.say(input).await;
        self.gate.begun().await;
        submission
    }

    /// Makes the root conversation busy with a request that ends in this answer once the stage is released.
    pub async fn asking(&self, input: &str, reply: Reply) -> Submission {
        let before = self.stage.asked().len();
        self.stage.give(reply.held());
        let submission = self.say(input).await;
        self.until("the request", async || self.stage.asked().len() > before).await;
        submission
    }
}

/// Where all kits on PostgreSQL keep their sessions.
static DATABASE: OnceCell<Database> = OnceCell::const_new();

async fn store(backing: Backing, directory: Option<&TempDir>) -> Arc<dyn Store> {
    let path = |name: &str| directory.expect("what is kept has a place").path().join(name);
    match backing {
        Backing::Memory => Arc::new(MemoryStore::new()),
        Backing::Sqlite => Arc::new(SqliteStore::open(path("store.db"), SqliteOptions::default()).unwrap()),
        Backing::Jsonl => Arc::new(JsonlStore::open(path("store"), JsonlOptions::default()).unwrap()),
        Backing::Postgres => {
            let options = PostgresOptions { readers: 2, committers: 1, ..PostgresOptions::default() };
            Arc::new(PostgresStore::open(DATABASE.get_or_init(Database::new).await.url(), options).await.unwrap())
        }
    }
}
