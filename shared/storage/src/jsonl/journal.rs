//! The one place that writes (section 11.3): sidecars first, then the marker, then the rows that everybody reads. It lives on a thread of
//! its own, so that no other one waits for a disk.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use picofleet_session::storage::{Batch, Fence, Head, Rejection, SessionCreate, SessionRecord, SessionState, StorageError};
use picofleet_session::{DocumentContent, Millis, Seq, SessionId, SubmissionId};

use super::files::Files;
use super::format::{ContentLine, MainLine, TaskLine, TombstoneLine, encode};
use super::prepared::{Appended, Prepared};
use super::sidecar::{Sidecar, Sizes};
use super::{MAIN, TOMBSTONES};
use crate::memory::export;
use crate::memory::rows::Rows;
use crate::memory::state::Shared;
use crate::rules::{self, Fencing, fence, genesis};

/// See the module.
pub(super) struct Journal {
    pub(super) root: PathBuf,
    pub(super) files: Box<dyn Files>,
    pub(super) fsync: bool,
    /// From how many unneeded bytes on a sidecar is written anew with a commit; 0 leaves that to maintenance.
    pub(super) reclaim_bytes: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) sizes: HashMap<SessionId, Sizes>,
    /// Reclamation that has to be tried again.
    pub(super) deferred: BTreeSet<(SessionId, Sidecar)>,
    /// Why nothing is written any more.
    pub(super) poisoned: Option<String>,
}

/// An earlier write failed. The cause of a refusal.
#[derive(Debug, thiserror::Error)]
#[error("an earlier write failed ({0}); open the store again")]
struct Poisoned(String);

impl Journal {
    pub(super) fn directory(&self, session: SessionId) -> PathBuf {
        self.root.join(session.to_string())
    }

    /// Nothing is written behind a write of which nobody knows how far it came.
    pub(super) fn check(&self) -> Result<(), StorageError> {
        match &self.poisoned {
            None => Ok(()),
            Some(why) => Err(StorageError::failed(format!("write to {}", self.root.display()), Poisoned(why.clone()))),
        }
    }

    pub(super) fn poison(&mut self, operation: &str, cause: io::Error) -> StorageError {
        tracing::error!(store = %self.root.display(), operation, error = %cause, "a write failed; the store takes no more until it is opened again");
        self.poisoned.get_or_insert_with(|| cause.to_string());
        StorageError::Uncertain { operation: format!("{operation} in {}", self.root.display()), cause: Arc::new(cause) }
    }

    /// Appends a line to `main.jsonl`.
    pub(super) fn line(&mut self, session: SessionId, operation: &str, line: &MainLine) -> Result<(), StorageError> {
        let bytes = encode(line).map_err(|why| Rejection::Malformed(format!("{operation}: {why}")))?;
        let path = self.directory(session).join(MAIN);
        self.files.append(&path, &bytes).map(|_| ()).map_err(|error| self.poison(operation, error))
    }

    pub(super) fn create(&mut self, session: SessionCreate) -> Result<picofleet_session::storage::Created, StorageError> {
        use picofleet_session::storage::Created;
        rules::creatable(&session)?;
        self.check()?;
        let SessionCreate { id, tenant, key, metadata, at } = session;
        {
            let state = self.shared.open_state()?;
            if state.tombstones.contains(id) {
                return Err(Rejection::SessionDeleted { session: id }.into());
            }
            if let Some(session) = state.sessions.get(&id) {
                return Ok(Created { session: session.record.clone(), existed: true });
            }
        }
        let record = SessionRecord { id, tenant, key, metadata, state: SessionState::Active, created_at: at };
        let rows = Rows::new(genesis(at));
        self.make(&record, &rows, Vec::new())?;
        Ok(Created { session: record, existed: false })
    }

    /// The directory of a new session, and the session itself. `more` are further lines of `main.jsonl`.
    fn make(&mut self, record: &SessionRecord, rows: &Rows, more: Vec<u8>) -> Result<(), StorageError> {
        let malformed = |why: String| StorageError::from(Rejection::Malformed(format!("make a session: {why}")));
        let mut bytes = encode(&MainLine::Session { record: record.clone(), head: rows.head }).map_err(malformed)?;
        bytes.extend(more);
        let directory = self.directory(record.id);
        let fsync = self.fsync;
        let root = self.root.clone();
        let made = self.files.make_directory(&directory, MAIN, &bytes, fsync);
        let made = if fsync { made.and_then(|()| self.files.sync_directory(&root)) } else { made };
        made.map_err(|error| self.poison("make a session", error))?;
        crate::memory::add(&mut self.shared.state(), record.clone(), rows.clone());
        Ok(())
    }

    pub(super) fn import(&mut self, record: &SessionRecord, rows: &Rows) -> Result<(), StorageError> {
        self.check()?;
        let tombstone = {
            let state = self.shared.open_state()?;
            if state.sessions.contains_key(&record.id) {
                return Err(Rejection::SessionExists { session: record.id }.into());
            }
            state.tombstones.contains(record.id)
        };
        let mut bytes = Vec::new();
        let mut lines = export::lines(record.clone(), rows.clone());
        while let Some(line) = lines.next() {
            let text = line?.to_text().map_err(|why| Rejection::Malformed(format!("import: {why}")))?;
            bytes.extend(text);
            bytes.push(b'\n');
        }
        bytes.extend(encode(&MainLine::Head(rows.head)).map_err(|why| Rejection::Malformed(format!("import: {why}")))?);
        if tombstone {
            // Whoever imports a deleted session wants it back.
            self.shared.state().tombstones.remove(record.id);
            self.write_tombstones()?;
        }
        self.make(record, rows, bytes)
    }

    pub(super) fn open(&mut self, id: SessionId, by: Fence) -> Result<Head, StorageError> {
        self.check()?;
        let (before, state) = self.head_of(id)?;
        let opened = fence(id, &before, by, Fencing::Open);
        if matches!(opened, Err(StorageError::Quarantined { .. })) && state == SessionState::Active {
            self.set_state(id, SessionState::Quarantined)?;
        }
        let head = opened?;
        if state == SessionState::Quarantined {
            return Err(StorageError::Quarantined { session: id });
        }
        self.set_head(id, head)?;
        Ok(head)
    }

    pub(super) fn fence(&mut self, sessions: Vec<SessionId>, by: Fence) -> Result<Vec<(SessionId, Head)>, StorageError> {
        self.check()?;
        let mut fenced = Vec::new();
        for id in sessions {
            let Ok((before, _)) = self.head_of(id) else { continue };
            let Ok(head) = fence(id, &before, by, Fencing::Takeover) else { continue };
            self.set_head(id, head)?;
            fenced.push((id, head));
        }
        Ok(fenced)
    }

    fn head_of(&self, id: SessionId) -> Result<(Head, SessionState), StorageError> {
        let state = self.shared.open_state()?;
        let session = state.session(id)?;
        Ok((session.rows.head, session.record.state))
    }

    fn set_head(&mut self, id: SessionId, head: Head) -> Result<(), StorageError> {
        self.line(id, "fence a session", &MainLine::Head(head))?;
        self.shared.state().set_head(id, head);
        Ok(())
    }

    fn set_state(&mut self, id: SessionId, to: SessionState) -> Result<(), StorageError> {
        self.line(id, "quarantine a session", &MainLine::State(to))?;
        self.shared.state().session_mut(id)?.record.state = to;
        Ok(())
    }

    pub(super) fn set_quarantined(&mut self, id: SessionId, quarantined: bool) -> Result<(), StorageError> {
        self.check()?;
        let (head, _) = self.head_of(id)?;
        self.set_state(id, if quarantined { SessionState::Quarantined } else { SessionState::Active })?;
        if quarantined { Ok(()) } else { self.set_head(id, Head { opens: 0, ..head }) }
    }

    pub(super) fn delete(&mut self, id: SessionId, at: Millis) -> Result<bool, StorageError> {
        self.check()?;
        if self.shared.open_state()?.session(id).is_err() {
            return Ok(false);
        }
        let line = encode(&TombstoneLine { session: id, at }).map_err(|why| Rejection::Malformed(format!("delete a session: {why}")))?;
        let path = self.root.join(TOMBSTONES);
        self.files.append(&path, &line).map_err(|error| self.poison("delete a session", error))?;
        Ok(crate::memory::delete(&mut self.shared.state(), id, at))
    }

    /// All tombstones, in the place of the file with the earlier ones.
    pub(super) fn write_tombstones(&mut self) -> Result<(), StorageError> {
        let all: Vec<_> = self.shared.state().tombstones.all().collect();
        let mut bytes = Vec::new();
        for (session, at) in all {
            bytes.extend(encode(&TombstoneLine { session, at }).map_err(|why| Rejection::Malformed(format!("tombstones: {why}")))?);
        }
        let (path, fsync) = (self.root.join(TOMBSTONES), self.fsync);
        self.files.replace(&path, &bytes, fsync).map_err(|error| self.poison("write the tombstones", error))
    }

    pub(super) fn acknowledge(&mut self, rows: Vec<(SessionId, SubmissionId)>) -> Result<(), StorageError> {
        self.check()?;
        let mut by_session: std::collections::BTreeMap<SessionId, Vec<SubmissionId>> = std::collections::BTreeMap::new();
        for (session, submission) in rows {
            by_session.entry(session).or_default().push(submission);
        }
        for (id, submissions) in by_session {
            let Some(mut rows) = self.shared.state().sessions.get(&id).map(|session| session.rows.clone()) else { continue };
            let known: Vec<_> = submissions.into_iter().filter(|submission| rows.outbox.remove(&submission.get()).is_some()).collect();
            if !known.is_empty() {
                self.line(id, "acknowledge notices", &MainLine::Acknowledged(known))?;
                self.shared.state().replace_rows(id, rows);
            }
        }
        Ok(())
    }

    /// Writes a batch: sidecars, marker, rows.
    pub(super) fn commit(&mut self, id: SessionId, batch: &Batch) -> Result<Head, StorageError> {
        self.check()?;
        // A session that is being deleted, or is gone, has no line any more.
        let found = self.shared.state().session(id).map(|session| session.rows.clone());
        let mut rows = found.map_err(|_| StorageError::Fenced { session: id })?;
        let before = rows.head;
        let head = rules::apply_batch(&mut rows, id, &before, batch)?;
        let prepared = Prepared::new(batch, before.seq, &rows)?;
        self.append(id, &prepared).map_err(|error| self.poison("commit", error))?;
        self.shared.state().replace_rows(id, rows.clone());
        let sizes = self.sizes.entry(id).or_default();
        let mut touched = BTreeSet::new();
        for Appended { sidecar, seq, bytes, anew } in prepared.lines {
            sizes.entry(sidecar).or_default().append(seq, bytes, anew);
            touched.insert(sidecar);
        }
        self.reclaim_committed(id, &rows, batch, touched);
        Ok(head)
    }

    fn append(&mut self, id: SessionId, prepared: &Prepared) -> io::Result<()> {
        let directory = self.directory(id);
        let mut made = false;
        for (sidecar, bytes) in &prepared.sidecars {
            made |= self.files.append(&sidecar.path(&directory), bytes)?;
        }
        if self.fsync {
            for sidecar in prepared.sidecars.keys() {
                self.files.sync(&sidecar.path(&directory))?;
            }
            if made {
                self.files.sync_directory(&directory)?;
            }
        }
        self.files.append(&directory.join(MAIN), &prepared.marker).map(|_| ())
    }

    /// Lets go of what this commit made unnecessary: whole sidecars, and those with more waste than is worth keeping.
    fn reclaim_committed(&mut self, id: SessionId, rows: &Rows, batch: &Batch, touched: BTreeSet<Sidecar>) {
        use picofleet_session::storage::Write;
        if self.reclaim_bytes == 0 {
            return;
        }
        let writes = batch.commits.iter().flat_map(|commit| &commit.writes);
        let named = writes.filter_map(|write| match write {
            Write::Task(task) => Some(Sidecar::Task(task.id.get())),
            Write::DocumentRetire(document) => Some(Sidecar::Document(document.get())),
            _ => None,
        });
        let mut candidates = touched;
        candidates.extend(named);
        let Some(sizes) = self.sizes.get(&id) else { return };
        let most = self.reclaim_bytes;
        let unneeded = |sidecar: &Sidecar| sizes.get(sidecar).is_some_and(|size| sidecar.over(rows) || size.wastes(most));
        let sidecars: Vec<Sidecar> = candidates.into_iter().filter(unneeded).collect();
        self.reclaim(id, rows, sidecars);
    }

    /// Removes sidecars that are over, and writes those anew that have more than is needed. What fails is tried again later: the committed
    /// state does not depend on it.
    pub(super) fn reclaim(&mut self, id: SessionId, rows: &Rows, sidecars: Vec<Sidecar>) {
        if sidecars.is_empty() || self.poisoned.is_some() {
            return;
        }
        let directory = self.directory(id);
        if self.fsync
            && let Err(error) = self.files.sync(&directory.join(MAIN))
        {
            // The marker that makes them unnecessary may still be lost.
            tracing::warn!(session = %id, error = %error, "main.jsonl was not flushed; what became unnecessary stays for now");
            self.deferred.extend(sidecars.into_iter().map(|sidecar| (id, sidecar)));
            return;
        }
        for sidecar in sidecars {
            if let Err(error) = self.reclaim_one(id, &directory, rows, sidecar) {
                tracing::warn!(session = %id, sidecar = ?sidecar, error = %error, "a sidecar was not reclaimed; it is tried again");
                self.deferred.insert((id, sidecar));
            }
        }
    }

    fn reclaim_one(&mut self, id: SessionId, directory: &Path, rows: &Rows, sidecar: Sidecar) -> io::Result<()> {
        let path = sidecar.path(directory);
        if sidecar.over(rows) {
            self.files.remove(&path)?;
            self.sizes.entry(id).or_default().remove(&sidecar);
            return Ok(());
        }
        let size = self.sizes.entry(id).or_default().entry(sidecar).or_default();
        let bytes = needed(rows, sidecar, size.newest).map_err(io::Error::other)?;
        self.files.replace(&path, &bytes, self.fsync)?;
        (size.all, size.needed) = (bytes.len() as u64, bytes.len() as u64);
        Ok(())
    }
}

/// What a sidecar needs: the newest base and what follows, or the record of a live task, of which only the newest counts. `newest` is the
/// commit that wrote that.
fn needed(rows: &Rows, sidecar: Sidecar, newest: Seq) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    match sidecar {
        Sidecar::Document(id) => {
            for (seq, content) in kept(rows, id) {
                bytes.extend(encode(&ContentLine { seq, content })?);
            }
        }
        Sidecar::Task(id) => {
            if let Some(task) = rows.tasks.get(&id) {
                bytes.extend(encode(&TaskLine { seq: newest, task: (**task).clone() })?);
            }
        }
    }
    Ok(bytes)
}

/// The content of a document that can still be read.
fn kept(rows: &Rows, document: i64) -> Vec<(Seq, DocumentContent)> {
    let history = rows.documents.get(&document).is_some_and(|record| record.create.placement.rewindable());
    let all = rows.contents.range((document, i64::MIN)..=(document, i64::MAX)).map(|((_, seq), content)| (Seq(*seq), content.clone()));
    let mut kept: Vec<_> = all.collect();
    let newest = kept.iter().rposition(|(_, content)| matches!(content, DocumentContent::Base { .. }));
    if let Some(newest) = newest.filter(|_| !history) {
        kept.drain(..newest);
    }
    kept
}
