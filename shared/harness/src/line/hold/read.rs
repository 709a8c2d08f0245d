//! The reads of a held line. No commit can land meanwhile, so that all of them see one state.

use picofleet_session::storage::StorageError;
use picofleet_session::{DocumentAddress, Point, StoredDocument};

use super::super::{SessionLine, chain};
use super::{GONE, Hold};
use crate::wire::{Answer, HoldId, ReadFailure, StoreAnswer, StoreRead};

impl SessionLine {
    /// Answers a read of a held line.
    pub(in crate::line) async fn ask(&self, id: HoldId, read: StoreRead) -> Answer {
        let Some(hold) = self.find_hold(id).filter(|hold| hold.reads()) else { return GONE };
        let answer = self.read_held(&hold, read).await.unwrap_or_else(|error| StoreAnswer::Failed(failure(&error)));
        // What was read behind the end of the hold may be of a later state.
        if hold.reads() { Answer::Stored(Box::new(answer)) } else { GONE }
    }

    async fn read_held(&self, hold: &Hold, read: StoreRead) -> Result<StoreAnswer, StorageError> {
        let store = self.session().store();
        Ok(match read {
            StoreRead::Conversation(id) => StoreAnswer::Conversation(store.conversation(id).await?),
            StoreRead::Conversations(query, limit, cursor) => {
                StoreAnswer::Conversations(store.scan_conversations(query, limit, cursor).await?)
            }
            StoreRead::Entry(visible_in, id) => StoreAnswer::Entry(store.entry(visible_in, id).await?),
            StoreRead::Entries(query, limit, cursor) => StoreAnswer::Entries(store.scan_entries(query, limit, cursor).await?),
            StoreRead::HeadMarker(conversation, at) => StoreAnswer::HeadMarker(store.latest_head_marker(conversation, at).await?),
            StoreRead::Task(id) => StoreAnswer::Task(store.task(id).await?),
            StoreRead::Tasks(query, limit, cursor) => StoreAnswer::Tasks(store.scan_tasks(query, limit, cursor).await?),
            StoreRead::Submission(id) => StoreAnswer::Submission(store.submission(id).await?),
            StoreRead::SubmissionByRequest(conversation, key) => {
                StoreAnswer::Submission(store.submission_by_request(conversation, key).await?)
            }
            StoreRead::Submissions(query, limit, cursor) => StoreAnswer::Submissions(store.scan_submissions(query, limit, cursor).await?),
            StoreRead::DocumentAt(address) => StoreAnswer::Stored(match hold.shown(self, &address).await? {
                Some(stored) => Some(stored),
                None => self.stored_at(address, Point::Current).await?,
            }),
            StoreRead::FindDocument(address, at) => StoreAnswer::Found(store.find_document(address, at).await?),
            StoreRead::Document(id, at) => StoreAnswer::Stored(store.document(id, at).await?),
            StoreRead::Documents(query, limit, cursor) => StoreAnswer::Documents(store.scan_documents(query, limit, cursor).await?),
        })
    }

    /// The document of an address with its value.
    pub(in crate::line) async fn stored_at(&self, address: DocumentAddress, at: Point) -> Result<Option<StoredDocument>, StorageError> {
        let store = self.session().store();
        match store.find_document(address, at).await? {
            Some(record) => store.document(record.create.id, at).await,
            None => Ok(None),
        }
    }
}

fn failure(error: &StorageError) -> ReadFailure {
    match error {
        StorageError::UnknownConversation { conversation } => ReadFailure::UnknownConversation(*conversation),
        StorageError::NoHistory { document } => ReadFailure::NoHistory(*document),
        StorageError::BadCursor { cursor } => ReadFailure::BadCursor(cursor.clone()),
        other => ReadFailure::Other(chain(other)),
    }
}
