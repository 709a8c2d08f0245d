//! Records and writes for the cases, by plain numbers.

use std::sync::Arc;

use picofleet_delta::{Json, Op, Segment};
use picofleet_session::storage::{Cursor, DocumentCopy, EntryQuery, Fut, Page, SessionReader, Write};
use picofleet_session::{
    ConversationId, ConversationOwner, ConversationPolicy, ConversationRecord, DocumentAddress, DocumentContent, DocumentCreate,
    DocumentId, DocumentScope, EntryId, EntryRecord, ForkPoint, InputState, LatestFork, Placement, Point, RewindableFork, Seq,
    SubmissionId, SubmissionRecord, SubmissionState, TaskId, TaskOutcome, TaskRecord, TaskState, WriteState,
};

/// A conversation's id.
#[must_use]
pub fn cid(id: i64) -> ConversationId {
    ConversationId::new(id).unwrap()
}

/// An entry's id.
#[must_use]
pub fn eid(id: i64) -> EntryId {
    EntryId::new(id).unwrap()
}

/// A task's id.
#[must_use]
pub fn tid(id: i64) -> TaskId {
    TaskId::new(id).unwrap()
}

/// A submission's id.
#[must_use]
pub fn sid(id: i64) -> SubmissionId {
    SubmissionId::new(id).unwrap()
}

/// A document's id.
#[must_use]
pub fn did(id: i64) -> DocumentId {
    DocumentId::new(id).unwrap()
}

/// A JSON value of its text.
#[must_use]
pub fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// An ownerless conversation without parent.
#[must_use]
pub fn conversation(id: i64) -> Write {
    Write::Conversation(ConversationRecord { id: cid(id), parent: None, owner: None })
}

/// A conversation that a task owns: the task's conversation and the task.
#[must_use]
pub fn owned(id: i64, owner: (i64, i64)) -> Write {
    let owner = ConversationOwner { conversation_id: cid(owner.0), task_id: tid(owner.1) };
    Write::Conversation(ConversationRecord { id: cid(id), parent: None, owner: Some(owner) })
}

/// A fork of `parent` at an entry.
#[must_use]
pub fn fork(id: i64, parent: i64, at: i64) -> Write {
    let parent = ForkPoint { conversation_id: cid(parent), at: eid(at) };
    Write::Conversation(ConversationRecord { id: cid(id), parent: Some(parent), owner: None })
}

/// An entry without data or head.
#[must_use]
pub fn entry_record(id: i64, conversation: i64) -> EntryRecord {
    EntryRecord {
        id: eid(id),
        conversation_id: cid(conversation),
        kind: "note".to_owned(),
        model: None,
        data: None,
        head: None,
        edits: None,
        by_task_id: None,
    }
}

/// An entry without data or head.
#[must_use]
pub fn entry(id: i64, conversation: i64) -> Write {
    Write::Entry(Arc::new(entry_record(id, conversation)))
}

/// An entry with a head.
#[must_use]
pub fn marker(id: i64, conversation: i64, head: i64) -> Write {
    Write::Entry(Arc::new(EntryRecord { head: Some(eid(head)), ..entry_record(id, conversation) }))
}

/// A task of the root conversation.
#[must_use]
pub fn task(id: i64, state: TaskState) -> TaskRecord {
    TaskRecord {
        id: tid(id),
        conversation_id: cid(1),
        kind: "work".to_owned(),
        version: 1,
        input: json(r#"{"n":1}"#),
        owner: None,
        background: false,
        abort_requested: false,
        state,
        memos: None,
        restarts: 0,
        started_at: None,
        ended_at: None,
    }
}

/// A pending task's state.
#[must_use]
pub fn pending() -> TaskState {
    TaskState::Pending { checkpoint: json(r#"{"phase":"start"}"#) }
}

/// A completed task's outcome.
#[must_use]
pub fn completed() -> TaskOutcome {
    TaskOutcome::Completed { result: json("7") }
}

/// The write of a task.
#[must_use]
pub fn put_task(record: &TaskRecord) -> Write {
    Write::Task(Arc::new(record.clone()))
}

/// A queued input.
#[must_use]
pub fn input(id: i64, conversation: i64, request_id: Option<&str>) -> SubmissionRecord {
    SubmissionRecord {
        id: sid(id),
        conversation_id: cid(conversation),
        request_id: request_id.map(str::to_owned),
        state: SubmissionState::Input(InputState::Queued),
    }
}

/// A queued write.
#[must_use]
pub fn passive(id: i64, conversation: i64) -> SubmissionRecord {
    SubmissionRecord { state: SubmissionState::Write(WriteState::Queued), ..input(id, conversation, None) }
}

/// The write of a submission.
#[must_use]
pub fn put_submission(record: &SubmissionRecord) -> Write {
    Write::Submission(Arc::new(record.clone()))
}

/// In a conversation, with every value kept and copied as of the fork point.
#[must_use]
pub fn rewindable(conversation: i64) -> Placement {
    Placement::Conversation { id: cid(conversation), policy: ConversationPolicy::Rewindable(RewindableFork::AsOf) }
}

/// In a conversation, with only the newest value kept and copied.
#[must_use]
pub fn latest(conversation: i64) -> Placement {
    Placement::Conversation { id: cid(conversation), policy: ConversationPolicy::Latest(LatestFork::Current) }
}

/// What creates a document of the kind `kind`.
#[must_use]
pub fn create_of(id: i64, kind: &str, key: Option<&str>, placement: Placement) -> DocumentCreate {
    DocumentCreate { id: did(id), kind: kind.to_owned(), key: key.map(str::to_owned), placement }
}

/// A singleton of the kind `doc` with version 1.
#[must_use]
pub fn create(id: i64, placement: Placement, value: &str) -> Write {
    create_as(create_of(id, "doc", None, placement), value)
}

/// A document with version 1.
#[must_use]
pub fn create_as(create: DocumentCreate, value: &str) -> Write {
    Write::DocumentCreate { create, version: 1, value: json(value) }
}

/// A copy.
#[must_use]
pub fn copy(create: DocumentCreate, source: i64, at: Point) -> Write {
    Write::DocumentCopy(DocumentCopy { create, source: did(source), at })
}

/// A delta of a version that sets one key.
#[must_use]
pub fn set_as(version: u32, id: i64, key: &str, value: &str) -> Write {
    let ops = [Op::Set(vec![Segment::from(key)], json(value))];
    Write::DocumentChange { id: did(id), content: DocumentContent::Delta { version, ops: ops.into() } }
}

/// A delta of version 1 that sets one key.
#[must_use]
pub fn set(id: i64, key: &str, value: &str) -> Write {
    set_as(1, id, key, value)
}

/// A base.
#[must_use]
pub fn rebase(version: u32, id: i64, value: &str) -> Write {
    Write::DocumentChange { id: did(id), content: DocumentContent::Base { version, value: json(value) } }
}

/// A retirement.
#[must_use]
pub fn retire(id: i64) -> Write {
    Write::DocumentRetire(did(id))
}

/// The singleton `doc` in a scope.
#[must_use]
pub fn address(scope: DocumentScope) -> DocumentAddress {
    DocumentAddress { kind: "doc".to_owned(), scope, key: None }
}

/// The text of a document's value; `None` where it has none.
pub async fn value(reader: &dyn SessionReader, id: i64, at: Point) -> Option<String> {
    reader.document(did(id), at).await.unwrap().map(|document| document.value.to_string())
}

/// As of a sequence.
#[must_use]
pub const fn at(seq: Seq) -> Point {
    Point::At(seq)
}

/// All pages of a scan with this limit, and how many there were.
pub async fn all<'a, T>(limit: u32, scan: impl Fn(u32, Option<Cursor>) -> Fut<'a, Page<T>>) -> Vec<T> {
    let mut items = Vec::new();
    let mut cursor = None;
    loop {
        let page = scan(limit, cursor).await.unwrap();
        assert!(page.items.len() <= limit as usize, "a page above its limit");
        let ended = page.next.is_none();
        assert!(ended || !page.items.is_empty(), "an empty page that is not the last");
        items.extend(page.items);
        assert!(items.len() < 100_000, "the scan does not end");
        cursor = page.next;
        if ended {
            return items;
        }
    }
}

/// The ids of one page of entries, and its cursor.
pub async fn entries(reader: &dyn SessionReader, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> (Vec<i64>, Option<Cursor>) {
    let page = reader.scan_entries(query, limit, cursor).await.unwrap();
    (page.items.iter().map(|entry| entry.id.get()).collect(), page.next)
}
