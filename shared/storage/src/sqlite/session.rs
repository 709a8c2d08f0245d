//! Readers and the lines of open sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::storage::{
    Batch, CommitHandle, CommitOutcome, ConversationQuery, Cursor, DocumentQuery, EntryQuery, Fut, Head, Page, Rejection, RequestRow,
    SessionReader, SessionStore, StorageError, SubmissionQuery, TaskQuery,
};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, InvocationRow, Millis, Point,
    Seq, SessionId, StoredDocument, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};
use tokio::sync::{oneshot, watch};

use super::pool::Pool;
use super::read::{Answer, View};
use super::rows;
use super::sql;
use super::tables::Tx;
use super::texts::Texts;
use super::writer::{Queue, Unit};
use crate::reading::ReadThrough;
use crate::rules::apply_batch;
use crate::tables::Found;

/// A session that is read. That of a line ends with it.
pub(super) struct Reader {
    pub(super) pool: Arc<Pool>,
    pub(super) id: SessionId,
    pub(super) n: i64,
    released: AtomicBool,
}

impl Reader {
    pub(super) fn new(pool: Arc<Pool>, id: SessionId, n: i64) -> Self {
        Self { pool, id, n, released: AtomicBool::new(false) }
    }

    fn check(&self) -> Answer<()> {
        if self.released.load(Ordering::SeqCst) { Err(StorageError::Closed) } else { self.pool.check() }
    }

    fn read<T: Send + 'static>(&self, read: impl FnOnce(View<'_>) -> Answer<T> + Send + 'static) -> Fut<'_, T> {
        let (id, n) = (self.id, self.n);
        Box::pin(async move {
            self.check()?;
            self.pool.read(move |connection, place| read(View::new(connection, place, n, id)?)).await
        })
    }
}

impl SessionReader for Reader {
    fn id(&self) -> SessionId {
        self.id
    }

    fn head(&self) -> Fut<'_, Head> {
        self.read(|view| view.head())
    }

    fn conversation(&self, id: ConversationId) -> Fut<'_, Option<ConversationRecord>> {
        self.read(move |view| view.conversation(id))
    }

    fn scan_conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<ConversationRecord>> {
        self.read(move |view| view.conversations(query, limit, cursor.as_ref()))
    }

    fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Fut<'_, Option<(EntryRecord, Seq)>> {
        self.read(move |view| view.entry(visible_in, id))
    }

    fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<EntryRecord>> {
        self.read(move |view| view.entries(query, limit, cursor.as_ref()))
    }

    fn latest_head_marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Fut<'_, Option<EntryRecord>> {
        self.read(move |view| view.marker(conversation, at))
    }

    fn task(&self, id: TaskId) -> Fut<'_, Option<TaskRecord>> {
        self.read(move |view| view.task(id))
    }

    fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<TaskRecord>> {
        self.read(move |view| view.tasks(&query, limit, cursor.as_ref()))
    }

    fn invocation(&self, task: TaskId) -> Fut<'_, Option<InvocationRow>> {
        self.read(move |view| {
            let row = view.one("an invocation", sql::TASK_INVOCATION, (view.n, task.get()), |row| {
                let text: Option<String> = row.get(0)?;
                Ok(text.map(|text| rows::parse(text.as_bytes())).transpose())
            });
            row.map(Option::flatten)
        })
    }

    fn submission(&self, id: SubmissionId) -> Fut<'_, Option<SubmissionRecord>> {
        self.read(move |view| view.submission(id))
    }

    fn submission_by_request(&self, conversation: ConversationId, request_id: String) -> Fut<'_, Option<SubmissionRecord>> {
        self.read(move |view| view.submission_by_request(conversation, &request_id))
    }

    fn scan_submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SubmissionRecord>> {
        self.read(move |view| view.submissions(query, limit, cursor.as_ref()))
    }

    fn find_document(&self, address: DocumentAddress, at: Point) -> Fut<'_, Option<DocumentRecord>> {
        self.read(move |view| view.find_document(&address, at))
    }

    fn document(&self, id: DocumentId, at: Point) -> Fut<'_, Option<StoredDocument>> {
        self.read(move |view| view.document(id, at))
    }

    fn scan_documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<DocumentRecord>> {
        self.read(move |view| view.documents(&query, limit, cursor.as_ref()))
    }

    fn request(&self, key: String) -> Fut<'_, Option<RequestRow>> {
        self.read(move |view| view.one("a request", sql::REQUEST, (view.n, &key), rows::request))
    }

    fn wake(&self) -> Fut<'_, Option<Millis>> {
        let id = self.id;
        self.read(move |view| view.one("a wake time", sql::WAKE, [id.as_bytes()], |row| Ok(Ok(Millis(row.get(0)?)))))
    }
}

/// The line of an open session.
pub(super) struct Line {
    reader: Reader,
    queue: Queue,
    opened: Head,
    /// Whether a batch is in flight.
    busy: Arc<watch::Sender<bool>>,
}

impl Line {
    pub(super) fn new(reader: Reader, queue: Queue, opened: Head) -> Self {
        Self { reader, queue, opened, busy: Arc::new(watch::Sender::new(false)) }
    }
}

impl ReadThrough for Line {
    fn target(&self) -> &dyn SessionReader {
        &self.reader
    }
}

crate::read_through!(Line);

impl SessionStore for Line {
    fn commit(&self, batch: Batch) -> CommitHandle {
        if let Err(error) = self.reader.check() {
            return CommitHandle::refused(error);
        }
        if self.busy.send_replace(true) {
            return CommitHandle::refused(Rejection::InFlight.into());
        }
        let busy = Busy(Arc::clone(&self.busy));
        // The texts name their records by place: the batch stays in this box.
        let batch = Box::new(batch);
        let texts = match Texts::of(&batch) {
            Ok(texts) => texts,
            Err(error) => return CommitHandle::refused(error),
        };
        let (answer, handle) = CommitHandle::channel();
        let (id, n) = (self.reader.id, self.reader.n);
        self.queue.send(Box::new(Commit { id, n, batch, texts, busy, head: None, answer }));
        handle
    }

    fn opened(&self) -> Head {
        self.opened
    }

    fn release(&self) -> Fut<'_, ()> {
        Box::pin(async {
            self.reader.released.store(true, Ordering::SeqCst);
            // The sender lives in this line, so waiting can't fail.
            let _ = self.busy.subscribe().wait_for(|busy| !busy).await;
            Ok(())
        })
    }
}

/// A batch in flight, until it is dropped, whatever happens to it.
struct Busy(Arc<watch::Sender<bool>>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_replace(false);
    }
}

struct Commit {
    id: SessionId,
    n: i64,
    batch: Box<Batch>,
    texts: Texts,
    busy: Busy,
    head: Option<Head>,
    answer: oneshot::Sender<CommitOutcome>,
}

impl Unit for Commit {
    fn run(&mut self, tx: &mut Tx<'_>) -> Found<()> {
        // A session whose rows are gone was deleted, which fenced it.
        let head = tx.head(self.n)?.ok_or(StorageError::Fenced { session: self.id })?;
        let mut rows = tx.rows(self.n, Some(self.id)).with(&self.texts);
        self.head = Some(apply_batch(&mut rows, self.id, &head, &self.batch)?);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.texts.bytes()
    }

    fn settle(self: Box<Self>, outcome: Result<(), StorageError>) {
        let Self { busy, head, answer, .. } = *self;
        // Whoever gets the answer may send the next batch at once.
        drop(busy);
        // The caller may have gone.
        let _ = answer.send(outcome.and_then(|()| head.ok_or_else(StorageError::lost)));
    }
}
