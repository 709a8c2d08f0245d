//! What can be registered: inside a batch, and at once.

use std::any::Any;
use std::sync::Arc;

use super::setup::ConversationSetup;
use super::state::{Family, Item, Slot};
use super::{PromptInput, PromptSection, Registration, Registry, RegistryError, Section};
use crate::hooks::{Asks, HookError, HookScope};
use crate::kind::{Defined, DynTask, TaskKind};
use crate::tools::{SharedTool, Tool, ToolError};

/// Decorates a tool: a pure function that returns another tool with the same name.
pub(super) type WrapTool = dyn Fn(SharedTool) -> Result<SharedTool, ToolError> + Send + Sync;

/// Decorates a section: a pure function that returns another section with the same key.
pub(super) type WrapSection = dyn Fn(Section) -> Result<Section, HookError> + Send + Sync;

/// What a batch registers. The registry itself does the same inside the batch.
pub struct Stage<'r> {
    registry: &'r Registry,
}

impl<'r> Stage<'r> {
    pub(super) const fn new(registry: &'r Registry) -> Self {
        Self { registry }
    }

    /// Removes what a registration covers, once the batch is published.
    ///
    /// # Errors
    /// [`RegistryError::Foreign`].
    pub fn dispose(&self, registration: &Registration) -> Result<(), RegistryError> {
        self.registry.remove(registration)
    }
}

impl std::ops::Deref for Stage<'_> {
    type Target = Registry;

    fn deref(&self) -> &Registry {
        self.registry
    }
}

/// Outside of a batch each of these publishes at once; inside it is staged, and duplicates are found at its end.
impl Registry {
    /// Adds a tool.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`].
    pub fn tool(&self, tool: impl Tool) -> Result<Registration, RegistryError> {
        self.shared_tool(Arc::new(tool))
    }

    /// [`Registry::tool`] of one that is shared already.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`].
    pub fn shared_tool(&self, tool: SharedTool) -> Result<Registration, RegistryError> {
        self.add(Slot::named(Family::Tool, &tool.spec().name), Item::Tool(tool))
    }

    /// Decorates the tool with a name, also one that is registered later or replaced. A wrapper that fails, panics or changes the name
    /// makes the tool absent.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`] for a key that the name has already.
    pub fn wrap_tool(
        &self,
        name: &str,
        key: &str,
        wrap: impl Fn(SharedTool) -> Result<SharedTool, ToolError> + Send + Sync + 'static,
    ) -> Result<Registration, RegistryError> {
        let slot = Slot { family: Family::ToolWrapper, of: name.to_owned(), key: Some(key.to_owned()) };
        self.add(slot, Item::ToolWrapper(Arc::new(wrap)))
    }

    /// Adds the definition of a task.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`], also for the name of a built-in task.
    pub fn task<K: TaskKind>(&self, kind: Arc<K>) -> Result<Registration, RegistryError> {
        let task: Arc<dyn DynTask> = Arc::new(Defined(kind));
        self.add(Slot::named(Family::Task, K::NAME), Item::Task(task))
    }

    /// Adds hooks of a task, for all conversations or the ones of a scope. With a key they keep their place when they are replaced.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`] for a key that the task has already.
    pub fn hooks<A: Asks>(&self, key: Option<&str>, scope: Option<HookScope>, hooks: Arc<A::Hooks>) -> Result<Registration, RegistryError> {
        let slot = Slot { family: Family::Hooks, of: A::NAME.to_owned(), key: key.map(str::to_owned) };
        let hooks: Arc<dyn Any + Send + Sync> = Arc::new(hooks);
        self.add(slot, Item::Hooks { scope, hooks })
    }

    /// Adds a prompt section of a function; with `tag` its text is wrapped in its key. One that renders nothing is left out.
    ///
    /// # Errors
    /// As [`Registry::prompt`].
    pub fn section(
        &self,
        key: &str,
        tag: bool,
        render: impl Fn(&PromptInput) -> Option<String> + Send + Sync + 'static,
    ) -> Result<Registration, RegistryError> {
        self.prompt(key, tag, render)
    }

    /// Adds a prompt section; with `tag` its text is wrapped in its key.
    ///
    /// # Errors
    /// [`RegistryError::InvalidKey`], [`RegistryError::Duplicate`].
    pub fn prompt(&self, key: &str, tag: bool, section: impl PromptSection) -> Result<Registration, RegistryError> {
        let valid = key.starts_with(|c: char| c.is_ascii_lowercase())
            && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-');
        if !valid {
            return Err(RegistryError::InvalidKey(key.to_owned()));
        }
        let section = Section { key: key.to_owned(), tag, text: Arc::new(section) };
        self.add(Slot::named(Family::Section, key), Item::Section(section))
    }

    /// Decorates the section with a key, as [`Registry::wrap_tool`] does a tool.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`] for a wrapper key that the section has already.
    pub fn wrap_section(
        &self,
        key: &str,
        wrapper_key: &str,
        wrap: impl Fn(Section) -> Result<Section, HookError> + Send + Sync + 'static,
    ) -> Result<Registration, RegistryError> {
        let slot = Slot { family: Family::SectionWrapper, of: key.to_owned(), key: Some(wrapper_key.to_owned()) };
        self.add(slot, Item::SectionWrapper(Arc::new(wrap)))
    }

    /// Adds a conversation setup.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`], also for the built-in `pi`.
    pub fn setup(&self, key: &str, setup: impl ConversationSetup) -> Result<Registration, RegistryError> {
        self.add(Slot::named(Family::Setup, key), Item::Setup(Arc::new(setup)))
    }
}
