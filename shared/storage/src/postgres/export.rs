//! A session as lines (`protocol.md` 7).
//!
//! Every row that can change is read in one short transaction and kept as text. What never changes is then read in pages up to that
//! sequence, without a snapshot: one that is held keeps the server from reusing space. Before each page and before the end the session is
//! looked for: a delete ends the lines with an error.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use picofleet_session::storage::{EXPORT_FORMAT, ExportLine, ExportWriter, SessionLine, SessionState, StorageError};
use picofleet_session::{ConversationRecord, DocumentContent, DocumentId, DocumentRecord, EntryRecord, Millis, Seq, SessionId};
use tokio_postgres::{IsolationLevel, Row};

use super::Shared;
use super::read::{Answer, Parameters};
use super::{rows, sql};
use crate::rules::exported;

/// The lines of a page.
const PAGE: i64 = 256;

/// Tasks and submissions by their ids, and the content of documents that keep no history: all that can change.
const TASKS: &str = "SELECT id, record, invocation FROM task_live WHERE session_id = $1 AND NOT gone
    UNION ALL SELECT id, record, invocation FROM task_done WHERE session_id = $1 AND NOT gone ORDER BY id";
const SUBMISSIONS: &str = "SELECT record FROM submission WHERE session_id = $1 ORDER BY id";
const REQUESTS: &str = "SELECT key, digest, answer, at FROM request WHERE session_id = $1 ORDER BY key";
const CONTENTS: &str = "SELECT d.id, c.seq, c.version, c.base, c.body FROM document_record d
    CROSS JOIN LATERAL (SELECT seq, version, base, body FROM document_content WHERE session_id = $1 AND document = d.id
      AND seq >= (SELECT seq FROM document_content WHERE session_id = $1 AND document = d.id AND base ORDER BY seq DESC LIMIT 1)) c
    WHERE d.session_id = $1 AND d.policy < 20 AND d.retired_at IS NULL ORDER BY d.id, c.seq";

/// Where the lines are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// After a conversation.
    Conversations(i64),
    Entries(i64),
    Tasks,
    Submissions,
    Documents,
    /// The next document's content has to be found.
    Contents,
    /// Inside the content of a document, after a sequence.
    Content(DocumentId, i64),
    Requests,
    End,
    Over,
}

struct Lines {
    shared: Arc<Shared>,
    id: SessionId,
    seq: Seq,
    next_id: i64,
    stage: Stage,
    tasks: VecDeque<Row>,
    submissions: VecDeque<Row>,
    documents: Vec<DocumentRecord>,
    /// The documents whose content is still to come.
    left: VecDeque<DocumentRecord>,
    contents: HashMap<i64, Vec<Row>>,
    requests: VecDeque<Row>,
    written: ExportWriter,
    ready: VecDeque<ExportLine>,
}

/// Starts an export.
pub(super) async fn export(shared: Arc<Shared>, id: SessionId) -> Answer<BoxStream<'static, Result<ExportLine, StorageError>>> {
    let lines = Lines::begin(shared, id).await?;
    Ok(stream::unfold(Some(lines), |lines| async {
        let mut lines = lines?;
        while lines.ready.is_empty() {
            if lines.stage == Stage::Over {
                return None;
            }
            if let Err(error) = lines.step().await {
                return Some((Err(error), None));
            }
        }
        let line = lines.ready.pop_front()?;
        Some((Ok(line), Some(lines)))
    })
    .boxed())
}

impl Lines {
    /// Takes every row that can change at one sequence, and makes the session's line.
    async fn begin(shared: Arc<Shared>, id: SessionId) -> Answer<Self> {
        shared.check()?;
        let place = shared.access.place.clone();
        let mut client = shared.bulk.get().await.map_err(|error| place.no_connection("export", error))?;
        let failed = |error| place.failed("export", error);
        let transaction = client.build_transaction().read_only(true).isolation_level(IsolationLevel::RepeatableRead);
        let transaction = transaction.start().await.map_err(failed)?;
        let session = rows::uuid(id);
        let found = transaction.query_opt(sql::SESSION_HEAD, &[&session]).await.map_err(failed)?;
        let found = found.ok_or(StorageError::NotFound { session: id })?;
        let record = rows::sound(&place, "a session", rows::session(&found))?;
        if record.state == SessionState::Deleting {
            return Err(StorageError::NotFound { session: id });
        }
        let head = rows::sound(&place, "the chain of a session", rows::head(&found, 6))?;
        let wake = transaction.query_opt(sql::WAKE, &[&session]).await.map_err(failed)?;
        let wake = wake.map(|row| rows::sound(&place, "a wake time", rows::get(&row, 0))).transpose()?;
        let tasks = transaction.query(TASKS, &[&session]).await.map_err(failed)?;
        let submissions = transaction.query(SUBMISSIONS, &[&session]).await.map_err(failed)?;
        let documents = transaction.query(sql::DOCUMENTS_UP, &[&session]).await.map_err(failed)?;
        let kept = transaction.query(CONTENTS, &[&session]).await.map_err(failed)?;
        let requests = transaction.query(REQUESTS, &[&session]).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        drop(client);
        let mut contents: HashMap<i64, Vec<Row>> = HashMap::new();
        for row in kept {
            contents.entry(rows::sound(&place, "content", rows::get(&row, 0))?).or_default().push(row);
        }
        let documents = documents.iter().map(|row| rows::sound(&place, "a document", rows::document(row, 0)));
        let documents: Vec<DocumentRecord> = documents.filter(|record| record.as_ref().map_or(true, exported)).collect::<Answer<_>>()?;
        let mut lines = Self {
            shared,
            id,
            seq: head.seq,
            next_id: head.next_id,
            stage: Stage::Conversations(0),
            tasks: tasks.into(),
            submissions: submissions.into(),
            left: documents.iter().cloned().collect(),
            documents,
            contents,
            requests: requests.into(),
            written: ExportWriter::default(),
            ready: VecDeque::new(),
        };
        lines.push(ExportLine::Session(SessionLine {
            format: EXPORT_FORMAT,
            id,
            metadata: record.metadata,
            created_at: record.created_at,
            seq: head.seq,
            next_id: head.next_id,
            at: head.at,
            wake: wake.map(Millis),
        }))?;
        Ok(lines)
    }

    fn push(&mut self, line: ExportLine) -> Answer<()> {
        let failed = |why: String| StorageError::failed(format!("export session {}", self.id), std::io::Error::other(why));
        self.written.count(&line).map_err(failed)?;
        self.ready.push_back(line);
        Ok(())
    }

    fn sound<T>(&self, read: rows::Read<T>) -> Answer<T> {
        rows::sound(&self.shared.access.place, "a record", read)
    }

    /// A page, where the session is still there behind it.
    async fn page(&self, sql: &'static str, parameters: Parameters<'_>) -> Answer<Vec<Row>> {
        let place = &self.shared.access.place;
        let client = self.shared.bulk.get().await.map_err(|error| place.no_connection("export", error))?;
        let statement = client.prepare_cached(sql).await.map_err(|error| place.failed("export", error))?;
        let rows = client.query(&statement, parameters).await.map_err(|error| place.failed("export", error))?;
        drop(client);
        self.there().await?;
        Ok(rows)
    }

    async fn there(&self) -> Answer<()> {
        let there = self.shared.read(sql::SESSION_THERE, &[&rows::uuid(self.id)]).await?;
        if there.is_empty() { Err(StorageError::NotFound { session: self.id }) } else { Ok(()) }
    }

    /// The lines of one page.
    async fn step(&mut self) -> Answer<()> {
        let session = rows::uuid(self.id);
        self.stage = match self.stage {
            Stage::Conversations(after) => {
                let found = self.page(sql::CONVERSATIONS, &[&session, &after, &PAGE]).await?;
                let mut last = None;
                for row in &found {
                    let record: ConversationRecord = self.sound(rows::record(row, 0))?;
                    // Later ones are of later commits.
                    if record.id.get() >= self.next_id {
                        last = None;
                        break;
                    }
                    last = Some(record.id.get());
                    self.push(ExportLine::Conversation(record))?;
                }
                last.map_or(Stage::Entries(0), Stage::Conversations)
            }
            Stage::Entries(after) => {
                let found = self.page(sql::ENTRIES_UP, &[&session, &after, &self.next_id, &PAGE]).await?;
                let mut last = None;
                for row in &found {
                    let entry: EntryRecord = self.sound(rows::record(row, 0))?;
                    let seq = Seq(self.sound(rows::get(row, 1))?);
                    last = Some(entry.id.get());
                    self.push(ExportLine::Entry { seq, entry: Box::new(entry) })?;
                }
                last.map_or(Stage::Tasks, Stage::Entries)
            }
            Stage::Content(document, after) => {
                let found = self.page(sql::CONTENT_UP, &[&session, &document.get(), &after, &self.seq.0, &PAGE]).await?;
                let mut last = None;
                for row in &found {
                    last = Some(self.content(document, row, 0)?);
                }
                last.map_or(Stage::Contents, |seq| Stage::Content(document, seq))
            }
            other => self.step_in_memory(other).await?,
        };
        Ok(())
    }

    fn content(&mut self, document: DocumentId, row: &Row, first: usize) -> Answer<i64> {
        let seq: i64 = self.sound(rows::get(row, first))?;
        let content: DocumentContent = self.sound(rows::content(row, first + 1))?;
        self.push(ExportLine::Content { document, seq: Seq(seq), content })?;
        Ok(seq)
    }

    /// Lines of rows that are here.
    async fn step_in_memory(&mut self, stage: Stage) -> Answer<Stage> {
        let next = match stage {
            Stage::Tasks => match self.tasks.pop_front() {
                Some(row) => {
                    let invocation =
                        rows::get::<Option<String>>(&row, 2).and_then(|text| text.map(|text| rows::parse(text.as_bytes())).transpose());
                    let (task, invocation) = (self.sound(rows::record(&row, 1))?, self.sound(invocation)?);
                    self.push(ExportLine::Task { task: Box::new(task), invocation })?;
                    Stage::Tasks
                }
                None => Stage::Submissions,
            },
            Stage::Submissions => match self.submissions.pop_front() {
                Some(row) => {
                    let record = self.sound(rows::record(&row, 0))?;
                    self.push(ExportLine::Submission(Box::new(record)))?;
                    Stage::Submissions
                }
                None => Stage::Documents,
            },
            Stage::Documents => {
                for record in std::mem::take(&mut self.documents) {
                    self.push(ExportLine::Document(record))?;
                }
                Stage::Contents
            }
            Stage::Contents => match self.left.pop_front() {
                Some(record) if record.create.placement.rewindable() => Stage::Content(record.create.id, -1),
                Some(record) => {
                    for row in self.contents.remove(&record.create.id.get()).unwrap_or_default() {
                        self.content(record.create.id, &row, 1)?;
                    }
                    Stage::Contents
                }
                None => Stage::Requests,
            },
            Stage::Requests => match self.requests.pop_front() {
                Some(row) => {
                    let row = self.sound(rows::request(&row))?;
                    self.push(ExportLine::Request(row))?;
                    Stage::Requests
                }
                None => Stage::End,
            },
            Stage::End => {
                self.there().await?;
                self.ready.push_back(std::mem::take(&mut self.written).end());
                Stage::Over
            }
            other => other,
        };
        Ok(next)
    }
}
