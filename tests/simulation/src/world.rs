//! What is outside of the fleet and can't be taken back: models and the effects of tools. It keeps a ledger and checks what it is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use picofleet_session::message::{AssistantBlock, Message};
use picofleet_session::{ConversationId, SessionId, TaskId};
use tokio::time::Instant;

use crate::checker::Checker;

mod model;
mod tasks;
mod tools;

pub(crate) use model::{SimModels, model_ref};
pub(crate) use tasks::{Job, JobInput};
pub(crate) use tools::{TOOLS, registry};

/// What may happen, faults and others. A run of many seeds in which one of them never happened shows less than it says.
const HAPPENINGS: [&str; 44] = [
    "request late",
    "request lost",
    "request doubled",
    "answer lost",
    "beat lost",
    "hint lost",
    "hint doubled",
    "hint late",
    "signal lost",
    "network cut",
    "quarantine cleared",
    "coordinator killed",
    "coordinator taken over",
    "process killed",
    "worker killed",
    "worker drained",
    "worker frozen",
    "commit uncertain, lost",
    "commit uncertain, landed",
    "commit rejected",
    "commit late",
    "effect",
    "model request",
    "model error",
    "overflow",
    "summary",
    "summary failed",
    "model request cancelled",
    "deferred",
    "deferred cancelled",
    "cancelling refused",
    "abort handler",
    "parked task retried",
    "user aborts a conversation",
    "user aborts a task",
    "user withdraws",
    "user resets",
    "user compacts",
    "user writes",
    "user starts a job",
    "user appends an entry in a closure",
    "user submits",
    "user tries again",
    "a host's closure was not committed",
];

/// What a deferred answer says.
pub(crate) const LATER: &str = "later";

/// A line of a tool's output. All of them say the same, so that a hole in what is shown is seen.
pub(crate) fn line(number: u64) -> String {
    format!("line {number}\n")
}

/// A word of an answer.
pub(crate) fn word(number: u64) -> String {
    format!("word{number} ")
}

/// How long an effect may go on behind the end of its task, without the time in which a worker was frozen.
const OUTLIVES_MAX: Duration = Duration::from_secs(60);

/// The outside. Clones are one.
#[derive(Clone)]
pub(crate) struct World {
    inner: Arc<Mutex<Inner>>,
    pub(crate) checker: Checker,
    /// The one session of the run.
    pub(crate) session: SessionId,
}

struct Inner {
    rng: fastrand::Rng,
    /// How often each unsafe call was executed.
    unsafe_runs: BTreeMap<TaskId, u32>,
    /// How many executions of each task there are.
    running: BTreeMap<TaskId, u32>,
    counts: BTreeMap<&'static str, u64>,
    /// When workers were frozen: from, until.
    frozen: Vec<(Instant, Instant)>,
    calm: bool,
}

impl World {
    /// An outside that throws its dice with `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64, session: SessionId, checker: Checker) -> Self {
        let counts = HAPPENINGS.iter().map(|what| (*what, 0)).collect();
        let inner = Inner {
            rng: fastrand::Rng::with_seed(seed),
            unsafe_runs: BTreeMap::new(),
            running: BTreeMap::new(),
            counts,
            frozen: Vec::new(),
            calm: false,
        };
        Self { inner: Arc::new(Mutex::new(inner)), checker, session }
    }

    /// From now on nothing fails any more.
    pub(crate) fn calm(&self) {
        self.lock().calm = true;
    }

    /// A number below `end`.
    #[must_use]
    pub(crate) fn below(&self, end: u64) -> u64 {
        self.lock().rng.u64(0..end.max(1))
    }

    /// True once in `n` times, while faults go on.
    #[must_use]
    pub(crate) fn fault(&self, n: u64) -> bool {
        let mut inner = self.lock();
        !inner.calm && inner.rng.u64(0..n.max(1)) == 0
    }

    /// True once in `n` times.
    #[must_use]
    pub(crate) fn once_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A duration of up to `max` milliseconds.
    #[must_use]
    pub(crate) fn pause(&self, max: u64) -> Duration {
        Duration::from_millis(self.below(max))
    }

    /// Counts that something of [`HAPPENINGS`] happened.
    pub(crate) fn count(&self, what: &'static str) {
        match self.lock().counts.get_mut(what) {
            Some(count) => *count += 1,
            None => self.checker.broken(format!("{what:?} happened and is not in the list of what may happen")),
        }
    }

    /// A worker does nothing from now on, for a time.
    pub(crate) fn worker_frozen(&self, time: Duration) {
        self.count("worker frozen");
        let now = Instant::now();
        self.lock().frozen.push((now, now + time));
    }

    /// How much of the last `time` a worker was frozen.
    fn frozen_within(&self, time: Duration) -> Duration {
        let now = Instant::now();
        let since = now.checked_sub(time).unwrap_or(now);
        self.lock().frozen.iter().map(|(from, until)| (*until).min(now).saturating_duration_since((*from).max(since))).sum()
    }

    /// How often things happened.
    #[must_use]
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    /// An unsafe effect happens: it must be the first of its call.
    pub(crate) fn unsafe_effect(&self, task: TaskId) -> Effect {
        let runs = {
            let mut inner = self.lock();
            let runs = inner.unsafe_runs.entry(task).or_default();
            *runs += 1;
            *runs
        };
        if runs > 1 {
            self.checker.broken(format!("the unsafe call of task {task} was executed {runs} times"));
        }
        self.effect(task)
    }

    /// An effect happens: its intent must be stored, and its task live. It goes on until what this answers is dropped.
    pub(crate) fn effect(&self, task: TaskId) -> Effect {
        self.count("effect");
        *self.lock().running.entry(task).or_default() += 1;
        match self.checker.task(self.session, task) {
            Some(record) if !record.terminal() => {}
            other => self.checker.broken(format!("an effect of task {task}, which is {other:?}")),
        }
        Effect { world: self.clone(), task }
    }

    /// The tasks whose effects go on.
    #[must_use]
    pub(crate) fn going_on(&self) -> Vec<TaskId> {
        self.lock().running.keys().copied().collect()
    }

    /// A model is asked: every call in the request has one result, right behind its message, and every result has its call.
    pub(crate) fn request(&self, messages: &[Message]) {
        self.count("model request");
        let mut open: Vec<String> = Vec::new();
        for message in messages {
            match message {
                Message::ToolResult(result) => match open.iter().position(|id| *id == result.tool_call_id) {
                    Some(index) => {
                        open.remove(index);
                    }
                    None => self
                        .checker
                        .broken(format!("a request has a result for {:?}, which nobody called or which has one", result.tool_call_id)),
                },
                Message::Assistant(message) => {
                    self.all_answered(&open);
                    open = message
                        .content
                        .iter()
                        .filter_map(|block| if let AssistantBlock::ToolCall(call) = block { Some(call.id.clone()) } else { None })
                        .collect();
                }
                Message::User(_) | Message::System(_) => {
                    self.all_answered(&open);
                    open.clear();
                }
            }
        }
        self.all_answered(&open);
    }

    fn all_answered(&self, open: &[String]) {
        if !open.is_empty() {
            self.checker.broken(format!("a request has calls without a result: {open:?}"));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An effect that goes on. It must not outlive its task by longer than a worker needs to hear of the end, or to stop by itself.
pub(crate) struct Effect {
    world: World,
    task: TaskId,
}

impl Drop for Effect {
    fn drop(&mut self) {
        let Self { world, task } = self;
        {
            let mut inner = world.lock();
            if let Some(count) = inner.running.get_mut(task) {
                *count -= 1;
                if *count == 0 {
                    inner.running.remove(task);
                }
            }
        }
        let Some(over) = world.checker.over_for(world.session, *task) else { return };
        if over.saturating_sub(world.frozen_within(over)) > OUTLIVES_MAX {
            world.checker.broken(format!("an effect of task {task} went on for {over:?} behind its end"));
        }
    }
}

/// The conversation that everything is about at first.
pub(crate) const ROOT: ConversationId = picofleet_session::ROOT_CONVERSATION_ID;
