//! The storage below a closure's transaction: reads travel to the held line, and the one commit stays here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_session::storage::{
    Batch, CommitHandle, ConversationQuery, Cursor, DocumentQuery, EntryQuery, Fut, Head, Page, RequestRow, SessionReader, SessionStore,
    StorageError, SubmissionQuery, TaskQuery, Write,
};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, InvocationRow, Millis, Point,
    Seq, SessionId, StoredDocument, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};

use crate::transport::Transport;
use crate::wire::{Answer, Begun, HoldId, ReadFailure, Request, StoreAnswer, StoreRead, Written};

/// See the module.
pub(super) struct RemoteStore {
    transport: Arc<dyn Transport>,
    session: SessionId,
    hold: HoldId,
    head: Head,
    task: Option<TaskRecord>,
    conversation: Option<ConversationRecord>,
    documents: Mutex<HashMap<DocumentAddress, Option<StoredDocument>>>,
    written: Mutex<Option<(i64, Vec<Write>)>>,
    lost: AtomicBool,
}

/// Why a read of a held line has no answer.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("the session's line does not wait for this commit any more")]
    Gone,
    #[error("the line gave an answer of another kind")]
    Other,
    #[error("{0}")]
    Failed(String),
    #[error("a closure does not read this")]
    NotForClosures,
}

fn failed(error: AskError) -> StorageError {
    StorageError::failed("read through a hold of the line", error)
}

/// Asks for a read and takes its answer out.
macro_rules! asked {
    ($self:ident, $answer:ident, $read:expr) => {
        Box::pin(async move {
            match $self.ask($read).await? {
                StoreAnswer::$answer(value) => Ok(value),
                _ => Err(failed(AskError::Other)),
            }
        })
    };
}

impl RemoteStore {
    pub(super) fn new(transport: Arc<dyn Transport>, session: SessionId, hold: HoldId, begun: &Begun, named: Vec<DocumentAddress>) -> Self {
        let documents = named.into_iter().zip(begun.documents.iter().cloned()).collect();
        Self {
            transport,
            session,
            hold,
            head: begun.head,
            task: begun.task.clone(),
            conversation: begun.conversation.clone(),
            documents: Mutex::new(documents),
            written: Mutex::default(),
            lost: AtomicBool::new(false),
        }
    }

    /// Whether a read found that the hold is over.
    pub(super) fn lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// What the transaction wrote; `next_id` is where its ids began.
    pub(super) fn written(&self, next_id: i64) -> Written {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner).take();
        written.map_or(Written { next_id, writes: Vec::new() }, |(next_id, writes)| Written { next_id, writes })
    }

    fn documents(&self) -> MutexGuard<'_, HashMap<DocumentAddress, Option<StoredDocument>>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn ask(&self, read: StoreRead) -> Result<StoreAnswer, StorageError> {
        let request = Request::Ask { hold: self.hold, read };
        let answer = super::super::invocation::repeated(&*self.transport, self.session, request).await;
        match answer {
            Ok(Answer::Stored(answer)) => match *answer {
                StoreAnswer::Failed(failure) => Err(read_error(failure)),
                answer => Ok(answer),
            },
            Ok(Answer::Refused(_)) | Err(_) => {
                self.lost.store(true, Ordering::Release);
                Err(failed(AskError::Gone))
            }
            Ok(_) => Err(failed(AskError::Other)),
        }
    }

    /// The current document of an address with its value. Asked for once: nothing changes while the line is held.
    async fn current(&self, address: DocumentAddress) -> Result<Option<StoredDocument>, StorageError> {
        if let Some(known) = self.documents().get(&address) {
            return Ok(known.clone());
        }
        let StoreAnswer::Stored(stored) = self.ask(StoreRead::DocumentAt(address.clone())).await? else {
            return Err(failed(AskError::Other));
        };
        self.documents().insert(address, stored.clone());
        Ok(stored)
    }
}

fn read_error(failure: ReadFailure) -> StorageError {
    match failure {
        ReadFailure::UnknownConversation(conversation) => StorageError::UnknownConversation { conversation },
        ReadFailure::NoHistory(document) => StorageError::NoHistory { document },
        ReadFailure::BadCursor(cursor) => StorageError::BadCursor { cursor },
        ReadFailure::Other(why) => failed(AskError::Failed(why)),
    }
}

impl SessionReader for RemoteStore {
    fn id(&self) -> SessionId {
        self.session
    }

    fn head(&self) -> Fut<'_, Head> {
        Box::pin(async { Ok(self.head) })
    }

    fn conversation(&self, id: ConversationId) -> Fut<'_, Option<ConversationRecord>> {
        Box::pin(async move {
            if let Some(known) = self.conversation.as_ref().filter(|known| known.id == id) {
                return Ok(Some(known.clone()));
            }
            match self.ask(StoreRead::Conversation(id)).await? {
                StoreAnswer::Conversation(record) => Ok(record),
                _ => Err(failed(AskError::Other)),
            }
        })
    }

    fn scan_conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<ConversationRecord>> {
        asked!(self, Conversations, StoreRead::Conversations(query, limit, cursor))
    }

    fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Fut<'_, Option<(EntryRecord, Seq)>> {
        asked!(self, Entry, StoreRead::Entry(visible_in, id))
    }

    fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<EntryRecord>> {
        asked!(self, Entries, StoreRead::Entries(query, limit, cursor))
    }

    fn latest_head_marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Fut<'_, Option<EntryRecord>> {
        asked!(self, HeadMarker, StoreRead::HeadMarker(conversation, at))
    }

    fn task(&self, id: TaskId) -> Fut<'_, Option<TaskRecord>> {
        Box::pin(async move {
            if let Some(known) = self.task.as_ref().filter(|known| known.id == id) {
                return Ok(Some(known.clone()));
            }
            match self.ask(StoreRead::Task(id)).await? {
                StoreAnswer::Task(record) => Ok(record),
                _ => Err(failed(AskError::Other)),
            }
        })
    }

    fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<TaskRecord>> {
        asked!(self, Tasks, StoreRead::Tasks(query, limit, cursor))
    }

    fn invocation(&self, _task: TaskId) -> Fut<'_, Option<InvocationRow>> {
        // It names the capability of an invocation.
        Box::pin(async { Err(failed(AskError::NotForClosures)) })
    }

    fn submission(&self, id: SubmissionId) -> Fut<'_, Option<SubmissionRecord>> {
        asked!(self, Submission, StoreRead::Submission(id))
    }

    fn submission_by_request(&self, conversation: ConversationId, request_id: String) -> Fut<'_, Option<SubmissionRecord>> {
        asked!(self, Submission, StoreRead::SubmissionByRequest(conversation, request_id))
    }

    fn scan_submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SubmissionRecord>> {
        asked!(self, Submissions, StoreRead::Submissions(query, limit, cursor))
    }

    fn find_document(&self, address: DocumentAddress, at: Point) -> Fut<'_, Option<DocumentRecord>> {
        Box::pin(async move {
            if at == Point::Current {
                return Ok(self.current(address).await?.map(|stored| stored.record));
            }
            match self.ask(StoreRead::FindDocument(address, at)).await? {
                StoreAnswer::Found(record) => Ok(record),
                _ => Err(failed(AskError::Other)),
            }
        })
    }

    fn document(&self, id: DocumentId, at: Point) -> Fut<'_, Option<StoredDocument>> {
        let known = self.documents().values().flatten().find(|stored| stored.record.create.id == id).cloned();
        match known.filter(|_| at == Point::Current) {
            Some(stored) => Box::pin(async { Ok(Some(stored)) }),
            None => asked!(self, Stored, StoreRead::Document(id, at)),
        }
    }

    fn scan_documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<DocumentRecord>> {
        asked!(self, Documents, StoreRead::Documents(query, limit, cursor))
    }

    fn request(&self, _key: String) -> Fut<'_, Option<RequestRow>> {
        Box::pin(async { Err(failed(AskError::NotForClosures)) })
    }

    fn wake(&self) -> Fut<'_, Option<Millis>> {
        Box::pin(async { Err(failed(AskError::NotForClosures)) })
    }
}

impl SessionStore for RemoteStore {
    fn commit(&self, batch: Batch) -> CommitHandle {
        // A session sends one commit at a time, and this one commits once.
        let written = batch.commits.into_iter().next().map(|commit| (commit.next_id, commit.writes));
        *self.written.lock().unwrap_or_else(PoisonError::into_inner) = written;
        let (answer, handle) = CommitHandle::channel();
        // The receiver is in the handle.
        let _ = answer.send(Ok(self.head));
        handle
    }

    fn opened(&self) -> Head {
        self.head
    }

    fn release(&self) -> Fut<'_, ()> {
        Box::pin(async { Ok(()) })
    }
}
