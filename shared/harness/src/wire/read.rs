//! Reads of committed state that travel to the line.

use picofleet_session::storage::{Cursor, EntryQuery};
use picofleet_session::{ConversationId, DocumentAddress, EntryId, SubmissionId, TaskId};
use serde::{Deserialize, Serialize};

/// A read of committed state.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Read {
    /// A task's record.
    Task(TaskId),
    /// An entry.
    Entry(EntryId),
    /// A call of an answer, as a tool runs it.
    Call {
        /// The entry of the answer.
        answer: EntryId,
        /// The provider's name of the call.
        call: String,
    },
    /// A submission.
    Submission(SubmissionId),
    /// The active transcript and the model's context.
    Context {
        /// The conversation.
        conversation: ConversationId,
        /// Up to this entry.
        at: Option<EntryId>,
    },
    /// Entries, newest first.
    Entries {
        /// The conversation.
        conversation: ConversationId,
        /// The oldest.
        min: Option<EntryId>,
        /// The newest.
        max: Option<EntryId>,
        /// How many.
        limit: u32,
    },
    /// A conversation's document by kind; `null` where there is none.
    ConversationDocument {
        /// The conversation.
        conversation: ConversationId,
        /// The kind.
        kind: String,
    },
    /// A conversation's record.
    Conversation(ConversationId),
    /// An entry, where it is visible from a conversation.
    VisibleEntry {
        /// The conversation.
        conversation: ConversationId,
        /// The entry.
        entry: EntryId,
    },
    /// A document as it is stored, by its address; `null` where there is none.
    Document(DocumentAddress),
    /// A rewindable document as it was at a visible entry; `null` where there was none.
    DocumentAsOf {
        /// Its address; the scope is the one of the entry's own conversation.
        address: DocumentAddress,
        /// The conversation that sees the entry.
        conversation: ConversationId,
        /// The entry.
        at: EntryId,
    },
    /// The conversations that own a conversation through tasks, the nearest first.
    Owners(ConversationId),
    /// Conversations in the order of their ids; both filters together are conjunctive.
    Conversations {
        /// Owned from this conversation.
        owner_conversation: Option<ConversationId>,
        /// Owned by this task.
        owner_task: Option<TaskId>,
        /// How many.
        limit: u32,
        /// Behind an earlier page.
        cursor: Option<Cursor>,
    },
    /// A page of entries, newest first.
    EntryPage {
        /// The conversation.
        conversation: ConversationId,
        /// The oldest.
        min: Option<EntryId>,
        /// The newest.
        max: Option<EntryId>,
        /// How many.
        limit: u32,
        /// Behind an earlier page.
        cursor: Option<Cursor>,
    },
    /// The active transcript with what each of its entries contributes.
    ContextView {
        /// The conversation.
        conversation: ConversationId,
        /// Up to this entry.
        at: Option<EntryId>,
    },
    /// What the conversations spent together (section 8.6).
    SessionUsage,
}

/// A page of records, with where the next one begins.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Paged<T> {
    /// The records.
    pub items: Vec<T>,
    /// For the next call; `None` at the end.
    pub next: Option<Cursor>,
}

impl Read {
    /// The query of [`Read::Entries`].
    #[must_use]
    pub const fn entries(conversation: ConversationId, min: Option<EntryId>, max: Option<EntryId>) -> EntryQuery {
        EntryQuery { conversation_id: conversation, min_entry_id: min, max_entry_id: max }
    }
}
