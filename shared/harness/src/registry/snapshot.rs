//! What is registered at one moment, composed on first use.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::Section;
use super::setup::ConversationSetup;
use super::stage::{WrapSection, WrapTool};
use super::state::BUILT_IN_TASKS;
use crate::hooks::{Asks, HookScope};
use crate::kind::DynTask;
use crate::tools::SharedTool;

/// What is registered at one moment. It never changes, and needs no release.
#[derive(Default)]
pub struct Snapshot {
    pub(super) base_tools: Vec<(String, SharedTool)>,
    pub(super) tool_wrappers: HashMap<String, Vec<Arc<WrapTool>>>,
    pub(super) tasks: Vec<Arc<dyn DynTask>>,
    pub(super) hooks: Vec<Hooks>,
    pub(super) base_sections: Vec<Section>,
    pub(super) section_wrappers: HashMap<String, Vec<Arc<WrapSection>>>,
    pub(super) setups: Vec<(String, Arc<dyn ConversationSetup>)>,
    /// Made on first use: a publication runs no code of an extension, and wrappers are such code.
    composed: OnceLock<Composed>,
}

/// Hooks without their type: the value is the `Arc<A::Hooks>` of the task's [`Asks`].
pub(super) struct Hooks {
    pub(super) task: String,
    pub(super) scope: Option<HookScope>,
    pub(super) hooks: Arc<dyn Any + Send + Sync>,
}

struct Composed {
    tools: Vec<(String, SharedTool)>,
    sections: Vec<Section>,
    failures: Vec<RegistryFailure>,
}

/// Registered hooks of a task.
pub struct RegisteredHooks<H: ?Sized> {
    /// What answers.
    pub hooks: Arc<H>,
    /// Which conversations it is asked for; all of them without one.
    pub scope: Option<HookScope>,
}

/// What a wrapper broke.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailureKind {
    /// A tool.
    Tool,
    /// A prompt section.
    Section,
}

/// A wrapper that failed: what it wraps is absent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{} {name:?} is absent because a wrapper failed: {error}", match .kind { FailureKind::Tool => "tool", FailureKind::Section => "section" })]
pub struct RegistryFailure {
    /// What is absent.
    pub kind: FailureKind,
    /// Its name or key.
    pub name: String,
    /// Why.
    pub error: String,
}

impl Snapshot {
    /// The composed tools, in the order of the registry, without those whose wrappers failed.
    pub fn tools(&self) -> impl Iterator<Item = &SharedTool> {
        self.composed().tools.iter().map(|(_, tool)| tool)
    }

    /// The composed tool with a name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&SharedTool> {
        self.composed().tools.iter().find(|(other, _)| other == name).map(|(_, tool)| tool)
    }

    /// The names of all tools, in the order of the registry, also of those whose wrappers fail.
    #[must_use]
    pub fn tool_names(&self) -> Vec<String> {
        self.base_tools.iter().map(|(name, _)| name.clone()).collect()
    }

    /// The active tools that are registered, in the configured order; a name that stands twice counts once.
    #[must_use]
    pub fn offered(&self, active: &[String]) -> Vec<SharedTool> {
        let first = |index: usize, name: &String| active[..index].iter().all(|other| other != name);
        let names = active.iter().enumerate().filter(|(index, name)| first(*index, name));
        names.filter_map(|(_, name)| self.tool(name).cloned()).collect()
    }

    /// An application's task definition.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<Arc<dyn DynTask>> {
        self.tasks.iter().find(|task| task.name() == name).cloned()
    }

    /// All task definitions besides the built-in ones, in the order of the registry.
    #[must_use]
    pub fn tasks(&self) -> &[Arc<dyn DynTask>] {
        &self.tasks
    }

    /// The names of all tasks: the built-in ones, then the application's in the order of the registry.
    pub fn task_names(&self) -> impl Iterator<Item = &str> {
        BUILT_IN_TASKS.into_iter().chain(self.tasks.iter().map(|task| task.name()))
    }

    /// The hooks that are registered under a task's name, in the order of the registry. Ones of another type are left out: they were
    /// registered for another version of the task.
    #[must_use]
    pub fn hooks<A: Asks>(&self) -> Vec<RegisteredHooks<A::Hooks>> {
        let named = self.hooks.iter().filter(|hooks| hooks.task == A::NAME);
        let typed = named.filter_map(|entry| {
            let hooks = Arc::clone(entry.hooks.downcast_ref::<Arc<A::Hooks>>()?);
            Some(RegisteredHooks { hooks, scope: entry.scope })
        });
        typed.collect()
    }

    /// The composed sections, in the order of the registry, without those whose wrappers failed.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.composed().sections
    }

    /// The wrappers that failed.
    #[must_use]
    pub fn failures(&self) -> &[RegistryFailure] {
        &self.composed().failures
    }

    /// The conversation setups with their keys, in the order of the registry, the built-in `pi` first.
    #[must_use]
    pub fn setups(&self) -> &[(String, Arc<dyn ConversationSetup>)] {
        &self.setups
    }

    fn composed(&self) -> &Composed {
        self.composed.get_or_init(|| {
            let (mut tools, mut sections, mut failures) = (Vec::new(), Vec::new(), Vec::new());
            for (name, base) in &self.base_tools {
                match self.compose_tool(name, base) {
                    Ok(tool) => tools.push((name.clone(), tool)),
                    Err(error) => failures.push(RegistryFailure { kind: FailureKind::Tool, name: name.clone(), error }),
                }
            }
            for base in &self.base_sections {
                match self.compose_section(base) {
                    Ok(section) => sections.push(section),
                    Err(error) => failures.push(RegistryFailure { kind: FailureKind::Section, name: base.key.clone(), error }),
                }
            }
            Composed { tools, sections, failures }
        })
    }

    fn compose_tool(&self, name: &str, base: &SharedTool) -> Result<SharedTool, String> {
        let wrappers = self.tool_wrappers.get(name).map_or(&[][..], Vec::as_slice);
        wrappers.iter().try_fold(Arc::clone(base), |tool, wrap| {
            let wrapped = guarded(|| wrap(tool).map(|tool| (tool.spec().name.clone(), tool)).map_err(|error| error.to_string()))?;
            same_name(name, wrapped)
        })
    }

    fn compose_section(&self, base: &Section) -> Result<Section, String> {
        let wrappers = self.section_wrappers.get(&base.key).map_or(&[][..], Vec::as_slice);
        wrappers.iter().try_fold(base.clone(), |section, wrap| {
            let wrapped = guarded(|| wrap(section).map(|section| (section.key.clone(), section)).map_err(|error| error.to_string()))?;
            same_name(&base.key, wrapped)
        })
    }
}

fn guarded<R>(wrap: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(wrap)).unwrap_or_else(|panic| Err(crate::hooks::panic_text(&*panic)))
}

fn same_name<T>(name: &str, (wrapped, value): (String, T)) -> Result<T, String> {
    if wrapped == name { Ok(value) } else { Err(format!("it returned the name {wrapped:?}")) }
}
