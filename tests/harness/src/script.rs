//! A task whose handlers are closures of a test.

use std::sync::{Arc, Mutex, PoisonError};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_harness::effects::Fault;
use picofleet_harness::kind::{Migration, Next, NoDecision, Outcome, Running, TaskKind};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_session::{Json, TaskError};

/// What happened, in order. Clones are one.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Writes a word down.
    pub fn push(&self, word: impl Into<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(word.into());
    }

    /// Everything so far.
    pub fn words(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often a word was written down.
    pub fn count(&self, word: &str) -> usize {
        self.words().iter().filter(|other| *other == word).count()
    }
}

type Handler<K> = Arc<dyn Fn(Running<K>, TaskRuntime<K>) -> BoxFuture<'static, Result<(), Fault>> + Send + Sync>;

/// A task of version `V` whose handlers are closures. Its input is a name, its checkpoint an object with a `phase`, its result a value.
/// Every phase that begins is written down: its name, behind the task's where it has one.
pub struct Versioned<const V: u32, const OTHER: bool = false> {
    run: Handler<Self>,
    abort: Handler<Self>,
    first: Json,
    build: &'static str,
    migration: Option<Migration<Self>>,
    /// What its handlers did.
    pub log: Log,
}

/// A task `script` of version 1.
pub type Script = Versioned<1>;

/// A task of another kind, `other`.
pub type Other = Versioned<1, true>;

impl<const V: u32, const OTHER: bool> Versioned<V, OTHER> {
    /// With phases, the first of which is `a`. Its abort handler ends it as aborted.
    pub fn new<F, H>(log: &Log, run: H) -> Self
    where
        F: Future<Output = Result<(), Fault>> + Send + 'static,
        H: Fn(Running<Self>, TaskRuntime<Self>) -> F + Send + Sync + 'static,
    {
        let abort: Handler<Self> = Arc::new(|_, runtime| async move { aborted(&runtime).await }.boxed());
        let run: Handler<Self> = Arc::new(move |task, runtime| run(task, runtime).boxed());
        Self { run, abort, first: at("a"), build: "", migration: None, log: log.clone() }
    }

    /// With another abort handler.
    #[must_use]
    pub fn aborts<F, H>(self, abort: H) -> Self
    where
        F: Future<Output = Result<(), Fault>> + Send + 'static,
        H: Fn(Running<Self>, TaskRuntime<Self>) -> F + Send + Sync + 'static,
    {
        Self { abort: Arc::new(move |task, runtime| abort(task, runtime).boxed()), ..self }
    }

    /// With another first checkpoint.
    #[must_use]
    pub fn first(self, first: Json) -> Self {
        Self { first, ..self }
    }

    /// As another build.
    #[must_use]
    pub fn build(self, build: &'static str) -> Self {
        Self { build, ..self }
    }

    /// With a migration.
    #[must_use]
    pub fn migrates(self, migration: Migration<Self>) -> Self {
        Self { migration: Some(migration), ..self }
    }

    fn wrote(&self, task: &Running<Self>, word: &str) {
        let name = &*task.input;
        self.log.push(if name.is_empty() { word.to_owned() } else { format!("{name}:{word}") });
    }
}

impl<const V: u32, const OTHER: bool> TaskKind for Versioned<V, OTHER> {
    const NAME: &'static str = if OTHER { "other" } else { "script" };
    const VERSION: u32 = V;
    type Input = String;
    type Checkpoint = Json;
    type Output = Json;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &String) -> Json {
        self.first.clone()
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        self.wrote(&task, &phase(&task.checkpoint));
        (self.run)(task, runtime).await
    }

    async fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        self.wrote(&task, "abort");
        (self.abort)(task, runtime).await
    }

    fn migration(&self) -> Option<Migration<Self>> {
        self.migration
    }

    fn build(&self) -> &str {
        self.build
    }
}

/// A checkpoint.
#[must_use]
pub fn at(phase: &str) -> Json {
    Json::object([("phase", phase)])
}

/// The phase of a checkpoint.
#[must_use]
pub fn phase(checkpoint: &Json) -> String {
    checkpoint.get("phase").and_then(Json::as_str).unwrap_or_default().into_owned()
}

/// Commits what a task goes on with.
///
/// # Errors
/// As [`TaskRuntime::commit`].
pub async fn put<K: TaskKind>(runtime: &TaskRuntime<K>, next: Next<K>) -> Result<(), Fault> {
    runtime.commit(async |_, _| Ok::<_, Fault>(next)).await
}

/// On to another phase.
///
/// # Errors
/// As [`TaskRuntime::commit`].
pub async fn go<K: TaskKind<Checkpoint = Json>>(runtime: &TaskRuntime<K>, phase: &str) -> Result<(), Fault> {
    put(runtime, Next::Checkpoint(at(phase))).await
}

/// The end, completed.
///
/// # Errors
/// As [`TaskRuntime::commit`].
pub async fn end<K: TaskKind<Output = Json>>(runtime: &TaskRuntime<K>, result: impl Into<Json>) -> Result<(), Fault> {
    put(runtime, Next::End(Outcome::Completed(result.into()))).await
}

/// The end, aborted.
///
/// # Errors
/// As [`TaskRuntime::commit`].
pub async fn aborted<K: TaskKind>(runtime: &TaskRuntime<K>) -> Result<(), Fault> {
    put(runtime, Next::End(Outcome::Aborted { reason: None, result: None })).await
}

/// Waits until the task is told to stop.
///
/// # Errors
/// [`Fault::Ended`], always.
pub async fn hang<K: TaskKind>(runtime: &TaskRuntime<K>) -> Result<(), Fault> {
    runtime.cancelled().cancelled().await;
    Err(Fault::Ended)
}

/// A handler's own failure.
#[must_use]
pub fn fault(message: &str) -> Fault {
    Fault::Failed(TaskError { message: message.to_owned(), detail: None })
}
