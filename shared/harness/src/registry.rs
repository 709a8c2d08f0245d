//! What an application registers (section 7.1): tools and prompt sections by name, published at once.

use std::sync::{Arc, PoisonError, RwLock};

use picofleet_session::ConversationId;

use crate::config::ModelRef;
use crate::kind::{Defined, DynTask, TaskKind};
use crate::tools::{SharedTool, Tool};

/// The registry of a process. Cheap to clone; all clones are one registry.
#[derive(Clone, Default)]
pub struct Registry {
    published: Arc<RwLock<Arc<Snapshot>>>,
}

/// What is registered at one moment. It never changes.
#[derive(Clone, Default)]
pub struct Snapshot {
    tasks: Vec<Arc<dyn DynTask>>,
    tools: Vec<SharedTool>,
    sections: Vec<Section>,
}

/// What a prompt section is rendered from.
#[derive(Clone, Debug)]
pub struct PromptInput {
    /// The conversation.
    pub conversation: ConversationId,
    /// The tools of the request, in their order.
    pub tools: Vec<String>,
    /// The sections that the transcript shows.
    pub shown: Vec<(String, String)>,
    /// The model.
    pub model: Option<ModelRef>,
    /// How much it thinks.
    pub thinking_level: String,
}

type Render = dyn Fn(&PromptInput) -> Option<String> + Send + Sync;

#[derive(Clone)]
struct Section {
    key: String,
    tag: bool,
    render: Arc<Render>,
}

/// Why something was not registered.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name is taken.
    #[error("{what} {name:?} is registered already")]
    Duplicate {
        /// `tool` or `section`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The key of a section has other characters than it may have.
    #[error("section key {0:?} does not match ^[a-z][a-z0-9_-]*$")]
    InvalidKey(String),
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is registered now.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`].
    pub fn tool(&self, tool: impl Tool) -> Result<(), RegistryError> {
        self.publish(|snapshot| {
            let name = tool.spec().name.clone();
            if snapshot.tool(&name).is_some() {
                return Err(RegistryError::Duplicate { what: "tool", name });
            }
            snapshot.tools.push(Arc::new(tool));
            Ok(())
        })
    }

    /// Adds a task definition.
    ///
    /// # Errors
    /// [`RegistryError::Duplicate`].
    pub fn task<K: TaskKind>(&self, kind: Arc<K>) -> Result<(), RegistryError> {
        self.publish(|snapshot| {
            if snapshot.task(K::NAME).is_some() {
                return Err(RegistryError::Duplicate { what: "task", name: K::NAME.to_owned() });
            }
            snapshot.tasks.push(Arc::new(Defined(kind)));
            Ok(())
        })
    }

    /// Adds a prompt section; with `tag` its text is wrapped in its key. One that renders nothing is left out.
    ///
    /// # Errors
    /// [`RegistryError::InvalidKey`], [`RegistryError::Duplicate`].
    pub fn section(
        &self,
        key: &str,
        tag: bool,
        render: impl Fn(&PromptInput) -> Option<String> + Send + Sync + 'static,
    ) -> Result<(), RegistryError> {
        let valid = key.starts_with(|c: char| c.is_ascii_lowercase())
            && key.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-');
        if !valid {
            return Err(RegistryError::InvalidKey(key.to_owned()));
        }
        self.publish(|snapshot| {
            if snapshot.sections.iter().any(|section| section.key == key) {
                return Err(RegistryError::Duplicate { what: "section", name: key.to_owned() });
            }
            snapshot.sections.push(Section { key: key.to_owned(), tag, render: Arc::new(render) });
            Ok(())
        })
    }

    fn publish(&self, change: impl FnOnce(&mut Snapshot) -> Result<(), RegistryError>) -> Result<(), RegistryError> {
        let mut published = self.published.write().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&published);
        change(&mut next)?;
        *published = Arc::new(next);
        Ok(())
    }
}

impl Snapshot {
    /// The task definition with a name.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<Arc<dyn DynTask>> {
        self.tasks.iter().find(|task| task.name() == name).cloned()
    }

    /// All task definitions besides the built-in ones.
    #[must_use]
    pub fn tasks(&self) -> &[Arc<dyn DynTask>] {
        &self.tasks
    }

    /// The tool with a name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&SharedTool> {
        self.tools.iter().find(|tool| tool.spec().name == name)
    }

    /// The names of all tools, in the order of their registration.
    #[must_use]
    pub fn tool_names(&self) -> Vec<String> {
        self.tools.iter().map(|tool| tool.spec().name.clone()).collect()
    }

    /// The active tools that are registered, in the configured order; a name that stands twice counts once.
    #[must_use]
    pub fn offered(&self, active: &[String]) -> Vec<SharedTool> {
        let first = |index: usize, name: &String| active[..index].iter().all(|other| other != name);
        let names = active.iter().enumerate().filter(|(index, name)| first(*index, name));
        names.filter_map(|(_, name)| self.tool(name).cloned()).collect()
    }

    /// Renders every section, in the order of their registration. A section that panics keeps its shown text.
    #[must_use]
    pub fn render(&self, input: &PromptInput, shown: &[(String, String)]) -> Vec<(String, String)> {
        let text = |section: &Section| {
            let rendered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (section.render)(input)));
            match rendered {
                Ok(text) => text.map(|text| section.wrap(&text)),
                Err(_) => {
                    tracing::warn!(section = section.key, "a prompt section panicked; its shown text stays");
                    shown.iter().find(|(key, _)| *key == section.key).map(|(_, text)| text.clone())
                }
            }
        };
        self.sections.iter().filter_map(|section| Some((section.key.clone(), text(section)?))).collect()
    }
}

impl Section {
    fn wrap(&self, text: &str) -> String {
        if self.tag { format!("<{0}>\n{text}\n</{0}>", self.key) } else { text.to_owned() }
    }
}
