//! The files beside `main.jsonl`: one for each document incarnation, one for each live task.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use picofleet_session::{DocumentContent, Seq};

use crate::memory::rows::Rows;

/// A sidecar, by the id of what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) enum Sidecar {
    Document(i64),
    Task(i64),
}

impl Sidecar {
    pub(super) fn path(self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Self::Document(id) => format!("doc-{id}.jsonl"),
            Self::Task(id) => format!("task-{id}.jsonl"),
        })
    }

    /// The sidecar that has this file name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let stem = name.strip_suffix(".jsonl")?;
        let id = |text: &str| text.parse().ok().filter(|id: &i64| *id > 0);
        stem.strip_prefix("doc-").and_then(id).map(Self::Document).or_else(|| stem.strip_prefix("task-").and_then(id).map(Self::Task))
    }

    /// Whether nothing in it is needed any more: the task is over, or the document keeps no history and is retired.
    pub(super) fn over(self, rows: &Rows) -> bool {
        match self {
            Self::Document(id) => {
                rows.documents.get(&id).is_some_and(|record| record.retired_at.is_some() && !record.create.placement.rewindable())
            }
            Self::Task(id) => rows.tasks.get(&id).is_some_and(|task| task.terminal()),
        }
    }
}

/// How large a sidecar is, and how much of it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Size {
    pub(super) all: u64,
    pub(super) needed: u64,
    /// The commit of its newest line.
    pub(super) newest: Seq,
}

impl Default for Size {
    fn default() -> Self {
        Self { all: 0, needed: 0, newest: Seq(0) }
    }
}

impl Size {
    /// A line was appended; `anew` says that nothing before it is needed any more.
    pub(super) fn append(&mut self, seq: Seq, bytes: u64, anew: bool) {
        self.newest = seq;
        self.all += bytes;
        self.needed = if anew { bytes } else { self.needed + bytes };
    }

    /// Whether more than `bytes`, and more than half, could go.
    pub(super) fn wastes(self, bytes: u64) -> bool {
        let unneeded = self.all.saturating_sub(self.needed);
        unneeded > bytes && unneeded > self.needed
    }
}

/// The sidecars of a session.
pub(super) type Sizes = HashMap<Sidecar, Size>;

/// Whether content makes everything before it unnecessary.
pub(super) fn begins_anew(rows: &Rows, document: i64, content: &DocumentContent) -> bool {
    let keeps_history = rows.documents.get(&document).is_some_and(|record| record.create.placement.rewindable());
    !keeps_history && matches!(content, DocumentContent::Base { .. })
}
