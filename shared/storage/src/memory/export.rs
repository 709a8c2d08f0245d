//! Export of a snapshot and import into rows that nobody sees yet (`protocol.md` 7).

use std::ops::Bound;
use std::sync::Arc;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use picofleet_session::storage::{EXPORT_FORMAT, ExportLine, ExportWriter, ImportTarget, SessionLine, SessionRecord, StorageError};
use picofleet_session::{DocumentId, DocumentRecord, Millis, Seq, SessionId};

use super::rows::{Rows, above};
use super::state::Shared;
use crate::rules::{Import, exported, genesis, imported};

/// The lines of a snapshot, made one by one.
pub(crate) struct Lines {
    rows: Rows,
    place: Place,
    written: ExportWriter,
}

/// The line before the next one.
#[derive(Clone, Debug)]
enum Place {
    Start(Box<SessionRecord>),
    Conversation(i64),
    Entry(i64),
    Task(i64),
    Submission(i64),
    Document(i64),
    Content(i64, i64),
    Request(Option<String>),
    End,
}

/// The lines of a session.
pub(crate) fn lines(record: SessionRecord, rows: Rows) -> Lines {
    Lines { rows, place: Place::Start(Box::new(record)), written: ExportWriter::default() }
}

/// Sends the lines as long as the session is there.
pub(crate) fn stream(shared: Arc<Shared>, id: SessionId, lines: Lines) -> BoxStream<'static, Result<ExportLine, StorageError>> {
    stream::unfold(Some(lines), move |lines| {
        let shared = Arc::clone(&shared);
        async move {
            let mut lines = lines?;
            if let Err(error) = shared.open_state().and_then(|state| state.session(id).map(|_| ())) {
                return Some((Err(error), None));
            }
            match lines.next()? {
                Ok(line) => Some((Ok(line), Some(lines))),
                Err(error) => Some((Err(error), None)),
            }
        }
    })
    .boxed()
}

impl Lines {
    pub(crate) fn next(&mut self) -> Option<Result<ExportLine, StorageError>> {
        if matches!(self.place, Place::End) {
            return None;
        }
        let Some(line) = self.record() else {
            self.place = Place::End;
            return Some(Ok(std::mem::take(&mut self.written).end()));
        };
        let written = self.written.count(&line);
        Some(written.map(|()| line).map_err(|why| StorageError::failed("export", std::io::Error::other(why))))
    }

    /// The next line before the last one.
    fn record(&mut self) -> Option<ExportLine> {
        let rows = &self.rows;
        loop {
            let (line, place) = match &self.place {
                Place::Start(record) => (Some(session_line(record, rows)), Place::Conversation(0)),
                Place::Conversation(after) => match above(&rows.conversations, *after).next() {
                    Some((id, record)) => (Some(ExportLine::Conversation(record.clone())), Place::Conversation(id)),
                    None => (None, Place::Entry(0)),
                },
                Place::Entry(after) => match above(&rows.entries, *after).next() {
                    Some((id, entry)) => (Some(ExportLine::Entry { seq: entry.0, entry: Box::new(entry.1.clone()) }), Place::Entry(id)),
                    None => (None, Place::Task(0)),
                },
                Place::Task(after) => match above(&rows.tasks, *after).next() {
                    Some((id, task)) => {
                        let invocation = rows.invocations.get(&id).cloned();
                        (Some(ExportLine::Task { task: Box::new((**task).clone()), invocation }), Place::Task(id))
                    }
                    None => (None, Place::Submission(0)),
                },
                Place::Submission(after) => match above(&rows.submissions, *after).next() {
                    Some((id, record)) => (Some(ExportLine::Submission(Box::new((**record).clone()))), Place::Submission(id)),
                    None => (None, Place::Document(0)),
                },
                Place::Document(after) => match above(&rows.documents, *after).find(|(_, record)| exported(record)) {
                    Some((id, record)) => (Some(ExportLine::Document((**record).clone())), Place::Document(id)),
                    None => (None, Place::Content(0, i64::MAX)),
                },
                Place::Content(document, seq) => match content_after(rows, *document, *seq) {
                    Some((line, place)) => (Some(line), place),
                    None => (None, Place::Request(None)),
                },
                Place::Request(after) => {
                    let after = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                    let (key, row) = rows.requests.range::<_, String>((after, Bound::Unbounded)).next()?;
                    (Some(ExportLine::Request(row.clone())), Place::Request(Some(key.clone())))
                }
                Place::End => return None,
            };
            self.place = place;
            if line.is_some() {
                return line;
            }
        }
    }
}

fn session_line(record: &SessionRecord, rows: &Rows) -> ExportLine {
    ExportLine::Session(SessionLine {
        format: EXPORT_FORMAT,
        id: record.id,
        metadata: record.metadata.clone(),
        created_at: record.created_at,
        seq: rows.head.seq,
        next_id: rows.head.next_id,
        at: rows.head.at,
        wake: rows.wake,
    })
}

/// The next content of the document, or the first of the next document.
fn content_after(rows: &Rows, document: i64, seq: i64) -> Option<(ExportLine, Place)> {
    let rest = rows.contents.range((document, seq.saturating_add(1))..=(document, i64::MAX)).next().filter(|_| seq < i64::MAX);
    let next = rest.or_else(|| {
        let (id, record) = above(&rows.documents, document).find(|(_, record)| exported(record))?;
        let from = first_content(rows, record);
        rows.contents.range((id, from)..=(id, i64::MAX)).next()
    });
    let ((id, seq), content) = next?;
    let document = DocumentId::new(*id).ok()?;
    Some((ExportLine::Content { document, seq: Seq(*seq), content: content.clone() }, Place::Content(*id, *seq)))
}

/// Where the content begins that can still be read: what maintenance has not removed yet is left out.
fn first_content(rows: &Rows, record: &DocumentRecord) -> i64 {
    let id = record.create.id.get();
    if record.create.placement.rewindable() {
        return i64::MIN;
    }
    let newest = rows.contents.range((id, i64::MIN)..=(id, i64::MAX)).rev();
    let mut bases = newest.filter(|(_, content)| matches!(content, picofleet_session::DocumentContent::Base { .. }));
    bases.next().map_or(i64::MIN, |((_, seq), _)| *seq)
}

/// Reads the lines of an import.
pub(crate) async fn read(
    target: &ImportTarget,
    mut lines: BoxStream<'static, Result<ExportLine, StorageError>>,
) -> Result<(SessionRecord, Rows), StorageError> {
    let mut rows = Rows::new(genesis(Millis(0)));
    rows.commits.clear();
    let mut import = Import::default();
    while let Some(line) = lines.next().await {
        import.take(&mut rows, &line?)?;
    }
    let session = import.finish(&mut rows)?;
    Ok((imported(target, session), rows))
}
