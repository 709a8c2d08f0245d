//! A session's line with tasks whose decisions say what becomes of them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use picofleet_harness::inspection::{Inspection, TaskView};
use picofleet_harness::line::{Invocations, LineOptions, LineReport, SessionLine};
use picofleet_harness::ownership::Plan;
use picofleet_harness::step::Mode;
use picofleet_harness::task::{Applied, LineTask, LineTasks, Migrated, NextState};
use picofleet_harness::wire::{Answer, HostCall, Next, Refusal, Request, Said, WorkerId};
use picofleet_session::storage::{SessionCreate, Store};
use picofleet_session::{
    Clock, CommitError, ConversationId, ConversationOwnership, InvocationId, JoinPolicy, Json, MigrateError, Millis, ROOT_CONVERSATION_ID,
    Session, SessionId, SessionOptions, TaskCreate, TaskId, TaskOutcome, TaskOwnership, TaskRecord, Tx,
};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};

pub(crate) fn j(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// Runs a case on both stores.
pub(crate) async fn both(case: impl AsyncFn(Arc<dyn Store>)) {
    case(Arc::new(MemoryStore::new())).await;
    let directory = tempfile::tempdir().unwrap();
    case(Arc::new(SqliteStore::open(directory.path().join("s.db"), SqliteOptions::default()).unwrap())).await;
}

/// How a scripted definition migrates.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Migrates {
    #[default]
    No,
    Yes,
    Fails,
    Panics,
}

/// A definition whose decisions say what becomes of the task.
#[derive(Clone, Default)]
pub(crate) struct Scripted {
    pub(crate) name: &'static str,
    pub(crate) version: u32,
    pub(crate) build: &'static str,
    pub(crate) migrates: Migrates,
    pub(crate) migrations: Arc<AtomicU32>,
    /// Its abort handler has no effect.
    pub(crate) aborts_on_line: bool,
    /// The phase `a` begins without an effect.
    pub(crate) plans_first: bool,
    /// What it decides where all that it waits for is over, and nobody is asked.
    pub(crate) goes_on: Option<&'static str>,
}

pub(crate) fn scripted(name: &'static str) -> Scripted {
    Scripted { name, version: 1, ..Scripted::default() }
}

pub(crate) fn tasks(all: &[Scripted]) -> LineTasks {
    let mut tasks = LineTasks::default();
    for task in all {
        tasks.add(Arc::new(task.clone()));
    }
    tasks
}

fn invalid(why: &str) -> CommitError {
    CommitError::Invalid(picofleet_session::Violation::Decision { why: why.to_owned() })
}

impl LineTask for Scripted {
    fn name(&self) -> &str {
        self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn build(&self) -> &str {
        self.build
    }

    fn migrates(&self) -> bool {
        self.migrates != Migrates::No
    }

    fn migrate(&self, from: u32, input: Json, checkpoint: Json) -> Option<Migrated> {
        self.migrations.fetch_add(1, Ordering::SeqCst);
        match self.migrates {
            Migrates::No => None,
            Migrates::Yes => Some(Ok((input, Json::object([("from", Json::from(from)), ("was", checkpoint)])))),
            Migrates::Fails => Some(Err(MigrateError("no way".into()))),
            Migrates::Panics => panic!("a bug"),
        }
    }

    fn abort_decision(&self, _checkpoint: &Json) -> Option<Json> {
        self.aborts_on_line.then(|| j(r#"{"end":{"status":"aborted"}}"#))
    }

    fn plans_first(&self, checkpoint: &Json) -> bool {
        self.plans_first && *checkpoint == j(r#"{"phase":"a"}"#)
    }

    fn goes_on(&self, _checkpoint: &Json, _asked: bool) -> Option<Json> {
        self.goes_on.map(j)
    }

    fn apply<'a>(&'a self, tx: &'a Tx, record: &'a TaskRecord, decision: Json) -> BoxFuture<'a, Applied> {
        Box::pin(async move {
            let mut made = Vec::new();
            for _ in 0..decision.get("children").and_then(Json::as_i64).unwrap_or(0) {
                made.push(tx.create_task_raw(create(self.name, TaskOwnership::Task { task_id: record.id })).await?);
            }
            if decision.get("conversation").is_some() {
                let owned = tx.create_conversation(ConversationOwnership::Task { task_id: record.id }).await?;
                let task = TaskCreate { conversation_id: Some(owned.id), ..create(self.name, TaskOwnership::Conversation) };
                made.push(tx.create_task_raw(task).await?);
            }
            if let Some(at) = decision.get("in").and_then(Json::as_i64) {
                let task = TaskCreate {
                    conversation_id: Some(ConversationId::new(at).unwrap()),
                    ..create(self.name, TaskOwnership::Conversation)
                };
                made.push(tx.create_task_raw(task).await?);
            }
            if decision.get("panic").is_some() {
                panic!("a bug");
            }
            let to = decision.get("to").cloned();
            let next = if let Some(outcome) = decision.get("end") {
                NextState::End(outcome.to().map_err(|_| invalid("no outcome"))?)
            } else if let Some(on) = decision.get("wait").and_then(Json::as_array) {
                let on = on.iter().filter_map(Json::as_i64).map(|id| TaskId::new(id).unwrap()).collect();
                let policy = if decision.get("failFast").is_some() { JoinPolicy::FailFast } else { JoinPolicy::AllSettled };
                NextState::Wait { checkpoint: to.unwrap_or(Json::null()), on, policy }
            } else if let Some(until) = decision.get("sleep").and_then(Json::as_i64) {
                NextState::Sleep { checkpoint: to.unwrap_or(Json::null()), until: Millis(until) }
            } else {
                to.map_or(NextState::Stay, NextState::Checkpoint)
            };
            Ok((next, Json::from_serde(&made).unwrap()))
        })
    }
}

pub(crate) fn create(kind: &str, ownership: TaskOwnership) -> TaskCreate {
    TaskCreate {
        kind: kind.to_owned(),
        version: 1,
        input: Json::null(),
        checkpoint: j(r#"{"phase":"a"}"#),
        ownership,
        conversation_id: matches!(ownership, TaskOwnership::Conversation).then_some(ROOT_CONVERSATION_ID),
        background: false,
    }
}

/// One opening of a session.
pub(crate) struct Bench {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) session: SessionId,
    pub(crate) clock: Clock,
    pub(crate) line: SessionLine,
    pub(crate) reports: Arc<Mutex<Vec<LineReport>>>,
    pub(crate) worker: WorkerId,
}

impl Bench {
    /// A new session with its root, paused.
    pub(crate) async fn new(store: Arc<dyn Store>, all: &[Scripted]) -> Self {
        let session = store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id;
        let bench = Self::open(store, session, Clock::manual(Millis(1_000)), all, Invocations::Ended).await;
        bench.host(HostCall::Root).await;
        bench
    }

    /// The same, running.
    pub(crate) async fn running(store: Arc<dyn Store>, all: &[Scripted]) -> Self {
        let bench = Self::new(store, all).await;
        assert!(bench.line.resume());
        bench
    }

    async fn open(store: Arc<dyn Store>, session: SessionId, clock: Clock, all: &[Scripted], invocations: Invocations) -> Self {
        let options = SessionOptions { clock: clock.clone(), ..SessionOptions::default() };
        let opened = Session::open(&*store, session, options).await.unwrap();
        let reports = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&reports);
        let on_report = Arc::new(move |report: &LineReport| kept.lock().unwrap().push(report.clone()));
        let options = LineOptions { on_report: Some(on_report), invocations, ..LineOptions::default() };
        let line = SessionLine::open(opened, tasks(all), options).await.unwrap();
        Self { store, session, clock, line, reports, worker: WorkerId(InvocationId::random()) }
    }

    /// Another process opens the session after this one was killed; paused.
    pub(crate) async fn killed(self, all: &[Scripted]) -> Self {
        let Self { store, session, clock, .. } = self;
        Self::open(store, session, clock, all, Invocations::Ended).await
    }

    /// Another process has the session now, and its workers live on; running.
    pub(crate) async fn taken_over(self, all: &[Scripted]) -> Self {
        let Self { store, session, clock, worker, .. } = self;
        let bench = Self { worker, ..Self::open(store, session, clock, all, Invocations::Live).await };
        assert!(bench.line.resume());
        bench
    }

    /// The same after an orderly close.
    pub(crate) async fn reopened(self, all: &[Scripted]) -> Self {
        self.line.close().await.unwrap();
        self.killed(all).await
    }

    pub(crate) async fn create(&self, task: TaskCreate) -> TaskId {
        self.line.session().commit(async |tx| Ok::<_, CommitError>(tx.create_task_raw(task).await?)).await.unwrap()
    }

    /// A task of the root conversation.
    pub(crate) async fn task(&self, kind: &str) -> TaskId {
        self.create(create(kind, TaskOwnership::Conversation)).await
    }

    pub(crate) async fn background(&self, kind: &str) -> TaskId {
        self.create(TaskCreate { background: true, ..create(kind, TaskOwnership::Conversation) }).await
    }

    pub(crate) async fn child(&self, kind: &str, owner: TaskId) -> TaskId {
        self.create(create(kind, TaskOwnership::Task { task_id: owner })).await
    }

    /// A conversation that a task owns.
    pub(crate) async fn conversation(&self, owner: TaskId) -> ConversationId {
        let ownership = ConversationOwnership::Task { task_id: owner };
        self.line.session().commit(async |tx| Ok::<_, CommitError>(tx.create_conversation(ownership).await?.id)).await.unwrap()
    }

    pub(crate) async fn in_conversation(&self, kind: &str, conversation: ConversationId) -> TaskId {
        self.create(TaskCreate { conversation_id: Some(conversation), ..create(kind, TaskOwnership::Conversation) }).await
    }

    pub(crate) async fn plan(&self) -> Plan {
        self.line.plan().await.unwrap()
    }

    pub(crate) async fn runs(&self) -> Vec<TaskId> {
        self.plan().await.runs
    }

    pub(crate) async fn record(&self, task: TaskId) -> TaskRecord {
        self.line.session().store().task(task).await.unwrap().unwrap()
    }

    pub(crate) async fn status(&self, task: TaskId) -> String {
        let record = Json::from_serde(&self.record(task).await).unwrap();
        let state = record.get("state").unwrap();
        let outcome = state.get("outcome").and_then(|outcome| outcome.get("status"));
        let word = |json: Option<&Json>| json.and_then(Json::as_str).map(|word| word.into_owned());
        let status = word(state.get("status")).unwrap();
        word(outcome).map_or_else(|| status.clone(), |outcome| format!("{status} {outcome}"))
    }

    /// The message of a faulted task.
    pub(crate) async fn fault(&self, task: TaskId) -> String {
        match self.record(task).await.state {
            picofleet_session::TaskState::Terminal { outcome: TaskOutcome::Faulted { error } } => error.message,
            other => panic!("not faulted: {other:?}"),
        }
    }

    pub(crate) async fn host(&self, call: HostCall) -> Answer {
        self.line.handle(Request::Host(Box::new(call))).await
    }

    pub(crate) async fn inspect(&self) -> Inspection {
        let Answer::Value(value) = self.host(HostCall::Inspect).await else { panic!("no inspection") };
        value.to().unwrap()
    }

    pub(crate) async fn view(&self, task: TaskId) -> TaskView {
        let inspection = self.inspect().await;
        inspection.tasks.into_iter().find(|other| other.record.id == task).map(|found| found.state).unwrap()
    }

    pub(crate) async fn abort(&self, task: TaskId) -> Answer {
        self.host(HostCall::AbortTask { task }).await
    }

    /// Reserves a task, where it may be.
    pub(crate) async fn try_reserve(&self, task: TaskId) -> Option<Run> {
        let invocation = InvocationId::random();
        match self.line.handle(Request::Reserve { task, invocation, worker: self.worker, definition: None }).await {
            Answer::Reserved(reservation) => Some(Run { task, invocation, number: 0, record: reservation.record, mode: reservation.mode }),
            Answer::Refused(Refusal::NotReady) => None,
            other => panic!("{other:?}"),
        }
    }

    /// Plans and reserves a task that is ready.
    pub(crate) async fn reserve(&self, task: TaskId) -> Run {
        self.plan().await;
        self.try_reserve(task).await.unwrap_or_else(|| panic!("task {task} is not ready"))
    }

    /// Runs a task with one decision that ends it.
    pub(crate) async fn complete(&self, task: TaskId) {
        let mut run = self.reserve(task).await;
        assert_eq!(run.decide(self, r#"{"end":{"status":"completed","result":null}}"#).await, Next::Stop);
    }

    /// Runs the abort handler of a task to its end.
    pub(crate) async fn run_abort(&self, task: TaskId) {
        let mut run = self.reserve(task).await;
        assert_eq!(run.mode, Mode::Abort);
        assert_eq!(run.decide(self, r#"{"end":{"status":"aborted"}}"#).await, Next::Stop);
    }
}

/// An invocation.
pub(crate) struct Run {
    pub(crate) task: TaskId,
    pub(crate) invocation: InvocationId,
    number: u32,
    pub(crate) record: TaskRecord,
    pub(crate) mode: Mode,
}

impl Run {
    pub(crate) async fn say(&mut self, bench: &Bench, said: Said) -> Answer {
        let request = Request::Say { task: self.task, invocation: self.invocation, number: self.number + 1, said };
        let answer = bench.line.handle(request).await;
        if matches!(answer, Answer::Said { .. }) {
            self.number += 1;
        }
        answer
    }

    /// A decision in the middle of a phase; its answer.
    pub(crate) async fn commit(&mut self, bench: &Bench, decision: &str) -> Json {
        match self.say(bench, Said::Decide { version: 1, decision: j(decision), last: false }).await {
            Answer::Said { answer, .. } => answer,
            other => panic!("{other:?}"),
        }
    }

    /// The last decision of a phase.
    pub(crate) async fn decide(&mut self, bench: &Bench, decision: &str) -> Next {
        match self.last(bench, decision).await {
            Answer::Said { next: Some(next), .. } => next,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn last(&mut self, bench: &Bench, decision: &str) -> Answer {
        self.say(bench, Said::Decide { version: 1, decision: j(decision), last: true }).await
    }

    /// What the line refused, in words.
    pub(crate) async fn rejected(&mut self, bench: &Bench, decision: &str) -> String {
        match self.last(bench, decision).await {
            Answer::Refused(Refusal::Rejected(text)) => text,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn fails(&mut self, bench: &Bench, message: &str) -> Answer {
        let error = picofleet_session::TaskError { message: message.to_owned(), detail: None };
        self.say(bench, Said::PhaseEnd(Some(error))).await
    }

    pub(crate) async fn ends(&self, bench: &Bench) {
        let request = Request::Ended { task: self.task, invocation: self.invocation };
        assert_eq!(bench.line.handle(request).await, Answer::Done);
    }
}
