//! The worker half: runs the phases of reserved tasks, performs their effects, and hands decisions to the line.

mod generation;
mod hold;
mod invocation;
mod output;
mod partial;
mod slot;
mod pulse;
mod tool;

use std::sync::Arc;

use picofleet_models::model::Model;
use picofleet_models::provider::Provider;
use picofleet_session::Clock;

use crate::config::ModelRef;
use crate::kinds::{GENERATION, TOOL};
use crate::registry::Registry;
use crate::tools::ExecutionEnv;
use crate::wire::Definition;

pub use hold::{CommitOptions, HoldError, HostCommit, commit};
pub use invocation::{Fault, Invocation, run};
pub use output::{OutputBuffer, OutputLimits, Retain};
pub use slot::{Slot, Slots};
pub use pulse::{BEAT, Pulse};

/// The definition of a built-in task in this build; `None` for other kinds.
#[must_use]
pub fn definition(kind: &str) -> Option<Definition> {
    matches!(kind, GENERATION | TOOL).then(|| Definition { version: 1, build: String::new() })
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
}
