//! Scans over all sessions.

use std::collections::BinaryHeap;
use std::ops::Range;

use picofleet_session::storage::{Cursor, OutboxRow, Page, SessionQuery, SessionRecord, SessionState, Wake};
use picofleet_session::{Id, Millis, SessionId, SubmissionId};
use rusqlite::Connection;

use super::errors::Place;
use super::read::{Answer, all, one_more, paged};
use super::{rows, sql};
use crate::rules::read_cursor;

pub(super) fn sessions(
    connection: &Connection,
    place: &Place,
    query: &SessionQuery,
    limit: u32,
    cursor: Option<&Cursor>,
) -> Answer<Page<SessionRecord>> {
    let after: Option<SessionId> = read_cursor("sessions", cursor)?;
    // An empty key is below all ids.
    let after = after.map_or(Vec::new(), |id| id.as_bytes().to_vec());
    let state = query.state.map(rows::state_number);
    let tenant = query.tenant.as_ref().map(|tenant| &tenant.0);
    let (wanted, what) = (one_more(limit), "a session");
    let read = |row: &rusqlite::Row<'_>| Ok(rows::session(row)?.map(|session| session.record));
    let records = match (&query.key, tenant) {
        (Some(key), _) => all(connection, place, what, sql::SESSIONS_WITH_KEY, (after, state, wanted, tenant, key), read),
        (None, _) if state.is_some_and(|state| state != rows::state_number(SessionState::Active)) => {
            all(connection, place, what, sql::SESSIONS_IN_STATE, (after, state, wanted, tenant), read)
        }
        (None, Some(tenant)) => all(connection, place, what, sql::SESSIONS_OF_TENANT, (after, state, wanted, tenant), read),
        (None, None) => all(connection, place, what, sql::SESSIONS, (after, state, wanted), read),
    }?;
    paged("sessions", limit, records, |record: &SessionRecord| record.id)
}

/// The index is by partition first: the earliest of each partition, of which the earliest are taken.
pub(super) fn due(
    connection: &Connection,
    place: &Place,
    partitions: Range<u16>,
    until: Millis,
    limit: u32,
    cursor: Option<&Cursor>,
) -> Answer<Page<Wake>> {
    let after: Option<(Millis, SessionId)> = read_cursor("due", cursor)?;
    let (at, id) = after.map_or((i64::MIN, Vec::new()), |(at, id)| (at.0, id.as_bytes().to_vec()));
    let wanted = one_more(limit);
    let mut earliest: BinaryHeap<(Millis, SessionId)> = BinaryHeap::new();
    for partition in partitions {
        // Nothing later than the latest of a full heap can get in.
        let full = earliest.len() >= wanted as usize;
        let until = earliest.peek().filter(|_| full).map_or(until, |latest| latest.0.min(until));
        let params = (partition, at, &id, until.0, wanted);
        let wakes =
            all(connection, place, "a wake time", sql::WAKE_DUE, params, |row| Ok(Ok((Millis(row.get(1)?), rows::session_id(row, 0)?))))?;
        for wake in wakes {
            earliest.push(wake);
            if earliest.len() > wanted as usize {
                earliest.pop();
            }
        }
    }
    let wakes = earliest.into_sorted_vec().into_iter().map(|(at, session)| Wake { session, at }).collect();
    paged("due", limit, wakes, |wake: &Wake| (wake.at, wake.session))
}

pub(super) fn outbox(connection: &Connection, place: &Place, limit: u32, cursor: Option<&Cursor>) -> Answer<Page<(SessionId, OutboxRow)>> {
    let after: Option<(SessionId, SubmissionId)> = read_cursor("outbox", cursor)?;
    let (session, submission) = after.map_or((Vec::new(), 0), |(session, submission)| (session.as_bytes().to_vec(), submission.get()));
    let rows = all(connection, place, "a settlement notice", sql::OUTBOX, (session, submission, one_more(limit)), |row| {
        let (session, body) = (rows::session_id(row, 0)?, rows::json(row, 2)?);
        let submission_id: Result<Id<_>, String> = rows::id(row, 1)?;
        Ok(submission_id.and_then(|submission_id| Ok((session, OutboxRow { submission_id, body: body? }))))
    })?;
    paged("outbox", limit, rows, |(session, row): &(SessionId, OutboxRow)| (*session, row.submission_id))
}
