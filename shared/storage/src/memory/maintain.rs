//! What goes off the commit path (`protocol.md` 1, 3 and 7; section 3.5).

use std::ops::Bound;

use picofleet_session::storage::{Maintained, SessionState};
use picofleet_session::{DocumentContent, Millis, SessionId};

use super::rows::Rows;
use super::state::State;
use crate::rules::{COMMIT_AGE, COMMITS_KEPT, REQUEST_AGE, TOMBSTONE_AGE};

/// How many sessions one step looks at, so that it ends soon also where there is nothing to do.
const SESSIONS_PER_STEP: usize = 1_000;

/// One bounded step, going round over the sessions.
pub(crate) fn step(state: &mut State, budget: u32, now: Millis) -> Maintained {
    let mut budget = Budget { left: u64::from(budget), removed: 0 };
    let from = state.maintained.map_or(Bound::Unbounded, Bound::Excluded);
    let ids: Vec<SessionId> = state.sessions.range((from, Bound::Unbounded)).map(|(id, _)| *id).take(SESSIONS_PER_STEP).collect();
    let mut more = ids.len() == SESSIONS_PER_STEP;
    let mut before = std::mem::replace(&mut state.maintained, ids.last().copied().filter(|_| more));
    for id in ids {
        if !session(state, id, &mut budget, now) {
            state.maintained = before;
            more = true;
            break;
        }
        before = Some(id);
    }
    more |= !tombstones(state, &mut budget, now);
    Maintained { removed: budget.removed, more }
}

/// Old tombstones, the oldest first. One stays at least as long as its session's rows. Whether all that can go went.
fn tombstones(state: &mut State, budget: &mut Budget, now: Millis) -> bool {
    let State { tombstones, sessions, .. } = state;
    let old = tombstones.oldest().take_while(|(at, _)| now.0 - at.0 > TOMBSTONE_AGE);
    let old: Vec<SessionId> = old.map(|(_, id)| id).take(SESSIONS_PER_STEP).collect();
    let looked_at_all = old.len() < SESSIONS_PER_STEP;
    for id in old.into_iter().filter(|id| !sessions.contains_key(id)) {
        if !budget.spend() {
            return false;
        }
        tombstones.remove(id);
    }
    looked_at_all
}

struct Budget {
    left: u64,
    removed: u64,
}

impl Budget {
    /// Whether one more row may go.
    fn spend(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.removed += 1;
        true
    }
}

/// Whether the session was done before the budget was.
fn session(state: &mut State, id: SessionId, budget: &mut Budget, now: Millis) -> bool {
    let Some(session) = state.sessions.get_mut(&id) else { return true };
    if session.record.state == SessionState::Deleting {
        let done = sweep(&mut session.rows, budget);
        if done {
            state.sessions.remove(&id);
        }
        return done;
    }
    let rows = &mut session.rows;
    commits(rows, budget, now) && contents(rows, budget) && requests(rows, budget, now)
}

/// Commit rows that are both far behind and old, oldest first.
fn commits(rows: &mut Rows, budget: &mut Budget, now: Millis) -> bool {
    while let Some((&seq, oldest)) = rows.commits.get_min().map(|(seq, head)| (seq, head)) {
        if seq > rows.head.seq.0 - COMMITS_KEPT || now.0 - oldest.at.0 <= COMMIT_AGE {
            break;
        }
        if !budget.spend() {
            return false;
        }
        rows.commits.remove(&seq);
    }
    true
}

/// Content that a base or a retirement made unnecessary.
fn contents(rows: &mut Rows, budget: &mut Budget) -> bool {
    while let Some(&id) = rows.reclaimable.get_min() {
        let unneeded = unneeded(rows, id);
        for seq in unneeded {
            if !budget.spend() {
                return false;
            }
            rows.contents.remove(&(id, seq));
        }
        rows.reclaimable.remove(&id);
    }
    true
}

fn unneeded(rows: &Rows, id: i64) -> Vec<i64> {
    let newest_base = || {
        let contents = rows.contents.range((id, i64::MIN)..=(id, i64::MAX)).rev();
        contents.into_iter().find(|(_, content)| matches!(content, DocumentContent::Base { .. })).map(|((_, seq), _)| *seq)
    };
    let retired = rows.documents.get(&id).is_none_or(|record| record.retired_at.is_some());
    let kept_from = if retired { i64::MAX } else { newest_base().unwrap_or(i64::MIN) };
    rows.contents.range((id, i64::MIN)..(id, kept_from)).map(|((_, seq), _)| *seq).collect()
}

/// Request keys after their time.
fn requests(rows: &mut Rows, budget: &mut Budget, now: Millis) -> bool {
    while let Some((at, key)) = rows.requests_by_time.get_min().cloned() {
        if now.0 - at.0 <= REQUEST_AGE {
            break;
        }
        if !budget.spend() {
            return false;
        }
        rows.requests.remove(&key);
        rows.requests_by_time.remove(&(at, key));
    }
    true
}

/// Sweeps a number of rows of a deleted session again, as an earlier process did.
pub(crate) fn sweep_again(rows: &mut Rows, count: u64) {
    sweep(rows, &mut Budget { left: count, removed: 0 });
}

/// How many rows of a deleted session there are to be swept.
pub(crate) fn to_sweep(rows: &Rows) -> u64 {
    let tables = [rows.contents.len(), rows.entries.len(), rows.tasks.len(), rows.invocations.len(), rows.submissions.len()];
    let more = [rows.documents.len(), rows.conversations.len(), rows.requests.len(), rows.commits.len()];
    tables.into_iter().chain(more).map(|rows| rows as u64).sum()
}

/// Rows of a deleted session. Nobody reads them any more, so their indexes go at the end with the session.
fn sweep(rows: &mut Rows, budget: &mut Budget) -> bool {
    macro_rules! drain {
        ($($table:ident),*) => {$(
            while let Some(key) = rows.$table.get_min().map(|(key, _)| key.clone()) {
                if !budget.spend() {
                    return false;
                }
                rows.$table.remove(&key);
            }
        )*};
    }
    drain!(contents, entries, tasks, invocations, submissions, documents, conversations, requests, commits);
    true
}
