//! A session as lines (`protocol.md` 7).
//!
//! An export has one connection of its own that holds a read transaction from the first line to the last. That is the simplest form that
//! is right on SQLite: every line is of one commit without reading anything twice, the writer is not blocked, and memory is bounded by a
//! page, where collecting all that can change first would need memory for every task and every kept delta. The price is the log: it can't
//! begin anew while an old state of it is read. So an export ends with an error when the log has grown too large, see [`Exports::shed`].

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use picofleet_session::storage::{EXPORT_FORMAT, ExportLine, ExportWriter, SessionLine, StorageError};
use picofleet_session::{
    ConversationRecord, DocumentId, DocumentRecord, EntryRecord, InvocationRow, Millis, Seq, SessionId, SubmissionRecord, TaskRecord,
};
use rusqlite::{Connection, Params, Row};

use super::errors::Place;
use super::pool::Pool;
use super::read::{Answer, View, one};
use super::rows::{self, Read};
use super::schema;
use super::sql;
use crate::rules::exported;

/// A page ends when it has this many lines or bytes of text.
const PAGE_LINES: u32 = 256;
const PAGE_BYTES: usize = 1 << 20;

/// How far the log may grow before exports have to end.
const LOG_BYTES_MAX: u64 = 1 << 30;

/// The connection of an export; `None` once it had to end.
type Slot = Mutex<Option<Connection>>;

/// The exports that run.
#[derive(Clone, Debug, Default)]
pub(super) struct Exports(Arc<Mutex<Vec<Weak<Slot>>>>);

impl Exports {
    fn add(&self, connection: Connection) -> Arc<Slot> {
        let slot = Arc::new(Mutex::new(Some(connection)));
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    /// Ends all exports where the log is too large. One that reads a page just now is left to the next time.
    pub(super) fn shed(&self, place: &Place) {
        self.shed_above(place, LOG_BYTES_MAX);
    }

    pub(super) fn shed_above(&self, place: &Place, log_bytes_max: u64) {
        let slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.is_empty() || std::fs::metadata(super::beside(&place.0, "-wal")).is_ok_and(|log| log.len() <= log_bytes_max) {
            return;
        }
        for slot in slots.iter().filter_map(Weak::upgrade) {
            if let Ok(mut slot) = slot.try_lock() {
                slot.take();
            }
        }
    }
}

/// Starts an export.
pub(super) async fn export(
    pool: Arc<Pool>,
    exports: Exports,
    id: SessionId,
) -> Answer<BoxStream<'static, Result<ExportLine, StorageError>>> {
    pool.check()?;
    let place = pool.place().clone();
    let begun = blocking(&place, {
        let place = place.clone();
        move || {
            let connection = schema::reader(&place.0).map_err(|error| place.failed("export", error))?;
            connection.execute_batch("BEGIN").map_err(|error| place.failed("export", error))?;
            let mut lines = Lines::new(place, id);
            lines.begin(&connection)?;
            Ok((connection, lines))
        }
    });
    let (connection, lines) = begun.await?;
    let slot = exports.add(connection);
    let state = Some((pool, slot, lines));
    Ok(stream::unfold(state, |state| async {
        let (pool, slot, mut lines) = state?;
        if lines.ready.is_empty() {
            if lines.stage == Stage::End {
                return None;
            }
            lines = match next_page(&pool, &slot, lines).await {
                Ok(lines) => lines,
                Err(error) => return Some((Err(error), None)),
            };
        }
        let line = lines.ready.pop_front()?;
        Some((Ok(line), Some((pool, slot, lines))))
    })
    .boxed())
}

async fn next_page(pool: &Arc<Pool>, slot: &Arc<Slot>, mut lines: Lines) -> Answer<Lines> {
    let (id, n) = (lines.id, lines.n);
    // The snapshot does not show a delete.
    pool.read(move |connection, place| View::new(connection, place, n, id).map(drop)).await?;
    let (place, slot) = (lines.place.clone(), Arc::clone(slot));
    blocking(&place, move || {
        let connection = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(connection) = connection.as_ref() else {
            let why = "the log grew too large while the session was exported; take the lines faster or export when less is written";
            return Err(StorageError::failed(format!("export session {} of {}", lines.id, lines.place.name()), std::io::Error::other(why)));
        };
        lines.fill(connection)?;
        Ok(lines)
    })
    .await
}

async fn blocking<T: Send + 'static>(place: &Place, work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StorageError::failed(format!("export from {}", place.name()), error)))
}

/// After which row the next page begins.
#[derive(Clone, PartialEq, Debug)]
enum Stage {
    Conversations(i64),
    Entries(i64),
    Tasks(i64),
    Submissions(i64),
    Documents(i64),
    /// After a document: the next one has to be found.
    Contents(i64),
    /// Inside a document.
    Content(i64, i64),
    Requests(Option<String>),
    End,
}

struct Lines {
    place: Place,
    id: SessionId,
    n: i64,
    stage: Stage,
    written: ExportWriter,
    ready: VecDeque<ExportLine>,
    bytes: usize,
}

impl Lines {
    fn new(place: Place, id: SessionId) -> Self {
        let (written, ready) = (ExportWriter::default(), VecDeque::new());
        Self { place, id, n: 0, stage: Stage::Conversations(0), written, ready, bytes: 0 }
    }

    /// The session's line.
    fn begin(&mut self, connection: &Connection) -> Answer<()> {
        let place = self.place.clone();
        let session = one(connection, &place, "a session", sql::SESSION, [self.id.as_bytes()], rows::session)?;
        let session = session.ok_or(StorageError::NotFound { session: self.id })?;
        self.n = session.n;
        let head = View::new(connection, &place, session.n, self.id)?.head()?;
        let wake = one(connection, &place, "a wake time", sql::WAKE, [self.id.as_bytes()], |row| Ok(Ok(Millis(row.get(0)?))))?;
        self.push(ExportLine::Session(SessionLine {
            format: EXPORT_FORMAT,
            id: self.id,
            metadata: session.record.metadata,
            created_at: session.record.created_at,
            seq: head.seq,
            next_id: head.next_id,
            at: head.at,
            wake,
        }))
    }

    fn push(&mut self, line: ExportLine) -> Answer<()> {
        let failed = |why: String| StorageError::failed(format!("export session {}", self.id), std::io::Error::other(why));
        self.written.count(&line).map_err(failed)?;
        self.ready.push_back(line);
        Ok(())
    }

    fn full(&self) -> bool {
        self.ready.len() >= PAGE_LINES as usize || self.bytes >= PAGE_BYTES
    }

    /// Reads until a page is full.
    fn fill(&mut self, connection: &Connection) -> Answer<()> {
        self.bytes = 0;
        while !self.full() && self.stage != Stage::End {
            self.stage = self.step(connection)?;
        }
        Ok(())
    }

    /// Reads one range of rows, and says where it goes on.
    fn step(&mut self, connection: &Connection) -> Answer<Stage> {
        let n = self.n;
        let next = match self.stage.clone() {
            Stage::Conversations(after) => {
                let last = self.rows(connection, sql::CONVERSATIONS, (n, after, PAGE_LINES), |row| {
                    let record: Result<ConversationRecord, _> = rows::record(row, 0)?;
                    Ok(record.map(|record| (record.id.get(), Some(ExportLine::Conversation(record)))))
                })?;
                last.map_or(Stage::Entries(0), Stage::Conversations)
            }
            Stage::Entries(after) => {
                let last = self.rows(connection, sql::ENTRIES_UP, (n, after, PAGE_LINES), |row| {
                    let seq = Seq(row.get(1)?);
                    let entry: Result<EntryRecord, _> = rows::record(row, 0)?;
                    Ok(entry.map(|entry| (entry.id.get(), Some(ExportLine::Entry { seq, entry: Box::new(entry) }))))
                })?;
                last.map_or(Stage::Tasks(0), Stage::Entries)
            }
            Stage::Tasks(after) => {
                let last = self.rows(connection, sql::TASKS_UP, (n, after, PAGE_LINES), task)?;
                last.map_or(Stage::Submissions(0), Stage::Tasks)
            }
            Stage::Submissions(after) => {
                let params = (n, after, PAGE_LINES, None::<i64>, None::<i64>);
                let last = self.rows(connection, sql::SUBMISSIONS, params, |row| {
                    let record: Result<SubmissionRecord, _> = rows::record(row, 0)?;
                    Ok(record.map(|record| (record.id.get(), Some(ExportLine::Submission(Box::new(record))))))
                })?;
                last.map_or(Stage::Documents(0), Stage::Submissions)
            }
            Stage::Documents(after) => {
                let last = self.rows(connection, sql::DOCUMENTS_UP, (n, after, PAGE_LINES), |row| {
                    let record = rows::document(row)?;
                    Ok(record.map(|record| (record.create.id.get(), exported(&record).then_some(ExportLine::Document(record)))))
                })?;
                last.map_or(Stage::Contents(0), Stage::Documents)
            }
            rest => self.step_after_documents(connection, rest)?,
        };
        Ok(next)
    }

    fn step_after_documents(&mut self, connection: &Connection, stage: Stage) -> Answer<Stage> {
        let n = self.n;
        let next = match stage {
            Stage::Contents(after) => self.next_document(connection, after)?,
            Stage::Content(document, after) => {
                let last = self.rows(connection, sql::CONTENT_UP, (n, document, after, PAGE_LINES), |row| {
                    let seq: i64 = row.get(0)?;
                    let id = DocumentId::new(document).map_err(|error| error.to_string());
                    let content = rows::content(row, 1)?;
                    Ok(id.and_then(|document| Ok((seq, Some(ExportLine::Content { document, seq: Seq(seq), content: content? })))))
                })?;
                last.map_or(Stage::Contents(document), |seq| Stage::Content(document, seq))
            }
            Stage::Requests(after) => {
                let read = |row: &Row<'_>| Ok(rows::request(row)?.map(|request| (request.key.clone(), Some(ExportLine::Request(request)))));
                let last = match after {
                    None => self.rows(connection, sql::REQUESTS_FIRST, (n, PAGE_LINES), read)?,
                    Some(after) => self.rows(connection, sql::REQUESTS_UP, (n, after, PAGE_LINES), read)?,
                };
                match last {
                    Some(key) => Stage::Requests(Some(key)),
                    None => {
                        self.ready.push_back(std::mem::take(&mut self.written).end());
                        Stage::End
                    }
                }
            }
            other => other,
        };
        Ok(next)
    }

    /// Takes rows until the page is full, and gives the key of the last one; `None` where there was none.
    fn rows<K>(
        &mut self,
        connection: &Connection,
        sql: &str,
        params: impl Params,
        mut read: impl FnMut(&Row<'_>) -> Read<(K, Option<ExportLine>)>,
    ) -> Answer<Option<K>> {
        let place = self.place.clone();
        let failed = |error| place.failed("export", error);
        let mut statement = connection.prepare_cached(sql).map_err(failed)?;
        let columns = statement.column_count();
        let mut rows = statement.query(params).map_err(failed)?;
        let mut last = None;
        while let Some(row) = rows.next().map_err(failed)? {
            let bytes = (0..columns).filter_map(|column| row.get_ref(column).ok()?.as_bytes().ok().map(<[u8]>::len)).sum::<usize>();
            let (key, line) = rows::sound(&place, "a record", read(row))?;
            if let Some(line) = line {
                self.push(line)?;
            }
            last = Some(key);
            self.bytes += bytes;
            if self.full() {
                break;
            }
        }
        Ok(last)
    }

    /// The first document after `after` that has content which can still be read. What is only not removed yet is left out.
    fn next_document(&self, connection: &Connection, after: i64) -> Answer<Stage> {
        let place = &self.place;
        let mut after = after;
        loop {
            let next: Option<DocumentRecord> = one(connection, place, "a document", sql::DOCUMENTS_UP, (self.n, after, 1), rows::document)?;
            let Some(record) = next else { return Ok(Stage::Requests(None)) };
            after = record.create.id.get();
            if !exported(&record) {
                continue;
            }
            let from = if record.create.placement.rewindable() {
                None
            } else {
                one(connection, place, "content", sql::CONTENT_BASE, (self.n, after), |row| Ok(Ok(row.get::<_, i64>(0)?)))?
            };
            return Ok(Stage::Content(after, from.map_or(-1, |seq| seq - 1)));
        }
    }
}

fn task(row: &Row<'_>) -> Read<(i64, Option<ExportLine>)> {
    let invocation: Option<String> = row.get(1)?;
    let invocation: Result<Option<InvocationRow>, _> = invocation.map(|text| rows::parse(text.as_bytes())).transpose();
    let task: Result<TaskRecord, _> = rows::record(row, 0)?;
    Ok(task.and_then(|task| Ok((task.id.get(), Some(ExportLine::Task { task: Box::new(task), invocation: invocation? })))))
}
