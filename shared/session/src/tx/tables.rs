//! Tables: conversations, entries, tasks, submissions.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::Tx;
use super::staged::StagedTask;
use crate::Transcript;
use crate::definition::typed_data;
use crate::storage::{ConversationQuery, Cursor, EntryQuery, OutboxRow, Page, RequestRow, SubmissionQuery, TaskQuery};
use crate::{
    ConversationId, ConversationOwner, ConversationOwnership, ConversationRecord, EntryDraft, EntryId, EntryKind, EntryRecord,
    InvocationRow, Millis, ROOT_CONVERSATION_ID, Settlement, SubmissionId, SubmissionRecord, SubmissionState, TaskCreate, TaskId,
    TaskOwnership, TaskRecord, TaskState, TxError, Typed, Violation,
};

/// Reads. They show committed records, and only before the first table write (section 4).
impl Tx {
    fn readable(&self) -> Result<(), TxError> {
        if self.state().staged.written { Err(TxError::ReadAfterWrite) } else { Ok(()) }
    }

    /// A conversation.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn conversation(&self, id: ConversationId) -> Result<Option<ConversationRecord>, TxError> {
        self.readable()?;
        self.candidate_conversation(id).await
    }

    /// Conversations in ascending order of their ids.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn scan_conversations(
        &self,
        query: ConversationQuery,
        limit: u32,
        cursor: Option<Cursor>,
    ) -> Result<Page<ConversationRecord>, TxError> {
        self.readable()?;
        Ok(self.store.scan_conversations(query, limit, cursor).await?)
    }

    /// An entry of any conversation.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn entry(&self, id: EntryId) -> Result<Option<EntryRecord>, TxError> {
        self.readable()?;
        Ok(self.store.entry(None, id).await?.map(|(entry, _)| entry))
    }

    /// The same, shared with the transactions that ask for it next: what many tasks read costs them one read.
    ///
    /// # Errors
    /// As [`Tx::entry`].
    pub async fn entry_shared(&self, id: EntryId) -> Result<Option<Arc<EntryRecord>>, TxError> {
        self.readable()?;
        if let Some(kept) = self.state().line.cached_entry(id) {
            return Ok(Some(kept));
        }
        let entry = self.store.entry(None, id).await?.map(|(entry, _)| Arc::new(entry));
        if let Some(entry) = &entry {
            self.state().line.keep_entry(Arc::clone(entry));
        }
        Ok(entry)
    }

    /// An entry with its decoded data; `None` where it is absent or of another kind.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`], [`TxError::Definition`] for data of another type.
    pub async fn entry_as<D: DeserializeOwned>(&self, kind: &EntryKind<D>, id: EntryId) -> Result<Option<Typed<D>>, TxError> {
        let Some(entry) = self.entry(id).await?.filter(|entry| entry.kind == kind.kind) else { return Ok(None) };
        let data = typed_data(kind.kind, entry.data.as_ref())?;
        Ok(Some(Typed { entry, data }))
    }

    /// Visible entries of a conversation, newest first.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`], [`Violation::UnknownConversation`].
    pub async fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Result<Page<EntryRecord>, TxError> {
        self.readable()?;
        Ok(self.store.scan_entries(query, limit, cursor).await?)
    }

    /// The newest visible entry of a conversation that has a head.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`], [`Violation::UnknownConversation`].
    pub async fn latest_head_marker(&self, conversation: ConversationId) -> Result<Option<EntryRecord>, TxError> {
        self.readable()?;
        self.committed_marker(conversation).await
    }

    /// The newest visible entry of a conversation.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`], [`Violation::UnknownConversation`].
    pub async fn newest_entry(&self, conversation: ConversationId) -> Result<Option<EntryId>, TxError> {
        self.readable()?;
        let kept = self.state().line.transcripts.get(conversation).map(Transcript::newest);
        match kept {
            Some(newest) => Ok(newest),
            None => Ok(self.store.scan_entries(EntryQuery::all(conversation), 1, None).await?.items.first().map(|entry| entry.id)),
        }
    }

    async fn committed_marker(&self, conversation: ConversationId) -> Result<Option<EntryRecord>, TxError> {
        let kept = self.state().line.transcripts.get(conversation).map(|kept| kept.marker.as_deref().cloned());
        match kept {
            Some(marker) => Ok(marker),
            None => Ok(self.store.latest_head_marker(conversation, None).await?),
        }
    }

    /// A task.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn task(&self, id: TaskId) -> Result<Option<TaskRecord>, TxError> {
        self.readable()?;
        Ok(self.candidate_task(id).await?.map(Arc::unwrap_or_clone))
    }

    /// Tasks in ascending order of their ids.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Result<Page<TaskRecord>, TxError> {
        self.readable()?;
        Ok(self.store.scan_tasks(query, limit, cursor).await?)
    }

    /// A submission.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn submission(&self, id: SubmissionId) -> Result<Option<SubmissionRecord>, TxError> {
        self.readable()?;
        Ok(self.candidate_submission(id).await?.map(Arc::unwrap_or_clone))
    }

    /// The submission that has the caller's key in a conversation.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn submission_by_request(&self, conversation: ConversationId, request_id: &str) -> Result<Option<SubmissionRecord>, TxError> {
        self.readable()?;
        Ok(self.store.submission_by_request(conversation, request_id.to_owned()).await?)
    }

    /// Submissions in ascending order of their ids.
    ///
    /// # Errors
    /// [`TxError::ReadAfterWrite`], [`TxError::Read`].
    pub async fn scan_submissions(
        &self,
        query: SubmissionQuery,
        limit: u32,
        cursor: Option<Cursor>,
    ) -> Result<Page<SubmissionRecord>, TxError> {
        self.readable()?;
        Ok(self.store.scan_submissions(query, limit, cursor).await?)
    }
}

/// Writes.
impl Tx {
    /// Makes a conversation.
    ///
    /// # Errors
    /// [`Violation::UnknownTask`] for an owner that is not there; what a setup says. An owner that can't own anything new fails the commit.
    pub async fn create_conversation(&self, ownership: ConversationOwnership) -> Result<ConversationRecord, TxError> {
        let owner = self.conversation_owner(ownership).await?;
        let record = {
            let mut state = self.state();
            let id = state.line.mint()?;
            state.staged.add_conversation(ConversationRecord { id, parent: None, owner })
        };
        self.set_up(record).await
    }

    /// Makes the root conversation, which has a fixed id and no owner (section 2.2).
    ///
    /// # Errors
    /// [`Violation::RootExists`]; what a setup says.
    pub async fn create_root(&self) -> Result<ConversationRecord, TxError> {
        if self.candidate_conversation(ROOT_CONVERSATION_ID).await?.is_some() {
            return Err(Violation::RootExists.into());
        }
        let record = self.state().staged.add_conversation(ConversationRecord { id: ROOT_CONVERSATION_ID, parent: None, owner: None });
        self.set_up(record).await
    }

    /// The owner pair of a new conversation, from the task's record (section 3.3).
    pub(super) async fn conversation_owner(&self, ownership: ConversationOwnership) -> Result<Option<ConversationOwner>, TxError> {
        let ConversationOwnership::Task { task_id } = ownership else { return Ok(None) };
        let task = self.candidate_task(task_id).await?.ok_or(Violation::UnknownTask { task: task_id })?;
        self.state().staged.owners.push(task_id);
        Ok(Some(ConversationOwner { conversation_id: task.conversation_id, task_id }))
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// [`Violation::UnknownConversation`].
    pub async fn append_entry(&self, conversation: ConversationId, entry: EntryDraft) -> Result<Arc<EntryRecord>, TxError> {
        self.existing_conversation(conversation).await?;
        let mut state = self.state();
        let id = state.line.mint()?;
        let record = Arc::new(entry.into_record(id, conversation, state.bound.task));
        state.staged.written = true;
        state.staged.entries.push(Arc::clone(&record));
        Ok(record)
    }

    /// Creates a task, `pending` at its checkpoint. The typed form is the harness's.
    ///
    /// # Errors
    /// [`Violation::UnknownTask`], [`Violation::ChildConversation`], [`Violation::BackgroundChild`], [`Violation::NoConversation`],
    /// [`Violation::UnknownConversation`]. An owner that can't own anything new fails the commit.
    pub async fn create_task_raw(&self, task: TaskCreate) -> Result<TaskId, TxError> {
        let (conversation, owner) = match task.ownership {
            TaskOwnership::Task { task_id } => (self.child_conversation(&task, task_id).await?, Some(task_id)),
            TaskOwnership::Conversation => {
                let conversation = task.conversation_id.or_else(|| self.bound().conversation).ok_or(Violation::NoConversation)?;
                self.existing_conversation(conversation).await?;
                (conversation, None)
            }
        };
        let mut state = self.state();
        let id = state.line.mint()?;
        let record = TaskRecord {
            id,
            conversation_id: conversation,
            kind: task.kind,
            version: task.version,
            input: task.input,
            owner,
            background: task.background,
            abort_requested: false,
            state: TaskState::Pending { checkpoint: task.checkpoint },
            memos: None,
            restarts: 0,
            started_at: None,
            ended_at: None,
        };
        state.staged.written = true;
        state.staged.owners.extend(owner);
        state.staged.tasks.insert(id, StagedTask { record: Arc::new(record), created: true });
        Ok(id)
    }

    async fn child_conversation(&self, task: &TaskCreate, owner: TaskId) -> Result<ConversationId, TxError> {
        let record = self.candidate_task(owner).await?.ok_or(Violation::UnknownTask { task: owner })?;
        let expected = record.conversation_id;
        match task.conversation_id {
            Some(found) if found != expected => Err(Violation::ChildConversation { expected, found }.into()),
            _ if task.background => Err(Violation::BackgroundChild.into()),
            _ => Ok(expected),
        }
    }

    /// Replaces a task's record. Only the harness does this: a task changes its own state through its runtime (section 5.1).
    ///
    /// # Errors
    /// [`Violation::UnknownTask`]; [`Violation::TaskChanged`] for another conversation or owner.
    pub async fn put_task(&self, record: TaskRecord) -> Result<(), TxError> {
        let task = record.id;
        let before = self.candidate_task(task).await?.ok_or(Violation::UnknownTask { task })?;
        if before.conversation_id != record.conversation_id {
            return Err(Violation::TaskChanged { task, field: "conversations" }.into());
        }
        if before.owner != record.owner {
            return Err(Violation::TaskChanged { task, field: "its owner" }.into());
        }
        let mut state = self.state();
        state.staged.written = true;
        let created = state.staged.tasks.get(&task).is_some_and(|staged| staged.created);
        state.staged.tasks.insert(task, StagedTask { record: Arc::new(record), created });
        Ok(())
    }

    /// The tasks that the transaction creates or replaces, as they are now. Only the harness needs it: whether owned work is live is
    /// judged on candidate records (section 5.5).
    #[must_use]
    pub fn staged_tasks(&self) -> Vec<TaskRecord> {
        self.state().staged.tasks.values().map(|task| TaskRecord::clone(&task.record)).collect()
    }

    /// The conversations that the transaction makes.
    #[must_use]
    pub fn staged_conversations(&self) -> Vec<ConversationRecord> {
        self.state().staged.conversations.values().cloned().collect()
    }

    /// Writes what a task keeps of its invocation. Only the harness does this (`protocol.md` 3).
    pub fn put_invocation(&self, row: InvocationRow) {
        self.state().staged.invocations.insert(row.task_id, row);
    }

    /// Admits a submission. Only the harness does this (section 6).
    ///
    /// # Errors
    /// [`Violation::UnknownConversation`].
    pub async fn create_submission(
        &self,
        conversation: ConversationId,
        request_id: Option<String>,
        submission: SubmissionState,
    ) -> Result<Arc<SubmissionRecord>, TxError> {
        self.existing_conversation(conversation).await?;
        let mut state = self.state();
        let id = state.line.mint()?;
        let record = Arc::new(SubmissionRecord { id, conversation_id: conversation, request_id, state: submission });
        state.staged.put_submission(Arc::clone(&record));
        Ok(record)
    }

    /// Records where a queued submission was placed: an input becomes placed, a write done (section 6).
    ///
    /// # Errors
    /// [`Violation::UnknownSubmission`], [`Violation::NotQueued`].
    pub async fn place_submission(&self, id: SubmissionId, entry: EntryId) -> Result<(), TxError> {
        let record = self.candidate_submission(id).await?.ok_or(Violation::UnknownSubmission { submission: id })?;
        let placed = record.place(entry).ok_or(Violation::NotQueued { submission: id })?;
        self.state().staged.put_submission(Arc::new(placed));
        Ok(())
    }

    /// Settles a submission. One that is settled stays as it is.
    ///
    /// # Errors
    /// [`Violation::UnknownSubmission`], [`Violation::NotPlacedInput`] for an answer to anything else.
    pub async fn settle_submission(&self, id: SubmissionId, settlement: Settlement) -> Result<(), TxError> {
        let record = self.candidate_submission(id).await?.ok_or(Violation::UnknownSubmission { submission: id })?;
        let settled = record.settle(settlement).ok_or(Violation::NotPlacedInput { submission: id })?;
        if settled != *record {
            self.state().staged.put_submission(Arc::new(settled));
        }
        Ok(())
    }

    /// Keeps the answer to a request key (`protocol.md` 3).
    pub fn put_request(&self, row: RequestRow) {
        self.state().staged.requests.push(row);
    }

    /// Leaves a settlement notice to be sent (`protocol.md` 5).
    pub fn put_outbox(&self, row: OutboxRow) {
        self.state().staged.outbox.push(row);
    }

    /// Sets when the owner has to look at the session again; `None` for never.
    pub fn set_wake(&self, at: Option<Millis>) {
        self.state().staged.wake = Some(at);
    }
}

/// Reads of what the commit would leave, for rules that look at what it changes itself. They may come behind writes.
impl Tx {
    /// A task as the commit would leave it.
    ///
    /// # Errors
    /// [`TxError::Read`].
    pub async fn task_as_left(&self, id: TaskId) -> Result<Option<TaskRecord>, TxError> {
        Ok(self.candidate_task(id).await?.map(Arc::unwrap_or_clone))
    }

    /// The newest entry of a conversation that has a head, as the commit would leave it.
    ///
    /// # Errors
    /// [`TxError::Read`], [`Violation::UnknownConversation`].
    pub async fn head_marker_as_left(&self, conversation: ConversationId) -> Result<Option<EntryRecord>, TxError> {
        let staged = {
            let state = self.state();
            let marks = |entry: &&Arc<EntryRecord>| entry.conversation_id == conversation && entry.head.is_some();
            state.staged.entries.iter().rev().find(marks).map(|entry| EntryRecord::clone(entry))
        };
        match staged {
            Some(marker) => Ok(Some(marker)),
            None => self.committed_marker(conversation).await,
        }
    }
}

/// Candidate records: staged, else committed. These are the kernel's own lookups and no table reads of the caller.
impl Tx {
    pub(super) async fn candidate_conversation(&self, id: ConversationId) -> Result<Option<ConversationRecord>, TxError> {
        {
            let mut state = self.state();
            let found = state.staged.conversations.get(&id).cloned().or_else(|| state.line.cached_conversation(id));
            if found.is_some() {
                return Ok(found);
            }
        }
        let record = self.store.conversation(id).await?;
        if let Some(record) = &record {
            self.state().line.keep_conversation(record.clone());
        }
        Ok(record)
    }

    pub(super) async fn existing_conversation(&self, id: ConversationId) -> Result<ConversationRecord, TxError> {
        self.candidate_conversation(id).await?.ok_or_else(|| Violation::UnknownConversation { conversation: id }.into())
    }

    pub(super) async fn candidate_task(&self, id: TaskId) -> Result<Option<Arc<TaskRecord>>, TxError> {
        {
            let mut state = self.state();
            if let Some(staged) = state.staged.tasks.get(&id) {
                return Ok(Some(Arc::clone(&staged.record)));
            }
            if let Some(cached) = state.line.cached_task(id) {
                return Ok(Some(Arc::clone(&cached.record)));
            }
        }
        let record = self.store.task(id).await?.map(Arc::new);
        if let Some(record) = &record {
            self.state().line.keep_task(Arc::clone(record), None);
        }
        Ok(record)
    }

    pub(super) async fn candidate_submission(&self, id: SubmissionId) -> Result<Option<Arc<SubmissionRecord>>, TxError> {
        {
            let mut state = self.state();
            let found = state.staged.submissions.get(&id).cloned().or_else(|| state.line.cached_submission(id));
            if found.is_some() {
                return Ok(found);
            }
        }
        let record = self.store.submission(id).await?.map(Arc::new);
        if let Some(record) = &record {
            self.state().line.keep_submission(Arc::clone(record));
        }
        Ok(record)
    }
}

impl super::staged::Staged {
    pub(super) fn add_conversation(&mut self, record: ConversationRecord) -> ConversationRecord {
        self.written = true;
        self.conversations.insert(record.id, record.clone());
        record
    }

    pub(super) fn put_submission(&mut self, record: Arc<SubmissionRecord>) {
        self.written = true;
        self.submissions.insert(record.id, record);
    }
}
