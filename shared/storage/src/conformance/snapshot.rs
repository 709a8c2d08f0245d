//! Everything that can be read of a session, to compare.

use std::fmt::Debug;

use picofleet_session::storage::{ConversationQuery, DocumentQuery, EntryQuery, SessionReader, SubmissionQuery, TaskFilter, TaskQuery};
use picofleet_session::{ConversationId, DocumentScope, Point, Seq, SubmissionStatus, TaskStatus};

use super::records::{all, cid, did, eid, sid, tid};

/// What [`everything`] found: what was asked, and the answer.
pub type Snapshot = Vec<(String, String)>;

struct Look<'r> {
    reader: &'r dyn SessionReader,
    found: Snapshot,
}

/// Every answer of every read, for the ids below `below` and the sequences up to `newest`; request keys and request ids are those in
/// `keys`.
pub async fn everything(reader: &dyn SessionReader, below: i64, newest: Seq, keys: &[&str]) -> Snapshot {
    let mut look = Look { reader, found: Vec::new() };
    look.records(below, keys).await;
    look.scans().await;
    let conversations = all(100, |limit, cursor| reader.scan_conversations(ConversationQuery::default(), limit, cursor)).await;
    for conversation in &conversations {
        look.transcript(conversation.id, below).await;
    }
    look.documents(below, newest).await;
    look.found
}

impl Look<'_> {
    fn note(&mut self, asked: impl Into<String>, answer: impl Debug) {
        self.found.push((asked.into(), format!("{answer:?}")));
    }

    async fn records(&mut self, below: i64, keys: &[&str]) {
        let reader = self.reader;
        for id in 1..below {
            self.note(format!("conversation {id}"), reader.conversation(cid(id)).await);
            self.note(format!("entry {id}"), reader.entry(None, eid(id)).await);
            self.note(format!("task {id}"), reader.task(tid(id)).await);
            self.note(format!("invocation {id}"), reader.invocation(tid(id)).await);
            self.note(format!("submission {id}"), reader.submission(sid(id)).await);
            for key in keys {
                self.note(format!("request {key} of {id}"), reader.submission_by_request(cid(id), (*key).to_owned()).await);
            }
        }
        for key in keys {
            self.note(format!("request {key}"), reader.request((*key).to_owned()).await);
        }
        self.note("wake", reader.wake().await);
    }

    async fn scans(&mut self) {
        let reader = self.reader;
        self.note("conversations", all(3, |limit, cursor| reader.scan_conversations(ConversationQuery::default(), limit, cursor)).await);
        let mut tasks = vec![TaskQuery::default(), TaskQuery { status: Some(TaskFilter::Live), ..TaskQuery::default() }];
        for status in [
            TaskStatus::Pending,
            TaskStatus::Running,
            TaskStatus::Waiting,
            TaskStatus::Sleeping,
            TaskStatus::Completing,
            TaskStatus::Terminal,
        ] {
            tasks.push(TaskQuery { status: Some(TaskFilter::Status(status)), ..TaskQuery::default() });
        }
        for flag in [false, true] {
            tasks.push(TaskQuery { background: Some(flag), abort_requested: Some(!flag), ..TaskQuery::default() });
        }
        for query in tasks {
            let found = all(2, |limit, cursor| reader.scan_tasks(query.clone(), limit, cursor)).await;
            self.note(format!("{query:?}"), found);
        }
        let statuses = [SubmissionStatus::Queued, SubmissionStatus::Placed, SubmissionStatus::Done, SubmissionStatus::Unanswered];
        for status in statuses.map(Some).into_iter().chain([None]) {
            let query = SubmissionQuery { conversation_id: None, status };
            let found = all(2, |limit, cursor| reader.scan_submissions(query, limit, cursor)).await;
            self.note(format!("{query:?}"), found);
        }
    }

    async fn transcript(&mut self, id: ConversationId, below: i64) {
        let reader = self.reader;
        let query = EntryQuery::all(id);
        self.note(format!("{query:?}"), all(2, |limit, cursor| reader.scan_entries(query, limit, cursor)).await);
        let middle = EntryQuery { min_entry_id: Some(eid(below / 4 + 1)), max_entry_id: Some(eid(below / 2 + 1)), ..query };
        self.note(format!("{middle:?}"), all(2, |limit, cursor| reader.scan_entries(middle, limit, cursor)).await);
        for at in (1..below).map(|id| Some(eid(id))).chain([None]) {
            self.note(format!("marker of {id} at {at:?}"), reader.latest_head_marker(id, at).await);
        }
        for entry in 1..below {
            self.note(format!("entry {entry} in {id}"), reader.entry(Some(id), eid(entry)).await);
        }
        let owned = ConversationQuery { owner_conversation_id: Some(id), owner_task_id: None };
        self.note(format!("{owned:?}"), all(1, |limit, cursor| reader.scan_conversations(owned, limit, cursor)).await);
        let tasks = TaskQuery { conversation_id: Some(id), ..TaskQuery::default() };
        self.note(format!("{tasks:?}"), all(1, |limit, cursor| reader.scan_tasks(tasks.clone(), limit, cursor)).await);
        let submissions = SubmissionQuery { conversation_id: Some(id), status: None };
        self.note(format!("{submissions:?}"), all(1, |limit, cursor| reader.scan_submissions(submissions, limit, cursor)).await);
    }

    async fn documents(&mut self, below: i64, newest: Seq) {
        let reader = self.reader;
        let points: Vec<Point> = (0..=newest.0 + 1).map(|seq| Point::At(Seq(seq))).chain([Point::Current]).collect();
        let mut scopes = vec![DocumentScope::Session];
        scopes.extend((1..below).map(|id| DocumentScope::Conversation { id: cid(id) }));
        scopes.extend((1..below).map(|id| DocumentScope::Task { id: tid(id) }));
        for at in points {
            for id in 1..below {
                self.note(format!("document {id} at {at:?}"), reader.document(did(id), at).await);
            }
            for scope in &scopes {
                let query = DocumentQuery { scope: *scope, at, kind: None };
                let found = all(2, |limit, cursor| reader.scan_documents(query.clone(), limit, cursor)).await;
                for record in &found {
                    let address = record.create.address();
                    self.note(format!("{address} at {at:?}"), reader.find_document(address, at).await);
                }
                if !found.is_empty() {
                    self.note(format!("{query:?}"), found);
                }
            }
        }
    }
}

/// Fails with the first answers that differ.
pub fn same(left: &Snapshot, right: &Snapshot) {
    let differ: Vec<_> = left.iter().zip(right).filter(|(left, right)| left != right).take(3).collect();
    assert!(differ.is_empty() && left.len() == right.len(), "reads differ: {differ:#?}");
}
