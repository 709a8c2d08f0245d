//! What goes off the commit path, in bounded steps (`protocol.md` 1, 2, 3 and 7). Each statement is a transaction of its own and names what
//! it removes by its key, so that it holds no lock while it waits for another, and several processes may be at it.

use std::sync::{Mutex, PoisonError};

use deadpool_postgres::Client;
use picofleet_session::Millis;
use picofleet_session::storage::Maintained;
use tokio_postgres::Row;
use uuid::Uuid;

use super::Shared;
use super::read::{Answer, Parameters};
use super::{rows, sql};
use crate::rules::{COMMIT_AGE, COMMITS_KEPT, REQUEST_AGE, TOMBSTONE_AGE};

/// Most rows that one statement removes.
const STEP_ROWS: u32 = 500;

/// Most sessions, and rows of live tasks, that one call looks at.
const LOOKED_AT: i64 = 250;

/// Where the rounds are.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    session: Uuid,
    live: (Uuid, i64),
    reclaim: (Uuid, i64),
}

/// See [`Places`].
#[derive(Debug, Default)]
pub(super) struct Rounds(Mutex<Places>);

struct Step<'s> {
    shared: &'s Shared,
    client: Client,
    left: u32,
    removed: u64,
    now: Millis,
}

/// One bounded step.
pub(super) async fn maintain(shared: &Shared, budget: u32, now: Millis) -> Answer<Maintained> {
    shared.check()?;
    let client = shared.bulk.get().await.map_err(|error| shared.access.place.no_connection("maintain", error))?;
    let mut places = *shared.rounds.0.lock().unwrap_or_else(PoisonError::into_inner);
    let mut step = Step { shared, client, left: budget.min(STEP_ROWS), removed: 0, now };
    let mut over = step.contents(&mut places.reclaim).await?;
    step.sessions().await?;
    step.requests().await?;
    step.tombstones().await?;
    over &= step.live(&mut places.live).await?;
    over &= step.commits(&mut places.session).await?;
    *shared.rounds.0.lock().unwrap_or_else(PoisonError::into_inner) = places;
    Ok(Maintained { removed: step.removed, more: step.left == 0 || !over })
}

impl Step<'_> {
    fn spend(&mut self, rows: u64) {
        self.removed += rows;
        self.left = self.left.saturating_sub(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    fn limit(&self) -> i64 {
        i64::from(self.left)
    }

    async fn all(&self, sql: &'static str, parameters: Parameters<'_>) -> Answer<Vec<Row>> {
        let failed = |error| self.shared.access.place.failed("maintain", error);
        let statement = self.client.prepare_cached(sql).await.map_err(failed)?;
        self.client.query(&statement, parameters).await.map_err(failed)
    }

    async fn run(&mut self, sql: &'static str, parameters: Parameters<'_>) -> Answer<u64> {
        let failed = |error| self.shared.access.place.failed("maintain", error);
        let statement = self.client.prepare_cached(sql).await.map_err(failed)?;
        let removed = self.client.execute(&statement, parameters).await.map_err(failed)?;
        self.spend(removed);
        Ok(removed)
    }

    fn get<T: tokio_postgres::types::FromSqlOwned>(&self, row: &Row, column: usize) -> Answer<T> {
        rows::sound(&self.shared.access.place, "a row", rows::get(row, column))
    }

    /// Content that bases and retirements made unnecessary. Whether the round is over.
    async fn contents(&mut self, place: &mut (Uuid, i64)) -> Answer<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let found = self.all(sql::RECLAIM_NEXT, &[&place.0, &place.1, &LOOKED_AT]).await?;
        let last = i64::try_from(found.len()).is_ok_and(|found| found < LOOKED_AT);
        for row in &found {
            let (session, document, below): (Uuid, i64, i64) = (self.get(row, 0)?, self.get(row, 1)?, self.get(row, 2)?);
            let oldest = self.all(sql::CONTENT_OLDEST, &[&session, &document, &below, &self.limit()]).await?;
            let whole = i64::try_from(oldest.len()).is_ok_and(|found| found < self.limit());
            if let (Some(first), Some(last)) = (oldest.first(), oldest.last()) {
                let (first, last): (i64, i64) = (self.get(first, 0)?, self.get(last, 0)?);
                self.run(sql::CONTENT_REMOVE, &[&session, &document, &first, &last]).await?;
            }
            if whole {
                // The row itself is no content.
                self.all(sql::RECLAIM_REMOVE, &[&session, &document, &below]).await?;
            }
            if self.left == 0 {
                return Ok(false);
            }
            *place = (session, document);
        }
        if last {
            *place = Default::default();
        }
        Ok(last)
    }

    /// The rows of deleted sessions.
    async fn sessions(&mut self) -> Answer<()> {
        if self.left == 0 {
            return Ok(());
        }
        for row in self.all(sql::SESSION_SWEEP, &[&self.limit()]).await? {
            let session: Uuid = self.get(&row, 0)?;
            for sweep in sql::SWEEPS {
                self.run(sweep, &[&session, &self.limit()]).await?;
                if self.left == 0 {
                    return Ok(());
                }
            }
            self.all(sql::WAKE_DROP, &[&session]).await?;
            self.run(sql::SESSION_REMOVE, &[&session]).await?;
            if self.left == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn requests(&mut self) -> Answer<()> {
        let before = self.now.0.saturating_sub(REQUEST_AGE);
        for row in self.all(sql::REQUESTS_OLD, &[&before, &self.limit()]).await? {
            let (session, name): (Uuid, String) = (self.get(&row, 0)?, self.get(&row, 1)?);
            self.run(sql::REQUEST_REMOVE, &[&session, &name, &before]).await?;
        }
        Ok(())
    }

    /// A tombstone stays at least as long as the session's rows.
    async fn tombstones(&mut self) -> Answer<()> {
        let before = self.now.0.saturating_sub(TOMBSTONE_AGE);
        for row in self.all(sql::TOMBSTONES_OLD, &[&before, &self.limit()]).await? {
            let id: Uuid = self.get(&row, 0)?;
            self.run(sql::TOMBSTONE_REMOVE, &[&id]).await?;
        }
        Ok(())
    }

    /// Rows of tasks that are not live any more. Whether the round is over.
    async fn live(&mut self, place: &mut (Uuid, i64)) -> Answer<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let found = self.all(sql::LIVE_WALK, &[&place.0, &place.1, &LOOKED_AT]).await?;
        let last = i64::try_from(found.len()).is_ok_and(|found| found < LOOKED_AT);
        for row in &found {
            let (session, id): (Uuid, i64) = (self.get(row, 0)?, self.get(row, 1)?);
            if self.get(row, 2)? {
                if self.left == 0 {
                    return Ok(false);
                }
                self.run(sql::LIVE_REMOVE, &[&session, &id]).await?;
            }
            *place = (session, id);
        }
        if last {
            *place = Default::default();
        }
        Ok(last)
    }

    /// Commit rows that are both far behind and old. Whether the round is over.
    async fn commits(&mut self, place: &mut Uuid) -> Answer<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        let found = self.all(sql::SESSION_WALK, &[place, &LOOKED_AT]).await?;
        let last = i64::try_from(found.len()).is_ok_and(|found| found < LOOKED_AT);
        for row in &found {
            let session: Uuid = self.get(row, 0)?;
            if self.left == 0 {
                return Ok(false);
            }
            let (newest, oldest): (Option<i64>, Option<i64>) = (self.get(row, 1)?, self.get(row, 2)?);
            let at: Option<i64> = self.get(row, 3)?;
            let below = newest.unwrap_or_default() - COMMITS_KEPT + 1;
            if oldest.is_some_and(|oldest| oldest < below) && at.is_some_and(|at| self.old(at)) {
                self.chain(session, below).await?;
                if self.left == 0 {
                    return Ok(false);
                }
            }
            *place = session;
        }
        if last {
            *place = Uuid::nil();
        }
        Ok(last)
    }

    fn old(&self, at: i64) -> bool {
        self.now.0.saturating_sub(at) > COMMIT_AGE
    }

    /// The old beginning of a chain.
    async fn chain(&mut self, session: Uuid, below: i64) -> Answer<()> {
        let mut ends = None;
        for row in self.all(sql::COMMITS_OLD, &[&session, &below, &self.limit()]).await? {
            let (seq, at): (i64, i64) = (self.get(&row, 0)?, self.get(&row, 1)?);
            if !self.old(at) {
                break;
            }
            ends = Some((ends.map_or(seq, |(first, _)| first), seq));
        }
        if let Some((first, last)) = ends {
            self.run(sql::COMMITS_REMOVE, &[&session, &first, &last]).await?;
        }
        Ok(())
    }
}
