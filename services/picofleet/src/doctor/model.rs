//! What the lines of a session say, kept as far as a rule needs it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use picofleet_harness::usage::UsageState;
use picofleet_session::storage::{ExportLine, SessionLine};
use picofleet_session::{
    ConversationId, ConversationRecord, EntryId, EntryRecord, Seq, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};

use super::documents::Documents;

/// How many broken rules of one session are kept.
const BROKEN_MAX: usize = 100;

/// A broken rule and how.
pub(super) type Broken = (&'static str, String);

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Conversation,
    Entry,
    Task,
    Submission,
    Document,
}

/// See the module.
#[derive(Default)]
pub(super) struct Model {
    session: Option<SessionLine>,
    /// What every id belongs to.
    pub(super) kinds: HashMap<i64, Kind>,
    pub(super) conversations: BTreeMap<ConversationId, ConversationRecord>,
    /// The newest entry with its commit.
    entry: Option<(EntryId, Seq)>,
    /// The tasks that entries name.
    pub(super) authors: BTreeSet<TaskId>,
    pub(super) tasks: BTreeMap<TaskId, TaskRecord>,
    pub(super) invoked: BTreeSet<TaskId>,
    pub(super) submissions: BTreeMap<SubmissionId, SubmissionRecord>,
    /// What the entries of the built-in tasks add up to.
    pub(super) spent: BTreeMap<ConversationId, UsageState>,
    pub(super) documents: Documents,
    pub(super) broken: Vec<Broken>,
}

impl Model {
    pub(super) fn take(&mut self, line: ExportLine) {
        match line {
            ExportLine::Session(session) => self.session = Some(session),
            ExportLine::Conversation(record) => {
                self.id(record.id.get(), Kind::Conversation);
                self.conversations.insert(record.id, record);
            }
            ExportLine::Entry { seq, entry } => self.entry(seq, &entry),
            ExportLine::Task { task, invocation } => {
                self.id(task.id.get(), Kind::Task);
                if invocation.is_some() {
                    self.invoked.insert(task.id);
                }
                self.tasks.insert(task.id, *task);
            }
            ExportLine::Submission(record) => {
                self.id(record.id.get(), Kind::Submission);
                self.submissions.insert(record.id, *record);
            }
            ExportLine::Document(record) => {
                self.id(record.create.id.get(), Kind::Document);
                self.seq(record.created_at, || format!("document {}", record.create.id));
                self.documents.document(record);
            }
            ExportLine::Content { document, seq, content } => {
                self.seq(seq, || format!("content of document {document}"));
                if let Err(broken) = self.documents.content(document, seq, content) {
                    self.add(broken.0, broken.1);
                }
            }
            ExportLine::Request(_) | ExportLine::End { .. } => {}
        }
    }

    /// Judges the whole. Where reading ended early only what was read is judged, on its own.
    pub(super) fn finish(mut self, whole: bool) -> Vec<Broken> {
        if whole {
            self.documents.end();
            self.check_references();
            self.check_tasks();
            self.check_documents();
        }
        self.broken
    }

    pub(super) fn add(&mut self, rule: &'static str, what: String) {
        if self.broken.len() < BROKEN_MAX {
            self.broken.push((rule, what));
        }
    }

    pub(super) fn is(&self, id: i64, kind: Kind) -> bool {
        self.kinds.get(&id) == Some(&kind)
    }

    fn id(&mut self, id: i64, kind: Kind) {
        if let Some(other) = self.kinds.insert(id, kind) {
            self.add("C1", format!("{id} is the id of a {kind:?} and of a {other:?}"));
        }
        let next = self.session.as_ref().map_or(i64::MAX, |session| session.next_id);
        if id >= next {
            self.add("C1", format!("{kind:?} {id} has an id that was not minted: the next one is {next}"));
        }
    }

    fn seq(&mut self, seq: Seq, what: impl FnOnce() -> String) {
        let newest = self.session.as_ref().map_or(Seq(i64::MAX), |session| session.seq);
        if seq > newest || seq <= Seq(0) {
            self.add("C1", format!("{} is of commit {seq}, which is none of the session", what()));
        }
    }

    fn entry(&mut self, seq: Seq, entry: &EntryRecord) {
        self.id(entry.id.get(), Kind::Entry);
        self.seq(seq, || format!("entry {}", entry.id));
        if let Some((last, before)) = self.entry.replace((entry.id, seq))
            && before > seq
        {
            self.add("C2", format!("entry {} is of commit {seq}, and entry {last} before it of commit {before}", entry.id));
        }
        if !self.is(entry.conversation_id.get(), Kind::Conversation) {
            self.add("reference", format!("entry {} is in conversation {}, which is not there", entry.id, entry.conversation_id));
        }
        if let Some(head) = entry.head.filter(|head| !self.is(head.get(), Kind::Entry)) {
            self.add("reference", format!("entry {} has its head at entry {head}, which is not there before it", entry.id));
        }
        self.authors.extend(entry.by_task_id);
        if entry.by_task_id.is_some() {
            super::documents::spend(self.spent.entry(entry.conversation_id).or_default(), entry);
        }
    }
}
