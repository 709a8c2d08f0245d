//! Records as rows and back.

use std::borrow::Cow;

use picofleet_delta::{Json, ops_from_json};
use picofleet_session::storage::{Head, RequestRow, SessionRecord, SessionState, StorageError, Tenant};
use picofleet_session::{CommitToken, DocumentContent, DocumentCreate, DocumentRecord, Epoch, Id, Millis, Seq, SessionId};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;
use uuid::Uuid;

use super::errors::Place;
use crate::columns::placement;
pub(super) use crate::columns::{REWINDABLE, body, document_columns, name, parse, scope_columns, submission_status, task_status, text};

/// The state of sessions whose rows go; those below are there.
pub(super) const DELETING: i64 = 2;

/// The bytes of a key that go into an index; a longer one is cut and told apart by its hash.
const INDEXED: usize = 400;

/// What a row gives, or why it makes no sense.
pub(super) type Read<T> = Result<T, String>;

pub(super) fn uuid(id: SessionId) -> Uuid {
    Uuid::from_bytes(*id.as_bytes())
}

pub(super) fn token(token: CommitToken) -> Uuid {
    Uuid::from_u128(token.bits())
}

pub(super) fn get<T: FromSqlOwned>(row: &Row, column: usize) -> Read<T> {
    row.try_get(column).map_err(|error| error.to_string())
}

pub(super) fn session_id(row: &Row, column: usize) -> Read<SessionId> {
    Ok(SessionId::from_bytes(get::<Uuid>(row, column)?.into_bytes()))
}

pub(super) fn id<K: ?Sized>(row: &Row, column: usize) -> Read<Id<K>> {
    Id::new(get(row, column)?).map_err(|error| error.to_string())
}

/// A string as PostgreSQL can hold it: without U+0000, in the same order.
pub(super) fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\u{1}']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        match letter {
            '\0' => escaped.push_str("\u{1}0"),
            '\u{1}' => escaped.push_str("\u{1}1"),
            other => escaped.push(other),
        }
    }
    Cow::Owned(escaped)
}

pub(super) fn unescape(text: String) -> String {
    if text.contains('\u{1}') { text.replace("\u{1}0", "\0").replace("\u{1}1", "\u{1}") } else { text }
}

pub(super) fn string(row: &Row, column: usize) -> Read<String> {
    get(row, column).map(unescape)
}

/// A key as an index can hold it: two have the same only where they are the same.
pub(super) fn indexable(key: &str) -> String {
    let escaped = escape(key);
    if escaped.len() <= INDEXED {
        return escaped.into_owned();
    }
    let cut = escaped.floor_char_boundary(INDEXED);
    let hash = Sha256::digest(key.as_bytes());
    let digits: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    // No escaped string has this letter before another one than 0 and 1.
    format!("{}\u{1}#{digits}", &escaped[..cut])
}

/// Kind and name of a document as an index can hold them.
pub(super) fn address(kind: &str, name: &str) -> String {
    indexable(&format!("{}{}:{kind}{name}", kind.len(), if name.is_empty() { "" } else { "m" }))
}

/// The record of a text.
pub(super) fn record<T: DeserializeOwned>(row: &Row, column: usize) -> Read<T> {
    parse(row.try_get::<_, &str>(column).map_err(|error| error.to_string())?.as_bytes())
}

/// A JSON value that is stored as it is.
pub(super) fn json(row: &Row, column: usize) -> Read<Json> {
    let text: &str = row.try_get(column).map_err(|error| error.to_string())?;
    Json::parse_envelope(text.as_bytes()).map_err(|error| error.to_string())
}

pub(super) fn sound<T>(place: &Place, what: &str, read: Read<T>) -> Result<T, StorageError> {
    read.map_err(|why| place.corrupt(what, why).into())
}

/// `seq, token, epoch, next_id, opens, at` from column `first` on.
pub(super) fn head(row: &Row, first: usize) -> Read<Head> {
    let token: Uuid = get(row, first + 1)?;
    Ok(Head {
        seq: Seq(get(row, first)?),
        token: CommitToken::from_bits(token.as_u128()),
        epoch: Epoch(get(row, first + 2)?),
        next_id: get(row, first + 3)?,
        opens: u32::try_from(get::<i32>(row, first + 4)?).map_err(|error| error.to_string())?,
        at: Millis(get(row, first + 5)?),
    })
}

pub(super) const fn state_number(state: SessionState) -> i64 {
    match state {
        SessionState::Active => 0,
        SessionState::Quarantined => 1,
        SessionState::Deleting => DELETING,
    }
}

/// `id, tenant, key, metadata, state, created_at`.
pub(super) fn session(row: &Row) -> Read<SessionRecord> {
    let state = match get::<i16>(row, 4)? {
        0 => SessionState::Active,
        1 => SessionState::Quarantined,
        2 => SessionState::Deleting,
        other => return Err(format!("{other} is no state of a session")),
    };
    let key = get::<Option<String>>(row, 2)?.map(unescape);
    let (id, tenant, metadata) = (session_id(row, 0)?, Tenant(string(row, 1)?), json(row, 3)?);
    Ok(SessionRecord { id, tenant, key, metadata, state, created_at: Millis(get(row, 5)?) })
}

/// `id, kind, name, scope, scope_id, policy, created_at, retired_at` from column `first` on.
pub(super) fn document(row: &Row, first: usize) -> Read<DocumentRecord> {
    let (id, kind, name) = (id(row, first)?, string(row, first + 1)?, string(row, first + 2)?);
    let key = name.strip_prefix('=').map(str::to_owned);
    let number = |column| get::<i16>(row, column).map(i64::from);
    let placement = placement(number(first + 3)?, get(row, first + 4)?, number(first + 5)?);
    let placement = placement.ok_or_else(|| format!("document {id} has no valid scope or policy"))?;
    let (created_at, retired_at) = (Seq(get(row, first + 6)?), get::<Option<i64>>(row, first + 7)?.map(Seq));
    Ok(DocumentRecord { create: DocumentCreate { id, kind, key, placement }, created_at, retired_at })
}

/// `version, base, body` from column `first` on.
pub(super) fn content(row: &Row, first: usize) -> Read<DocumentContent> {
    let version = u32::try_from(get::<i64>(row, first)?).map_err(|error| error.to_string())?;
    let base: bool = get(row, first + 1)?;
    let value = json(row, first + 2)?;
    if base {
        return Ok(DocumentContent::Base { version, value });
    }
    let ops = ops_from_json(&value).map_err(|error| error.to_string())?;
    Ok(DocumentContent::Delta { version, ops: ops.into() })
}

/// `key, digest, answer, at`.
pub(super) fn request(row: &Row) -> Read<RequestRow> {
    Ok(RequestRow { key: string(row, 0)?, digest: string(row, 1)?, answer: json(row, 2)?, at: Millis(get(row, 3)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn escaped_strings_come_back_and_keep_their_order(a in "[\0-\u{3}a0]{0,6}", b in "[\0-\u{3}a0]{0,6}") {
            prop_assert_eq!(unescape(escape(&a).into_owned()), a.clone());
            prop_assert!(!escape(&a).contains('\0'));
            prop_assert_eq!(escape(&a).as_bytes().cmp(escape(&b).as_bytes()), a.as_bytes().cmp(b.as_bytes()));
        }
    }

    #[test]
    fn long_keys_fit_an_index_and_stay_apart() {
        let (a, b) = ("ä".repeat(5_000) + "a", "ä".repeat(5_000) + "b");
        assert_ne!(indexable(&a), indexable(&b));
        assert!(indexable(&a).len() < 600);
        assert_ne!(address("a", "=b"), address("a=b", ""));
    }
}
