//! What goes off the commit path, in bounded steps (`protocol.md` 1, 3 and 7; section 3.5).

use std::sync::PoisonError;

use picofleet_session::Millis;
use picofleet_session::storage::Maintained;

use super::rows::{DELETING, IMPORTING};
use super::sql;
use super::tables::Tx;
use super::writer::Writer;
use crate::rules::{COMMIT_AGE, COMMITS_KEPT, REQUEST_AGE, TOMBSTONE_AGE};
use crate::tables::Found;

/// Most rows that one transaction removes, so that commits don't wait long behind it.
pub(super) const STEP_ROWS: u32 = 500;

/// Most sessions whose commit rows one transaction looks at.
const STEP_SESSIONS: u32 = 250;

/// Where the removal of unnecessary content is. It goes round, so that a busy document doesn't keep the others waiting.
#[derive(Debug)]
pub(super) struct Reclaim {
    /// Something may be in the queue.
    pub(super) due: bool,
    after: (i64, i64),
}

impl Default for Reclaim {
    fn default() -> Self {
        // An earlier process may have left something.
        Self { due: true, after: (0, 0) }
    }
}

/// Where the look at commit rows is.
#[derive(Debug, Default)]
pub(super) struct Round {
    /// The id of the last session; empty at the beginning, which is below all ids.
    after: Vec<u8>,
}

/// Removes about `budget` rows of content that bases and retirements made unnecessary, and gives how many.
pub(super) fn reclaim(tx: &mut Tx<'_>, state: &mut Reclaim, budget: u32) -> Found<u32> {
    let mut left = budget;
    let mut removed = 0;
    let mut from_start = state.after == (0, 0);
    while left > 0 {
        let (session, document) = state.after;
        let next = tx.one("the queue of unnecessary content", sql::RECLAIM_NEXT, (session, document), |row| {
            Ok(Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))
        })?;
        let Some((session, document, below)) = next else {
            if from_start {
                state.due = false;
                break;
            }
            from_start = true;
            state.after = (0, 0);
            continue;
        };
        let oldest: Vec<i64> = tx.all(sql::CONTENT_OLDEST, (session, document, below, left), |row| row.get(0))?;
        if let (Some(first), Some(last)) = (oldest.first(), oldest.last()) {
            tx.run(sql::CONTENT_REMOVE, (session, document, first, last))?;
        }
        let count = u32::try_from(oldest.len()).unwrap_or(u32::MAX);
        if count < left {
            tx.run(sql::RECLAIM_REMOVE, (session, document))?;
        }
        removed += count;
        left -= count.max(1).min(left);
        state.after = (session, document);
    }
    Ok(removed)
}

impl Writer {
    /// One step in a transaction of its own. The answer's `more` says whether another step could do something.
    pub(super) fn maintain(&mut self, budget: u32, now: Millis) -> Found<Maintained> {
        let mut state = std::mem::take(&mut self.reclaim);
        let mut round = std::mem::take(&mut self.round);
        let imports = std::sync::Arc::clone(&self.imports);
        let active: Vec<i64> = imports.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect();
        let done = self.alone(|tx| {
            let mut step = Step { tx, left: budget.min(STEP_ROWS), removed: 0, now };
            step.content(&mut state)?;
            step.sessions(&active)?;
            step.requests()?;
            step.tombstones()?;
            let round_over = step.commits(&mut round)?;
            Ok(Maintained { removed: step.removed, more: step.left == 0 || !round_over })
        });
        // What was put into the queue meanwhile made `due` true here.
        state.due |= self.reclaim.due;
        self.reclaim = state;
        self.round = round;
        done
    }
}

struct Step<'t, 'c> {
    tx: &'t mut Tx<'c>,
    left: u32,
    removed: u64,
    now: Millis,
}

impl Step<'_, '_> {
    fn spend(&mut self, rows: usize) {
        self.removed += rows as u64;
        self.left = self.left.saturating_sub(u32::try_from(rows).unwrap_or(u32::MAX));
    }

    fn content(&mut self, state: &mut Reclaim) -> Found<()> {
        let removed = reclaim(self.tx, state, self.left)?;
        self.spend(removed as usize);
        Ok(())
    }

    /// The rows of deleted sessions, and of imports that ended without a session.
    fn sessions(&mut self, importing: &[i64]) -> Found<()> {
        for (state, skip) in [(DELETING, &[][..]), (IMPORTING, importing)] {
            let limit = self.left.saturating_add(u32::try_from(skip.len()).unwrap_or(u32::MAX));
            let sessions: Vec<i64> = self.tx.all(sql::SESSION_SWEEP, (state, limit), |row| row.get(0))?;
            for n in sessions.into_iter().filter(|n| !skip.contains(n)) {
                if self.left == 0 || !self.sweep(n)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Whether nothing of the session is left.
    fn sweep(&mut self, n: i64) -> Found<bool> {
        for sweep in sql::SWEEPS {
            let removed = self.tx.run(sweep, (n, self.left))?;
            self.spend(removed);
            if self.left == 0 {
                return Ok(false);
            }
        }
        self.tx.run(sql::SESSION_REMOVE, [n])?;
        self.spend(1);
        Ok(true)
    }

    fn requests(&mut self) -> Found<()> {
        let params = (self.now.0.saturating_sub(REQUEST_AGE), self.left);
        let old = self.tx.all(sql::REQUESTS_OLD, params, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))?;
        for (session, key) in old {
            let removed = self.tx.run(sql::REQUEST_REMOVE, (session, key))?;
            self.spend(removed);
        }
        Ok(())
    }

    /// A tombstone stays at least as long as the session's rows.
    fn tombstones(&mut self) -> Found<()> {
        let params = (self.now.0.saturating_sub(TOMBSTONE_AGE), self.left);
        let old: Vec<[u8; 16]> = self.tx.all(sql::TOMBSTONES_OLD, params, |row| row.get(0))?;
        for id in old {
            if self.tx.session(picofleet_session::SessionId::from_bytes(id))?.is_none() {
                let removed = self.tx.run(sql::TOMBSTONE_REMOVE, [id])?;
                self.spend(removed);
            }
        }
        Ok(())
    }

    /// Commit rows that are both far behind and old. Whether the round is over.
    fn commits(&mut self, round: &mut Round) -> Found<bool> {
        let sessions =
            self.tx.all(sql::SESSION_WALK, (&round.after, STEP_SESSIONS), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
        let last = sessions.len() < STEP_SESSIONS as usize;
        for (n, id) in sessions {
            if self.left == 0 {
                return Ok(false);
            }
            if let Some(head) = self.tx.head(n)? {
                let below = head.seq.0 - COMMITS_KEPT + 1;
                let oldest =
                    self.tx.all(sql::COMMITS_OLDEST, (n, below, self.left), |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?;
                let now = self.now.0;
                let old: Vec<i64> =
                    oldest.into_iter().take_while(|(_, at)| now.saturating_sub(*at) > COMMIT_AGE).map(|(seq, _)| seq).collect();
                if let (Some(first), Some(last)) = (old.first(), old.last()) {
                    let removed = self.tx.run(sql::COMMITS_REMOVE, (n, first, last))?;
                    self.spend(removed);
                }
                if self.left == 0 {
                    return Ok(false);
                }
            }
            round.after = id;
        }
        if last {
            round.after.clear();
        }
        Ok(last)
    }
}
