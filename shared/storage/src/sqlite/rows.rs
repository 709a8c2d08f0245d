//! Records as rows and back.

use picofleet_delta::{Json, ops_from_json};
use picofleet_session::storage::{Head, RequestRow, SessionRecord, SessionState, StorageError, Tenant};
use picofleet_session::{CommitToken, DocumentContent, DocumentCreate, DocumentId, DocumentRecord, Epoch, Id, Millis, Seq, SessionId};
use rusqlite::Row;
use serde::de::DeserializeOwned;

use super::errors::Place;
use crate::columns::placement;
pub(super) use crate::columns::{REWINDABLE, body, document_columns, name, parse, scope_columns, submission_status, task_status, text};

/// A session that is imported: nobody sees it.
pub(super) const IMPORTING: i64 = 3;

/// A session that is deleted; states below it are those of sessions that are there.
pub(super) const DELETING: i64 = 2;

/// What a row gives: the outer error is SQLite's, the inner says why the row makes no sense.
pub(super) type Read<T> = rusqlite::Result<Result<T, String>>;

/// The record of a text.
pub(super) fn record<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> Read<T> {
    Ok(parse(row.get_ref(column)?.as_bytes()?))
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
