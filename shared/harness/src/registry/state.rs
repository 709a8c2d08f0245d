//! What is registered, before it is composed: entries in slots, and the positions of all keys that ever were.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::setup::{ConversationSetup, PI_SETUP, PiSetup};
use super::snapshot::{Hooks, Snapshot};
use super::stage::{WrapSection, WrapTool};
use super::{RegistryError, Section};
use crate::hooks::HookScope;
use crate::kind::DynTask;
use crate::kinds::{COMPACTION, GENERATION, TOOL};
use crate::tools::SharedTool;

/// What a slot holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Family {
    Tool,
    ToolWrapper,
    Task,
    Hooks,
    Section,
    SectionWrapper,
    Setup,
}

impl Family {
    const fn word(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::ToolWrapper => "tool wrapper",
            Self::Task => "task",
            Self::Hooks => "hook key",
            Self::Section => "section",
            Self::SectionWrapper => "section wrapper",
            Self::Setup => "setup",
        }
    }
}

/// The place of a registration. `of` is what its key is unique in: the tool of a wrapper, the task of hooks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Slot {
    pub(super) family: Family,
    pub(super) of: String,
    /// Only hooks may have none.
    pub(super) key: Option<String>,
}

impl Slot {
    pub(super) fn named(family: Family, key: &str) -> Self {
        Self { family, of: String::new(), key: Some(key.to_owned()) }
    }

    /// The built-in ones can't be disposed, so that nothing else can have their names.
    fn built_in(&self) -> bool {
        let key = self.key.as_deref().unwrap_or_default();
        match self.family {
            Family::Task => BUILT_IN_TASKS.contains(&key),
            Family::Setup => key == PI_SETUP,
            _ => false,
        }
    }
}

/// The built-in tasks (section 8).
pub(super) const BUILT_IN_TASKS: [&str; 3] = [GENERATION, TOOL, COMPACTION];

/// What is registered.
#[derive(Clone)]
pub(super) enum Item {
    Tool(SharedTool),
    ToolWrapper(Arc<WrapTool>),
    Task(Arc<dyn DynTask>),
    Hooks { scope: Option<HookScope>, hooks: Arc<dyn Any + Send + Sync> },
    Section(Section),
    SectionWrapper(Arc<WrapSection>),
    Setup(Arc<dyn ConversationSetup>),
}

#[derive(Clone)]
struct Entry {
    id: u64,
    position: u64,
    slot: Slot,
    item: Item,
}

/// Everything that is registered.
#[derive(Clone, Default)]
pub(super) struct State {
    entries: Vec<Entry>,
    /// Where each key was first; for ever, so that a reload keeps its place.
    positions: HashMap<Slot, u64>,
    next_position: u64,
}

impl State {
    pub(super) fn add(&mut self, id: u64, slot: Slot, item: Item) {
        let next = self.next_position;
        let position = if slot.key.is_some() { *self.positions.entry(slot.clone()).or_insert(next) } else { next };
        self.next_position += 1;
        self.entries.push(Entry { id, position, slot, item });
    }

    pub(super) fn remove(&mut self, ids: &[u64]) {
        self.entries.retain(|entry| !ids.contains(&entry.id));
    }

    pub(super) fn ids(&self) -> BTreeSet<u64> {
        self.entries.iter().map(|entry| entry.id).collect()
    }

    /// Names and keys are unique, and none is a built-in one's.
    pub(super) fn validate(&self) -> Result<(), RegistryError> {
        let mut seen = HashSet::new();
        for Entry { slot, .. } in &self.entries {
            if let Some(key) = &slot.key
                && (slot.built_in() || !seen.insert(slot))
            {
                return Err(RegistryError::Duplicate { what: slot.family.word(), name: key.clone() });
            }
        }
        Ok(())
    }

    /// The immutable form. No code of an extension runs here.
    pub(super) fn snapshot(&self) -> Snapshot {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by_key(|entry| entry.position);
        let mut snapshot = Snapshot::default();
        snapshot.setups.push((PI_SETUP.to_owned(), Arc::new(PiSetup)));
        for Entry { slot, item, .. } in entries {
            let (of, key) = (slot.of.clone(), slot.key.clone().unwrap_or_default());
            match item.clone() {
                Item::Tool(tool) => snapshot.base_tools.push((key, tool)),
                Item::ToolWrapper(wrap) => snapshot.tool_wrappers.entry(of).or_default().push(wrap),
                Item::Task(task) => snapshot.tasks.push(task),
                Item::Hooks { scope, hooks } => snapshot.hooks.push(Hooks { task: of, scope, hooks }),
                Item::Section(section) => snapshot.base_sections.push(section),
                Item::SectionWrapper(wrap) => snapshot.section_wrappers.entry(of).or_default().push(wrap),
                Item::Setup(setup) => snapshot.setups.push((key, setup)),
            }
        }
        snapshot
    }
}
