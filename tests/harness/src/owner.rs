//! A task of an application that does what a test tells it: what it owns, what it waits for, how it ends, how it aborts.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use picofleet_harness::effects::Fault;
use picofleet_harness::host::ConversationOptions;
use picofleet_harness::kind::{Next, NoDecision, Outcome, Running, TaskKind, TaskOptions, TxTasks as _};
use picofleet_harness::runtime::TaskRuntime;
use picofleet_session::{ConversationId, JoinPolicy, Json, TaskError, TaskId};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

use crate::Kit;

type Handler = dyn FnOnce(Running<Owner>, TaskRuntime<Owner>) -> BoxFuture<'static, Result<(), Fault>> + Send;

/// What one handler does.
pub struct Act(Box<Handler>);

/// Tasks by names, which are their inputs. A phase waits until it is told what to do; an abort handler ends its task where it was told
/// nothing else. Clones are one.
#[derive(Clone, Default)]
pub struct Owner {
    state: Arc<Mutex<State>>,
    told: Arc<Notify>,
}

#[derive(Default)]
struct State {
    log: Vec<String>,
    acts: HashMap<String, VecDeque<Act>>,
}

/// The only phase, counted.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "camelCase")]
pub enum At {
    /// How often the task went on.
    Step {
        /// From 0.
        n: u32,
    },
}

/// An outcome of an abort handler that says nothing.
pub const ABORTED: Outcome<u32> = Outcome::Aborted { reason: None, result: None };

/// An outcome of a task that says that it failed.
pub fn failed() -> Outcome<u32> {
    Outcome::Failed { error: TaskError { message: "no".to_owned(), detail: None }, result: None }
}

impl Act {
    /// Anything.
    pub fn new<F, R>(act: F) -> Self
    where
        F: FnOnce(Running<Owner>, TaskRuntime<Owner>) -> R + Send + 'static,
        R: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        Self(Box::new(move |task, runtime| Box::pin(act(task, runtime))))
    }

    /// Ends the task.
    pub fn end(outcome: Outcome<u32>) -> Self {
        Self::new(|_, runtime| async move { runtime.commit(async |_, _| Ok::<_, Fault>(Next::End(outcome))).await })
    }

    /// Waits for tasks and goes on.
    pub fn wait(on: &[TaskId<u32>], policy: JoinPolicy) -> Self {
        let on = on.iter().map(|task| task.erase()).collect();
        Self::new(move |task, runtime| async move {
            let next = Next::Wait { checkpoint: task.checkpoint.next(), on, policy };
            runtime.commit(async |_, _| Ok::<_, Fault>(next)).await
        })
    }

    /// Throws.
    pub fn throw(message: &str) -> Self {
        let error = TaskError { message: message.to_owned(), detail: None };
        Self::new(|_, _| async move { Err(Fault::Failed(error)) })
    }

    /// The same once it is let go, whatever the task is told meanwhile.
    #[must_use]
    pub fn behind(self, gate: &Arc<Notify>) -> Self {
        let gate = Arc::clone(gate);
        Self::new(|task, runtime| async move {
            gate.notified().await;
            (self.0)(task, runtime).await
        })
    }
}

impl At {
    /// The next step.
    #[must_use]
    pub const fn next(&self) -> Self {
        let Self::Step { n } = self;
        Self::Step { n: *n + 1 }
    }
}

impl Owner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Tells a task what its next phase does; `NAME:abort` tells its abort handler, before that runs.
    pub fn tell(&self, name: &str, act: Act) {
        self.state().acts.entry(name.to_owned()).or_default().push_back(act);
        self.told.notify_waiters();
    }

    /// Writes into the log.
    pub fn note(&self, text: impl Into<String>) {
        self.state().log.push(text.into());
    }

    /// What ran, in order: `NAME:STEP` for a phase, `NAME:abort` for an abort handler.
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    /// The abort handlers that ran, in order.
    pub fn aborts(&self) -> Vec<String> {
        self.log().iter().filter_map(|line| line.strip_suffix(":abort").map(ToOwned::to_owned)).collect()
    }

    fn take(&self, name: &str) -> Option<Act> {
        self.state().acts.get_mut(name)?.pop_front()
    }

    async fn told(&self, name: &str) -> Act {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            // Registered before the look, so that nothing told meanwhile is missed.
            told.as_mut().enable();
            if let Some(act) = self.take(name) {
                return act;
            }
            told.await;
        }
    }
}

impl TaskKind for Owner {
    const NAME: &'static str = "test.owner";
    const VERSION: u32 = 1;
    type Input = String;
    type Checkpoint = At;
    type Output = u32;
    type Decision = NoDecision;
    type Hooks = ();

    fn initial(&self, _: &String) -> At {
        At::Step { n: 0 }
    }

    async fn run(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let At::Step { n } = &task.checkpoint;
        self.note(format!("{}:{n}", task.input));
        let act = tokio::select! {
            biased;
            () = runtime.cancelled().cancelled() => return Ok(()),
            act = self.told(&task.input) => act,
        };
        (act.0)(task, runtime).await
    }

    async fn abort(&self, task: Running<Self>, runtime: TaskRuntime<Self>) -> Result<(), Fault> {
        let name = format!("{}:abort", task.input);
        self.note(name.as_str());
        let act = self.take(&name).unwrap_or_else(|| Act::end(ABORTED));
        (act.0)(task, runtime).await
    }
}

impl Kit {
    /// Defines owners.
    pub async fn owner(&mut self) -> Owner {
        let owner = Owner::default();
        self.define(owner.clone()).await;
        owner
    }

    /// Creates an owner with a name in a commit of the root conversation.
    pub async fn add(&self, name: &str, options: TaskOptions) -> TaskId<u32> {
        let created = self.try_add(name, options).await;
        created.unwrap()
    }

    /// The same, or why not.
    pub async fn try_add(&self, name: &str, options: TaskOptions) -> Result<TaskId<u32>, String> {
        let (owner, name) = (Owner::default(), name.to_owned());
        let created: Result<_, Box<dyn std::error::Error + Send + Sync>> =
            self.root().await.commit(async |tx| Ok(tx.create_task(&owner, name, options).await?)).await;
        created.map_err(|error| error.to_string())
    }

    /// Creates a conversation that a task owns.
    pub async fn owned(&self, by: TaskId<u32>) -> ConversationId {
        self.harness().create_conversation(ConversationOptions::owned_by(by.erase())).await.unwrap().id()
    }

    /// Waits until this is in the log of an owner.
    pub async fn ran(&self, owner: &Owner, lines: &[&str]) {
        self.until(&format!("{lines:?}"), async || {
            let log = owner.log();
            lines.iter().all(|line| log.iter().any(|ran| ran == line))
        })
        .await;
    }

    /// The state of a task, with its outcome: `pending`, `completing failed`, `terminal aborted`.
    pub async fn state(&self, task: TaskId<u32>) -> String {
        status(&self.task(task.erase()).await)
    }

    /// Waits until a task is in a state.
    pub async fn comes(&self, task: TaskId<u32>, state: &str) {
        self.until(&format!("task {task}: {state}"), async || self.state(task).await == state).await;
    }
}

/// The state of a record, with its outcome.
pub fn status(record: &picofleet_session::TaskRecord) -> String {
    let state = Json::from_serde(&record.state).unwrap();
    let word = |json: Option<&Json>| json.and_then(Json::as_str).map(|word| word.into_owned());
    let status = word(state.get("status")).unwrap();
    let outcome = word(state.get("outcome").and_then(|outcome| outcome.get("status")));
    outcome.map_or_else(|| status.clone(), |outcome| format!("{status} {outcome}"))
}
