//! What the columns beside a record hold, the same in every SQL backend.

use picofleet_delta::{Json, ops_to_json};
use picofleet_session::storage::Rejection;
use picofleet_session::{
    ConversationPolicy, DocumentContent, DocumentRecord, DocumentScope, Fork, History, Id, Placement, SubmissionStatus, TaskStatus,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::tables::Found;

/// The text of a record.
pub(crate) fn text<T: Serialize + ?Sized>(record: &T) -> Found<String> {
    let json =
        Json::from_serde_envelope(record).map_err(|error| Rejection::Malformed(format!("a record can't be written as JSON: {error}")))?;
    Ok(json.to_string())
}

pub(crate) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    Json::parse_envelope(text).and_then(|json| json.to()).map_err(|error| error.to_string())
}

pub(crate) const fn task_status(status: TaskStatus) -> i64 {
    match status {
        TaskStatus::Pending => 0,
        TaskStatus::Running => 1,
        TaskStatus::Waiting => 2,
        TaskStatus::Sleeping => 3,
        TaskStatus::Completing => 4,
        TaskStatus::Terminal => 5,
    }
}

pub(crate) const fn submission_status(status: SubmissionStatus) -> i64 {
    match status {
        SubmissionStatus::Queued => 0,
        SubmissionStatus::Placed => 1,
        SubmissionStatus::Done => 2,
        SubmissionStatus::Unanswered => 3,
    }
}

/// The scope as two columns.
pub(crate) const fn scope_columns(scope: DocumentScope) -> (i64, i64) {
    match scope {
        DocumentScope::Session => (0, 0),
        DocumentScope::Conversation { id } => (1, id.get()),
        DocumentScope::Task { id } => (2, id.get()),
    }
}

/// The key of an address as one column that is never NULL: a unique place for the singleton too.
pub(crate) fn name(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("={key}"))
}

pub(crate) const fn policy_number(placement: Placement) -> i64 {
    let Placement::Conversation { policy, .. } = placement else { return 0 };
    let (history, fork) = policy.words();
    let history = match history {
        History::Latest => 10,
        History::Rewindable => REWINDABLE,
    };
    history
        + match fork {
            Fork::AsOf => 0,
            Fork::Current => 1,
            Fork::Initial => 2,
        }
}

pub(crate) fn placement(scope: i64, id: i64, policy: i64) -> Option<Placement> {
    let history = match policy / 10 {
        0 => None,
        1 => Some(History::Latest),
        2 => Some(History::Rewindable),
        _ => return None,
    };
    let fork = match policy % 10 {
        0 => Fork::AsOf,
        1 => Fork::Current,
        2 => Fork::Initial,
        _ => return None,
    };
    match (scope, history) {
        (0, None) => Some(Placement::Session),
        (1, Some(history)) => {
            Some(Placement::Conversation { id: Id::new(id).ok()?, policy: ConversationPolicy::from_words(history, fork)? })
        }
        (2, None) => Some(Placement::Task { id: Id::new(id).ok()? }),
        _ => None,
    }
}

/// The columns of a document after its session and id: `kind, name, scope, scope_id, policy, created_at, retired_at`.
pub(crate) fn document_columns(record: &DocumentRecord) -> (&str, String, i64, i64, i64, i64, Option<i64>) {
    let create = &record.create;
    let (scope, scope_id) = scope_columns(create.placement.scope());
    let name = name(create.key.as_deref());
    (&create.kind, name, scope, scope_id, policy_number(create.placement), record.created_at.0, record.retired_at.map(|seq| seq.0))
}

/// The text of content.
pub(crate) fn body(content: &DocumentContent) -> String {
    match content {
        DocumentContent::Base { value, .. } => value.to_string(),
        DocumentContent::Delta { ops, .. } => ops_to_json(ops).to_string(),
    }
}

/// The policies of documents whose history is kept, and whatever is above it.
pub(crate) const REWINDABLE: i64 = 20;
