//! The worker half: runs the phases of reserved tasks, performs their effects, and hands decisions to the line.

mod compaction;
mod generation;
mod hold;
mod hook_api;
mod invocation;
mod output;
mod owners;
mod partial;
mod phase;
mod pulse;
mod sections;
mod slot;
mod tool;
pub(crate) mod watch;

use std::sync::Arc;

use picofleet_models::model::Model;
use picofleet_models::provider::Provider;
use picofleet_session::Clock;

use crate::config::ModelRef;
use crate::kind::DynTask;
use crate::kinds::{COMPACTION, GENERATION, TOOL};
use crate::registry::Registry;
use crate::tools::ExecutionEnv;
use crate::wire::{Definition, Route};

pub use hold::{CommitOptions, HoldError, HostCommit, commit};
pub(crate) use hold::{Guard, Held, nothing_held};
use owners::OwnerChains;

pub use hook_api::HookApi;
pub use invocation::{Fault, Invocation, run};
pub use output::{OutputBuffer, OutputLimits, Retain};
pub(crate) use phase::PhaseRun;
pub use pulse::{BEAT, Pulse};
pub use slot::{Slot, Slots};

/// The code of a task, as it was when a reservation was asked for. The invocation runs it to its end, whatever is registered meanwhile
/// (section 5.4).
#[derive(Clone)]
pub struct Code {
    /// `None` for the built-in tasks.
    task: Option<Arc<dyn DynTask>>,
}

impl Code {
    /// What this worker has for a kind; `None` where it has nothing.
    #[must_use]
    pub fn of(registry: &Registry, kind: &str) -> Option<Self> {
        if matches!(kind, GENERATION | TOOL | COMPACTION) {
            return Some(Self { task: None });
        }
        registry.snapshot().task(kind).map(|task| Self { task: Some(task) })
    }

    /// Its identity.
    #[must_use]
    pub fn definition(&self) -> Definition {
        let custom = |task: &Arc<dyn DynTask>| Definition { version: task.version(), build: task.build().to_owned() };
        self.task.as_ref().map_or_else(|| Definition { version: 1, build: String::new() }, custom)
    }
}

/// The routes whose tasks this worker runs.
#[must_use]
pub fn routes(registry: &Registry) -> Vec<Route> {
    let custom = registry.snapshot().tasks().iter().map(|task| Route::of(task.name(), task.version())).collect::<Vec<_>>();
    let built_in =
        [GENERATION, COMPACTION, TOOL].into_iter().filter_map(|kind| Some(Route::of(kind, Code::of(registry, kind)?.definition().version)));
    built_in.chain(custom).collect()
}

/// Finds models (section 8): what a provider of this process can reach.
pub trait Models: Send + Sync + 'static {
    /// The model and who answers for it; `None` where it is not known.
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)>;
}

/// What the effects of a worker work with.
#[derive(Clone)]
pub struct Services {
    /// Tools, hooks and prompt sections.
    pub registry: Registry,
    /// Models.
    pub models: Arc<dyn Models>,
    /// Files and processes of tools.
    pub env: Option<Arc<dyn ExecutionEnv>>,
    /// Paces; durable times are the line's.
    pub clock: Clock,
    /// Gets what went wrong without ending a task: a hook, a section, a wrapper.
    pub on_report: OnReport,
    owners: OwnerChains,
}

/// Gets errors that end nothing.
pub type OnReport = Arc<dyn Fn(&(dyn std::error::Error + 'static)) + Send + Sync>;

impl Services {
    /// Without an environment, on the system's clock; what goes wrong is logged.
    #[must_use]
    pub fn new(registry: Registry, models: Arc<dyn Models>) -> Self {
        let on_report: OnReport = Arc::new(|error| tracing::warn!(error = crate::line::chain(error), "a failure"));
        Self { registry, models, env: None, clock: Clock::system(), on_report, owners: OwnerChains::default() }
    }

    /// With files and processes for tools.
    #[must_use]
    pub fn with_env(self, env: Arc<dyn ExecutionEnv>) -> Self {
        Self { env: Some(env), ..self }
    }

    /// With a clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// With something else that gets the reports.
    #[must_use]
    pub fn with_report(self, on_report: impl Fn(&(dyn std::error::Error + 'static)) + Send + Sync + 'static) -> Self {
        Self { on_report: Arc::new(on_report), ..self }
    }
}
