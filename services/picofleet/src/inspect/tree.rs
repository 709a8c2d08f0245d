//! A session: its conversations, their tasks, and what is below those.

use std::collections::{BTreeMap, BTreeSet};

use picofleet_harness::inspection::TaskInspection;
use picofleet_session::storage::{
    EntryQuery, Head, PAGE_MAX, SessionReader, SessionRecord, StorageError, SubmissionQuery, TaskFilter, TaskQuery,
};
use picofleet_session::{
    ConversationId, ConversationRecord, EntryId, EntryRecord, SubmissionRecord, SubmissionState, SubmissionStatus, TaskId, TaskRecord,
    TaskState, TaskStatus,
};
use serde::Serialize;

use super::view::{Live, all, outcome_word};
use crate::glance;
use crate::output::{self, Format};
use crate::terminal;

/// All that is shown of a session.
#[derive(Serialize)]
struct Overview<'a> {
    session: SessionRecord,
    head: Head,
    conversations: &'a [ConversationRecord],
    /// Its live tasks, as `inspect` of the harness shows them. What only an open session knows is left out: whether it plans, and what its
    /// program failed to register.
    tasks: Vec<TaskInspection>,
    /// Its queued and placed submissions.
    submissions: Vec<SubmissionRecord>,
    /// The newest entries of each conversation.
    entries: Vec<Entry>,
    quarantined: bool,
    /// Tasks that are over, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    over: Option<Vec<TaskRecord>>,
}

/// How many entries of each conversation are listed.
const ENTRIES_MAX: u32 = 20;

/// An entry in few words; by its id all of it is shown.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    id: EntryId,
    conversation_id: ConversationId,
    kind: String,
    /// Who said it, and how it begins; absent for one that nobody said.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl Entry {
    fn new(record: &EntryRecord) -> Self {
        let text = crate::transcript_line(record).map(|line| glance::begin(&line));
        Self { id: record.id, conversation_id: record.conversation_id, kind: record.kind.clone(), text }
    }
}

/// The newest entries of each conversation, in their order, without those that a fork has of what it was made of.
async fn entries(reader: &dyn SessionReader, conversations: &[ConversationRecord]) -> Result<Vec<Entry>, StorageError> {
    let mut entries = Vec::new();
    for ConversationRecord { id, .. } in conversations {
        let page = reader.scan_entries(EntryQuery::all(*id), ENTRIES_MAX, None).await?;
        entries.extend(page.items.iter().filter(|entry| entry.conversation_id == *id).map(Entry::new));
    }
    entries.sort_by_key(|entry| entry.id);
    Ok(entries)
}

pub(super) async fn show(reader: &dyn SessionReader, live: &Live, session: SessionRecord, all: bool, format: Format) -> anyhow::Result<()> {
    let head = reader.head().await?;
    let mut submissions: Vec<SubmissionRecord> = Vec::new();
    for status in [SubmissionStatus::Queued, SubmissionStatus::Placed] {
        let query = SubmissionQuery { conversation_id: None, status: Some(status) };
        submissions.extend(all!(cursor => reader.scan_submissions(query, PAGE_MAX, cursor)));
    }
    submissions.sort_by_key(|submission| submission.id);
    let over: Option<Vec<TaskRecord>> = if all {
        let query = TaskQuery { status: Some(TaskFilter::Status(TaskStatus::Terminal)), ..TaskQuery::default() };
        Some(all!(cursor => reader.scan_tasks(query.clone(), PAGE_MAX, cursor)))
    } else {
        None
    };
    let entries = entries(reader, &live.conversations).await?;
    if format == Format::Json {
        let tasks = live.tree.live.values().map(|record| TaskInspection { record: record.clone(), state: live.view(record) }).collect();
        let quarantined = session.state == picofleet_session::storage::SessionState::Quarantined;
        return output::json(&Overview {
            session,
            head,
            conversations: &live.conversations,
            tasks,
            submissions,
            entries,
            quarantined,
            over,
        });
    }
    let mut text = format!(
        "{}\n{}, made {}; commit {} at {}\n",
        output::bold(&format!("session {}", session.id)),
        session.state.as_str(),
        output::time(session.created_at),
        head.seq,
        output::time(head.at)
    );
    let tasks: BTreeMap<TaskId, &TaskRecord> = live.tree.live.values().chain(over.iter().flatten()).map(|task| (task.id, task)).collect();
    let conversations = live.conversations.iter().map(|record| (record.id, record)).collect();
    Tree { live, tasks, conversations, submissions: &submissions, entries: &entries }.write(&mut text);
    output::data(&text)?;
    if entries.is_empty() {
        return Ok(());
    }
    let id = session.id;
    output::remark(&format!(
        "the newest {ENTRIES_MAX} entries of each conversation; `picofleet inspect {id} ID` shows an entry, a task or a submission, `export` all"
    ))
}

/// What stands in the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Node {
    Conversation(ConversationId),
    Task(TaskId),
}

struct Tree<'a> {
    live: &'a Live,
    tasks: BTreeMap<TaskId, &'a TaskRecord>,
    conversations: BTreeMap<ConversationId, &'a ConversationRecord>,
    submissions: &'a [SubmissionRecord],
    entries: &'a [Entry],
}

impl Tree<'_> {
    fn task_or(&self, task: Option<TaskId>, conversation: ConversationId) -> Node {
        task.filter(|task| self.tasks.contains_key(task)).map_or(Node::Conversation(conversation), Node::Task)
    }

    /// What stands below each node, and below nothing.
    fn below(&self) -> BTreeMap<Option<Node>, Vec<Node>> {
        let mut below: BTreeMap<Option<Node>, Vec<Node>> = BTreeMap::new();
        for task in self.tasks.values() {
            below.entry(Some(self.task_or(task.owner, task.conversation_id))).or_default().push(Node::Task(task.id));
        }
        for record in &self.live.conversations {
            let above = record.owner.map(|owner| self.task_or(Some(owner.task_id), owner.conversation_id));
            below.entry(above).or_default().push(Node::Conversation(record.id));
        }
        below
    }

    fn write(&self, text: &mut String) {
        let below = self.below();
        let mut seen = BTreeSet::new();
        let nodes = |of: Option<Node>, depth: usize| below.get(&of).into_iter().flatten().rev().map(move |node| (*node, depth));
        // What damage has put below itself stands at the end.
        let rest = below.values().flatten().map(|node| (*node, 0));
        let mut open: Vec<(Node, usize)> = rest.chain(nodes(None, 0)).collect();
        while let Some((node, depth)) = open.pop() {
            if !seen.insert(node) {
                continue;
            }
            let indent = "  ".repeat(depth);
            for line in self.lines(node) {
                text.push_str(&format!("{indent}{}\n", terminal::line(&line)));
            }
            open.extend(nodes(Some(node), depth + 1));
        }
    }

    fn lines(&self, node: Node) -> Vec<String> {
        match node {
            Node::Task(id) => vec![self.tasks.get(&id).map_or_else(|| format!("task {id}"), |task| self.task(task))],
            Node::Conversation(id) => {
                let record = self.conversations.get(&id);
                let parent = record.and_then(|record| record.parent);
                let fork = parent.map(|parent| format!(", a fork of {} at entry {}", parent.conversation_id, parent.at));
                let owner = record.and_then(|record| record.owner);
                let owner = owner.map(|owner| format!(", of task {}", owner.task_id));
                let mut lines = vec![format!("conversation {id}{}{}", owner.unwrap_or_default(), fork.unwrap_or_default())];
                let own = self.submissions.iter().filter(|submission| submission.conversation_id == id);
                lines.extend(own.map(|submission| format!("  {}", submission_line(submission))));
                let own = self.entries.iter().filter(|entry| entry.conversation_id == id);
                lines.extend(own.map(|entry| format!("  entry {} {}", entry.id, entry.text.as_deref().unwrap_or(&entry.kind))));
                lines
            }
        }
    }

    fn task(&self, task: &TaskRecord) -> String {
        let state = match &task.state {
            TaskState::Terminal { outcome } => format!("over: {}", outcome_word(outcome)),
            _ => format!("{}: {}", task.status().as_str(), self.live.why(task)),
        };
        let background = if task.background { ", in the background" } else { "" };
        format!("task {} {}{background}: {state}", task.id, task.kind)
    }
}

fn submission_line(submission: &SubmissionRecord) -> String {
    let what = match &submission.state {
        SubmissionState::Input(_) => "input",
        SubmissionState::Write(_) => "write",
    };
    let key = submission.request_id.as_ref().map(|key| format!(" (request {key})")).unwrap_or_default();
    format!("submission {} {what}: {}{key}", submission.id, submission.status().as_str())
}
