//! Records as rows and back.

use picofleet_delta::{Json, ops_from_json, ops_to_json};
use picofleet_session::storage::{Head, Rejection, RequestRow, SessionRecord, SessionState, StorageError, Tenant};
use picofleet_session::{
    CommitToken, ConversationPolicy, DocumentContent, DocumentCreate, DocumentId, DocumentRecord, DocumentScope, Epoch, Fork, History, Id,
    Millis, Placement, Seq, SessionId, SubmissionStatus, TaskStatus,
};
use rusqlite::Row;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::errors::Place;
use crate::tables::Found;

/// A session that is imported: nobody sees it.
pub(super) const IMPORTING: i64 = 3;

/// A session that is deleted; states below it are those of sessions that are there.
pub(super) const DELETING: i64 = 2;

/// The policies of documents whose history is kept, and whatever is above it.
pub(super) const REWINDABLE: i64 = 20;

/// What a row gives: the outer error is SQLite's, the inner says why the row makes no sense.
pub(super) type Read<T> = rusqlite::Result<Result<T, String>>;

/// The text of a record.
pub(super) fn text<T: Serialize + ?Sized>(record: &T) -> Found<String> {
    let json =
        Json::from_serde_envelope(record).map_err(|error| Rejection::Malformed(format!("a record can't be written as JSON: {error}")))?;
    Ok(json.to_string())
}

/// The record of a text.
pub(super) fn record<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Read<T> {
    Ok(parse(row.get_ref(column)?.as_bytes()?))
}

pub(super) fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    Json::parse_envelope(text).and_then(|json| json.to()).map_err(|error| error.to_string())
}

/// A JSON value that is stored as it is.
pub(super) fn json(row: &Row<'_>, column: usize) -> Read<Json> {
    Ok(Json::parse_envelope(row.get_ref(column)?.as_bytes()?).map_err(|error| error.to_string()))
}

pub(super) fn id<K: ?Sized>(row: &Row<'_>, column: usize) -> Read<Id<K>> {
    Ok(Id::new(row.get(column)?).map_err(|error| error.to_string()))
}

/// Turns what a row gives into an answer of storage.
pub(super) fn sound<T>(place: &Place, what: &str, read: Read<T>) -> Result<T, StorageError> {
    match read {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(why)) => Err(place.corrupt(what, why).into()),
        Err(error) => Err(place.failed("read", error)),
    }
}

pub(super) fn token(token: CommitToken) -> [u8; 16] {
    token.bits().to_be_bytes()
}

/// `seq, token, epoch, next_id, opens, at`.
pub(super) fn head(row: &Row<'_>) -> Read<Head> {
    let token: [u8; 16] = row.get(1)?;
    Ok(Ok(Head {
        seq: Seq(row.get(0)?),
        token: CommitToken::from_bits(u128::from_be_bytes(token)),
        epoch: Epoch(row.get(2)?),
        next_id: row.get(3)?,
        opens: row.get(4)?,
        at: Millis(row.get(5)?),
    }))
}

pub(super) fn session_id(row: &Row<'_>, column: usize) -> rusqlite::Result<SessionId> {
    Ok(SessionId::from_bytes(row.get(column)?))
}

pub(super) const fn state_number(state: SessionState) -> i64 {
    match state {
        SessionState::Active => 0,
        SessionState::Quarantined => 1,
        SessionState::Deleting => DELETING,
    }
}

/// A session with its local number.
#[derive(Clone, Debug)]
pub(super) struct Session {
    pub(super) n: i64,
    pub(super) record: SessionRecord,
}

/// `n, id, tenant, key, metadata, state, created_at`.
pub(super) fn session(row: &Row<'_>) -> Read<Session> {
    let state = match row.get::<_, i64>(5)? {
        0 => SessionState::Active,
        1 => SessionState::Quarantined,
        DELETING => SessionState::Deleting,
        other => return Ok(Err(format!("{other} is no state of a listed session"))),
    };
    let metadata = json(row, 4)?;
    let (n, id, tenant, key, created_at) = (row.get(0)?, session_id(row, 1)?, Tenant(row.get(2)?), row.get(3)?, Millis(row.get(6)?));
    Ok(metadata.map(|metadata| Session { n, record: SessionRecord { id, tenant, key, metadata, state, created_at } }))
}

pub(super) const fn task_status(status: TaskStatus) -> i64 {
    match status {
        TaskStatus::Pending => 0,
        TaskStatus::Running => 1,
        TaskStatus::Waiting => 2,
        TaskStatus::Sleeping => 3,
        TaskStatus::Completing => 4,
        TaskStatus::Terminal => 5,
    }
}

pub(super) const fn submission_status(status: SubmissionStatus) -> i64 {
    match status {
        SubmissionStatus::Queued => 0,
        SubmissionStatus::Placed => 1,
        SubmissionStatus::Done => 2,
        SubmissionStatus::Unanswered => 3,
    }
}

/// The scope as two columns.
pub(super) const fn scope_columns(scope: DocumentScope) -> (i64, i64) {
    match scope {
        DocumentScope::Session => (0, 0),
        DocumentScope::Conversation { id } => (1, id.get()),
        DocumentScope::Task { id } => (2, id.get()),
    }
}

/// The key of an address as one column that is never NULL: a unique place for the singleton too.
pub(super) fn name(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("={key}"))
}

const fn policy_number(placement: Placement) -> i64 {
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

fn placement(scope: i64, id: i64, policy: i64) -> Option<Placement> {
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
pub(super) fn document_columns(record: &DocumentRecord) -> (&str, String, i64, i64, i64, i64, Option<i64>) {
    let create = &record.create;
    let (scope, scope_id) = scope_columns(create.placement.scope());
    let name = name(create.key.as_deref());
    (&create.kind, name, scope, scope_id, policy_number(create.placement), record.created_at.0, record.retired_at.map(|seq| seq.0))
}

/// `id, kind, name, scope, scope_id, policy, created_at, retired_at`.
pub(super) fn document(row: &Row<'_>) -> Read<DocumentRecord> {
    let id: Result<DocumentId, String> = self::id(row, 0)?;
    let name: String = row.get(2)?;
    let key = name.strip_prefix('=').map(str::to_owned);
    let (kind, created_at, retired_at) = (row.get(1)?, Seq(row.get(6)?), row.get::<_, Option<i64>>(7)?.map(Seq));
    let placement = placement(row.get(3)?, row.get(4)?, row.get(5)?);
    Ok(id.and_then(|id| {
        let placement = placement.ok_or_else(|| format!("document {id} has no valid scope or policy"))?;
        Ok(DocumentRecord { create: DocumentCreate { id, kind, key, placement }, created_at, retired_at })
    }))
}

/// The text of content.
pub(super) fn body(content: &DocumentContent) -> String {
    match content {
        DocumentContent::Base { value, .. } => value.to_string(),
        DocumentContent::Delta { ops, .. } => ops_to_json(ops).to_string(),
    }
}

/// `version, base, body` from column `first` on.
pub(super) fn content(row: &Row<'_>, first: usize) -> Read<DocumentContent> {
    let (version, base) = (row.get(first)?, row.get(first + 1)?);
    let body = json(row, first + 2)?;
    Ok(body.and_then(|value| {
        if base {
            return Ok(DocumentContent::Base { version, value });
        }
        let ops = ops_from_json(&value).map_err(|error| error.to_string())?;
        Ok(DocumentContent::Delta { version, ops: ops.into() })
    }))
}

/// `key, digest, answer, at`.
pub(super) fn request(row: &Row<'_>) -> Read<RequestRow> {
    let (key, digest, at) = (row.get(0)?, row.get(1)?, Millis(row.get(3)?));
    Ok(json(row, 2)?.map(|answer| RequestRow { key, digest, answer, at }))
}
