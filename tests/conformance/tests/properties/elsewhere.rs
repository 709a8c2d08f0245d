//! A transaction that runs elsewhere, on what a held line shows, and is replayed on it.

use std::sync::{Arc, Mutex};

use picofleet_conformance::World;
use picofleet_conformance::documents::Failure;
use picofleet_session::storage::{
    Batch, CommitHandle, ConversationQuery, Cursor, DocumentQuery, EntryQuery, Fut, Head, Page, RequestRow, SessionReader, SessionStore,
    SubmissionQuery, TaskQuery, Write,
};
use picofleet_session::{
    Clock, CommitError, ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord,
    InvocationRow, Json, Millis, Point, Seq, Session, SessionId, SessionOptions, StoredDocument, SubmissionId, SubmissionRecord, TaskId,
    TaskRecord, Tx,
};

/// Reads of the real storage; the commit stays here.
struct Recorder {
    store: Arc<dyn SessionStore>,
    head: Head,
    written: Mutex<Vec<Write>>,
}

impl SessionReader for Recorder {
    fn id(&self) -> SessionId {
        self.store.id()
    }

    fn head(&self) -> Fut<'_, Head> {
        Box::pin(async { Ok(self.head) })
    }

    fn conversation(&self, id: ConversationId) -> Fut<'_, Option<ConversationRecord>> {
        self.store.conversation(id)
    }

    fn scan_conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<ConversationRecord>> {
        self.store.scan_conversations(query, limit, cursor)
    }

    fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Fut<'_, Option<(EntryRecord, Seq)>> {
        self.store.entry(visible_in, id)
    }

    fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<EntryRecord>> {
        self.store.scan_entries(query, limit, cursor)
    }

    fn latest_head_marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Fut<'_, Option<EntryRecord>> {
        self.store.latest_head_marker(conversation, at)
    }

    fn task(&self, id: TaskId) -> Fut<'_, Option<TaskRecord>> {
        self.store.task(id)
    }

    fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<TaskRecord>> {
        self.store.scan_tasks(query, limit, cursor)
    }

    fn invocation(&self, task: TaskId) -> Fut<'_, Option<InvocationRow>> {
        self.store.invocation(task)
    }

    fn submission(&self, id: SubmissionId) -> Fut<'_, Option<SubmissionRecord>> {
        self.store.submission(id)
    }

    fn submission_by_request(&self, conversation: ConversationId, request_id: String) -> Fut<'_, Option<SubmissionRecord>> {
        self.store.submission_by_request(conversation, request_id)
    }

    fn scan_submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SubmissionRecord>> {
        self.store.scan_submissions(query, limit, cursor)
    }

    fn find_document(&self, address: DocumentAddress, at: Point) -> Fut<'_, Option<DocumentRecord>> {
        self.store.find_document(address, at)
    }

    fn document(&self, id: DocumentId, at: Point) -> Fut<'_, Option<StoredDocument>> {
        self.store.document(id, at)
    }

    fn scan_documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<DocumentRecord>> {
        self.store.scan_documents(query, limit, cursor)
    }

    fn request(&self, key: String) -> Fut<'_, Option<RequestRow>> {
        self.store.request(key)
    }

    fn wake(&self) -> Fut<'_, Option<Millis>> {
        self.store.wake()
    }
}

impl SessionStore for Recorder {
    fn commit(&self, batch: Batch) -> CommitHandle {
        *self.written.lock().unwrap() = batch.commits.into_iter().next().unwrap().writes;
        let (answer, handle) = CommitHandle::channel();
        answer.send(Ok(self.head)).unwrap();
        handle
    }

    fn opened(&self) -> Head {
        self.head
    }

    fn release(&self) -> Fut<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}

/// Runs a transaction elsewhere and replays it. Its writes are encoded on the way. One that fails uses its ids up all the same.
pub(crate) async fn commit(world: &World, change: impl AsyncFnOnce(&Tx) -> Result<(), Failure>) -> Result<(), Failure> {
    let line = world.session.clone();
    line.commit(async |tx| {
        let head = Head { next_id: tx.next_id(), ..line.store().head().await.unwrap() };
        let recorder = Arc::new(Recorder { store: Arc::clone(line.store()), head, written: Mutex::default() });
        let options = SessionOptions { clock: Clock::manual(tx.now()), ..SessionOptions::default() };
        let elsewhere = Session::over(Arc::clone(&recorder) as Arc<dyn SessionStore>, options);
        let mut next_id = head.next_id;
        let result = elsewhere
            .commit(async |tx| {
                let result = change(tx).await;
                next_id = tx.next_id();
                result
            })
            .await;
        let writes = std::mem::take(&mut *recorder.written.lock().unwrap());
        let encoded = Json::from_serde_envelope(&writes).unwrap().to_vec();
        let decoded: Vec<Write> = Json::parse_envelope(&encoded).unwrap().to().unwrap();
        assert_eq!(decoded, writes);
        tx.replay(decoded, next_id).await.map_err(CommitError::from)?;
        result
    })
    .await
}
