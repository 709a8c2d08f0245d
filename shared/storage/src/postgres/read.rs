//! Reads of one session. Each is followed by the question whether the session is still there, in the same round trip: what was read before
//! a yes was not being removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::storage::{
    ConversationQuery, Cursor, DocumentQuery, EntryQuery, Fut, Head, Page, RequestRow, SessionReader, StorageError, SubmissionQuery,
    TaskFilter, TaskQuery,
};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, Id, InvocationRow, Millis,
    Point, Seq, SessionId, StoredDocument, SubmissionId, SubmissionRecord, SubmissionStatus, TaskId, TaskRecord, TaskStatus,
};
use serde::de::DeserializeOwned;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Shared;
use super::load::newest;
use super::rows::{self, Read};
use super::sql;
use crate::rules::{CursorKey, Replay, Segment, ancestry, page, page_size, read_cursor, readable, visible};

pub(super) type Answer<T> = Result<T, StorageError>;

/// Parameters of a statement.
pub(super) type Parameters<'p> = &'p [&'p (dyn ToSql + Sync)];

/// A session that is read. That of a line ends with it.
pub(super) struct Reader {
    pub(super) shared: Arc<Shared>,
    pub(super) id: SessionId,
    pub(super) released: AtomicBool,
}

impl Reader {
    pub(super) fn new(shared: Arc<Shared>, id: SessionId) -> Self {
        Self { shared, id, released: AtomicBool::new(false) }
    }

    pub(super) fn check(&self) -> Answer<()> {
        if self.released.load(Ordering::SeqCst) { Err(StorageError::Closed) } else { self.shared.check() }
    }

    async fn rows(&self, sql: &'static str, parameters: Parameters<'_>) -> Answer<Vec<Row>> {
        self.check()?;
        let place = &self.shared.access.place;
        let client = self.shared.reads.get().await.map_err(|error| place.no_connection("read", error))?;
        let failed = |error| place.failed("read", error);
        let statement = client.prepare_cached(sql).await.map_err(failed)?;
        let there = client.prepare_cached(sql::SESSION_THERE).await.map_err(failed)?;
        let id = rows::uuid(self.id);
        let (rows, there) =
            futures::try_join!(client.query(&statement, parameters), async { client.query_opt(&there, &[&id]).await }).map_err(failed)?;
        there.map(|_| rows).ok_or(StorageError::NotFound { session: self.id })
    }

    async fn all<T>(&self, what: &str, sql: &'static str, parameters: Parameters<'_>, read: impl Fn(&Row) -> Read<T>) -> Answer<Vec<T>> {
        let rows = self.rows(sql, parameters).await?;
        rows.iter().map(|row| rows::sound(&self.shared.access.place, what, read(row))).collect()
    }

    async fn one<T>(&self, what: &str, sql: &'static str, parameters: Parameters<'_>, read: impl Fn(&Row) -> Read<T>) -> Answer<Option<T>> {
        let rows = self.rows(sql, parameters).await?;
        rows.first().map(|row| rows::sound(&self.shared.access.place, what, read(row))).transpose()
    }

    async fn record<T: DeserializeOwned>(&self, what: &str, sql: &'static str, parameters: Parameters<'_>) -> Answer<Option<T>> {
        self.one(what, sql, parameters, |row| rows::record(row, 0)).await
    }

    async fn records<T: DeserializeOwned>(&self, what: &str, sql: &'static str, parameters: Parameters<'_>) -> Answer<Vec<T>> {
        self.all(what, sql, parameters, |row| rows::record(row, 0)).await
    }

    async fn segments(&self, conversation: ConversationId) -> Answer<Vec<Segment>> {
        let records: Vec<ConversationRecord> =
            self.records("a conversation", sql::ANCESTRY, &[&rows::uuid(self.id), &conversation.get()]).await?;
        let by_id: HashMap<ConversationId, ConversationRecord> = records.into_iter().map(|record| (record.id, record)).collect();
        ancestry(conversation, |id| Ok(by_id.get(&id).cloned()))
    }

    async fn conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Answer<Page<ConversationRecord>> {
        let after = after::<ConversationId>("conversations", cursor.as_ref())?;
        let (conversation, task) = (number(query.owner_conversation_id), number(query.owner_task_id));
        let (id, limited, what) = (rows::uuid(self.id), one_more(limit), "a conversation");
        let records = match (conversation, task) {
            (None, None) => self.records(what, sql::CONVERSATIONS, &[&id, &after, &limited]).await,
            (Some(_), None) => self.records(what, sql::CONVERSATIONS_OF_CONVERSATION, &[&id, &after, &limited, &conversation]).await,
            (_, Some(_)) => self.records(what, sql::CONVERSATIONS_OF_TASK, &[&id, &after, &limited, &conversation, &task]).await,
        }?;
        paged("conversations", limit, records, |record: &ConversationRecord| record.id)
    }

    async fn entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Answer<Page<EntryRecord>> {
        let before: Option<EntryId> = read_cursor("entries", cursor.as_ref())?;
        let before = before.map_or(i64::MAX, |before| before.get() - 1);
        let (min, wanted) = (number(query.min_entry_id).unwrap_or(0), one_more(limit));
        let mut entries: Vec<EntryRecord> = Vec::new();
        for segment in self.segments(query.conversation_id).await? {
            let left = wanted - i64::try_from(entries.len()).unwrap_or(wanted);
            if left <= 0 {
                break;
            }
            let newest = upper(segment.cap, query.max_entry_id).min(before);
            let id = rows::uuid(self.id);
            let parameters: Parameters<'_> = &[&id, &segment.conversation.get(), &newest, &min, &left];
            entries.extend(self.records::<EntryRecord>("an entry", sql::ENTRIES_DOWN, parameters).await?);
        }
        paged("entries", limit, entries, |entry: &EntryRecord| entry.id)
    }

    async fn marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Answer<Option<EntryRecord>> {
        for segment in self.segments(conversation).await? {
            let (id, newest) = (rows::uuid(self.id), upper(segment.cap, at));
            let parameters: Parameters<'_> = &[&id, &segment.conversation.get(), &newest];
            if let Some(entry) = self.record("an entry", sql::ENTRY_MARKER, parameters).await? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    async fn tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Answer<Page<TaskRecord>> {
        let after = after::<TaskId>("tasks", cursor.as_ref())?;
        let (status, live, done) = match query.status {
            None => (None, true, true),
            Some(TaskFilter::Live) => (None, true, false),
            Some(TaskFilter::Status(status)) => {
                (Some(rows::task_status(status)), status != TaskStatus::Terminal, status == TaskStatus::Terminal)
            }
        };
        // The path that has the fewest rows to pass over.
        let sql = match query {
            TaskQuery { owner_task_id: Some(_), .. } => sql::TASKS_OF_OWNER,
            TaskQuery { conversation_id: Some(_), .. } => sql::TASKS_OF_CONVERSATION,
            TaskQuery { kind: Some(_), .. } => sql::TASKS_OF_KIND,
            _ => sql::TASKS,
        };
        let kind = query.kind.as_deref().map(rows::escape);
        let kind = kind.as_deref();
        let (conversation, owner) = (number(query.conversation_id), number(query.owner_task_id));
        let (id, limited, abort, background) = (rows::uuid(self.id), one_more(limit), query.abort_requested, query.background);
        let parameters: Parameters<'_> = &[&id, &after, &limited, &conversation, &owner, &kind, &status, &abort, &background, &live, &done];
        paged("tasks", limit, self.records("a task", sql, parameters).await?, |task: &TaskRecord| task.id)
    }

    async fn submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Answer<Page<SubmissionRecord>> {
        let after = after::<SubmissionId>("submissions", cursor.as_ref())?;
        let sql = match (query.status, query.conversation_id) {
            (Some(SubmissionStatus::Queued | SubmissionStatus::Placed), _) => sql::SUBMISSIONS_OPEN,
            (_, Some(_)) => sql::SUBMISSIONS_OF_CONVERSATION,
            (_, None) => sql::SUBMISSIONS,
        };
        let (id, limited) = (rows::uuid(self.id), one_more(limit));
        let (conversation, status) = (number(query.conversation_id), query.status.map(rows::submission_status));
        let records = self.records("a submission", sql, &[&id, &after, &limited, &conversation, &status]).await?;
        paged("submissions", limit, records, |submission: &SubmissionRecord| submission.id)
    }

    async fn stored(&self, id: DocumentId, at: Point) -> Answer<Option<StoredDocument>> {
        let found = self.rows(sql::DOCUMENT, &[&rows::uuid(self.id), &id.get(), &newest(at)]).await?;
        let place = &self.shared.access.place;
        let Some(first) = found.first() else { return Ok(None) };
        let record = rows::sound(place, "a document", rows::document(first, 0))?;
        if !readable(&record, at)? {
            return Ok(None);
        }
        // Without content the one row has none.
        let contents = found.iter().filter(|row| rows::get::<Option<i64>>(row, 8).is_ok_and(|seq| seq.is_some()));
        let replay = Replay::newest_first(contents.map(|row| rows::content(row, 9)));
        rows::sound(place, "the content of a document", replay)?.document(record).map(Some)
    }

    async fn documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Answer<Page<DocumentRecord>> {
        let after = after::<DocumentId>("documents", cursor.as_ref())?;
        let (scope, scope_id) = rows::scope_columns(query.scope);
        let kind = query.kind.as_deref().map(rows::escape);
        let kind = kind.as_deref();
        let (id, until, limited) = (rows::uuid(self.id), newest(query.at), one_more(limit));
        let sql = if query.at == Point::Current { sql::DOCUMENTS } else { sql::DOCUMENTS_AT };
        let parameters: Parameters<'_> = &[&id, &scope, &scope_id, &after, &until, &kind, &limited];
        let records = self.all("a document", sql, parameters, |row| rows::document(row, 0)).await?;
        paged("documents", limit, records, |record: &DocumentRecord| record.create.id)
    }
}

impl SessionReader for Reader {
    fn id(&self) -> SessionId {
        self.id
    }

    fn head(&self) -> Fut<'_, Head> {
        Box::pin(async {
            let head = self.one("a commit", sql::HEAD, &[&rows::uuid(self.id)], |row| rows::head(row, 0)).await?;
            head.ok_or_else(|| self.shared.access.place.corrupt(format!("session {}", self.id), "it has no commit").into())
        })
    }

    fn conversation(&self, id: ConversationId) -> Fut<'_, Option<ConversationRecord>> {
        Box::pin(async move { self.record("a conversation", sql::CONVERSATION, &[&rows::uuid(self.id), &id.get()]).await })
    }

    fn scan_conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<ConversationRecord>> {
        Box::pin(self.conversations(query, limit, cursor))
    }

    fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Fut<'_, Option<(EntryRecord, Seq)>> {
        Box::pin(async move {
            let segments = match visible_in {
                Some(conversation) => Some(self.segments(conversation).await?),
                None => None,
            };
            let parameters: Parameters<'_> = &[&rows::uuid(self.id), &id.get()];
            let read = |row: &Row| Ok((rows::record::<EntryRecord>(row, 0)?, Seq(rows::get(row, 1)?)));
            let found = self.one("an entry", sql::ENTRY, parameters, read).await?;
            Ok(found.filter(|(entry, _)| segments.is_none_or(|segments| visible(&segments, entry.conversation_id, id))))
        })
    }

    fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<EntryRecord>> {
        Box::pin(self.entries(query, limit, cursor))
    }

    fn latest_head_marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Fut<'_, Option<EntryRecord>> {
        Box::pin(self.marker(conversation, at))
    }

    fn task(&self, id: TaskId) -> Fut<'_, Option<TaskRecord>> {
        Box::pin(async move { self.record("a task", sql::TASK, &[&rows::uuid(self.id), &id.get()]).await })
    }

    fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<TaskRecord>> {
        Box::pin(self.tasks(query, limit, cursor))
    }

    fn invocation(&self, task: TaskId) -> Fut<'_, Option<InvocationRow>> {
        Box::pin(async move {
            let read = |row: &Row| rows::get::<Option<String>>(row, 0)?.map(|text| rows::parse(text.as_bytes())).transpose();
            let row = self.one("an invocation", sql::TASK_INVOCATION, &[&rows::uuid(self.id), &task.get()], read).await?;
            Ok(row.flatten())
        })
    }

    fn submission(&self, id: SubmissionId) -> Fut<'_, Option<SubmissionRecord>> {
        Box::pin(async move { self.record("a submission", sql::SUBMISSION, &[&rows::uuid(self.id), &id.get()]).await })
    }

    fn submission_by_request(&self, conversation: ConversationId, request_id: String) -> Fut<'_, Option<SubmissionRecord>> {
        Box::pin(async move {
            let request = rows::indexable(&request_id);
            self.record("a submission", sql::SUBMISSION_BY_REQUEST, &[&rows::uuid(self.id), &conversation.get(), &request]).await
        })
    }

    fn scan_submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SubmissionRecord>> {
        Box::pin(self.submissions(query, limit, cursor))
    }

    fn find_document(&self, address: DocumentAddress, at: Point) -> Fut<'_, Option<DocumentRecord>> {
        Box::pin(async move {
            let (scope, scope_id) = rows::scope_columns(address.scope);
            let place = rows::address(&address.kind, &rows::name(address.key.as_deref()));
            let parameters: Parameters<'_> = &[&rows::uuid(self.id), &scope, &scope_id, &place, &newest(at)];
            let record = self.one("a document", sql::DOCUMENT_AT, parameters, |row| rows::document(row, 0)).await?;
            Ok(record.filter(|record| record.alive(at)))
        })
    }

    fn document(&self, id: DocumentId, at: Point) -> Fut<'_, Option<StoredDocument>> {
        Box::pin(self.stored(id, at))
    }

    fn scan_documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<DocumentRecord>> {
        Box::pin(self.documents(query, limit, cursor))
    }

    fn request(&self, key: String) -> Fut<'_, Option<RequestRow>> {
        Box::pin(async move {
            let name = rows::indexable(&key);
            self.one("a request", sql::REQUEST, &[&rows::uuid(self.id), &name], rows::request).await
        })
    }

    fn wake(&self) -> Fut<'_, Option<Millis>> {
        Box::pin(async { self.one("a wake time", sql::WAKE, &[&rows::uuid(self.id)], |row| Ok(Millis(rows::get(row, 0)?))).await })
    }
}

/// A page with the item that tells whether there are more.
pub(super) fn one_more(limit: u32) -> i64 {
    i64::try_from(page_size(limit)).unwrap_or(i64::MAX - 1) + 1
}

pub(super) fn paged<T, K: CursorKey>(scan: &'static str, limit: u32, items: Vec<T>, key: impl Fn(&T) -> K) -> Answer<Page<T>> {
    page(scan, limit, items.into_iter().map(Ok), key)
}

fn after<I: CursorKey + Into<Number>>(scan: &'static str, cursor: Option<&Cursor>) -> Answer<i64> {
    Ok(read_cursor::<I>(scan, cursor)?.map_or(0, |id| id.into().0))
}

/// The number of an id of any kind.
struct Number(i64);

impl<K: ?Sized> From<Id<K>> for Number {
    fn from(id: Id<K>) -> Self {
        Self(id.get())
    }
}

fn number<K: ?Sized>(id: Option<Id<K>>) -> Option<i64> {
    id.map(Id::get)
}

/// The newest id that both bounds allow.
fn upper(cap: Option<EntryId>, max: Option<EntryId>) -> i64 {
    [cap, max].into_iter().flatten().map(Id::get).min().unwrap_or(i64::MAX)
}
