//! The session kernel: one line of commits over conversations, entries, tasks, submissions and documents, with the contract that a
//! storage backend fulfils for it (sections 2, 3, 4, 9.1, 9.2 and 10 of the specification).
//!
//! **Architecture invariants.** This crate knows no SQL, no NATS, no HTTP, no model and no task definition. It decides the serial
//! order of one session's commits and nothing about what they mean. Only [`Clock`] reads the system clock.

mod clock;
mod context;
mod definition;
mod document;
mod error;
mod id;
mod line;
pub mod message;
mod publication;
mod record;
mod session;
pub mod storage;
mod stored;
mod submission;
mod task;
mod transcript;
mod tx;
mod watch;
mod wire;

pub use clock::Clock;
// Values and operations are part of this crate's interface.
pub use context::{ContextView, Contributions, derive_context, order_messages};
pub use definition::{
    AsOf, CheckpointInfo, CheckpointWhen, Current, DefinitionError, DocDefinition, DocToken, DocValue, FamilyDefinition, FamilyToken,
    InSession, InTask, Initial, Latest, LatestPolicy, Migrate, MigrateError, Rewindable, RewindablePolicy, Scope, every,
};
pub use document::{
    ConversationPolicy, DocumentAddress, DocumentContent, DocumentCreate, DocumentRecord, DocumentScope, Fork, History, LatestFork,
    Placement, Point, RewindableFork, Semantics, StoredDocument,
};
pub use error::{CloseError, CommitError, OpenError, ReadError, SessionFailed, TxError, Violation};
pub use id::{
    CommitToken, ConversationId, DocumentId, EntryId, Epoch, FIRST_MINTED_ID, ID_MAX, Id, InvalidId, InvalidSessionId, InvalidToken,
    InvocationId, Millis, PartitionCount, ROOT_CONVERSATION_ID, Seq, SessionId, SubmissionId, TaskId, marker,
};
pub use line::CacheSize;
pub use picofleet_delta::{ApplyError, Draft, DraftError, Json, Op, Segment, apply, ops_from_json, ops_to_json};
pub use publication::{DocumentChange, Publication, ValueChange};
pub use record::{
    ContextEdit, ConversationOwner, ConversationOwnership, ConversationRecord, DraftHead, EditAction, EntryDraft, EntryKind, EntryRecord,
    ForkPoint, Typed,
};
pub use session::{Report, Session, SessionOptions, Standing, Subscription};
pub use stored::{StoredReader, StoredValue};
pub use submission::{InputState, Settlement, SubmissionRecord, SubmissionState, SubmissionStatus, WriteState};
pub use task::{InvocationRow, JoinPolicy, TaskCreate, TaskError, TaskOutcome, TaskOwnership, TaskRecord, TaskState, TaskStatus};
pub use transcript::Transcript;
pub use tx::{Bound, ConversationCreated, Doc, Replayed, Setups, StagedDocuments, Tx};
pub use watch::{DocumentState, Frame, WATCH_FRAMES_MAX, Watch, WatchEnd, WatchFeed, WatchStopper};
