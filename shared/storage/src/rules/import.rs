//! Imported lines: what an export may hold (`protocol.md` 7).

mod seen;

use picofleet_delta::{Json, apply};
use picofleet_session::storage::{
    ExportLine, ExportReader, Head, ImportId, ImportTarget, Rejection, SessionLine, SessionRecord, SessionState,
};
use picofleet_session::{
    CommitToken, DocumentContent, DocumentId, DocumentRecord, Epoch, ID_MAX, InvocationRow, ROOT_CONVERSATION_ID, Seq, SessionId,
    TaskRecord,
};

use super::exported;
use crate::tables::{Found, Tables};
use seen::Seen;

/// Takes the lines of an export one by one and writes them. The backend shows nothing of them before [`Import::finish`]. It remembers one
/// bit of each id and the value of one document, however long the export is.
#[derive(Debug, Default)]
pub(crate) struct Import {
    reader: ExportReader,
    line: u64,
    session: Option<SessionLine>,
    ids: Seen,
    last: Last,
    /// Documents whose content did not begin yet.
    empty: u64,
    document: Option<Document>,
    request: Option<String>,
}

/// The newest line of a kind whose lines come in the order of ids.
#[derive(Debug, Default)]
struct Last {
    what: &'static str,
    id: i64,
}

/// The document whose content comes.
#[derive(Debug)]
struct Document {
    record: DocumentRecord,
    newest: Option<Newest>,
}

/// What a document's content came to so far.
#[derive(Debug)]
struct Newest {
    seq: Seq,
    version: u32,
    value: Json,
}

impl Import {
    /// Takes the next line.
    ///
    /// # Errors
    /// [`Rejection::Import`] for a line that is damaged, out of order or contradicts another; what the tables fail with.
    pub(crate) fn take(&mut self, tables: &mut impl Tables, line: &ExportLine) -> Found<()> {
        self.line += 1;
        self.reader.check(line)?;
        match line {
            ExportLine::Session(session) => self.begin(session)?,
            ExportLine::Conversation(record) => {
                self.id("conversation", record.id.get())?;
                tables.put_conversation(record)?;
            }
            ExportLine::Entry { seq, entry } => {
                self.id("entry", entry.id.get())?;
                self.seq(*seq)?;
                tables.put_entry(*seq, entry)?;
            }
            ExportLine::Task { task, invocation } => self.task(tables, task, invocation.as_ref())?,
            ExportLine::Submission(record) => {
                self.id("submission", record.id.get())?;
                let request_id = record.request_id.as_deref();
                let taken = request_id.map(|request_id| tables.request_owner(record.conversation_id, request_id)).transpose()?.flatten();
                self.require(taken.is_none(), "its request ID belongs to another submission")?;
                tables.insert_submission(record)?;
            }
            ExportLine::Document(record) => self.document(tables, record)?,
            ExportLine::Content { document, seq, content } => self.content(tables, *document, *seq, content)?,
            ExportLine::Request(row) => {
                self.require(self.request.as_ref().is_none_or(|last| *last < row.key), "its key is not above the one before")?;
                self.request = Some(row.key.clone());
                tables.put_request(row)?;
            }
            ExportLine::End { .. } => {}
        }
        Ok(())
    }

    /// Checks that all lines were there, and writes the newest commit and the wake time. Gives the session's line.
    ///
    /// # Errors
    /// As [`Import::take`].
    pub(crate) fn finish(mut self, tables: &mut impl Tables) -> Found<SessionLine> {
        self.reader.finish()?;
        if self.empty > 0 {
            return Err(self.bad(format!("{} documents have no content", self.empty)).into());
        }
        let Some(session) = self.session.take() else {
            return Err(self.bad("the session's line is missing".to_owned()).into());
        };
        tables.put_wake(session.wake)?;
        let head =
            Head { seq: session.seq, token: CommitToken::random(), epoch: Epoch(0), next_id: session.next_id, opens: 0, at: session.at };
        tables.put_commit(&head)?;
        Ok(session)
    }

    fn bad(&self, why: String) -> Rejection {
        Rejection::Import { line: self.line, why }
    }

    fn require(&self, holds: bool, why: &str) -> Result<(), Rejection> {
        if holds { Ok(()) } else { Err(self.bad(why.to_owned())) }
    }

    fn begin(&mut self, session: &SessionLine) -> Result<(), Rejection> {
        self.require((Seq(0)..=Seq(ID_MAX)).contains(&session.seq), "its sequence is negative or no commit could follow it")?;
        let ids = ROOT_CONVERSATION_ID.get() + 1..=ID_MAX + 1;
        self.require(ids.contains(&session.next_id), "its next id is out of range")?;
        self.session = Some(session.clone());
        Ok(())
    }

    fn seq(&self, seq: Seq) -> Result<(), Rejection> {
        let newest = self.session.as_ref().map_or(Seq(0), |session| session.seq);
        self.require(seq > Seq(0) && seq <= newest, "its sequence is not one of the session")
    }

    /// A record's id: above the one of the line before, below the next to be minted, of no other record.
    fn id(&mut self, what: &'static str, id: i64) -> Result<(), Rejection> {
        self.require(self.last.what != what || self.last.id < id, "its id is not above the one before")?;
        let below = self.session.as_ref().map_or(0, |session| session.next_id);
        self.require(id < below, "its id was not minted")?;
        self.last = Last { what, id };
        let new = self.ids.insert(id);
        self.require(new, "its id belongs to another record")
    }

    fn task(&mut self, tables: &mut impl Tables, task: &TaskRecord, invocation: Option<&InvocationRow>) -> Found<()> {
        self.id("task", task.id.get())?;
        tables.insert_task(task)?;
        let Some(row) = invocation else { return Ok(()) };
        self.require(row.task_id == task.id, "its invocation is another task's")?;
        tables.put_invocation(row)
    }

    fn document(&mut self, tables: &mut impl Tables, record: &DocumentRecord) -> Found<()> {
        self.id("document", record.create.id.get())?;
        self.seq(record.created_at)?;
        if let Some(retired) = record.retired_at {
            self.seq(retired)?;
            self.require(exported(record), "a retired document without content is not exported")?;
        } else {
            let taken = tables.current(&record.create.address())?;
            self.require(taken.is_none(), "its address has a current incarnation")?;
        }
        self.empty += 1;
        tables.put_document(record)
    }

    fn content(&mut self, tables: &mut impl Tables, id: DocumentId, seq: Seq, content: &DocumentContent) -> Found<()> {
        self.require(self.last.what != "content" || self.last.id <= id.get(), "its document is below the one before")?;
        self.last = Last { what: "content", id: id.get() };
        self.seq(seq)?;
        if self.document.as_ref().is_none_or(|document| document.record.create.id != id) {
            let found = tables.document(id)?.ok_or_else(|| self.bad(format!("there is no document {id}")))?;
            self.document = Some(Document { record: found.record, newest: None });
            self.empty = self.empty.saturating_sub(1);
        }
        let line = self.line;
        let Some(document) = &mut self.document else { return Ok(()) };
        document.take(seq, content).map_err(|why| Rejection::Import { line, why })?;
        tables.put_content(&document.record, seq, content)
    }
}

impl Document {
    /// Takes content that continues what came before: a base first, at the creation where history is kept; then rising sequences, and
    /// deltas of the version that they stand on, which apply.
    fn take(&mut self, seq: Seq, content: &DocumentContent) -> Result<(), String> {
        let continues = || "it does not continue the document's content".to_owned();
        let record = &self.record;
        let inside = record.created_at <= seq && record.retired_at.is_none_or(|retired| seq <= retired);
        let rises = match &self.newest {
            Some(newest) => newest.seq < seq,
            None => !record.create.placement.rewindable() || seq == record.created_at,
        };
        if !inside || !rises {
            return Err(continues());
        }
        let version = content.version();
        let value = match (content, &self.newest) {
            (DocumentContent::Base { value, .. }, _) => value.clone(),
            (DocumentContent::Delta { ops, .. }, Some(newest)) if newest.version == version => {
                apply(Some(&newest.value), ops).map_err(|error| format!("its operations do not apply: {error}"))?
            }
            (DocumentContent::Delta { .. }, _) => return Err(continues()),
        };
        if value.as_object().is_none() {
            return Err("the value of its document is no JSON object".to_owned());
        }
        self.newest = Some(Newest { seq, version, value });
        Ok(())
    }
}

/// The session that an import makes. It keeps the time at which the exported one was made; a key belongs to the exported one alone.
pub(crate) fn imported(target: &ImportTarget, line: SessionLine) -> SessionRecord {
    let id = match target.id {
        ImportId::New => SessionId::random(),
        ImportId::Keep => line.id,
    };
    let tenant = target.tenant.clone();
    SessionRecord { id, tenant, key: None, metadata: line.metadata, state: SessionState::Active, created_at: line.created_at }
}
