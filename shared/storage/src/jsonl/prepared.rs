//! A batch as it is written: records for the sidecars, and the marker.

use std::collections::BTreeMap;

use picofleet_delta::Json;
use picofleet_session::storage::{Batch, Commit, Rejection, StorageError, Write};
use picofleet_session::{DocumentContent, DocumentCreate, DocumentId, Seq};

use super::format::{CommitLine, ContentLine, MainLine, TaskLine, WriteLine, encode};
use super::sidecar::{Sidecar, begins_anew};
use crate::memory::rows::Rows;

/// What one batch appends.
pub(super) struct Prepared {
    pub(super) sidecars: BTreeMap<Sidecar, Vec<u8>>,
    /// Each line of a sidecar.
    pub(super) lines: Vec<Appended>,
    pub(super) marker: Vec<u8>,
}

/// A line of a sidecar.
pub(super) struct Appended {
    pub(super) sidecar: Sidecar,
    pub(super) seq: Seq,
    pub(super) bytes: u64,
    /// It makes those before it unnecessary.
    pub(super) anew: bool,
}

impl Prepared {
    /// For a batch on top of a sequence. `rows` are those behind it: they have what copies came to.
    ///
    /// # Errors
    /// [`Rejection::Malformed`] for a record that can't be written as JSON.
    pub(super) fn new(batch: &Batch, before: Seq, rows: &Rows) -> Result<Self, StorageError> {
        let mut own = Self { sidecars: BTreeMap::new(), lines: Vec::new(), marker: Vec::new() };
        let mut seq = before;
        let mut commits = Vec::with_capacity(batch.commits.len());
        for commit in &batch.commits {
            seq = seq.next();
            commits.push(own.commit(commit, seq, rows)?);
        }
        own.marker = encode(&MainLine::Commits(commits)).map_err(malformed)?;
        Ok(own)
    }

    fn commit(&mut self, commit: &Commit, seq: Seq, rows: &Rows) -> Result<CommitLine, StorageError> {
        let writes = commit.writes.iter().map(|write| self.write(write, seq, rows)).collect::<Result<_, _>>()?;
        Ok(CommitLine { token: commit.token, at: commit.at, next_id: commit.next_id, writes })
    }

    fn write(&mut self, write: &Write, seq: Seq, rows: &Rows) -> Result<WriteLine, StorageError> {
        Ok(match write {
            Write::Task(task) if !task.terminal() => {
                let line = encode(&TaskLine { seq, task: (**task).clone() }).map_err(malformed)?;
                self.append(Sidecar::Task(task.id.get()), seq, line, true);
                WriteLine::Task(task.id)
            }
            Write::DocumentCreate { create, .. } => self.create(create, seq, rows)?,
            Write::DocumentCopy(copy) => self.create(&copy.create, seq, rows)?,
            Write::DocumentChange { id, content } => {
                self.content(*id, seq, content, rows)?;
                WriteLine::Content { id: *id, base: matches!(content, DocumentContent::Base { .. }) }
            }
            other => WriteLine::Whole(other.clone()),
        })
    }

    /// One that is retired at once has no content, and nobody reads it.
    fn create(&mut self, create: &DocumentCreate, seq: Seq, rows: &Rows) -> Result<WriteLine, StorageError> {
        let Some(content) = rows.contents.get(&(create.id.get(), seq.0)) else {
            let value = Json::object::<&str, Json>([]);
            return Ok(WriteLine::Whole(Write::DocumentCreate { create: create.clone(), version: 1, value }));
        };
        self.content(create.id, seq, content, rows)?;
        Ok(WriteLine::Create { create: create.clone(), version: content.version() })
    }

    fn content(&mut self, id: DocumentId, seq: Seq, content: &DocumentContent, rows: &Rows) -> Result<(), StorageError> {
        let line = encode(&ContentLine { seq, content: content.clone() }).map_err(malformed)?;
        self.append(Sidecar::Document(id.get()), seq, line, begins_anew(rows, id.get(), content));
        Ok(())
    }

    fn append(&mut self, sidecar: Sidecar, seq: Seq, line: Vec<u8>, anew: bool) {
        self.lines.push(Appended { sidecar, seq, bytes: line.len() as u64, anew });
        self.sidecars.entry(sidecar).or_default().extend(line);
    }
}

fn malformed(why: String) -> StorageError {
    Rejection::Malformed(format!("a record can't be written as JSON: {why}")).into()
}
