//! D1 to D4 of `docs/invariants.md`: documents replay, and those of the harness are what the records say.

use std::collections::{BTreeMap, BTreeSet};

use picofleet_harness::inbox::{InboxItem, InboxState};
use picofleet_harness::kinds::{ASSISTANT, COMPACTION, GENERATION, TOOL_RESULT};
use picofleet_harness::live::LiveState;
use picofleet_harness::usage::{UsageState, add};
use picofleet_session::message::{Message, Usage};
use picofleet_session::{
    ConversationId, DocumentContent, DocumentId, DocumentRecord, DocumentScope, EntryRecord, Json, Seq, SubmissionId, SubmissionStatus,
    TaskId, apply,
};
use serde::de::DeserializeOwned;

use super::model::{Broken, Model};

const INBOX: &str = "pi.inbox";
const LIVE: &str = "pi.live";
const USAGE: &str = "pi.usage";

/// The documents, with the values of those that are compared with records.
#[derive(Default)]
pub(super) struct Documents {
    records: BTreeMap<DocumentId, DocumentRecord>,
    /// The document whose content comes.
    current: Option<Current>,
    /// Those that have content.
    valued: BTreeSet<DocumentId>,
    /// `None` for one that is there and has no value that can be read, which is reported where that is seen.
    values: BTreeMap<(ConversationId, String), Option<Json>>,
}

struct Current {
    id: DocumentId,
    seq: Seq,
    version: u32,
    /// `None` once a delta did not apply: what follows it can't be judged.
    value: Option<Json>,
}

impl Documents {
    pub(super) fn document(&mut self, record: DocumentRecord) {
        if let Some(address) = compared(&record) {
            self.values.insert(address, None);
        }
        self.records.insert(record.create.id, record);
    }

    pub(super) fn content(&mut self, id: DocumentId, seq: Seq, content: DocumentContent) -> Result<(), Broken> {
        if self.current.as_ref().is_none_or(|current| current.id != id) {
            self.end();
        }
        self.valued.insert(id);
        let before = self.current.take();
        let (version, rises) = (content.version(), before.as_ref().is_none_or(|before| before.seq < seq));
        let (value, broken) = match (content, before) {
            (DocumentContent::Base { value, .. }, _) => (Some(value), None),
            (DocumentContent::Delta { .. }, None) => {
                (None, Some(("content", format!("document {id} begins with a delta, at commit {seq}"))))
            }
            (DocumentContent::Delta { .. }, Some(Current { value: None, .. })) => (None, None),
            (DocumentContent::Delta { .. }, Some(before)) if before.version != version => {
                let why = format!("of version {version} stands on version {}", before.version);
                (None, Some(("D4", format!("the delta of document {id} at commit {seq} {why}"))))
            }
            (DocumentContent::Delta { ops, .. }, Some(before)) => match apply(before.value.as_ref(), &ops) {
                Ok(value) => (Some(value), None),
                Err(error) => (None, Some(("D4", format!("the delta of document {id} at commit {seq} does not apply: {error}")))),
            },
        };
        self.current = Some(Current { id, seq, version, value });
        match broken {
            Some(broken) => Err(broken),
            None if !rises => Err(("D4", format!("the content of document {id} at commit {seq} is out of order"))),
            None => Ok(()),
        }
    }

    /// The content of a document is complete.
    pub(super) fn end(&mut self) {
        let Some(Current { id, value, .. }) = self.current.take() else { return };
        if let Some(address) = self.records.get(&id).and_then(compared) {
            self.values.insert(address, value);
        }
    }
}

/// The conversation and the kind of a document that is compared with records.
fn compared(record: &DocumentRecord) -> Option<(ConversationId, String)> {
    let create = &record.create;
    match create.placement.scope() {
        DocumentScope::Conversation { id }
            if record.retired_at.is_none() && create.key.is_none() && [INBOX, LIVE, USAGE].contains(&create.kind.as_str()) =>
        {
            Some((id, create.kind.clone()))
        }
        _ => None,
    }
}

/// Adds what the built-in tasks count of an entry.
pub(super) fn spend(sum: &mut UsageState, entry: &EntryRecord) {
    if entry.kind != ASSISTANT.kind && entry.kind != TOOL_RESULT.kind {
        return;
    }
    for message in entry.model.iter().flatten() {
        match message {
            Message::Assistant(message) => {
                add(sum.models.entry(format!("{}/{}", message.provider, message.model)).or_default(), &message.usage);
            }
            Message::ToolResult(result) => {
                if let Some(usage) = &result.usage {
                    add(sum.tools.entry(result.tool_name.clone()).or_default(), usage);
                }
            }
            Message::User(_) | Message::System(_) => {}
        }
    }
}

/// A usage group as tokens by name.
fn tokens(group: &BTreeMap<String, Usage>) -> BTreeMap<&str, u64> {
    group.iter().map(|(name, usage)| (name.as_str(), usage.total_tokens)).filter(|(_, tokens)| *tokens > 0).collect()
}

impl Model {
    pub(super) fn check_documents(&mut self) {
        let places: Vec<_> = self.documents.records.values().map(|record| (record.create.id, record.create.placement.scope())).collect();
        for (id, scope) in places {
            let lost = match scope {
                DocumentScope::Session => None,
                DocumentScope::Conversation { id } => (!self.conversations.contains_key(&id)).then(|| format!("conversation {id}")),
                DocumentScope::Task { id } => (!self.tasks.contains_key(&id)).then(|| format!("task {id}")),
            };
            if let Some(lost) = lost {
                self.add("reference", format!("document {id} is of {lost}, which is not there"));
            }
        }
        let alive = self.documents.records.values().filter(|record| record.retired_at.is_none()).map(|record| record.create.id);
        for id in alive.filter(|id| !self.documents.valued.contains(id)).collect::<Vec<_>>() {
            self.add("content", format!("document {id} has no content"));
        }
        for conversation in self.conversations.keys().copied().collect::<Vec<_>>() {
            self.check_inbox(conversation);
            self.check_run(conversation);
            self.check_usage(conversation);
        }
    }

    /// A document of the harness; one that is not there is as if it had its first value. `None` where it can't be read.
    fn value<T: DeserializeOwned + Default>(&mut self, conversation: ConversationId, kind: &str) -> Option<T> {
        let Some(value) = self.documents.values.get(&(conversation, kind.to_owned())) else { return Some(T::default()) };
        match value.as_ref()?.to() {
            Ok(value) => Some(value),
            Err(error) => {
                self.add("document", format!("{kind} of conversation {conversation} can't be read: {error}"));
                None
            }
        }
    }

    fn with_status(&self, conversation: ConversationId, status: SubmissionStatus) -> Vec<SubmissionId> {
        let own = self.submissions.values().filter(|record| record.conversation_id == conversation && record.status() == status);
        own.map(|record| record.id).collect()
    }

    fn check_inbox(&mut self, conversation: ConversationId) {
        let Some(inbox) = self.value::<InboxState>(conversation, INBOX) else { return };
        let items: Vec<_> = inbox.items.iter().map(InboxItem::id).collect();
        let queued = self.with_status(conversation, SubmissionStatus::Queued);
        if items != queued {
            self.add("D1", format!("the inbox of conversation {conversation} has {}, queued are {}", list(&items), list(&queued)));
        }
    }

    fn check_run(&mut self, conversation: ConversationId) {
        let Some(live) = self.value::<LiveState>(conversation, LIVE) else { return };
        let placed = self.with_status(conversation, SubmissionStatus::Placed);
        let Some(run) = live.run else {
            if !placed.is_empty() {
                self.add("D2", format!("conversation {conversation} has no run, and {} are placed", list(&placed)));
            }
            if live.generation.is_some() || live.tools.is_some() {
                self.add("D2", format!("conversation {conversation} shows work without a run"));
            }
            return;
        };
        if run.inputs.iter().copied().collect::<BTreeSet<_>>() != placed.iter().copied().collect() {
            self.add("D2", format!("the run of conversation {conversation} has {}, placed are {}", list(&run.inputs), list(&placed)));
        }
        if !self.generates(run.task_id, conversation) {
            self.add("D2", format!("the run of conversation {conversation} names task {}, which is no live generation of it", run.task_id));
        }
    }

    fn generates(&self, task: TaskId, conversation: ConversationId) -> bool {
        let task = self.tasks.get(&task);
        task.is_some_and(|task| task.kind == GENERATION && task.conversation_id == conversation && !task.terminal())
    }

    /// Summaries are counted and leave no entry for each attempt, so that a conversation with compactions may have spent more.
    fn check_usage(&mut self, conversation: ConversationId) {
        let Some(usage) = self.value::<UsageState>(conversation, USAGE) else { return };
        let spent = self.spent.get(&conversation).cloned().unwrap_or_default();
        let compacted = self.tasks.values().any(|task| task.conversation_id == conversation && task.kind == COMPACTION);
        let (counted, summed) = (tokens(&usage.models), tokens(&spent.models));
        let models = if compacted { summed.iter().all(|(name, tokens)| counted.get(name) >= Some(tokens)) } else { counted == summed };
        if !models || tokens(&usage.tools) != tokens(&spent.tools) {
            let what = format!(
                "conversation {conversation} counts {counted:?} and {:?} tokens, its entries add up to {summed:?} and {:?}",
                tokens(&usage.tools),
                tokens(&spent.tools)
            );
            self.add("D3", what);
        }
    }
}

fn list(ids: &[SubmissionId]) -> String {
    if ids.is_empty() {
        return "none".to_owned();
    }
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
