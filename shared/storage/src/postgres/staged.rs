//! The rows that a batch writes, made before anything is sent.

use std::collections::BTreeMap;

use picofleet_session::storage::Head;
use picofleet_session::{ConversationId, DocumentAddress, DocumentContent, DocumentId, Millis, SubmissionId, TaskId};

use super::known::{Known, TaskKnown};
use crate::tables::{DocumentState, SubmissionIdentity};

/// A new conversation.
#[derive(Clone, Debug)]
pub(super) struct ConversationRow {
    pub(super) id: i64,
    pub(super) owner: Option<(i64, i64)>,
    pub(super) record: String,
}

/// A new entry.
#[derive(Clone, Debug)]
pub(super) struct EntryRow {
    pub(super) id: i64,
    pub(super) conversation: i64,
    pub(super) seq: i64,
    pub(super) head: Option<i64>,
    pub(super) record: String,
}

/// The columns of a task's record.
#[derive(Clone, Debug)]
pub(super) struct TaskColumns {
    pub(super) status: i64,
    pub(super) abort: bool,
    pub(super) background: bool,
    pub(super) record: String,
}

/// A task that is written. Columns that are absent stay as they are.
#[derive(Clone, Debug)]
pub(super) struct TaskRow {
    pub(super) known: TaskKnown,
    /// In which of the two tables it was before the batch; `None` for a new one.
    pub(super) was_terminal: Option<bool>,
    pub(super) columns: Option<TaskColumns>,
    pub(super) invocation: Option<String>,
}

impl TaskRow {
    /// It goes from one of the two tables to the other.
    pub(super) fn moves(&self) -> bool {
        self.was_terminal.is_some_and(|was| was != self.known.terminal)
    }
}

/// A submission that is written.
#[derive(Clone, Debug)]
pub(super) struct SubmissionRow {
    pub(super) identity: SubmissionIdentity,
    pub(super) status: i64,
    pub(super) open: bool,
    pub(super) record: String,
}

/// New content.
#[derive(Clone, Debug)]
pub(super) struct ContentRow {
    pub(super) document: DocumentId,
    pub(super) seq: i64,
    pub(super) content: DocumentContent,
    pub(super) body: String,
}

/// An answer to a request key.
#[derive(Clone, Debug)]
pub(super) struct RequestStaged {
    pub(super) digest: String,
    pub(super) answer: String,
    pub(super) at: Millis,
}

/// See the module. Every row is here once, as the batch leaves it.
#[derive(Clone, Debug, Default)]
pub(super) struct Staged {
    pub(super) commits: Vec<Head>,
    pub(super) conversations: Vec<ConversationRow>,
    pub(super) entries: Vec<EntryRow>,
    pub(super) tasks: BTreeMap<TaskId, TaskRow>,
    pub(super) submissions: BTreeMap<SubmissionId, SubmissionRow>,
    pub(super) documents: BTreeMap<DocumentId, DocumentState>,
    pub(super) current: BTreeMap<DocumentAddress, Option<DocumentId>>,
    pub(super) contents: Vec<ContentRow>,
    pub(super) reclaim: BTreeMap<DocumentId, i64>,
    pub(super) request_owners: BTreeMap<(ConversationId, String), SubmissionId>,
    pub(super) requests: BTreeMap<String, RequestStaged>,
    pub(super) outbox: BTreeMap<SubmissionId, String>,
    /// The outer `None`: it stays as it is.
    pub(super) wake: Option<Option<Millis>>,
    /// The length of all texts.
    pub(super) bytes: usize,
}

impl Staged {
    /// Nothing but the hot rows of a turn: a shorter statement does.
    pub(super) fn narrow(&self) -> bool {
        self.conversations.is_empty()
            && self.documents.is_empty()
            && self.requests.is_empty()
            && self.outbox.is_empty()
            && self.wake.is_none()
            && !self.tasks.values().any(|task| task.was_terminal == Some(true))
    }

    /// Only progress of running work: numbered decisions go before it.
    pub(super) fn progress(&self) -> bool {
        self.tasks.is_empty() && self.entries.is_empty() && self.submissions.is_empty() && self.conversations.is_empty()
    }

    /// Puts the batch one sequence further: a fence took the place that it was made for.
    pub(super) fn shift(&mut self) {
        let Some(first) = self.commits.first().map(|head| head.seq.0) else { return };
        let moved = |seq: &mut i64| {
            if *seq >= first && *seq != i64::MAX {
                *seq += 1;
            }
        };
        self.commits.iter_mut().for_each(|head| moved(&mut head.seq.0));
        self.entries.iter_mut().for_each(|entry| moved(&mut entry.seq));
        self.contents.iter_mut().for_each(|content| moved(&mut content.seq));
        self.reclaim.values_mut().for_each(moved);
        for document in self.documents.values_mut() {
            moved(&mut document.record.created_at.0);
            if let Some(retired) = &mut document.record.retired_at {
                moved(&mut retired.0);
            }
        }
    }

    /// The batch landed: its rows are known.
    pub(super) fn land(self, known: &mut Known) {
        for (id, row) in self.tasks {
            known.tasks.insert(id, Some(row.known));
        }
        for (id, row) in self.submissions {
            known.submissions.insert(id, Some(row.identity));
        }
        for (id, state) in self.documents {
            known.documents.insert(id, Some(state));
        }
        for row in self.contents {
            if let Some(Some(state)) = known.documents.get_mut(&row.document) {
                state.version = Some(row.content.version());
            }
        }
        known.current.extend(self.current);
        known.requests.extend(self.request_owners.into_iter().map(|(key, owner)| (key, Some(owner))));
        known.settle();
    }
}
