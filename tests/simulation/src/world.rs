//! What is outside of the fleet and can't be taken back: models and the effects of tools. It keeps a ledger and checks what it is asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use picofleet_session::message::{AssistantBlock, Message};
use picofleet_session::{ConversationId, SessionId, TaskId};

use crate::checker::Checker;

mod model;
mod tasks;
mod tools;

pub(crate) use model::{SimModels, model_ref};
pub(crate) use tasks::{Job, JobInput};
pub(crate) use tools::{TOOLS, registry};

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
    counts: BTreeMap<&'static str, u64>,
    calm: bool,
}

impl World {
    /// An outside that throws its dice with `seed`.
    #[must_use]
    pub(crate) fn new(seed: u64, session: SessionId, checker: Checker) -> Self {
        let inner = Inner { rng: fastrand::Rng::with_seed(seed), unsafe_runs: BTreeMap::new(), counts: BTreeMap::new(), calm: false };
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

    /// Counts that something happened.
    pub(crate) fn count(&self, what: &'static str) {
        *self.lock().counts.entry(what).or_default() += 1;
    }

    /// How often things happened.
    #[must_use]
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    /// An unsafe effect happens: it must be the first of its call.
    pub(crate) fn unsafe_effect(&self, task: TaskId) {
        let runs = {
            let mut inner = self.lock();
            let runs = inner.unsafe_runs.entry(task).or_default();
            *runs += 1;
            *runs
        };
        if runs > 1 {
            self.checker.broken(format!("the unsafe call of task {task} was executed {runs} times"));
        }
        self.effect(task);
    }

    /// An effect happens: its intent must be stored, and its task live.
    pub(crate) fn effect(&self, task: TaskId) {
        self.count("effect");
        match self.checker.task(self.session, task) {
            Some(record) if !record.terminal() => {}
            other => self.checker.broken(format!("an effect of task {task}, which is {other:?}")),
        }
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

/// The conversation that everything is about at first.
pub(crate) const ROOT: ConversationId = picofleet_session::ROOT_CONVERSATION_ID;
