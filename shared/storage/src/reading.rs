//! Reads that go on to another reader.

use picofleet_session::storage::{Fut, SessionReader};

/// A type that reads as the reader that it holds. [`read_through!`](crate::read_through) makes it a [`SessionReader`], so that wrappers
/// and lines do not write out every read once more.
pub trait ReadThrough: Send + Sync + 'static {
    /// The reader.
    fn target(&self) -> &dyn SessionReader;

    /// Does a read of it; here is the place to do something before or after each.
    fn through<'a, T: Send + 'a>(&'a self, read: impl FnOnce(&'a dyn SessionReader) -> Fut<'a, T> + Send + 'a) -> Fut<'a, T> {
        read(self.target())
    }
}

/// Implements [`SessionReader`] for a type that is [`ReadThrough`].
#[macro_export]
macro_rules! read_through {
    ($type:ty) => {
        $crate::read_through! { @reads $type;
            head() -> Head;
            conversation(id: ConversationId) -> Option<ConversationRecord>;
            scan_conversations(query: ConversationQuery, limit: u32, cursor: Option<Cursor>) -> Page<ConversationRecord>;
            entry(visible_in: Option<ConversationId>, id: EntryId) -> Option<(EntryRecord, Seq)>;
            scan_entries(query: EntryQuery, limit: u32, cursor: Option<Cursor>) -> Page<EntryRecord>;
            latest_head_marker(conversation: ConversationId, at: Option<EntryId>) -> Option<EntryRecord>;
            task(id: TaskId) -> Option<TaskRecord>;
            scan_tasks(query: TaskQuery, limit: u32, cursor: Option<Cursor>) -> Page<TaskRecord>;
            invocation(task: TaskId) -> Option<InvocationRow>;
            submission(id: SubmissionId) -> Option<SubmissionRecord>;
            submission_by_request(conversation: ConversationId, request_id: String) -> Option<SubmissionRecord>;
            scan_submissions(query: SubmissionQuery, limit: u32, cursor: Option<Cursor>) -> Page<SubmissionRecord>;
            find_document(address: DocumentAddress, at: Point) -> Option<DocumentRecord>;
            document(id: DocumentId, at: Point) -> Option<StoredDocument>;
            scan_documents(query: DocumentQuery, limit: u32, cursor: Option<Cursor>) -> Page<DocumentRecord>;
            request(key: String) -> Option<RequestRow>;
            wake() -> Option<Millis>;
        }
    };
    (@reads $type:ty; $($name:ident($($argument:ident: $of:ty),*) -> $answer:ty;)*) => {
        const _: () = {
            use $crate::reading::types::*;

            impl SessionReader for $type {
                fn id(&self) -> SessionId {
                    $crate::reading::ReadThrough::target(self).id()
                }

                $(fn $name(&self, $($argument: $of),*) -> Fut<'_, $answer> {
                    $crate::reading::ReadThrough::through(self, move |reader| reader.$name($($argument),*))
                })*
            }
        };
    };
}

/// The types in the reads, for the macro.
#[doc(hidden)]
pub mod types {
    pub use picofleet_session::storage::{
        ConversationQuery, Cursor, DocumentQuery, EntryQuery, Fut, Head, Page, RequestRow, SessionReader, SubmissionQuery, TaskQuery,
    };
    pub use picofleet_session::{
        ConversationId, ConversationRecord, DocumentAddress, DocumentId, DocumentRecord, EntryId, EntryRecord, InvocationRow, Millis,
        Point, Seq, SessionId, StoredDocument, SubmissionId, SubmissionRecord, TaskId, TaskRecord,
    };
}
