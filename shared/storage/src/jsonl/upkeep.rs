//! Maintenance: what memory lets go of leaves the files, too.

use picofleet_session::storage::{Maintained, StorageError};
use picofleet_session::{Millis, Seq, SessionId};

use super::format::{MainLine, Pruned};
use super::journal::Journal;
use super::sidecar::Sidecar;
use crate::memory::maintain;
use crate::memory::rows::Rows;

impl Journal {
    /// One bounded step.
    pub(super) fn maintain(&mut self, budget: u32, now: Millis) -> Result<Maintained, StorageError> {
        self.check()?;
        let (before, tombstones, done) = {
            let mut state = self.shared.open_state()?;
            let before: Vec<(SessionId, Rows)> = state.sessions.iter().map(|(id, session)| (*id, session.rows.clone())).collect();
            let tombstones = state.tombstones.all().count();
            let done = maintain::step(&mut state, budget, now);
            (before, tombstones != state.tombstones.all().count(), done)
        };
        for (id, before) in before {
            let after = self.shared.state().sessions.get(&id).map(|session| session.rows.clone());
            match after {
                Some(after) => self.follow(id, &before, &after)?,
                None => self.remove(id)?,
            }
        }
        if tombstones {
            self.write_tombstones()?;
        }
        self.again();
        Ok(done)
    }

    /// A deleted session was swept.
    fn remove(&mut self, id: SessionId) -> Result<(), StorageError> {
        self.sizes.remove(&id);
        self.deferred.retain(|(session, _)| *session != id);
        let directory = self.directory(id);
        self.files.remove_directory(&directory).map_err(|error| self.poison("remove a deleted session", error))
    }

    fn follow(&mut self, id: SessionId, before: &Rows, after: &Rows) -> Result<(), StorageError> {
        let pruned = |rows: &Rows| Pruned {
            commits_from: rows.commits.get_min().map_or(rows.head.seq, |(seq, _)| Seq(*seq)),
            requests_from: rows.requests_by_time.get_min().cloned(),
        };
        let swept = maintain::to_sweep(before).saturating_sub(maintain::to_sweep(after));
        if self.shared.state().session(id).is_err() {
            return if swept > 0 { self.line(id, "sweep a deleted session", &MainLine::Swept(swept)) } else { Ok(()) };
        }
        if pruned(before) != pruned(after) {
            self.line(id, "maintain a session", &MainLine::Pruned(pruned(after)))?;
        }
        let reclaimed = before.reclaimable.iter().filter(|document| !after.reclaimable.contains(*document));
        let known = self.sizes.get(&id).into_iter().flatten();
        let over = known.map(|(sidecar, _)| *sidecar).filter(|sidecar| sidecar.over(after));
        let mut sidecars: Vec<Sidecar> = reclaimed.map(|document| Sidecar::Document(*document)).chain(over).collect();
        sidecars.sort_unstable();
        sidecars.dedup();
        self.reclaim(id, after, sidecars);
        Ok(())
    }

    /// What could not be reclaimed before.
    fn again(&mut self) {
        for (id, sidecar) in std::mem::take(&mut self.deferred) {
            let rows = self.shared.state().sessions.get(&id).map(|session| session.rows.clone());
            if let Some(rows) = rows {
                self.reclaim(id, &rows, vec![sidecar]);
            }
        }
    }
}
