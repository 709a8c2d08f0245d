//! Reads of one session in one snapshot.

use picofleet_session::storage::{
    ConversationQuery, Cursor, DocumentQuery, EntryQuery, Head, Page, SessionState, StorageError, SubmissionQuery, TaskFilter, TaskQuery,
};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, Id, Point, Seq, SessionId,
    StoredDocument, SubmissionId, SubmissionRecord, SubmissionStatus, TaskId, TaskRecord, TaskStatus,
};
use rusqlite::{Connection, OptionalExtension as _, Params, Row};
use serde::de::DeserializeOwned;

use super::errors::Place;
use super::rows::{self, Read};
use super::sql;
use super::tables::replay;
use crate::rules::{Segment, ancestry, page, page_size, read_cursor, readable, visible};

pub(super) type Answer<T> = Result<T, StorageError>;

/// One session in a snapshot.
pub(super) struct View<'c> {
    pub(super) connection: &'c Connection,
    pub(super) place: &'c Place,
    pub(super) n: i64,
}

impl<'c> View<'c> {
    /// # Errors
    /// [`StorageError::NotFound`] for a session that is gone or being deleted.
    pub(super) fn new(connection: &'c Connection, place: &'c Place, n: i64, id: SessionId) -> Answer<Self> {
        let view = Self { connection, place, n };
        let state: Option<i64> = view.one("a session", sql::SESSION_IS, [n], |row| row.get(0).map(Ok))?;
        let gone = state.is_none_or(|state| state >= rows::state_number(SessionState::Deleting));
        if gone { Err(StorageError::NotFound { session: id }) } else { Ok(view) }
    }

    pub(super) fn one<T>(&self, what: &str, sql: &str, params: impl Params, read: impl FnOnce(&Row<'_>) -> Read<T>) -> Answer<Option<T>> {
        one(self.connection, self.place, what, sql, params, read)
    }

    fn record<T: DeserializeOwned>(&self, what: &str, sql: &str, params: impl Params) -> Answer<Option<T>> {
        self.one(what, sql, params, |row| rows::record(row, 0))
    }

    fn records<T: DeserializeOwned>(&self, what: &str, sql: &str, params: impl Params) -> Answer<Vec<T>> {
        all(self.connection, self.place, what, sql, params, |row| rows::record(row, 0))
    }

    pub(super) fn head(&self) -> Answer<Head> {
        let head = self.one("a commit", sql::HEAD, [self.n], rows::head)?;
        head.ok_or_else(|| self.place.corrupt("a session", "it has no commit").into())
    }

    pub(super) fn conversation(&self, id: ConversationId) -> Answer<Option<ConversationRecord>> {
        self.record("a conversation", sql::CONVERSATION, (self.n, id.get()))
    }

    pub(super) fn conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<ConversationRecord>> {
        let after = after::<ConversationId>("conversations", cursor)?;
        let (conversation, task) = (number(query.owner_conversation_id), number(query.owner_task_id));
        let (n, limited) = (self.n, one_more(limit));
        let what = "a conversation";
        let records = match (conversation, task) {
            (None, None) => self.records(what, sql::CONVERSATIONS, (n, after, limited)),
            (Some(_), None) => self.records(what, sql::CONVERSATIONS_OF_CONVERSATION, (n, after, limited, conversation)),
            (_, Some(_)) => self.records(what, sql::CONVERSATIONS_OF_TASK, (n, after, limited, conversation, task)),
        }?;
        paged("conversations", limit, records, |record: &ConversationRecord| record.id)
    }

    fn segments(&self, conversation: ConversationId) -> Answer<Vec<Segment>> {
        ancestry(conversation, |id| self.conversation(id))
    }

    pub(super) fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Answer<Option<(EntryRecord, Seq)>> {
        let segments = visible_in.map(|conversation| self.segments(conversation)).transpose()?;
        let found = self.one("an entry", sql::ENTRY, (self.n, id.get()), |row| {
            let seq = Seq(row.get(1)?);
            Ok(rows::record::<EntryRecord>(row, 0)?.map(|entry| (entry, seq)))
        })?;
        Ok(found.filter(|(entry, _)| segments.is_none_or(|segments| visible(&segments, entry.conversation_id, id))))
    }

    pub(super) fn entries(&self, query: EntryQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<EntryRecord>> {
        let before: Option<EntryId> = read_cursor("entries", cursor)?;
        let before = before.map_or(i64::MAX, |before| before.get() - 1);
        let (min, wanted) = (number(query.min_entry_id).unwrap_or(0), one_more(limit));
        let mut entries: Vec<EntryRecord> = Vec::new();
        for segment in self.segments(query.conversation_id)? {
            let left = wanted.saturating_sub(u32::try_from(entries.len()).unwrap_or(u32::MAX));
            if left == 0 {
                break;
            }
            let newest = upper(segment.cap, query.max_entry_id).min(before);
            let params = (self.n, segment.conversation.get(), newest, min, left);
            entries.extend(self.records::<EntryRecord>("an entry", sql::ENTRIES_DOWN, params)?);
        }
        paged("entries", limit, entries, |entry: &EntryRecord| entry.id)
    }

    pub(super) fn marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Answer<Option<EntryRecord>> {
        for segment in self.segments(conversation)? {
            let params = (self.n, segment.conversation.get(), upper(segment.cap, at));
            if let Some(entry) = self.record("an entry", sql::ENTRY_MARKER, params)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    pub(super) fn task(&self, id: TaskId) -> Answer<Option<TaskRecord>> {
        self.record("a task", sql::TASK, (self.n, id.get()))
    }

    pub(super) fn tasks(&self, query: &TaskQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<TaskRecord>> {
        let after = after::<TaskId>("tasks", cursor)?;
        let (status, live) = match query.status {
            None => (None, None),
            Some(TaskFilter::Live) => (None, Some(true)),
            Some(TaskFilter::Status(status)) => (Some(rows::task_status(status)), Some(status != TaskStatus::Terminal)),
        };
        // The path that has the fewest rows to pass over.
        let sql = match query {
            TaskQuery { owner_task_id: Some(_), .. } => sql::TASKS_OF_OWNER,
            _ if live == Some(true) => sql::TASKS_LIVE,
            TaskQuery { conversation_id: Some(_), .. } => sql::TASKS_OF_CONVERSATION,
            TaskQuery { kind: Some(_), .. } => sql::TASKS_OF_KIND,
            _ => sql::TASKS,
        };
        let (conversation, owner) = (number(query.conversation_id), number(query.owner_task_id));
        let (kind, abort, background) = (&query.kind, query.abort_requested, query.background);
        let (n, limited) = (self.n, one_more(limit));
        let records = if live == Some(true) && owner.is_none() {
            self.records("a task", sql, (n, after, limited, conversation, owner, kind, status, abort, background))
        } else {
            self.records("a task", sql, (n, after, limited, conversation, owner, kind, status, abort, background, live))
        }?;
        paged("tasks", limit, records, |task: &TaskRecord| task.id)
    }

    pub(super) fn submission(&self, id: SubmissionId) -> Answer<Option<SubmissionRecord>> {
        self.record("a submission", sql::SUBMISSION, (self.n, id.get()))
    }

    pub(super) fn submission_by_request(&self, conversation: ConversationId, request_id: &str) -> Answer<Option<SubmissionRecord>> {
        self.record("a submission", sql::SUBMISSION_BY_REQUEST, (self.n, conversation.get(), request_id))
    }

    pub(super) fn submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<SubmissionRecord>> {
        let after = after::<SubmissionId>("submissions", cursor)?;
        let sql = match (query.status, query.conversation_id) {
            (Some(SubmissionStatus::Queued | SubmissionStatus::Placed), _) => sql::SUBMISSIONS_OPEN,
            (_, Some(_)) => sql::SUBMISSIONS_OF_CONVERSATION,
            (_, None) => sql::SUBMISSIONS,
        };
        let params = (self.n, after, one_more(limit), number(query.conversation_id), query.status.map(rows::submission_status));
        let records = self.records("a submission", sql, params)?;
        paged("submissions", limit, records, |submission: &SubmissionRecord| submission.id)
    }

    pub(super) fn find_document(&self, address: &DocumentAddress, at: Point) -> Answer<Option<DocumentRecord>> {
        let (scope, scope_id) = rows::scope_columns(address.scope);
        let params = (self.n, scope, scope_id, &address.kind, rows::name(address.key.as_deref()), newest(at));
        let record = self.one("a document", sql::DOCUMENT_AT, params, rows::document)?;
        Ok(record.filter(|record| record.alive(at)))
    }

    pub(super) fn document(&self, id: DocumentId, at: Point) -> Answer<Option<StoredDocument>> {
        let record = self.one("a document", sql::DOCUMENT, (self.n, id.get()), rows::document)?;
        let Some(record) = record else { return Ok(None) };
        if !readable(&record, at)? {
            return Ok(None);
        }
        replay(self.connection, self.place, self.n, id, at)?.document(record).map(Some)
    }

    pub(super) fn documents(&self, query: &DocumentQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<DocumentRecord>> {
        let after = after::<DocumentId>("documents", cursor)?;
        let (scope, scope_id) = rows::scope_columns(query.scope);
        let params = (self.n, scope, scope_id, after, newest(query.at), &query.kind, one_more(limit));
        let read = |sql| all(self.connection, self.place, "a document", sql, params, rows::document);
        let mut records = read(sql::DOCUMENTS)?;
        if let Point::At(_) = query.at {
            // Both lists are the least ids of their kind, so the least of both are in them.
            records.extend(read(sql::DOCUMENTS_PAST)?);
            records.sort_by_key(|record| record.create.id);
        }
        paged("documents", limit, records, |record: &DocumentRecord| record.create.id)
    }
}

pub(super) fn one<T>(
    connection: &Connection,
    place: &Place,
    what: &str,
    sql: &str,
    params: impl Params,
    read: impl FnOnce(&Row<'_>) -> Read<T>,
) -> Answer<Option<T>> {
    let row = connection.prepare_cached(sql).and_then(|mut statement| statement.query_row(params, read).optional());
    match row {
        Ok(row) => row.transpose().map_err(|why| place.corrupt(what, why).into()),
        Err(error) => Err(place.failed("read", error)),
    }
}

pub(super) fn all<T>(
    connection: &Connection,
    place: &Place,
    what: &str,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Read<T>,
) -> Answer<Vec<T>> {
    let failed = |error| place.failed("read", error);
    let mut statement = connection.prepare_cached(sql).map_err(failed)?;
    let rows = statement.query_map(params, read).map_err(failed)?;
    rows.map(|row| rows::sound(place, what, row)).collect()
}

/// A page with the item that tells whether there are more.
pub(super) fn one_more(limit: u32) -> u32 {
    u32::try_from(page_size(limit)).unwrap_or(u32::MAX - 1) + 1
}

pub(super) fn paged<T, K: crate::rules::CursorKey>(
    scan: &'static str,
    limit: u32,
    items: Vec<T>,
    key: impl Fn(&T) -> K,
) -> Answer<Page<T>> {
    page(scan, limit, items.into_iter().map(Ok), key)
}

fn after<I: crate::rules::CursorKey + Into<Number>>(scan: &'static str, cursor: Option<&Cursor>) -> Answer<i64> {
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

fn newest(at: Point) -> i64 {
    match at {
        Point::Current => i64::MAX,
        Point::At(seq) => seq.0,
    }
}

/// The newest id that both bounds allow.
fn upper(cap: Option<EntryId>, max: Option<EntryId>) -> i64 {
    [cap, max].into_iter().flatten().map(Id::get).min().unwrap_or(i64::MAX)
}
