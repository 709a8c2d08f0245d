//! What the store, its readers and its lines share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use picofleet_session::storage::{Head, SessionRecord, SessionState, StorageError};
use picofleet_session::{Millis, PartitionCount, SessionId};
use tokio::sync::watch;

use super::faults::{Faults, lock};
use super::rows::Rows;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) partitions: PartitionCount,
    pub(crate) faults: Faults,
    /// Batches that were admitted and have not settled.
    pub(crate) in_flight: watch::Sender<usize>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) closed: bool,
    pub(crate) sessions: BTreeMap<SessionId, Session>,
    pub(crate) tombstones: Tombstones,
    /// The wake times of all sessions.
    pub(crate) waking: BTreeSet<(Millis, SessionId)>,
    /// The sessions with settlement notices.
    pub(crate) outgoing: BTreeSet<SessionId>,
    /// The last session that maintenance looked at.
    pub(crate) maintained: Option<SessionId>,
}

/// When sessions were deleted.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    by_id: BTreeMap<SessionId, Millis>,
    by_time: BTreeSet<(Millis, SessionId)>,
}

impl Tombstones {
    pub(crate) fn contains(&self, id: SessionId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn insert(&mut self, id: SessionId, at: Millis) {
        self.remove(id);
        self.by_id.insert(id, at);
        self.by_time.insert((at, id));
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        if let Some(at) = self.by_id.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    /// Every tombstone.
    pub(crate) fn all(&self) -> impl Iterator<Item = (SessionId, Millis)> + '_ {
        self.by_id.iter().map(|(id, at)| (*id, *at))
    }

    pub(crate) fn oldest(&self) -> impl Iterator<Item = (Millis, SessionId)> + '_ {
        self.by_time.iter().copied()
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) record: SessionRecord,
    pub(crate) rows: Rows,
}

impl Shared {
    pub(crate) fn new(partitions: PartitionCount, faults: Faults) -> Self {
        Self { partitions, faults, in_flight: watch::Sender::new(0), state: Mutex::default() }
    }

    /// The state, unless the store is closed.
    pub(crate) fn open_state(&self) -> Result<MutexGuard<'_, State>, StorageError> {
        let state = self.state();
        if state.closed { Err(StorageError::Closed) } else { Ok(state) }
    }

    /// The state, also of a closed store.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// A session's rows as they are now.
    pub(crate) fn rows(&self, id: SessionId) -> Result<Rows, StorageError> {
        let state = self.open_state()?;
        Ok(state.session(id)?.rows.clone())
    }
}

impl State {
    /// A session that is not being deleted.
    pub(crate) fn session(&self, id: SessionId) -> Result<&Session, StorageError> {
        let session = self.sessions.get(&id).filter(|session| session.record.state != SessionState::Deleting);
        session.ok_or(StorageError::NotFound { session: id })
    }

    pub(crate) fn session_mut(&mut self, id: SessionId) -> Result<&mut Session, StorageError> {
        let session = self.sessions.get_mut(&id).filter(|session| session.record.state != SessionState::Deleting);
        session.ok_or(StorageError::NotFound { session: id })
    }

    /// Puts rows in the place of a session's rows, and what the store keeps of them for all sessions.
    pub(crate) fn replace_rows(&mut self, id: SessionId, rows: Rows) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        if let Some(at) = session.rows.wake {
            self.waking.remove(&(at, id));
        }
        if let Some(at) = rows.wake {
            self.waking.insert((at, id));
        }
        if rows.outbox.is_empty() {
            self.outgoing.remove(&id);
        } else {
            self.outgoing.insert(id);
        }
        session.rows = rows;
    }

    /// Adds a commit that writes nothing.
    pub(crate) fn set_head(&mut self, id: SessionId, head: Head) {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.rows.set_head(head);
        }
    }
}
