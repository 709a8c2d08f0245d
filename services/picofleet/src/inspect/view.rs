//! Why a live task is where it is, by what is stored and by the definitions of this program.

use std::cmp::Ordering;

use picofleet_harness::inspection::TaskView;
use picofleet_harness::kinds::reason;
use picofleet_harness::line::RESTART_LIMIT;
use picofleet_harness::ownership::Tree;
use picofleet_harness::task::LineTasks;
use picofleet_session::storage::{
    ConversationQuery, PAGE_MAX, SessionReader, SessionRecord, SessionState, StorageError, TaskFilter, TaskQuery,
};
use picofleet_session::{Clock, ConversationRecord, Millis, TaskId, TaskOutcome, TaskRecord, TaskState};

use crate::output;

/// How many tasks are named in a text.
const NAMED_MAX: usize = 5;

/// The live work of a session.
pub(super) struct Live {
    pub(super) conversations: Vec<ConversationRecord>,
    pub(super) tree: Tree,
    tasks: LineTasks,
    quarantined: bool,
    now: Millis,
}

/// All items of a scan.
macro_rules! all {
    ($cursor:ident => $page:expr) => {{
        let mut items = Vec::new();
        let mut $cursor = None;
        loop {
            let page: picofleet_session::storage::Page<_> = $page.await?;
            items.extend(page.items);
            $cursor = page.next;
            if $cursor.is_none() {
                break items;
            }
        }
    }};
}
pub(super) use all;

impl Live {
    pub(super) async fn read(reader: &dyn SessionReader, session: &SessionRecord, tasks: LineTasks) -> Result<Self, StorageError> {
        let conversations: Vec<ConversationRecord> =
            all!(cursor => reader.scan_conversations(ConversationQuery::default(), PAGE_MAX, cursor));
        let live = TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() };
        let live: Vec<TaskRecord> = all!(cursor => reader.scan_tasks(live.clone(), PAGE_MAX, cursor));
        let mut tree = Tree::default();
        conversations.iter().for_each(|record| tree.own(record.id, record.owner.map(|owner| owner.task_id)));
        live.into_iter().for_each(|record| tree.put(record));
        lineage(reader, &mut tree).await?;
        let quarantined = session.state == SessionState::Quarantined;
        Ok(Self { conversations, tree, tasks, quarantined, now: Clock::system().now() })
    }

    /// Where a live task is. A reservation of a process that may be gone counts as running.
    pub(super) fn view(&self, record: &TaskRecord) -> TaskView {
        if self.quarantined {
            return TaskView::Blocked { reason: reason::SESSION_QUARANTINED.to_owned(), error: None };
        }
        match &record.state {
            TaskState::Completing { .. } => return TaskView::Completing,
            TaskState::Running { .. } => return TaskView::Running,
            _ => {}
        }
        if record.abort_requested {
            let on = self.tree.owned_work(record.id);
            return if on.is_empty() { self.fitting(record) } else { TaskView::Waiting { on } };
        }
        match &record.state {
            TaskState::Waiting { on, .. } => {
                let on: Vec<_> = on.iter().copied().filter(|task| self.tree.live.contains_key(task)).collect();
                if on.is_empty() { self.fitting(record) } else { TaskView::Waiting { on } }
            }
            TaskState::Sleeping { until, .. } if *until > self.now => TaskView::Sleeping { until: *until },
            _ => self.fitting(record),
        }
    }

    fn fitting(&self, record: &TaskRecord) -> TaskView {
        let blocked = |reason: &str| TaskView::Blocked { reason: reason.to_owned(), error: None };
        let Some(definition) = self.tasks.get(&record.kind) else { return blocked(reason::MISSING_TASK) };
        let migrates = match record.version.cmp(&definition.version()) {
            Ordering::Greater => return blocked(reason::TASK_TOO_OLD),
            Ordering::Less if !definition.migrates() => return blocked(reason::MIGRATION_FAILED),
            order => order == Ordering::Less,
        };
        if record.restarts >= RESTART_LIMIT && !record.abort_requested {
            blocked(reason::RESTART_LIMIT)
        } else {
            TaskView::Ready { migrates }
        }
    }

    /// The same in words.
    pub(super) fn why(&self, record: &TaskRecord) -> String {
        let text = match self.view(record) {
            TaskView::Running => "an invocation has it; if its process is gone, whoever opens the session next takes it again".to_owned(),
            TaskView::Ready { .. } if self.tree.below_cancelled(record.id) && !record.abort_requested => {
                format!("waits for its abort, since {} above it is cancelled", self.named(self.tree.cancelled_above(record.id)))
            }
            TaskView::Ready { migrates: true } => "ready, and brought up to the newer definition when the session is opened".to_owned(),
            TaskView::Ready { migrates: false } => "ready: it runs when the session is opened".to_owned(),
            TaskView::Waiting { on } => format!("waits for {}", self.named(on.into_iter())),
            TaskView::Completing => {
                let held = if let TaskState::Completing { outcome } = &record.state { outcome_word(outcome) } else { "its outcome" };
                format!("holds its end ({held}) until {} below it are over", self.named(self.tree.owned_work(record.id).into_iter()))
            }
            TaskView::Sleeping { until } => format!("sleeps until {}", output::time(until)),
            TaskView::Blocked { reason, .. } => format!("blocked ({reason}): {}", advice(&reason)),
        };
        if record.abort_requested { format!("is to abort; {text}") } else { text }
    }

    fn named(&self, tasks: impl Iterator<Item = TaskId>) -> String {
        let all: Vec<TaskId> = tasks.collect();
        let name = |id: &TaskId| match self.tree.live.get(id) {
            Some(task) => format!("task {id} ({}, {})", task.kind, task.status().as_str()),
            None => format!("task {id}"),
        };
        let mut names: Vec<String> = all.iter().take(NAMED_MAX).map(name).collect();
        if all.len() > NAMED_MAX {
            names.push(format!("{} more", all.len() - NAMED_MAX));
        }
        if names.is_empty() { "nothing that is live".to_owned() } else { names.join(", ") }
    }
}

/// The places of the tasks above live ones.
async fn lineage(reader: &dyn SessionReader, tree: &mut Tree) -> Result<(), StorageError> {
    loop {
        let (conversations, tasks) = tree.unknown();
        if conversations.is_empty() && tasks.is_empty() {
            return Ok(());
        }
        for id in conversations {
            let owner = reader.conversation(id).await?.and_then(|record| record.owner);
            tree.own(id, owner.map(|owner| owner.task_id));
        }
        for id in tasks {
            // One that is not there is for `doctor` to report.
            tree.found(id, reader.task(id).await?.as_ref());
        }
    }
}

/// What to do about a blocked task.
fn advice(reason: &str) -> &'static str {
    match reason {
        reason::MISSING_TASK => "this program registers no such task; run the program that does, or abort the task",
        reason::TASK_TOO_OLD => "a newer definition wrote it; run the newer program, or abort the task",
        reason::MIGRATION_FAILED => "the definition is newer and does not bring it up; register one that does, or abort the task",
        reason::RESTART_LIMIT => "it was cut off too often without progress; find out what ends its process, then retry or abort it",
        reason::SESSION_QUARANTINED => {
            "opening the session failed too often; find out why, then let it be opened again with `picofleet retry --session ID`"
        }
        _ => "it can't go on by itself",
    }
}

/// The outcome as a word.
pub(super) const fn outcome_word(outcome: &TaskOutcome) -> &'static str {
    match outcome {
        TaskOutcome::Completed { .. } => "completed",
        TaskOutcome::Failed { .. } => "failed",
        TaskOutcome::Aborted { .. } => "aborted",
        TaskOutcome::Orphaned { .. } => "orphaned",
        TaskOutcome::Faulted { .. } => "faulted",
    }
}
