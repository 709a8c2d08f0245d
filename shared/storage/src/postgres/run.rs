//! The rules on what a line knows and what its batch wrote so far. A lookup that neither answers is noted, and the batch is judged again
//! once it was read.

use picofleet_session::storage::{Head, OutboxRow, RequestRow, StorageError};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentContent, DocumentId, DocumentRecord, EntryRecord, Id, InvocationRow,
    Millis, Point, Seq, SubmissionId, SubmissionRecord, SubmissionState, TaskId, TaskRecord,
};

use super::known::{Key, Known, TaskKnown};
use super::load::newest;
use super::rows;
use super::staged::{ContentRow, ConversationRow, EntryRow, RequestStaged, Staged, SubmissionRow, TaskColumns, TaskRow};
use crate::rules::Replay;
use crate::tables::{DocumentState, Found, SubmissionIdentity, Tables, TaskIdentity};

/// See the module.
pub(super) struct Run<'k> {
    known: &'k Known,
    /// The first id that the batch can mint. Nothing that is stored belongs to a conversation or task from here on.
    from: i64,
    pub(super) staged: Staged,
    pub(super) missing: Vec<Key>,
}

impl<'k> Run<'k> {
    pub(super) fn new(known: &'k Known, from: i64) -> Self {
        Self { known, from, staged: Staged::default(), missing: Vec::new() }
    }

    /// Answers a lookup from what is known. What is missing is noted, and the run is over; its error is never shown.
    fn look<T: Clone>(&mut self, found: Option<&Option<T>>, key: impl FnOnce() -> Key) -> Found<Option<T>> {
        match found {
            Some(found) => Ok(found.clone()),
            None if self.known.complete => Ok(None),
            None => {
                self.missing.push(key());
                Err(StorageError::Closed)
            }
        }
    }

    fn stored_task(&mut self, id: TaskId) -> Found<Option<TaskKnown>> {
        match self.staged.tasks.get(&id) {
            Some(row) => Ok(Some(row.known.clone())),
            None => {
                let known = self.known;
                self.look(known.tasks.get(&id), || Key::Task(id))
            }
        }
    }

    fn text(&mut self, text: String) -> String {
        self.staged.bytes += text.len();
        text
    }

    /// The end of a batch: a task that goes to the other table takes along what it keeps of its invocation.
    pub(super) fn finish(mut self) -> Result<Staged, Vec<Key>> {
        let known = self.known;
        for (id, row) in &mut self.staged.tasks {
            if row.moves() && row.invocation.is_none() && row.known.invoked {
                match known.invocations.get(id) {
                    Some(text) => row.invocation.clone_from(text),
                    None => self.missing.push(Key::Invocation(*id)),
                }
            }
        }
        if self.missing.is_empty() { Ok(self.staged) } else { Err(self.missing) }
    }

    fn put_task(&mut self, record: &TaskRecord, was_terminal: Option<bool>, invoked: bool) -> Found<()> {
        let text = rows::text(record)?;
        let columns = TaskColumns {
            status: rows::task_status(record.status()),
            abort: record.abort_requested,
            background: record.background,
            record: self.text(text),
        };
        let identity = TaskIdentity { conversation_id: record.conversation_id, owner: record.owner, kind: record.kind.clone() };
        let known = TaskKnown { identity, terminal: record.terminal(), invoked };
        let row = self.staged.tasks.entry(record.id).or_insert_with(|| TaskRow {
            known: known.clone(),
            was_terminal,
            columns: None,
            invocation: None,
        });
        row.known = known;
        row.columns = Some(columns);
        Ok(())
    }

    fn put_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        let text = rows::text(record)?;
        let row = SubmissionRow {
            identity: SubmissionIdentity {
                conversation_id: record.conversation_id,
                request_id: record.request_id.clone(),
                input: matches!(record.state, SubmissionState::Input(_)),
            },
            status: rows::submission_status(record.status()),
            open: !record.settled(),
            record: self.text(text),
        };
        self.staged.submissions.insert(record.id, row);
        Ok(())
    }
}

impl Tables for Run<'_> {
    fn owner(&mut self, id: i64) -> Found<Option<&'static str>> {
        let staged = &self.staged;
        let is = |other: i64| other == id;
        let owners = [
            (staged.conversations.iter().any(|row| is(row.id)), "conversation"),
            (staged.entries.iter().any(|row| is(row.id)), "entry"),
            (staged.tasks.keys().any(|other| is(other.get())), "task"),
            (staged.submissions.keys().any(|other| is(other.get())), "submission"),
            (staged.documents.keys().any(|other| is(other.get())), "document"),
        ];
        if let Some((_, owner)) = owners.into_iter().find(|(here, _)| *here) {
            return Ok(Some(owner));
        }
        let known = self.known;
        self.look(known.owners.get(&id), || Key::Owner(id))
    }

    fn task(&mut self, id: TaskId) -> Found<Option<TaskIdentity>> {
        Ok(self.stored_task(id)?.map(|task| task.identity))
    }

    fn submission(&mut self, id: SubmissionId) -> Found<Option<SubmissionIdentity>> {
        match self.staged.submissions.get(&id) {
            Some(row) => Ok(Some(row.identity.clone())),
            None => {
                let known = self.known;
                self.look(known.submissions.get(&id), || Key::Submission(id))
            }
        }
    }

    fn request_owner(&mut self, conversation: ConversationId, request_id: &str) -> Found<Option<SubmissionId>> {
        let key = (conversation, request_id.to_owned());
        match self.staged.request_owners.get(&key) {
            Some(owner) => Ok(Some(*owner)),
            None if conversation.get() >= self.from => Ok(None),
            None => {
                let known = self.known;
                self.look(known.requests.get(&key), || Key::Request(key.0, key.1.clone()))
            }
        }
    }

    fn document(&mut self, id: DocumentId) -> Found<Option<DocumentState>> {
        let staged = self.staged.documents.get(&id).cloned();
        let mut state = match staged {
            Some(state) => Some(state),
            None => {
                let known = self.known;
                self.look(known.documents.get(&id), || Key::Document(id))?
            }
        };
        if let (Some(state), Some(newest)) = (&mut state, self.staged.contents.iter().rev().find(|row| row.document == id)) {
            state.version = Some(newest.content.version());
        }
        Ok(state)
    }

    fn current(&mut self, address: &DocumentAddress) -> Found<Option<DocumentId>> {
        match self.staged.current.get(address) {
            Some(current) => Ok(*current),
            None if rows::scope_columns(address.scope).1 >= self.from => Ok(None),
            None => {
                let known = self.known;
                self.look(known.current.get(address), || Key::Current(address.clone()))
            }
        }
    }

    fn replay(&mut self, id: DocumentId, at: Point) -> Found<Replay> {
        let until = newest(at);
        let staged = self.staged.contents.iter().rev().filter(|row| row.document == id && row.seq <= until);
        let mut replay = Replay::newest_first(staged.map(|row| Ok::<_, StorageError>(row.content.clone())))?;
        if replay.base.is_some() {
            return Ok(replay);
        }
        let known = self.known;
        let found = known.replays.get(&(id, until)).cloned().map(Some);
        let stored = self.look(found.as_ref(), || Key::Replay(id, until))?.unwrap_or_default();
        replay.base = stored.base;
        replay.deltas = stored.deltas.into_iter().chain(replay.deltas).collect();
        Ok(replay)
    }

    fn put_commit(&mut self, head: &Head) -> Found<()> {
        self.staged.commits.push(*head);
        Ok(())
    }

    fn put_conversation(&mut self, record: &ConversationRecord) -> Found<()> {
        let text = rows::text(record)?;
        let owner = record.owner.map(|owner| (owner.conversation_id.get(), owner.task_id.get()));
        let record = ConversationRow { id: record.id.get(), owner, record: self.text(text) };
        self.staged.conversations.push(record);
        Ok(())
    }

    fn put_entry(&mut self, seq: Seq, entry: &EntryRecord) -> Found<()> {
        let text = rows::text(entry)?;
        let (id, conversation, head) = (entry.id.get(), entry.conversation_id.get(), entry.head.map(Id::get));
        let row = EntryRow { id, conversation, seq: seq.0, head, record: self.text(text) };
        self.staged.entries.push(row);
        Ok(())
    }

    fn insert_task(&mut self, record: &TaskRecord) -> Found<()> {
        self.put_task(record, None, false)
    }

    fn replace_task(&mut self, record: &TaskRecord) -> Found<()> {
        let stored = self.stored_task(record.id)?;
        let (was, invoked) = stored.map_or((None, false), |stored| (Some(stored.terminal), stored.invoked));
        self.put_task(record, was, invoked)
    }

    fn put_invocation(&mut self, row: &InvocationRow) -> Found<()> {
        let text = rows::text(row)?;
        let text = self.text(text);
        let Some(known) = self.stored_task(row.task_id)? else { return Ok(()) };
        let known = TaskKnown { invoked: true, ..known };
        let was_terminal = Some(known.terminal);
        let task = self.staged.tasks.entry(row.task_id).or_insert_with(|| TaskRow {
            known: known.clone(),
            was_terminal,
            columns: None,
            invocation: None,
        });
        task.known = known;
        task.invocation = Some(text);
        Ok(())
    }

    fn insert_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        if let Some(request_id) = &record.request_id {
            self.staged.request_owners.insert((record.conversation_id, request_id.clone()), record.id);
        }
        self.put_submission(record)
    }

    fn replace_submission(&mut self, record: &SubmissionRecord) -> Found<()> {
        self.put_submission(record)
    }

    fn put_document(&mut self, record: &DocumentRecord) -> Found<()> {
        if record.retired_at.is_none() {
            self.staged.current.insert(record.create.address(), Some(record.create.id));
        }
        self.staged.documents.insert(record.create.id, DocumentState { record: record.clone(), version: None });
        Ok(())
    }

    fn put_content(&mut self, record: &DocumentRecord, seq: Seq, content: &DocumentContent) -> Found<()> {
        let id = record.create.id;
        let body = self.text(rows::body(content));
        self.staged.contents.push(ContentRow { document: id, seq: seq.0, content: content.clone(), body });
        let base = matches!(content, DocumentContent::Base { .. });
        if base && !record.create.placement.rewindable() && record.created_at < seq {
            self.reclaim(id, seq.0);
        }
        Ok(())
    }

    fn retire(&mut self, record: &DocumentRecord, seq: Seq) -> Found<()> {
        let id = record.create.id;
        self.staged.current.insert(record.create.address(), None);
        let record = DocumentRecord { retired_at: Some(seq), ..record.clone() };
        let rewindable = record.create.placement.rewindable();
        self.staged.documents.insert(id, DocumentState { record, version: None });
        if !rewindable {
            self.reclaim(id, i64::MAX);
        }
        Ok(())
    }

    fn put_request(&mut self, row: &RequestRow) -> Found<()> {
        let answer = self.text(row.answer.to_string());
        self.staged.requests.insert(row.key.clone(), RequestStaged { digest: row.digest.clone(), answer, at: row.at });
        Ok(())
    }

    fn put_outbox(&mut self, row: &OutboxRow) -> Found<()> {
        let body = self.text(row.body.to_string());
        self.staged.outbox.insert(row.submission_id, body);
        Ok(())
    }

    fn put_wake(&mut self, at: Option<Millis>) -> Found<()> {
        self.staged.wake = Some(at);
        Ok(())
    }
}

impl Run<'_> {
    fn reclaim(&mut self, id: DocumentId, below: i64) {
        let row = self.staged.reclaim.entry(id).or_insert(below);
        *row = below.max(*row);
    }
}
