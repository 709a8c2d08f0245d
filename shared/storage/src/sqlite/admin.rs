//! What happens to sessions as a whole.

use picofleet_session::storage::{Created, Fence, Head, Rejection, SessionCreate, SessionRecord, SessionState, StorageError};
use picofleet_session::{Millis, SessionId, SubmissionId};

use super::rows::{self, Session};
use super::sql;
use super::tables::Tx;
use crate::rules::{Fencing, fence, genesis};
use crate::tables::{Found, Tables as _};

/// Makes a session, or gives the one that is there. `text` is that of its metadata.
pub(super) fn create(tx: &mut Tx<'_>, session: &SessionCreate, text: &str) -> Found<Created> {
    let SessionCreate { id, tenant, key, metadata, at } = session;
    if tx.one("a tombstone", sql::TOMBSTONE, [id.as_bytes()], |_| Ok(Ok(())))?.is_some() {
        return Err(Rejection::SessionDeleted { session: *id }.into());
    }
    if let Some(session) = tx.session(*id)? {
        return Ok(Created { session: session.record, existed: true });
    }
    let state = rows::state_number(SessionState::Active);
    tx.run(sql::SESSION_INSERT, (id.as_bytes(), &tenant.0, key, text, state, at.0))?;
    let n = tx.connection.last_insert_rowid();
    tx.rows(n, Some(*id)).put_commit(&genesis(*at))?;
    let (tenant, key, metadata) = (tenant.clone(), key.clone(), metadata.clone());
    let session = SessionRecord { id: *id, tenant, key, metadata, state: SessionState::Active, created_at: *at };
    Ok(Created { session, existed: false })
}

/// A session that is not being deleted, with its newest commit.
fn present(tx: &mut Tx<'_>, id: SessionId) -> Found<Option<(Session, Head)>> {
    let session = tx.session(id)?.filter(|session| session.record.state != SessionState::Deleting);
    let Some(session) = session else { return Ok(None) };
    match tx.head(session.n)? {
        Some(head) => Ok(Some((session, head))),
        None => Err(tx.place.corrupt(format!("session {id}"), "it has no commit").into()),
    }
}

/// The local number of an opened session and the fence that opened it. The inner error is an answer that itself may have been written.
pub(super) fn open(tx: &mut Tx<'_>, id: SessionId, by: Fence) -> Found<Result<(i64, Head), StorageError>> {
    let Some((session, head)) = present(tx, id)? else { return Err(StorageError::NotFound { session: id }) };
    let opened = match fence(id, &head, by, Fencing::Open) {
        Err(error @ StorageError::Quarantined { .. }) => {
            tx.run(sql::SESSION_SET_STATE, (session.n, rows::state_number(SessionState::Quarantined)))?;
            return Ok(Err(error));
        }
        opened => opened?,
    };
    if session.record.state == SessionState::Quarantined {
        return Err(StorageError::Quarantined { session: id });
    }
    tx.rows(session.n, Some(id)).put_commit(&opened)?;
    Ok(Ok((session.n, opened)))
}

/// Keeps earlier owners out of a session; `None` where it is not there or has a higher epoch.
pub(super) fn take_over(tx: &mut Tx<'_>, id: SessionId, by: Fence) -> Found<Option<Head>> {
    let Some((session, head)) = present(tx, id)? else { return Ok(None) };
    let Ok(fenced) = fence(id, &head, by, Fencing::Takeover) else { return Ok(None) };
    tx.rows(session.n, Some(id)).put_commit(&fenced)?;
    Ok(Some(fenced))
}

pub(super) fn set_quarantined(tx: &mut Tx<'_>, id: SessionId, quarantined: bool) -> Found<()> {
    let Some((session, head)) = present(tx, id)? else { return Err(StorageError::NotFound { session: id }) };
    let state = if quarantined { SessionState::Quarantined } else { SessionState::Active };
    tx.run(sql::SESSION_SET_STATE, (session.n, rows::state_number(state)))?;
    if !quarantined {
        tx.run(sql::COMMIT_CLEAR_OPENS, (session.n, head.seq.0))?;
    }
    Ok(())
}

/// Whether there was something to delete.
pub(super) fn delete(tx: &mut Tx<'_>, id: SessionId, at: Millis) -> Found<bool> {
    let Some((session, head)) = present(tx, id)? else { return Ok(false) };
    tx.run(sql::SESSION_SET_STATE, (session.n, rows::state_number(SessionState::Deleting)))?;
    let fenced = fence(id, &head, Fence { epoch: head.epoch, at }, Fencing::Takeover)?;
    tx.rows(session.n, Some(id)).put_commit(&fenced)?;
    tx.run(sql::OUTBOX_DROP, [id.as_bytes()])?;
    tx.run(sql::WAKE_DROP, [id.as_bytes()])?;
    tx.run(sql::TOMBSTONE_PUT, (id.as_bytes(), &session.record.tenant.0, at.0))?;
    Ok(true)
}

pub(super) fn acknowledge(tx: &mut Tx<'_>, rows: &[(SessionId, SubmissionId)]) -> Found<()> {
    for (session, submission) in rows {
        tx.run(sql::OUTBOX_REMOVE, (session.as_bytes(), submission.get()))?;
    }
    Ok(())
}
