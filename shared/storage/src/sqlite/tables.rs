//! One SQL transaction of the writer, and the rows of a session in it.

use std::borrow::Cow;

use picofleet_delta::Json;
use picofleet_session::storage::{Head, OutboxRow, RequestRow, StorageError};
use picofleet_session::{
    CommitToken, ConversationId, ConversationRecord, DocumentAddress, DocumentContent, DocumentId, DocumentRecord, EntryRecord,
    InvocationRow, Millis, PartitionCount, Point, Seq, SessionId, SubmissionId, SubmissionRecord, SubmissionState, TaskId, TaskRecord,
};
use rusqlite::{Connection, OptionalExtension as _, Params, Row};
use serde::Serialize;

use super::errors::Place;
use super::rows::{self, Read, Session};
use super::sql;
use super::texts::Texts;
use crate::rules::Replay;
use crate::tables::{DocumentState, Found, SubmissionIdentity, Tables, TaskIdentity};

/// A row that tells whether the transaction that wrote it landed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mark {
    /// That of a commit.
    Commit { session: i64, seq: Seq, token: [u8; 16] },
    /// A number, for a transaction without a commit.
    Number(i64),
}

impl Mark {
    /// Whether it is in the file as the connection sees it.
    pub(super) fn landed(self, connection: &Connection) -> rusqlite::Result<bool> {
        match self {
            Self::Commit { session, seq, token } => connection.prepare_cached(sql::COMMIT_IS)?.exists((session, seq.0, token)),
            Self::Number(number) => connection.prepare_cached(sql::MARK_IS)?.exists([number]),
        }
    }
}

/// An open transaction.
pub(super) struct Tx<'c> {
    pub(super) connection: &'c Connection,
    pub(super) place: &'c Place,
    pub(super) partitions: PartitionCount,
    /// The commits that the transaction has so far.
    pub(super) marks: Vec<Mark>,
    /// Content became unnecessary.
    pub(super) reclaimable: bool,
    /// The wake time of a session that has no id yet.
    pub(super) wake: Option<Millis>,
}

impl<'c> Tx<'c> {
    pub(super) fn new(connection: &'c Connection, place: &'c Place, partitions: PartitionCount) -> Self {
        Self { connection, place, partitions, marks: Vec::new(), reclaimable: false, wake: None }
    }

    fn fault(&self, error: rusqlite::Error) -> StorageError {
        self.place.rejected("write", error)
    }

    /// Runs a statement that changes rows, and gives how many.
    pub(super) fn run(&mut self, sql: &str, params: impl Params) -> Found<usize> {
        let result = self.connection.prepare_cached(sql).and_then(|mut statement| statement.execute(params));
        result.map_err(|error| self.fault(error))
    }

    /// The transaction's mark, which is written where no commit left one.
    pub(super) fn mark(&self) -> rusqlite::Result<Mark> {
        if let Some(mark) = self.marks.first() {
            return Ok(*mark);
        }
        // Some bits of a random number, so that it stays one when the next ones add to it.
        let number = i64::try_from(CommitToken::random().bits() & 0xffff_ffff_ffff).unwrap_or_default();
        self.connection.prepare_cached(sql::MARK)?.execute([number])?;
        Ok(Mark::Number(number))
    }

    /// The first row of a query.
    pub(super) fn one<T>(
        &mut self,
        what: &str,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> Read<T>,
    ) -> Found<Option<T>> {
        let result = self.connection.prepare_cached(sql).and_then(|mut statement| statement.query_row(params, read).optional());
        match result {
            Ok(row) => row.transpose().map_err(|why| self.place.corrupt(what, why).into()),
            Err(error) => Err(self.fault(error)),
        }
    }

    /// All rows of a query; its text has a limit.
    pub(super) fn all<T>(&mut self, sql: &str, params: impl Params, read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>) -> Found<Vec<T>> {
        let result = self.connection.prepare_cached(sql).and_then(|mut statement| statement.query_map(params, read)?.collect());
        result.map_err(|error| self.fault(error))
    }

    /// A session that is listed, also one that is being deleted.
    pub(super) fn session(&mut self, id: SessionId) -> Found<Option<Session>> {
        self.one("a session", sql::SESSION, [id.as_bytes()], rows::session)
    }

    /// The newest commit of a session.
    pub(super) fn head(&mut self, session: i64) -> Found<Option<Head>> {
        self.one("a commit", sql::HEAD, [session], rows::head)
    }

    /// The rows of a session; one that is imported has no id yet.
    pub(super) fn rows(&mut self, n: i64, id: Option<SessionId>) -> SessionRows<'_, 'c> {
        SessionRows { tx: self, n, id, texts: None }
    }
}

/// The rows of one session in a transaction.
pub(super) struct SessionRows<'t, 'c> {
    tx: &'t mut Tx<'c>,
    n: i64,
    id: Option<SessionId>,
    texts: Option<&'t Texts>,
}

impl<'t> SessionRows<'t, '_> {
    /// With texts that were made before.
    pub(super) fn with(mut self, texts: &'t Texts) -> Self {
        self.texts = Some(texts);
        self
    }

    fn text<T: Serialize>(&self, record: &T) -> Found<Cow<'t, str>> {
        match self.texts.and_then(|texts| texts.get(record)) {
            Some(text) => Ok(Cow::Borrowed(text)),
            None => rows::text(record).map(Cow::Owned),
        }
    }

    /// The text of the value in a row.
    fn json<T>(&self, row: &T, value: &Json) -> Cow<'t, str> {
        let made = self.texts.and_then(|texts| texts.get(row));
        made.map_or_else(|| Cow::Owned(value.to_string()), Cow::Borrowed)
    }

    fn there(&mut self, sql: &str, id: i64) -> Found<bool> {
        Ok(self.tx.one("a record", sql, (self.n, id), |_| Ok(Ok(())))?.is_some())
    }

    fn reclaim(&mut self, id: DocumentId, below: i64) -> Found<()> {
        self.tx.reclaimable = true;
        self.tx.run(sql::RECLAIM_PUT, (self.n, id.get(), below)).map(drop)
    }
}

impl Tables for SessionRows<'_, '_> {
    fn owner(&mut self, id: i64) -> Found<Option<&'static str>> {
        let owners = [
            (sql::CONVERSATION, "conversation"),
            (sql::ENTRY_IS, "entry"),
            (sql::TASK_IDENTITY, "task"),
            (sql::SUBMISSION_IDENTITY, "submission"),
            (sql::DOCUMENT, "document"),
        ];
        for (sql, owner) in owners {
            if self.there(sql, id)? {
                return Ok(Some(owner));
            }
        }
        Ok(None)
    }

    fn task(&mut self, id: TaskId) -> Found<Option<TaskIdentity>> {
        self.tx.one("a task", sql::TASK_IDENTITY, (self.n, id.get()), |row| {
            let conversation_id = rows::id(row, 0)?;
            let owner = row.get::<_, Option<i64>>(1)?.map(TaskId::new).transpose();
            let kind = row.get(2)?;
            Ok(conversation_id.and_then(|conversation_id| {
                let owner = owner.map_err(|error| error.to_string())?;
                Ok(TaskIdentity { conversation_id, owner, kind })
            }))
        })
    }

    fn submission(&mut self, id: SubmissionId) -> Found<Option<SubmissionIdentity>> {
        self.tx.one("a submission", sql::SUBMISSION_IDENTITY, (self.n, id.get()), |row| {
            let (request_id, input) = (row.get(1)?, row.get(2)?);
            Ok(rows::id(row, 0)?.map(|conversation_id| SubmissionIdentity { conversation_id, request_id, input }))
        })
    }

    fn request_owner(&mut self, conversation: ConversationId, request_id: &str) -> Found<Option<SubmissionId>> {
        let params = (self.n, conversation.get(), request_id);
        self.tx.one("a submission", sql::SUBMISSION_BY_REQUEST, params, |row| rows::id(row, 1))
    }

    fn document(&mut self, id: DocumentId) -> Found<Option<DocumentState>> {
        self.tx.one("a document", sql::DOCUMENT_STATE, (self.n, id.get()), |row| {
            let version = row.get(8)?;
            Ok(rows::document(row)?.map(|record| DocumentState { record, version }))
        })
    }

    fn current(&mut self, address: &DocumentAddress) -> Found<Option<DocumentId>> {
        let (scope, scope_id) = rows::scope_columns(address.scope);
        let params = (self.n, scope, scope_id, &address.kind, rows::name(address.key.as_deref()), i64::MAX);
        let newest = self.tx.one("a document", sql::DOCUMENT_AT, params, rows::document)?;
        Ok(newest.filter(|record| record.alive(Point::Current)).map(|record| record.create.id))
    }

    fn replay(&mut self, id: DocumentId, at: Point) -> Found<Replay> {
        replay(self.tx.connection, self.tx.place, self.n, id, at)
    }

    fn put_commit(&mut self, head: &Head) -> Found<()> {
        let token = rows::token(head.token);
        let params = (self.n, head.seq.0, token, head.epoch.0, head.next_id, head.opens, head.at.0);
        self.tx.run(sql::COMMIT_INSERT, params)?;
        self.tx.marks.push(Mark::Commit { session: self.n, seq: head.seq, token });
        Ok(())
    }

    fn put_conversation(&mut self, record: &ConversationRecord) -> Found<()> {
        let (conversation, task) = (record.owner.map(|o| o.conversation_id.get()), record.owner.map(|o| o.task_id.get()));
        let params = (self.n, record.id.get(), conversation, task, self.text(record)?);
        self.tx.run(sql::CONVERSATION_INSERT, params).map(drop)
    }

    fn put_entry(&mut self, seq: Seq, entry: &EntryRecord) -> Found<()> {
        let head = entry.head.map(picofleet_session::Id::get);
        let params = (self.n, entry.id.get(), entry.conversation_id.get(), seq.0, head, self.text(entry)?);
        self.tx.run(sql::ENTRY_INSERT, params).map(drop)
    }

    fn insert_task(&mut self, record: &TaskRecord) -> Found<()> {
        let params = (
            self.n,
            record.id.get(),
            record.conversation_id.get(),
            record.owner.map(picofleet_session::Id::get),
            &record.kind,
            rows::task_status(record.status()),
            !record.terminal(),
            record.abort_requested,
            record.background,
            self.text(record)?,
        );
        self.tx.run(sql::TASK_INSERT, params).map(drop)
    }

    fn replace_task(&mut self, record: &TaskRecord) -> Found<()> {
        let status = rows::task_status(record.status());
        let (live, text) = (!record.terminal(), self.text(record)?);
        let params = (self.n, record.id.get(), status, live, record.abort_requested, record.background, &text);
        if self.tx.run(sql::TASK_REPLACE, params)? == 0 {
            self.tx.run(sql::TASK_TURN, params)?;
        }
        Ok(())
    }

    fn put_invocation(&mut self, row: &InvocationRow) -> Found<()> {
        self.tx.run(sql::TASK_SET_INVOCATION, (self.n, row.task_id.get(), self.text(row)?)).map(drop)
    }

    fn insert_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        let input = matches!(record.state, SubmissionState::Input(_));
        let (conversation, status) = (record.conversation_id.get(), rows::submission_status(record.status()));
        let (open, text) = (!record.settled(), self.text(record)?);
        let params = (self.n, record.id.get(), conversation, &record.request_id, input, status, open, text);
        self.tx.run(sql::SUBMISSION_INSERT, params).map(drop)
    }

    fn replace_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        let status = rows::submission_status(record.status());
        let (open, text) = (!record.settled(), self.text(record)?);
        let params = (self.n, record.id.get(), status, open, &text);
        if self.tx.run(sql::SUBMISSION_REPLACE, params)? == 0 {
            self.tx.run(sql::SUBMISSION_TURN, params)?;
        }
        Ok(())
    }

    fn put_document(&mut self, record: &DocumentRecord) -> Found<()> {
        let (kind, name, scope, scope_id, policy, created_at, retired_at) = rows::document_columns(record);
        let params = (self.n, record.create.id.get(), kind, name, scope, scope_id, policy, created_at, retired_at);
        self.tx.run(sql::DOCUMENT_INSERT, params).map(drop)
    }

    fn put_content(&mut self, record: &DocumentRecord, seq: Seq, content: &DocumentContent) -> Found<()> {
        let id = record.create.id;
        let base = matches!(content, DocumentContent::Base { .. });
        let body = match self.texts.and_then(|texts| texts.content(record, seq, content)) {
            Some(text) => Cow::Borrowed(text),
            None => Cow::Owned(rows::body(content)),
        };
        self.tx.run(sql::CONTENT_INSERT, (self.n, id.get(), seq.0, content.version(), base, &*body))?;
        if base && !record.create.placement.rewindable() && record.created_at < seq {
            self.reclaim(id, seq.0)?;
        }
        Ok(())
    }

    fn retire(&mut self, record: &DocumentRecord, seq: Seq) -> Found<()> {
        let id = record.create.id;
        self.tx.run(sql::DOCUMENT_RETIRE, (self.n, id.get(), seq.0))?;
        if !record.create.placement.rewindable() {
            self.reclaim(id, i64::MAX)?;
        }
        Ok(())
    }

    fn put_request(&mut self, row: &RequestRow) -> Found<()> {
        let params = (self.n, &row.key, &row.digest, self.json(row, &row.answer), row.at.0);
        self.tx.run(sql::REQUEST_PUT, params).map(drop)
    }

    fn put_outbox(&mut self, row: &OutboxRow) -> Found<()> {
        // Exports hold no notices, so only a session that has its id gets one.
        let Some(id) = self.id else { return Ok(()) };
        let params = (id.as_bytes(), row.submission_id.get(), self.json(row, &row.body));
        self.tx.run(sql::OUTBOX_PUT, params).map(drop)
    }

    fn put_wake(&mut self, at: Option<Millis>) -> Found<()> {
        let Some(id) = self.id else {
            self.tx.wake = at;
            return Ok(());
        };
        let result = match at {
            Some(at) => self.tx.run(sql::WAKE_PUT, (id.as_bytes(), id.partition(self.tx.partitions), at.0)),
            None => self.tx.run(sql::WAKE_DROP, [id.as_bytes()]),
        };
        result.map(drop)
    }
}

/// The newest base at or before `at` and the deltas after it: one walk down the document's rows that ends at the base.
pub(super) fn replay(connection: &Connection, place: &Place, n: i64, id: DocumentId, at: Point) -> Found<Replay> {
    let newest = match at {
        Point::Current => i64::MAX,
        Point::At(seq) => seq.0,
    };
    let failed = |error| place.failed("read a document", error);
    let mut statement = connection.prepare_cached(sql::CONTENT_DOWN).map_err(failed)?;
    let contents = statement.query_map((n, id.get(), newest), |row| rows::content(row, 0)).map_err(failed)?;
    Replay::newest_first(contents.map(|content| rows::sound(place, "the content of a document", content)))
}
