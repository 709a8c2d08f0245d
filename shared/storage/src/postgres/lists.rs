//! Scans over all sessions.

use std::ops::Range;

use picofleet_session::storage::{Cursor, OutboxRow, Page, SessionQuery, SessionRecord, SessionState, Wake};
use picofleet_session::{Millis, SessionId, SubmissionId};
use uuid::Uuid;

use super::Shared;
use super::read::{Answer, one_more, paged};
use super::{rows, sql};
use crate::rules::read_cursor;

impl Shared {
    pub(super) async fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Answer<Page<SessionRecord>> {
        let after: Option<SessionId> = read_cursor("sessions", cursor.as_ref())?;
        // No session has the id of only zeros.
        let after = after.map_or(Uuid::nil(), rows::uuid);
        let state = query.state.map(rows::state_number);
        let tenant = query.tenant.as_ref().map(|tenant| rows::escape(&tenant.0));
        let (tenant, wanted) = (tenant.as_deref(), one_more(limit));
        let found = match (&query.key, tenant) {
            (Some(key), _) => {
                let key = rows::escape(key);
                self.read(sql::SESSIONS_WITH_KEY, &[&after, &state, &wanted, &tenant, &&*key]).await
            }
            (None, _) if state.is_some_and(|state| state != rows::state_number(SessionState::Active)) => {
                let state = state.and_then(|state| i16::try_from(state).ok());
                self.read(sql::SESSIONS_IN_STATE, &[&after, &state, &wanted, &tenant]).await
            }
            (None, Some(_)) => self.read(sql::SESSIONS_OF_TENANT, &[&after, &state, &wanted, &tenant]).await,
            (None, None) => self.read(sql::SESSIONS, &[&after, &state, &wanted]).await,
        }?;
        let records = found.iter().map(|row| rows::sound(&self.access.place, "a session", rows::session(row)));
        paged("sessions", limit, records.collect::<Answer<_>>()?, |record: &SessionRecord| record.id)
    }

    pub(super) async fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Answer<Page<Wake>> {
        let after: Option<(Millis, SessionId)> = read_cursor("due", cursor.as_ref())?;
        let (at, id) = after.map_or((i64::MIN, Uuid::nil()), |(at, id)| (at.0, rows::uuid(id)));
        let partitions: Vec<i32> = partitions.map(i32::from).collect();
        let found = self.read(sql::WAKE_DUE, &[&partitions, &at, &id, &until.0, &one_more(limit)]).await?;
        let wakes = found.iter().map(|row| {
            let wake = rows::session_id(row, 0).and_then(|session| Ok(Wake { session, at: Millis(rows::get(row, 1)?) }));
            rows::sound(&self.access.place, "a wake time", wake)
        });
        paged("due", limit, wakes.collect::<Answer<_>>()?, |wake: &Wake| (wake.at, wake.session))
    }

    pub(super) async fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Answer<Page<(SessionId, OutboxRow)>> {
        let after: Option<(SessionId, SubmissionId)> = read_cursor("outbox", cursor.as_ref())?;
        let (session, submission) = after.map_or((Uuid::nil(), 0), |(session, id)| (rows::uuid(session), id.get()));
        let found = self.read(sql::OUTBOX, &[&session, &submission, &one_more(limit)]).await?;
        let notices = found.iter().map(|row| {
            let notice = rows::session_id(row, 0)
                .and_then(|session| Ok((session, OutboxRow { submission_id: rows::id(row, 1)?, body: rows::json(row, 2)? })));
            rows::sound(&self.access.place, "a settlement notice", notice)
        });
        let notices = notices.collect::<Answer<_>>()?;
        paged("outbox", limit, notices, |(session, row): &(SessionId, OutboxRow)| (*session, row.submission_id))
    }
}
