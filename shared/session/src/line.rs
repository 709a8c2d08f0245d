//! What the holder of a session's line works with: the head, the id counter, and committed records and documents that are in memory.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use picofleet_delta::Tracker;

use crate::definition::{Located, Rules};
use crate::error::{TxError, Violation};
use crate::storage::{DocumentQuery, Head, PAGE_MAX, SessionStore};
use crate::transcript::Transcripts;
use crate::{
    ConversationId, ConversationRecord, DefinitionError, DocumentAddress, DocumentId, DocumentRecord, DocumentScope, EntryId, EntryRecord,
    ID_MAX, Id, Point, Semantics, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
};

/// How many shared entries are kept: the answers of the rounds that run.
const ENTRIES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(7);

/// The state behind the line's lock. Records and documents here are committed; they are a cache, and any of them may be missing.
pub(crate) struct Line {
    pub(crate) head: Head,
    next_id: i64,
    documents: LruCache<DocumentAddress, Loaded>,
    conversations: LruCache<ConversationId, ConversationRecord>,
    tasks: LruCache<TaskId, CachedTask>,
    submissions: LruCache<SubmissionId, Arc<SubmissionRecord>>,
    /// The entries that transactions asked for to share them; they never change.
    entries: LruCache<EntryId, Arc<EntryRecord>>,
    pub(crate) transcripts: Transcripts,
}

/// A committed task, with its documents where they are known.
pub(crate) struct CachedTask {
    pub(crate) record: Arc<TaskRecord>,
    /// All its current documents; `None` until storage was asked. A task that this line created starts with none.
    pub(crate) documents: Option<Vec<DocumentRecord>>,
}

/// A committed document in memory.
pub(crate) struct Loaded {
    pub(crate) record: DocumentRecord,
    /// The version that storage has.
    pub(crate) stored_version: u32,
    /// The version that the tracker's value has. It serves only tokens of this version (section 3.6).
    pub(crate) version: u32,
    pub(crate) deltas_since_base: u32,
    pub(crate) tracker: Tracker,
}

/// How much of a session's committed state stays in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheSize {
    /// Documents.
    pub documents: NonZeroUsize,
    /// Conversations, tasks and submissions, of each.
    pub records: NonZeroUsize,
}

impl Default for CacheSize {
    /// Enough for the documents and live records of a hundred busy conversations.
    fn default() -> Self {
        Self { documents: NonZeroUsize::MIN.saturating_add(511), records: NonZeroUsize::MIN.saturating_add(1023) }
    }
}

impl Line {
    pub(crate) fn new(head: Head, size: CacheSize) -> Self {
        Self {
            head,
            next_id: head.next_id,
            documents: LruCache::new(size.documents),
            conversations: LruCache::new(size.records),
            tasks: LruCache::new(size.records),
            submissions: LruCache::new(size.records),
            entries: LruCache::new(ENTRIES),
            transcripts: Transcripts::new(size.records),
        }
    }

    /// The next id. Ids of a transaction that rolls back are not used again.
    pub(crate) fn mint<K: ?Sized>(&mut self) -> Result<Id<K>, Violation> {
        if self.next_id >= ID_MAX {
            return Err(Violation::IdsExhausted);
        }
        let id = Id::new(self.next_id).map_err(|_| Violation::IdsExhausted)?;
        self.next_id += 1;
        Ok(id)
    }

    pub(crate) const fn next_id(&self) -> i64 {
        self.next_id
    }

    pub(crate) fn cached_conversation(&mut self, id: ConversationId) -> Option<ConversationRecord> {
        self.conversations.get(&id).cloned()
    }

    pub(crate) fn cached_task(&mut self, id: TaskId) -> Option<&CachedTask> {
        self.tasks.get(&id)
    }

    pub(crate) fn cached_submission(&mut self, id: SubmissionId) -> Option<Arc<SubmissionRecord>> {
        self.submissions.get(&id).cloned()
    }

    pub(crate) fn cached_entry(&mut self, id: EntryId) -> Option<Arc<EntryRecord>> {
        self.entries.get(&id).cloned()
    }

    pub(crate) fn keep_entry(&mut self, record: Arc<EntryRecord>) {
        self.entries.put(record.id, record);
    }

    pub(crate) fn keep_conversation(&mut self, record: ConversationRecord) {
        self.conversations.put(record.id, record);
    }

    pub(crate) fn keep_task(&mut self, record: Arc<TaskRecord>, documents: Option<Vec<DocumentRecord>>) {
        self.tasks.put(record.id, CachedTask { record, documents });
    }

    /// Takes note of a new document of a task whose documents are known.
    pub(crate) fn add_task_document(&mut self, task: TaskId, record: DocumentRecord) {
        if let Some(CachedTask { documents: Some(documents), .. }) = self.tasks.get_mut(&task) {
            documents.push(record);
        }
    }

    /// Takes note of the end of a task's document.
    pub(crate) fn remove_task_document(&mut self, task: TaskId, id: DocumentId) {
        if let Some(CachedTask { documents: Some(documents), .. }) = self.tasks.get_mut(&task) {
            documents.retain(|document| document.create.id != id);
        }
    }

    pub(crate) fn keep_submission(&mut self, record: Arc<SubmissionRecord>) {
        self.submissions.put(record.id, record);
    }

    /// Takes a document out, for whoever works with it; a version that does not serve the token is dropped (section 3.6).
    pub(crate) fn take_document(&mut self, address: &DocumentAddress, version: u32) -> Option<Loaded> {
        self.documents.pop(address).filter(|loaded| loaded.version == version)
    }

    /// Goes on with ids from `next_id` on: those before it were given out elsewhere.
    pub(crate) const fn skip_ids(&mut self, next_id: i64) {
        if next_id > self.next_id {
            self.next_id = next_id;
        }
    }

    /// Takes a document out by its id, whatever version of its definition it serves.
    pub(crate) fn take_document_by_id(&mut self, id: DocumentId) -> Option<Loaded> {
        let address = self.documents.iter().find(|(_, loaded)| loaded.record.create.id == id).map(|(address, _)| address.clone())?;
        self.documents.pop(&address)
    }

    /// Whether a document is in memory.
    pub(crate) fn has_document(&self, address: &DocumentAddress) -> bool {
        self.documents.contains(address)
    }

    pub(crate) fn keep_document(&mut self, loaded: Loaded) {
        self.documents.put(loaded.record.create.address(), loaded);
    }

    pub(crate) fn forget_document(&mut self, address: &DocumentAddress) {
        self.documents.pop(address);
    }
}

/// Checks that a token fits what is stored (section 3.1).
pub(crate) fn check_semantics(address: &DocumentAddress, token: Semantics, stored: Semantics) -> Result<(), DefinitionError> {
    if token == stored {
        return Ok(());
    }
    Err(DefinitionError::Semantics { address: address.clone() })
}

/// Reads a document from storage and brings it to the token's version in memory. `None` where there is no current incarnation.
pub(crate) async fn load(store: &dyn SessionStore, located: &Located<'_>) -> Result<Option<Loaded>, TxError> {
    let Some(record) = store.find_document(located.address.clone(), Point::Current).await? else { return Ok(None) };
    check_semantics(&located.address, located.placement.semantics(), record.create.placement.semantics())?;
    let Some(stored) = store.document(record.create.id, Point::Current).await? else { return Ok(None) };
    let loaded = Loaded {
        record: stored.record,
        stored_version: stored.version,
        version: located.rules.version,
        deltas_since_base: stored.deltas_since_base,
        tracker: track(&located.rules, stored.value, stored.version)?,
    };
    Ok(Some(loaded))
}

/// A tracker over a stored value, migrated in memory.
pub(crate) fn track(rules: &Rules, value: picofleet_delta::Json, stored_version: u32) -> Result<Tracker, TxError> {
    Ok(Tracker::new(rules.migrate(value, stored_version)?)?)
}

/// The current documents of a task, from storage.
pub(crate) async fn task_documents(store: &dyn SessionStore, task: TaskId) -> Result<Vec<DocumentRecord>, TxError> {
    let mut documents = Vec::new();
    let mut cursor = None;
    loop {
        let query = DocumentQuery { scope: DocumentScope::Task { id: task }, at: Point::Current, kind: None };
        let page = store.scan_documents(query, PAGE_MAX, cursor).await?;
        documents.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            return Ok(documents);
        }
    }
}
