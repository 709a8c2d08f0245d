//! The messages of document watches (section 9.2). They are pulled: an answer waits on the line until there is something.

use picofleet_session::{DocumentAddress, DocumentId, InvocationId, Json, Seq, StoredValue};
use serde::{Deserialize, Serialize};

/// The random name of one watch, given by who asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WatchId(pub InvocationId);

impl WatchId {
    /// A new one, from the system's random numbers.
    #[must_use]
    pub fn random() -> Self {
        Self(InvocationId::random())
    }
}

/// What is asked of a watch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchCall {
    /// Begin with the current incarnation at an address.
    Begin(DocumentAddress),
    /// The frames behind the last one that arrived. A line that does not know the watch, because it was opened since, begins it again.
    Next {
        /// The incarnation that is watched.
        document: DocumentId,
        /// The number of the last frame that arrived; 0 for none.
        seen: u64,
        /// How long to wait for one, in milliseconds.
        timeout_ms: u64,
    },
    /// It is not wanted any more.
    Stop,
}

/// What a watch answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Watched {
    /// There is no such document, and no watch.
    Absent,
    /// The value that it begins with.
    Begun(Box<StoredValue>),
    /// Frames in their order; none where the time is over.
    Frames(Vec<WatchFrame>),
}

/// A commit that changed the document.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WatchFrame {
    /// Rises by at least one; frames that were folded together leave a gap.
    pub number: u64,
    /// The commit.
    pub seq: Seq,
    /// The version of the definition that the value has now.
    pub version: u32,
    /// What it did.
    pub change: WatchChange,
}

/// What a commit did to a watched document.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum WatchChange {
    /// Operations on the value before.
    Ops(Json),
    /// The whole value: of another version than before, or of several commits.
    Value(Json),
    /// The whole value where the watch goes on on another opening of the line: what was between is not known.
    Again(Json),
    /// The document is gone.
    Retired,
}
