//! Invariants of the built-in documents (`docs/invariants.md`, D1 to D7): run control, inbox and usage against the records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use picofleet_harness::inbox::InboxState;
use picofleet_harness::kinds::{COMPACTION, GENERATION};
use picofleet_harness::live::LiveState;
use picofleet_harness::usage::{UsageState, add};
use picofleet_session::message::Message;
use picofleet_session::{
    ConversationId, DocumentContent, DocumentCreate, DocumentId, DocumentScope, Json, SubmissionRecord, SubmissionStatus, TaskOutcome,
    TaskRecord, TaskState, apply,
};

use super::Model;
use crate::world::{LATER, line, word};

/// The values of the documents that are looked at.
#[derive(Default)]
pub(crate) struct Documents {
    values: BTreeMap<DocumentId, Document>,
    /// Conversations with documents that changed in this commit.
    touched: BTreeSet<ConversationId>,
}

struct Document {
    conversation: Option<ConversationId>,
    kind: String,
    /// `None` for a copy, whose value is not followed.
    value: Option<Json>,
}

impl Documents {
    pub(super) fn create(&mut self, create: &DocumentCreate, value: Option<Json>) {
        let conversation = match create.placement.scope() {
            DocumentScope::Conversation { id } => Some(id),
            DocumentScope::Session | DocumentScope::Task { .. } => None,
        };
        self.touched.extend(conversation);
        self.values.insert(create.id, Document { conversation, kind: create.kind.clone(), value });
    }

    pub(super) fn change(&mut self, id: DocumentId, content: &DocumentContent, found: &mut Vec<String>) {
        let Some(document) = self.values.get_mut(&id) else {
            found.push(format!("document {id} changed and was never made"));
            return;
        };
        self.touched.extend(document.conversation);
        match content {
            DocumentContent::Base { value, .. } => document.value = Some(value.clone()),
            DocumentContent::Delta { ops, .. } => {
                let Some(before) = &document.value else { return };
                match apply(Some(before), ops) {
                    Ok(value) => document.value = Some(value),
                    Err(error) => found.push(format!("a delta of {} does not apply: {error}", document.kind)),
                }
            }
        }
    }

    pub(super) fn retire(&mut self, id: DocumentId) {
        self.values.remove(&id);
    }

    fn of<T: serde::de::DeserializeOwned>(&self, conversation: ConversationId, kind: &str, found: &mut Vec<String>) -> Option<T> {
        let document = self.values.values().find(|document| document.conversation == Some(conversation) && document.kind == kind)?;
        match document.value.as_ref()?.to() {
            Ok(value) => Some(value),
            Err(error) => {
                found.push(format!("{kind} of conversation {conversation} can't be read: {error}"));
                None
            }
        }
    }
}

impl Model {
    pub(super) fn check_documents(&mut self, found: &mut Vec<String>) {
        let touched = std::mem::take(&mut self.documents.touched);
        for conversation in touched {
            self.check_inbox(conversation, found);
            self.check_run(conversation, found);
            self.check_usage(conversation, found);
            self.check_compactions(conversation, found);
        }
    }

    /// The inbox has exactly the queued submissions, in their order.
    fn check_inbox(&self, conversation: ConversationId, found: &mut Vec<String>) {
        let Some(inbox) = self.documents.of::<InboxState>(conversation, "pi.inbox", found) else { return };
        let items: Vec<_> = inbox.items.iter().map(picofleet_harness::inbox::InboxItem::id).collect();
        let queued = |record: &&SubmissionRecord| record.status() == SubmissionStatus::Queued;
        let queued: Vec<_> = self.of_conversation(conversation).filter(queued).map(|record| record.id).collect();
        if items != queued {
            found.push(format!("the inbox of conversation {conversation} has {items:?}, queued are {queued:?}"));
        }
    }

    /// The run names a live generation of the conversation, and exactly the placed inputs.
    fn check_run(&self, conversation: ConversationId, found: &mut Vec<String>) {
        let Some(live) = self.documents.of::<LiveState>(conversation, "pi.live", found) else { return };
        let placed = |record: &&SubmissionRecord| record.status() == SubmissionStatus::Placed;
        let placed: BTreeSet<_> = self.of_conversation(conversation).filter(placed).map(|record| record.id).collect();
        check_shown(conversation, &live, found);
        let Some(run) = live.run else {
            if !placed.is_empty() {
                found.push(format!("conversation {conversation} has no run, and {placed:?} are placed"));
            }
            if live.generation.is_some() || live.tools.is_some() {
                found.push(format!("conversation {conversation} shows work without a run"));
            }
            return;
        };
        if run.inputs.iter().copied().collect::<BTreeSet<_>>() != placed {
            found.push(format!("the run of conversation {conversation} has {:?}, placed are {placed:?}", run.inputs));
        }
        match self.tasks.get(&run.task_id) {
            Some(task) if task.kind == GENERATION && task.conversation_id == conversation && !task.terminal() => {}
            other => found.push(format!("the run of conversation {conversation} names {other:?}")),
        }
    }

    /// The ledger is the sum of the entries.
    fn check_usage(&self, conversation: ConversationId, found: &mut Vec<String>) {
        let Some(usage) = self.documents.of::<UsageState>(conversation, "pi.usage", found) else { return };
        let mut sum = UsageState::default();
        for entry in self.entries.get(&conversation).into_iter().flatten() {
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
        let tokens = |usage: &UsageState| -> BTreeMap<String, u64> {
            let all = usage.models.iter().chain(&usage.tools);
            all.map(|(name, usage)| (name.clone(), usage.total_tokens)).collect()
        };
        let (mut stored, sum) = (tokens(&usage), tokens(&sum));
        // Requests for summaries have no entries. Each answer spends 2 tokens at least.
        let compactions = || self.tasks.values().filter(|task| task.kind == COMPACTION && task.conversation_id == conversation);
        if compactions().next().is_some() {
            let least = 2 * u64::try_from(compactions().filter(|task| summarized(task)).count()).unwrap_or(0);
            let of_entries = sum.get("p/m").copied().unwrap_or(0);
            let all = stored.get("p/m").copied().unwrap_or(0);
            if all < of_entries + least {
                found.push(format!("conversation {conversation} spent {all}, its entries {of_entries}, its summaries {least} or more"));
            }
            match sum.get("p/m") {
                Some(own) => stored.insert("p/m".to_owned(), *own),
                None => stored.remove("p/m"),
            };
        }
        if stored != sum {
            found.push(format!("the usage of conversation {conversation} is {stored:?}, its entries sum up to {sum:?}"));
        }
    }

    /// The statuses are those of the live compactions, in the order of their ids.
    fn check_compactions(&self, conversation: ConversationId, found: &mut Vec<String>) {
        let Some(live) = self.documents.of::<LiveState>(conversation, "pi.live", found) else { return };
        let shown: Vec<_> = live.compactions.iter().flatten().map(|status| (status.task_id, status.blocking)).collect();
        let here = |task: &&Arc<TaskRecord>| task.kind == COMPACTION && task.conversation_id == conversation && !task.terminal();
        let running: Vec<_> = self.tasks.values().filter(here).map(|task| (task.id, task.owner.is_some())).collect();
        if shown != running || live.compactions.is_some_and(|shown| shown.is_empty()) {
            found.push(format!("conversation {conversation} shows the compactions {shown:?}, live are {running:?}"));
        }
    }

    fn of_conversation(&self, conversation: ConversationId) -> impl Iterator<Item = &SubmissionRecord> {
        self.submissions.values().map(AsRef::as_ref).filter(move |record| record.conversation_id == conversation)
    }
}

/// Whether a compaction ended with a summary.
fn summarized(task: &TaskRecord) -> bool {
    let TaskState::Terminal { outcome: TaskOutcome::Completed { result } } = &task.state else { return false };
    result.get("entryId").is_some() || result.get("submissionId").is_some()
}

/// What is shown of an answer or an output is its beginning, without a hole and nothing twice.
fn check_shown(conversation: ConversationId, live: &LiveState, found: &mut Vec<String>) {
    /// More than the world's models and tools say.
    const PARTS: u64 = 10;
    let (words, lines): (String, String) = ((0..PARTS).map(word).collect(), (0..PARTS).map(line).collect());
    let outputs = live.tools.iter().flatten().filter_map(|slot| slot.output.as_deref());
    for output in outputs.filter(|output| !lines.starts_with(output)) {
        found.push(format!("conversation {conversation} shows the output {output:?}, which is not the beginning of one"));
    }
    let message = live.generation.as_ref().and_then(|generation| generation.message.as_ref());
    let blocks = message.and_then(|message| message.get("content")).and_then(Json::as_array);
    for text in blocks.iter().flat_map(|blocks| blocks.iter()).filter_map(|block| block.get("text")?.as_str()) {
        if !words.starts_with(&*text) && !LATER.starts_with(&*text) {
            found.push(format!("conversation {conversation} shows the answer {text:?}, which is not the beginning of one"));
        }
    }
}
