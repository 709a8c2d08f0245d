//! Conversations and entries (section 2).

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use crate::message::Message;
use crate::{ConversationId, EntryId, TaskId};

/// Who is to own a new conversation. Creation always says it (section 2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum ConversationOwnership {
    /// Nobody.
    Ownerless,
    /// A task; the record's owner pair is derived from the task's record.
    Task {
        /// The owner.
        #[serde(rename = "taskId")]
        task_id: TaskId,
    },
}

/// A transcript scope.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationRecord {
    /// Its id.
    pub id: ConversationId,
    /// What it was forked from: controls inherited entries and historical documents.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub parent: Option<ForkPoint>,
    /// The task it is attributed to; stays after that task ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub owner: Option<ConversationOwner>,
}

/// An entry of another conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ForkPoint {
    /// The parent.
    pub conversation_id: ConversationId,
    /// The last entry of the parent's visible history that the fork sees.
    pub at: EntryId,
}

/// The task that owns a conversation, with that task's own conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConversationOwner {
    /// The conversation of the task.
    pub conversation_id: ConversationId,
    /// The task.
    pub task_id: TaskId,
}

/// What an entry does to the model's view of an older one; the newest edit of a target wins (section 2.1).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContextEdit {
    /// The entry that the edit is about.
    pub target: EntryId,
    /// What becomes of it.
    #[serde(flatten)]
    pub action: EditAction,
}

/// What an edit does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "action", rename_all = "camelCase")]
pub enum EditAction {
    /// The target contributes no messages.
    Omit,
    /// These messages stand for the target's.
    Replace {
        /// The messages.
        messages: Vec<Message>,
    },
}

/// An immutable transcript record.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryRecord {
    /// Its id; ids order the transcript.
    pub id: EntryId,
    /// The conversation that it was appended to.
    pub conversation_id: ConversationId,
    /// Its kind; kinds that start with `pi.` are built in.
    pub kind: String,
    /// What it contributes to the model's context.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<Vec<Message>>,
    /// What the application keeps with it.
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub data: Option<Json>,
    /// Where the active transcript begins from this entry on (section 2.1).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub head: Option<EntryId>,
    /// What it changes in the model's view of older entries.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub edits: Option<Vec<ContextEdit>>,
    /// The task whose runtime appended it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub by_task_id: Option<TaskId>,
}

/// The head that a draft asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DraftHead {
    /// The entry itself.
    Itself,
    /// An older entry.
    Entry(EntryId),
}

impl Serialize for DraftHead {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Itself => serializer.serialize_str("self"),
            Self::Entry(id) => id.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for DraftHead {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        match value.as_str().as_deref() {
            Some("self") => Ok(Self::Itself),
            Some(other) => Err(serde::de::Error::custom(format!("head {other:?} is neither \"self\" nor an entry id"))),
            None => value.to().map(Self::Entry).map_err(serde::de::Error::custom),
        }
    }
}

/// An entry before it has an id.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EntryDraft {
    /// See [`EntryRecord::kind`].
    pub kind: String,
    /// See [`EntryRecord::model`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub model: Option<Vec<Message>>,
    /// See [`EntryRecord::data`].
    #[serde(skip_serializing_if = "Option::is_none", default, deserialize_with = "crate::wire::present")]
    pub data: Option<Json>,
    /// See [`EntryRecord::head`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub head: Option<DraftHead>,
    /// See [`EntryRecord::edits`].
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub edits: Option<Vec<ContextEdit>>,
}

impl EntryDraft {
    /// An entry of `kind` and nothing else.
    #[must_use]
    pub fn new(kind: impl Into<String>) -> Self {
        Self { kind: kind.into(), ..Self::default() }
    }

    /// With application data.
    #[must_use]
    pub fn data(mut self, data: impl Into<Json>) -> Self {
        self.data = Some(data.into());
        self
    }

    /// With what it contributes to the model's context.
    #[must_use]
    pub fn model(mut self, messages: Vec<Message>) -> Self {
        self.model = Some(messages);
        self
    }

    /// With a head.
    #[must_use]
    pub fn head(mut self, head: DraftHead) -> Self {
        self.head = Some(head);
        self
    }

    /// The record that the draft becomes.
    #[must_use]
    pub fn into_record(self, id: EntryId, conversation_id: ConversationId, by_task_id: Option<TaskId>) -> EntryRecord {
        let head = self.head.map(|head| match head {
            DraftHead::Itself => id,
            DraftHead::Entry(entry) => entry,
        });
        EntryRecord { id, conversation_id, kind: self.kind, model: self.model, data: self.data, head, edits: self.edits, by_task_id }
    }
}

/// An entry kind whose data has the type `D`; `()` where it carries none (section 2.2).
pub struct EntryKind<D> {
    /// The kind's name.
    pub kind: &'static str,
    data: std::marker::PhantomData<fn() -> D>,
}

impl<D> EntryKind<D> {
    /// The kind named `kind`.
    #[must_use]
    pub const fn new(kind: &'static str) -> Self {
        Self { kind, data: std::marker::PhantomData }
    }
}

/// An entry together with its decoded data.
#[derive(Clone, Debug, PartialEq)]
pub struct Typed<D> {
    /// The entry.
    pub entry: EntryRecord,
    /// Its data.
    pub data: D,
}
