//! What the child does, and the same on memory.

use std::sync::Arc;

use futures::StreamExt as _;
use picofleet_delta::Json;
use picofleet_session::storage::{
    Batch, Commit, ExportLine, Fence, Head, OutboxRow, RequestRow, SessionCreate, SessionReader, SessionStore, Store, Write,
};
use picofleet_session::{CommitToken, Epoch, InvocationId, InvocationRow, Millis, Placement, SessionId, TaskState};
use picofleet_storage::conformance::records::{
    completed, conversation, create_as, create_of, entry_record, fork, input, json, latest, pending, put_submission, put_task, rebase,
    retire, rewindable, set, sid, task, tid,
};
use picofleet_storage::memory::MemoryStore;

/// The sessions; their batches are sent at the same time, so that groups have several units.
pub(crate) const SESSIONS: usize = 2;

pub(crate) const NOW: Millis = Millis(1_700_000_000_000);

/// The documents, the task, and the submission; entries have the ids after them.
const SESSION_DOCUMENT: i64 = 2;
const HISTORY: i64 = 3;
const TASK: i64 = 4;
const TASK_DOCUMENT: i64 = 5;
const SUBMISSION: i64 = 6;
const SECOND: i64 = 7;
const FIRST_ENTRY: i64 = 8;

pub(crate) fn session(number: usize) -> SessionId {
    SessionId::from_key("crash", &number.to_string())
}

pub(crate) fn creation(number: usize) -> SessionCreate {
    SessionCreate { id: session(number), key: Some(number.to_string()), ..SessionCreate::new(NOW) }
}

pub(crate) fn fence() -> Fence {
    Fence { epoch: Epoch(1), at: NOW }
}

/// The commits of one batch: the next id and the writes of each.
type Commits = Vec<(i64, Vec<Write>)>;

/// The batches of a session. The last ones are only sent after a crash.
pub(crate) fn batches() -> Vec<Commits> {
    let mut batches = vec![vec![(FIRST_ENTRY, first())]];
    for n in 1..12 {
        let id = FIRST_ENTRY - 1 + n;
        batches.push(vec![(id + 1, step(n, id))]);
    }
    let id = FIRST_ENTRY + 11;
    batches.push(vec![(id + 1, step(12, id)), (id + 2, step(13, id + 1)), (id + 3, vec![fork(id + 2, 1, id)])]);
    batches.push(vec![(id + 4, step(14, id + 3))]);
    batches
}

/// How many batches the child sends.
pub(crate) fn sent() -> usize {
    batches().len() - 1
}

fn first() -> Vec<Write> {
    let creates = [
        (SESSION_DOCUMENT, Placement::Session),
        (HISTORY, rewindable(1)),
        (TASK_DOCUMENT, Placement::Task { id: tid(TASK) }),
        (SECOND, latest(1)),
    ];
    let creates = creates.map(|(id, placement)| create_as(create_of(id, &format!("kind {id}"), None, placement), r#"{"n":0}"#));
    let records = [conversation(1), put_task(&task(TASK, pending())), put_submission(&input(SUBMISSION, 1, Some("once")))];
    records.into_iter().chain(creates).collect()
}

fn step(n: i64, id: i64) -> Vec<Write> {
    // One record that needs many pages.
    let length = if n == 7 { 30_000 } else { 50 };
    let mut entry = entry_record(id, 1);
    entry.data = Some(Json::object([("text", Json::from("e".repeat(length))), ("n", Json::from(n))]));
    entry.head = (n == 5).then_some(entry.id);
    let state = if n < 10 { pending() } else { TaskState::Terminal { outcome: completed() } };
    let mut record = task(TASK, state);
    record.restarts = u32::try_from(n).unwrap();
    let invocation = InvocationRow {
        task_id: tid(TASK),
        invocation: InvocationId::from_bits(u128::try_from(n).unwrap()),
        number: 1,
        digest: None,
        answer: Some(json(r#"{"step":"continue"}"#)),
    };
    let request = RequestRow { key: format!("key {n}"), digest: "d".to_owned(), answer: Json::from(n), at: NOW };
    let mut writes = vec![
        Write::Entry(Arc::new(entry)),
        put_task(&record),
        Write::Invocation(Box::new(invocation)),
        Write::Request(Box::new(request)),
        Write::Wake(Some(Millis(NOW.0 + n))),
        set(HISTORY, "n", &n.to_string()),
    ];
    writes.push(if n % 3 == 0 {
        rebase(1, SESSION_DOCUMENT, &format!(r#"{{"base":{n}}}"#))
    } else {
        set(SESSION_DOCUMENT, "n", &n.to_string())
    });
    match n {
        4 => writes.push(Write::Outbox(Box::new(OutboxRow { submission_id: sid(SUBMISSION), body: json(r#"{"done":true}"#) }))),
        6 => writes.push(retire(SECOND)),
        10 => writes.push(retire(TASK_DOCUMENT)),
        n if n < 10 => writes.push(set(TASK_DOCUMENT, "n", &n.to_string())),
        _ => {}
    }
    writes
}

/// A batch on top of `head`.
pub(crate) fn batch(head: &Head, index: usize) -> Batch {
    let commits = batches().swap_remove(index).into_iter();
    let commits = commits.map(|(next_id, writes)| Commit { token: CommitToken::random(), at: NOW, next_id, writes }).collect();
    Batch { expect: (head.seq, head.token), commits }
}

/// A session on memory that follows one on SQLite.
pub(crate) struct Model {
    store: MemoryStore,
    line: Option<Arc<dyn SessionStore>>,
    id: SessionId,
    pub(crate) head: Head,
    /// How many batches it has.
    pub(crate) batches: usize,
}

impl Model {
    pub(crate) async fn new(number: usize) -> Self {
        let store = MemoryStore::new();
        let id = session(number);
        store.create(creation(number)).await.unwrap();
        let head = store.reader(id).await.unwrap().head().await.unwrap();
        Self { store, line: None, id, head, batches: 0 }
    }

    /// Opens until the fence has this sequence: an open whose answer was lost may have left one of its own.
    pub(crate) async fn open(&mut self, seq: i64) {
        while self.head.seq.0 < seq {
            self.store.set_quarantined(self.id, false).await.unwrap();
            let line = self.store.open(self.id, fence()).await.unwrap();
            self.head = line.opened();
            self.line = Some(line);
        }
        assert_eq!(self.head.seq.0, seq, "the sequences of fences follow each other");
    }

    pub(crate) async fn commit(&mut self, index: usize) {
        assert_eq!(index, self.batches, "batches follow each other");
        let line = self.line.as_ref().expect("an open session");
        self.head = line.commit(batch(&self.head, index)).await.unwrap();
        self.batches += 1;
    }

    pub(crate) async fn lines(&self) -> Vec<ExportLine> {
        lines(&self.store, self.id).await
    }

    pub(crate) async fn reader(&self) -> Arc<dyn SessionReader> {
        self.store.reader(self.id).await.unwrap()
    }
}

/// All that a session holds.
pub(crate) async fn lines(store: &dyn Store, id: SessionId) -> Vec<ExportLine> {
    let lines = store.export(id).await.unwrap();
    lines.map(|line| line.unwrap()).collect().await
}
