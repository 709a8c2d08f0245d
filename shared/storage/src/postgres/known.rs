//! What a line knows of its session's stored rows: enough to judge a batch without reading.
//!
//! Nobody else writes between two commits of the owner: another owner's first row is the next one of the chain, and then nothing of the
//! owner's batch is written. So what the line read or wrote behind its opening stays true as long as its batches land.

use std::collections::HashMap;

use picofleet_session::{ConversationId, DocumentAddress, DocumentId, SubmissionId, TaskId};

use crate::rules::Replay;
use crate::tables::{DocumentState, SubmissionIdentity, TaskIdentity};

/// How many rows of a kind are remembered. Above it they are forgotten and read again when they are needed.
const REMEMBERED: usize = 4_096;

/// A lookup of the rules.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Key {
    Owner(i64),
    Task(TaskId),
    /// The text of what a task keeps of its invocation.
    Invocation(TaskId),
    Submission(SubmissionId),
    Request(ConversationId, String),
    Document(DocumentId),
    Current(DocumentAddress),
    /// A document's content at or before a sequence.
    Replay(DocumentId, i64),
}

/// A stored task.
#[derive(Clone, Debug)]
pub(super) struct TaskKnown {
    pub(super) identity: TaskIdentity,
    /// Its row is the one of terminal tasks.
    pub(super) terminal: bool,
    /// It keeps something of an invocation.
    pub(super) invoked: bool,
}

/// See the module. `None` inside a map: it was looked for and is not there.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    pub(super) tasks: HashMap<TaskId, Option<TaskKnown>>,
    pub(super) submissions: HashMap<SubmissionId, Option<SubmissionIdentity>>,
    pub(super) documents: HashMap<DocumentId, Option<DocumentState>>,
    pub(super) current: HashMap<DocumentAddress, Option<DocumentId>>,
    /// Of one batch only.
    pub(super) owners: HashMap<i64, Option<&'static str>>,
    pub(super) invocations: HashMap<TaskId, Option<String>>,
    pub(super) requests: HashMap<(ConversationId, String), Option<SubmissionId>>,
    pub(super) replays: HashMap<(DocumentId, i64), Replay>,
    /// Nothing is stored that is not here: an import into a new session.
    pub(super) complete: bool,
}

impl Known {
    /// Of a session without rows.
    pub(super) fn complete() -> Self {
        Self { complete: true, ..Self::default() }
    }

    /// Lets go of what was read for one batch, and of everything of a kind that grew too large.
    pub(super) fn settle(&mut self) {
        if self.complete {
            return;
        }
        self.owners.clear();
        self.invocations.clear();
        self.requests.clear();
        self.replays.clear();
        // What is over is hardly asked for again.
        self.tasks.retain(|_, task| task.as_ref().is_some_and(|task| !task.terminal));
        self.documents.retain(|_, document| document.as_ref().is_some_and(|document| document.record.retired_at.is_none()));
        if self.tasks.len() > REMEMBERED {
            self.tasks.clear();
        }
        if self.submissions.len() > REMEMBERED {
            self.submissions.clear();
        }
        if self.documents.len() > REMEMBERED {
            self.documents.clear();
        }
        if self.current.len() > REMEMBERED {
            self.current.clear();
        }
    }
}
