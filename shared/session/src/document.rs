//! Document records (section 3.2) and what storage keeps of their content (section 10).

use picofleet_delta::{Json, Op};
use serde::{Deserialize, Serialize};

use crate::{ConversationId, DocumentId, Seq, TaskId};

/// The scope of a document: decides its owner and lifetime (section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum DocumentScope {
    /// The session: current-only, never retired by closing.
    Session,
    /// A conversation.
    Conversation {
        /// The conversation.
        #[serde(rename = "conversationId")]
        id: ConversationId,
    },
    /// A task: current-only, retired when the task ends.
    Task {
        /// The task.
        #[serde(rename = "taskId")]
        id: TaskId,
    },
}

/// What of a conversation document's past can be asked for, and what a fork gets (section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConversationPolicy {
    /// Only the current value.
    Latest(LatestFork),
    /// Every committed value.
    Rewindable(RewindableFork),
}

/// What a fork gets of a latest document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LatestFork {
    /// The committed value when the fork's commit runs.
    Current,
    /// Nothing; the first access creates it.
    Initial,
}

/// What a fork gets of a rewindable document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RewindableFork {
    /// The value at the commit of the fork point.
    AsOf,
    /// The committed value when the fork's commit runs.
    Current,
    /// Nothing; the first access creates it.
    Initial,
}

/// The scope of a document together with what the scope leaves open. Typed access rejects when the token's differs (section 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Semantics {
    /// A session document.
    Session,
    /// A conversation document.
    Conversation(ConversationPolicy),
    /// A task document.
    Task,
}

/// Where one document belongs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// In the session.
    Session,
    /// In a conversation.
    Conversation {
        /// The conversation.
        id: ConversationId,
        /// Its history and fork policy.
        policy: ConversationPolicy,
    },
    /// In a task.
    Task {
        /// The task.
        id: TaskId,
    },
}

impl Placement {
    /// The scope.
    #[must_use]
    pub const fn scope(&self) -> DocumentScope {
        match *self {
            Self::Session => DocumentScope::Session,
            Self::Conversation { id, .. } => DocumentScope::Conversation { id },
            Self::Task { id } => DocumentScope::Task { id },
        }
    }

    /// The semantics.
    #[must_use]
    pub const fn semantics(&self) -> Semantics {
        match *self {
            Self::Session => Semantics::Session,
            Self::Conversation { policy, .. } => Semantics::Conversation(policy),
            Self::Task { .. } => Semantics::Task,
        }
    }

    /// Whether past values are kept.
    #[must_use]
    pub const fn rewindable(&self) -> bool {
        matches!(self, Self::Conversation { policy: ConversationPolicy::Rewindable(_), .. })
    }
}

/// One persisted incarnation of a document, without its lifetime: what creates it (section 3.2).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "CreateWire", into = "CreateWire")]
pub struct DocumentCreate {
    /// The incarnation.
    pub id: DocumentId,
    /// The definition's kind.
    pub kind: String,
    /// The member's key; only families have one.
    pub key: Option<String>,
    /// Where it belongs.
    pub placement: Placement,
}

impl DocumentCreate {
    /// The logical address that it occupies.
    #[must_use]
    pub fn address(&self) -> DocumentAddress {
        DocumentAddress { kind: self.kind.clone(), scope: self.placement.scope(), key: self.key.clone() }
    }
}

/// One persisted incarnation of a document, alive in `created_at <= at < retired_at` (section 3.2).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct DocumentRecord {
    /// What created it.
    pub create: DocumentCreate,
    /// The commit that created it.
    pub created_at: Seq,
    /// The commit that retired it.
    pub retired_at: Option<Seq>,
}

impl DocumentRecord {
    /// Whether it is alive at `at`; `None` asks for now.
    #[must_use]
    pub fn alive(&self, at: Point) -> bool {
        match at {
            Point::Current => self.retired_at.is_none(),
            Point::At(seq) => self.created_at <= seq && self.retired_at.is_none_or(|retired| seq < retired),
        }
    }
}

/// The logical address of a document: at most one incarnation is current at each.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct DocumentAddress {
    /// The definition's kind.
    pub kind: String,
    /// The scope.
    pub scope: DocumentScope,
    /// The member's key; `None` is the singleton and not "every member".
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<String>,
}

impl std::fmt::Display for DocumentAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(key) = &self.key {
            write!(f, "[{key:?}]")?;
        }
        match self.scope {
            DocumentScope::Session => write!(f, " of the session"),
            DocumentScope::Conversation { id } => write!(f, " of conversation {id}"),
            DocumentScope::Task { id } => write!(f, " of task {id}"),
        }
    }
}

/// A point of a session's history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Point {
    /// The newest commit.
    Current,
    /// The state that this commit left.
    At(Seq),
}

/// What one commit stores of a document's content.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DocumentContent {
    /// A complete value.
    Base {
        /// The version of the definition that wrote it.
        version: u32,
        /// A JSON object.
        value: Json,
    },
    /// The change since the record before it.
    Delta {
        /// The version of the definition that wrote it; the same as the base's.
        version: u32,
        /// The operations.
        ops: std::sync::Arc<[Op]>,
    },
}

impl DocumentContent {
    /// The version of the definition that wrote it.
    #[must_use]
    pub const fn version(&self) -> u32 {
        match self {
            Self::Base { version, .. } | Self::Delta { version, .. } => *version,
        }
    }
}

/// A document as it is read from storage.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredDocument {
    /// Its record.
    pub record: DocumentRecord,
    /// The version of the definition that wrote it.
    pub version: u32,
    /// Its value: a JSON object.
    pub value: Json,
    /// The deltas that were replayed after the newest base.
    pub deltas_since_base: u32,
}

/// The flat form that is stored and sent.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    id: DocumentId,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    key: Option<String>,
    scope: DocumentScope,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    history: Option<History>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    fork: Option<Fork>,
    created_at: Seq,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    retired_at: Option<Seq>,
}

/// The flat form of what creates a document.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CreateWire {
    id: DocumentId,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    key: Option<String>,
    scope: DocumentScope,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    history: Option<History>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    fork: Option<Fork>,
}

/// How much of a document's past is kept, as a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum History {
    /// Only the current value.
    Latest,
    /// Every committed value.
    Rewindable,
}

/// What a fork gets, as a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Fork {
    /// The value at the fork point.
    AsOf,
    /// The value now.
    Current,
    /// Nothing.
    Initial,
}

impl ConversationPolicy {
    /// The policy as two words, for storage.
    #[must_use]
    pub const fn words(self) -> (History, Fork) {
        match self {
            Self::Latest(LatestFork::Current) => (History::Latest, Fork::Current),
            Self::Latest(LatestFork::Initial) => (History::Latest, Fork::Initial),
            Self::Rewindable(RewindableFork::AsOf) => (History::Rewindable, Fork::AsOf),
            Self::Rewindable(RewindableFork::Current) => (History::Rewindable, Fork::Current),
            Self::Rewindable(RewindableFork::Initial) => (History::Rewindable, Fork::Initial),
        }
    }

    /// The policy of two words; `None` for `latest` with `asOf`, which does not exist (section 3.1).
    #[must_use]
    pub const fn from_words(history: History, fork: Fork) -> Option<Self> {
        Some(match (history, fork) {
            (History::Latest, Fork::Current) => Self::Latest(LatestFork::Current),
            (History::Latest, Fork::Initial) => Self::Latest(LatestFork::Initial),
            (History::Latest, Fork::AsOf) => return None,
            (History::Rewindable, Fork::AsOf) => Self::Rewindable(RewindableFork::AsOf),
            (History::Rewindable, Fork::Current) => Self::Rewindable(RewindableFork::Current),
            (History::Rewindable, Fork::Initial) => Self::Rewindable(RewindableFork::Initial),
        })
    }

    /// What a fork gets.
    #[must_use]
    pub const fn fork(self) -> Fork {
        self.words().1
    }
}

#[derive(Debug, thiserror::Error)]
#[error("document {0} has a history or fork policy that its scope does not allow")]
struct InvalidDocument(DocumentId);

impl TryFrom<Wire> for DocumentRecord {
    type Error = InvalidDocument;

    fn try_from(wire: Wire) -> Result<Self, InvalidDocument> {
        let Wire { id, kind, key, scope, history, fork, created_at, retired_at } = wire;
        let create = CreateWire { id, kind, key, scope, history, fork }.try_into()?;
        Ok(DocumentRecord { create, created_at, retired_at })
    }
}

impl TryFrom<CreateWire> for DocumentCreate {
    type Error = InvalidDocument;

    fn try_from(wire: CreateWire) -> Result<Self, InvalidDocument> {
        let placement = match (wire.scope, wire.history, wire.fork) {
            (DocumentScope::Session, None, None) => Placement::Session,
            (DocumentScope::Task { id }, None, None) => Placement::Task { id },
            (DocumentScope::Conversation { id }, Some(history), Some(fork)) => {
                let policy = ConversationPolicy::from_words(history, fork).ok_or(InvalidDocument(wire.id))?;
                Placement::Conversation { id, policy }
            }
            _ => return Err(InvalidDocument(wire.id)),
        };
        Ok(DocumentCreate { id: wire.id, kind: wire.kind, key: wire.key, placement })
    }
}

impl From<DocumentCreate> for CreateWire {
    fn from(create: DocumentCreate) -> Self {
        let words = match create.placement {
            Placement::Conversation { policy, .. } => Some(policy.words()),
            Placement::Session | Placement::Task { .. } => None,
        };
        let scope = create.placement.scope();
        let (history, fork) = (words.map(|w| w.0), words.map(|w| w.1));
        CreateWire { id: create.id, kind: create.kind, key: create.key, scope, history, fork }
    }
}

impl From<DocumentRecord> for Wire {
    fn from(record: DocumentRecord) -> Self {
        let CreateWire { id, kind, key, scope, history, fork } = record.create.into();
        Wire { id, kind, key, scope, history, fork, created_at: record.created_at, retired_at: record.retired_at }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_their_stored_form() {
        let text = r#"{"id":9,"kind":"notes","key":"__proto__","scope":{"kind":"conversation","conversationId":1},"history":"rewindable","fork":"asOf","createdAt":4,"retiredAt":6}"#;
        let record: DocumentRecord = Json::parse(text.as_bytes()).unwrap().to().unwrap();
        assert_eq!(Json::from_serde(&record).unwrap().to_string(), text);
        assert!(record.alive(Point::At(Seq(5))));
        assert!(!record.alive(Point::At(Seq(6))));
        assert!(!record.alive(Point::At(Seq(3))));
        assert!(!record.alive(Point::Current));
    }

    #[test]
    fn a_latest_document_has_no_as_of_forks() {
        let text =
            r#"{"id":9,"kind":"n","scope":{"kind":"conversation","conversationId":1},"history":"latest","fork":"asOf","createdAt":4}"#;
        assert!(Json::parse(text.as_bytes()).unwrap().to::<DocumentRecord>().is_err());
        let session = r#"{"id":9,"kind":"n","scope":{"kind":"session"},"history":"latest","fork":"current","createdAt":4}"#;
        assert!(Json::parse(session.as_bytes()).unwrap().to::<DocumentRecord>().is_err());
    }
}
