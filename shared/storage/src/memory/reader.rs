//! Reads of one session. Each takes the rows as they are when it runs and goes on without the lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::storage::{
    ConversationQuery, Cursor, DocumentQuery, EntryQuery, Fut, Head, Page, RequestRow, SessionReader, StorageError, SubmissionQuery,
    TaskFilter, TaskQuery,
};
use picofleet_session::{
    ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, InvocationRow, Millis, Point,
    Seq, SessionId, StoredDocument, SubmissionId, SubmissionRecord, SubmissionStatus, TaskId, TaskRecord, TaskStatus,
};

use super::rows::{Rows, above, under};
use super::state::Shared;
use crate::rules::{Segment, ancestry, page, read_cursor, readable, visible};

type Answer<T> = Result<T, StorageError>;

/// A reader. That of a line ends with it.
pub(crate) struct Reader {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: SessionId,
    pub(crate) released: Option<Arc<AtomicBool>>,
}

impl Reader {
    pub(crate) fn check_released(&self) -> Answer<()> {
        match &self.released {
            Some(released) if released.load(Ordering::SeqCst) => Err(StorageError::Closed),
            _ => Ok(()),
        }
    }

    fn read<'a, T: Send + 'a>(&'a self, read: impl FnOnce(Rows) -> Answer<T> + Send + 'a) -> Fut<'a, T> {
        Box::pin(futures::future::lazy(move |_| {
            self.check_released()?;
            read(self.shared.rows(self.id)?)
        }))
    }
}

impl SessionReader for Reader {
    fn id(&self) -> SessionId {
        self.id
    }

    fn head(&self) -> Fut<'_, Head> {
        self.read(|rows| Ok(rows.head))
    }

    fn conversation(&self, id: ConversationId) -> Fut<'_, Option<ConversationRecord>> {
        self.read(move |rows| Ok(rows.conversations.get(&id.get()).cloned()))
    }

    fn scan_conversations(&self, query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<ConversationRecord>> {
        self.read(move |rows| scan_conversations(&rows, query, limit, cursor.as_ref()))
    }

    fn entry(&self, visible_in: Option<ConversationId>, id: EntryId) -> Fut<'_, Option<(EntryRecord, Seq)>> {
        self.read(move |rows| {
            let segments = visible_in.map(|conversation| segments(&rows, conversation)).transpose()?;
            let entry = rows.entries.get(&id.get());
            let entry = entry.filter(|entry| segments.as_ref().is_none_or(|segments| visible(segments, entry.1.conversation_id, id)));
            Ok(entry.map(|entry| (entry.1.clone(), entry.0)))
        })
    }

    fn scan_entries(&self, query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<EntryRecord>> {
        self.read(move |rows| scan_entries(&rows, query, limit, cursor.as_ref()))
    }

    fn latest_head_marker(&self, conversation: ConversationId, at: Option<EntryId>) -> Fut<'_, Option<EntryRecord>> {
        self.read(move |rows| {
            let newest = segments(&rows, conversation)?.iter().find_map(|segment| {
                let conversation = segment.conversation.get();
                let heads = rows.heads.range((conversation, 0)..=(conversation, upper(segment.cap, at)));
                heads.map(|(_, id)| *id).next_back()
            });
            Ok(newest.and_then(|id| rows.entries.get(&id)).map(|entry| entry.1.clone()))
        })
    }

    fn task(&self, id: TaskId) -> Fut<'_, Option<TaskRecord>> {
        self.read(move |rows| Ok(rows.tasks.get(&id.get()).map(|task| (**task).clone())))
    }

    fn scan_tasks(&self, query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<TaskRecord>> {
        self.read(move |rows| scan_tasks(&rows, &query, limit, cursor.as_ref()))
    }

    fn invocation(&self, task: TaskId) -> Fut<'_, Option<InvocationRow>> {
        self.read(move |rows| Ok(rows.invocations.get(&task.get()).cloned()))
    }

    fn submission(&self, id: SubmissionId) -> Fut<'_, Option<SubmissionRecord>> {
        self.read(move |rows| Ok(rows.submissions.get(&id.get()).map(|submission| (**submission).clone())))
    }

    fn submission_by_request(&self, conversation: ConversationId, request_id: String) -> Fut<'_, Option<SubmissionRecord>> {
        self.read(move |rows| {
            let id = rows.request_ids.get(&(conversation.get(), Arc::from(request_id)));
            Ok(id.and_then(|id| rows.submissions.get(&id.get())).map(|submission| (**submission).clone()))
        })
    }

    fn scan_submissions(&self, query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SubmissionRecord>> {
        self.read(move |rows| scan_submissions(&rows, query, limit, cursor.as_ref()))
    }

    fn find_document(&self, address: DocumentAddress, at: Point) -> Fut<'_, Option<DocumentRecord>> {
        self.read(move |rows| {
            let address = Arc::new(address);
            let incarnations = rows.by_address.range((Arc::clone(&address), 0)..=(address, i64::MAX)).rev();
            let mut records = incarnations.filter_map(|(_, id)| rows.documents.get(id));
            Ok(records.find(|record| record.alive(at)).map(|record| (**record).clone()))
        })
    }

    fn document(&self, id: DocumentId, at: Point) -> Fut<'_, Option<StoredDocument>> {
        self.read(move |rows| {
            let Some(record) = rows.documents.get(&id.get()) else { return Ok(None) };
            if !readable(record, at)? {
                return Ok(None);
            }
            rows.replay_to(id, at).document((**record).clone()).map(Some)
        })
    }

    fn scan_documents(&self, query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<DocumentRecord>> {
        self.read(move |rows| scan_documents(&rows, &query, limit, cursor.as_ref()))
    }

    fn request(&self, key: String) -> Fut<'_, Option<RequestRow>> {
        self.read(move |rows| Ok(rows.requests.get(&key).cloned()))
    }

    fn wake(&self) -> Fut<'_, Option<Millis>> {
        self.read(|rows| Ok(rows.wake))
    }
}

fn segments(rows: &Rows, conversation: ConversationId) -> Answer<Vec<Segment>> {
    ancestry(conversation, |id| Ok(rows.conversations.get(&id.get()).cloned()))
}

/// The newest id that both bounds allow.
fn upper(cap: Option<EntryId>, max: Option<EntryId>) -> i64 {
    [cap, max].into_iter().flatten().map(picofleet_session::Id::get).min().unwrap_or(i64::MAX)
}

fn scan_entries(rows: &Rows, query: EntryQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<EntryRecord>> {
    let before: Option<EntryId> = read_cursor("entries", cursor)?;
    let segments = segments(rows, query.conversation_id)?;
    let min = query.min_entry_id.map_or(0, picofleet_session::Id::get);
    let ids = segments.iter().flat_map(|segment| {
        let newest = upper(segment.cap, query.max_entry_id).min(before.map_or(i64::MAX, |before| before.get() - 1));
        let key = segment.conversation.get();
        let range = (min <= newest).then(|| rows.by_conversation.range((key, min)..=(key, newest)).rev());
        range.into_iter().flatten().map(|(_, id)| *id)
    });
    let entries = ids.filter_map(|id| rows.entries.get(&id)).map(|entry| Ok(entry.1.clone()));
    page("entries", limit, entries, |entry| entry.id)
}

fn scan_conversations(rows: &Rows, query: ConversationQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<ConversationRecord>> {
    let after = read_cursor("conversations", cursor)?.map_or(0, ConversationId::get);
    let ids: Box<dyn Iterator<Item = i64>> = match (query.owner_task_id, query.owner_conversation_id) {
        (Some(task), _) => Box::new(under(&rows.by_owner_task, task.get(), after)),
        (None, Some(conversation)) => Box::new(under(&rows.by_owner_conversation, conversation.get(), after)),
        (None, None) => Box::new(above(&rows.conversations, after).map(|(id, _)| id)),
    };
    let owned = |record: &&ConversationRecord| {
        query.owner_conversation_id.is_none_or(|id| record.owner.is_some_and(|owner| owner.conversation_id == id))
    };
    let records = ids.filter_map(|id| rows.conversations.get(&id)).filter(owned);
    page("conversations", limit, records.map(|record| Ok(record.clone())), |record| record.id)
}

fn scan_tasks(rows: &Rows, query: &TaskQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<TaskRecord>> {
    let after = read_cursor::<TaskId>("tasks", cursor)?.map_or(0, TaskId::get);
    let live = query.status.is_some_and(|status| status != TaskFilter::Status(TaskStatus::Terminal));
    let ids: Box<dyn Iterator<Item = i64>> = match (query.owner_task_id, query.conversation_id) {
        (Some(owner), _) => Box::new(under(&rows.tasks_by_owner, owner.get(), after)),
        _ if live => Box::new(rows.live_tasks.range(after + 1..).copied()),
        (None, Some(conversation)) => Box::new(under(&rows.tasks_by_conversation, conversation.get(), after)),
        (None, None) => Box::new(above(&rows.tasks, after).map(|(id, _)| id)),
    };
    let records = ids.filter_map(|id| rows.tasks.get(&id)).filter(|task| matches_task(task, query));
    page("tasks", limit, records.map(|task| Ok((**task).clone())), |task| task.id)
}

fn matches_task(task: &TaskRecord, query: &TaskQuery) -> bool {
    let status = match query.status {
        None => true,
        Some(TaskFilter::Live) => !task.terminal(),
        Some(TaskFilter::Status(status)) => task.status() == status,
    };
    status
        && query.conversation_id.is_none_or(|id| task.conversation_id == id)
        && query.owner_task_id.is_none_or(|id| task.owner == Some(id))
        && query.kind.as_ref().is_none_or(|kind| task.kind == *kind)
        && query.abort_requested.is_none_or(|abort| task.abort_requested == abort)
        && query.background.is_none_or(|background| task.background == background)
}

fn scan_submissions(rows: &Rows, query: SubmissionQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<SubmissionRecord>> {
    let after = read_cursor("submissions", cursor)?.map_or(0, SubmissionId::get);
    let unsettled = matches!(query.status, Some(SubmissionStatus::Queued | SubmissionStatus::Placed));
    let ids: Box<dyn Iterator<Item = i64>> = match query.conversation_id {
        _ if unsettled => Box::new(rows.unsettled.range(after + 1..).copied()),
        Some(conversation) => Box::new(under(&rows.submissions_by_conversation, conversation.get(), after)),
        None => Box::new(above(&rows.submissions, after).map(|(id, _)| id)),
    };
    let matches = |submission: &SubmissionRecord| {
        query.status.is_none_or(|status| submission.status() == status)
            && query.conversation_id.is_none_or(|id| submission.conversation_id == id)
    };
    let records = ids.filter_map(|id| rows.submissions.get(&id)).filter(|submission| matches(submission));
    page("submissions", limit, records.map(|submission| Ok((**submission).clone())), |submission| submission.id)
}

fn scan_documents(rows: &Rows, query: &DocumentQuery, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<DocumentRecord>> {
    let after = read_cursor("documents", cursor)?.map_or(0, DocumentId::get);
    let ids = rows.by_scope.range((query.scope, after + 1)..=(query.scope, i64::MAX)).map(|(_, id)| id);
    let alive = ids
        .filter_map(|id| rows.documents.get(id))
        .filter(|record| record.alive(query.at) && query.kind.as_ref().is_none_or(|kind| record.create.kind == *kind));
    page("documents", limit, alive.map(|record| Ok((**record).clone())), |record| record.create.id)
}
