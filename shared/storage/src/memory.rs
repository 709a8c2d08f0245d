//! The reference semantics: everything in this process (section 11.1).
//!
//! One lock guards the sessions; each session's rows are persistent maps (see `rows`), so that reads and exports take a snapshot and a
//! refused batch leaves nothing. A batch is written when it is sent, unless a test asked for a fault.

pub(crate) mod export;
mod faults;
mod line;
pub(crate) mod maintain;
pub(crate) mod reader;
pub(crate) mod rows;
pub(crate) mod state;

use std::ops::{Bound, Range};
use std::sync::{Arc, MutexGuard};

use futures::stream::BoxStream;
use picofleet_session::storage::{
    Created, Cursor, ExportLine, Fence, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, Rejection, SessionCreate, SessionQuery,
    SessionReader, SessionRecord, SessionState, SessionStore, StorageError, Store, Wake,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId};

use crate::rules::{Fencing, fence, genesis, page, read_cursor};
use line::Line;
use reader::Reader;
use rows::Rows;
use state::{Session, Shared, State};

pub use faults::{Fault, Faults, Hold};

/// A store in memory. Clones share the sessions.
#[derive(Clone, Debug)]
pub struct MemoryStore(pub(crate) Arc<Shared>);

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::with_faults(Faults::new())
    }

    /// An empty store whose batches meet the faults that a test asks for.
    #[must_use]
    pub fn with_faults(faults: Faults) -> Self {
        Self::with_partitions(PartitionCount::DEFAULT, faults)
    }

    /// An empty store with another count of partitions.
    #[must_use]
    pub fn with_partitions(partitions: PartitionCount, faults: Faults) -> Self {
        Self(Arc::new(Shared::new(partitions, faults)))
    }

    /// A call that is done under the lock.
    fn call<'a, T: Send + 'a>(&'a self, call: impl FnOnce(MutexGuard<'_, State>) -> Result<T, StorageError> + Send + 'a) -> Fut<'a, T> {
        Box::pin(futures::future::lazy(move |_| call(self.0.open_state()?)))
    }
}

impl Store for MemoryStore {
    fn partitions(&self) -> PartitionCount {
        self.0.partitions
    }

    fn create(&self, session: SessionCreate) -> Fut<'_, Created> {
        self.call(move |mut state| create(&mut state, session))
    }

    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>> {
        self.call(move |state| Ok(state.session(id).ok().map(|session| session.record.clone())))
    }

    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>> {
        self.call(move |state| sessions(&state, &query, limit, cursor.as_ref()))
    }

    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        self.call(move |mut state| {
            let opened = open(&mut state, id, fence)?;
            Ok(Arc::new(Line::new(Arc::clone(&self.0), id, opened)) as Arc<dyn SessionStore>)
        })
    }

    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>> {
        self.call(move |mut state| {
            let fenced = sessions.into_iter().filter_map(|id| take_over(&mut state, id, fence).map(|head| (id, head)));
            Ok(fenced.collect())
        })
    }

    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>> {
        self.call(move |state| {
            state.session(id)?;
            Ok(Arc::new(Reader { shared: Arc::clone(&self.0), id, released: None }) as Arc<dyn SessionReader>)
        })
    }

    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()> {
        self.call(move |mut state| {
            let session = state.session_mut(id)?;
            session.record.state = if quarantined { SessionState::Quarantined } else { SessionState::Active };
            if !quarantined {
                session.rows.set_head(Head { opens: 0, ..session.rows.head });
            }
            Ok(())
        })
    }

    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool> {
        self.call(move |mut state| Ok(delete(&mut state, id, at)))
    }

    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>> {
        let lines = self.call(move |state| {
            let session = state.session(id)?;
            Ok(export::lines(session.record.clone(), session.rows.clone()))
        });
        let shared = Arc::clone(&self.0);
        Box::pin(async move { Ok(export::stream(shared, id, lines.await?)) })
    }

    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord> {
        Box::pin(async move {
            drop(self.0.open_state()?);
            let (record, rows) = export::read(&target, lines).await?;
            let mut state = self.0.open_state()?;
            if state.sessions.contains_key(&record.id) {
                return Err(Rejection::SessionExists { session: record.id }.into());
            }
            // Whoever imports a deleted session wants it back.
            state.tombstones.remove(record.id);
            add(&mut state, record.clone(), rows);
            Ok(record)
        })
    }

    fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
        self.call(move |state| {
            let after: Option<(Millis, SessionId)> = read_cursor("due", cursor.as_ref())?;
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let waking = state.waking.range((from, Bound::Unbounded)).take_while(|(at, _)| *at <= until);
            let due = waking.filter(|(_, id)| partitions.contains(&id.partition(self.0.partitions)));
            page("due", limit, due.map(|&(at, session)| Ok(Wake { session, at })), |wake| (wake.at, wake.session))
        })
    }

    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>> {
        self.call(move |state| outbox(&state, limit, cursor.as_ref()))
    }

    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()> {
        self.call(move |mut state| {
            for (id, submission) in rows {
                let Some(session) = state.sessions.get(&id) else { continue };
                let mut rows = session.rows.clone();
                rows.outbox.remove(&submission.get());
                state.replace_rows(id, rows);
            }
            Ok(())
        })
    }

    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained> {
        self.call(move |mut state| Ok(maintain::step(&mut state, budget, now)))
    }

    fn close(&self) -> Fut<'_, ()> {
        Box::pin(async {
            self.0.state().closed = true;
            // The sender lives in the store, so waiting can't fail.
            let _ = self.0.in_flight.subscribe().wait_for(|count| *count == 0).await;
            Ok(())
        })
    }
}

fn create(state: &mut State, session: SessionCreate) -> Result<Created, StorageError> {
    crate::rules::creatable(&session)?;
    let SessionCreate { id, tenant, key, metadata, at } = session;
    if state.tombstones.contains(id) {
        return Err(Rejection::SessionDeleted { session: id }.into());
    }
    if let Some(session) = state.sessions.get(&id) {
        return Ok(Created { session: session.record.clone(), existed: true });
    }
    let record = SessionRecord { id, tenant, key, metadata, state: SessionState::Active, created_at: at };
    add(state, record.clone(), Rows::new(genesis(at)));
    Ok(Created { session: record, existed: false })
}

pub(crate) fn add(state: &mut State, record: SessionRecord, rows: Rows) {
    let id = record.id;
    state.sessions.insert(id, Session { record, rows: rows.clone() });
    state.replace_rows(id, rows);
}

fn sessions(state: &State, query: &SessionQuery, limit: u32, cursor: Option<&Cursor>) -> Result<Page<SessionRecord>, StorageError> {
    let after: Option<SessionId> = read_cursor("sessions", cursor)?;
    let after = after.map_or(Bound::Unbounded, Bound::Excluded);
    let records = state.sessions.range((after, Bound::Unbounded)).map(|(_, session)| &session.record);
    let asked = records.filter(|record| {
        query.tenant.as_ref().is_none_or(|tenant| record.tenant == *tenant)
            && query.key.as_ref().is_none_or(|key| record.key.as_ref() == Some(key))
            && query.state.map_or(record.state != SessionState::Deleting, |state| record.state == state)
    });
    page("sessions", limit, asked.map(|record| Ok(record.clone())), |record| record.id)
}

fn open(state: &mut State, id: SessionId, by: Fence) -> Result<Head, StorageError> {
    let session = state.session_mut(id)?;
    let opened = fence(id, &session.rows.head, by, Fencing::Open);
    if matches!(opened, Err(StorageError::Quarantined { .. })) {
        session.record.state = SessionState::Quarantined;
    }
    let head = opened?;
    if session.record.state == SessionState::Quarantined {
        return Err(StorageError::Quarantined { session: id });
    }
    state.set_head(id, head);
    Ok(head)
}

fn take_over(state: &mut State, id: SessionId, by: Fence) -> Option<Head> {
    let session = state.session(id).ok()?;
    let head = fence(id, &session.rows.head, by, Fencing::Takeover).ok()?;
    state.set_head(id, head);
    Some(head)
}

pub(crate) fn delete(state: &mut State, id: SessionId, at: Millis) -> bool {
    let Ok(session) = state.session_mut(id) else { return false };
    // No batch is written for a session in this state, which is the fence.
    session.record.state = SessionState::Deleting;
    let mut rows = session.rows.clone();
    rows.outbox.clear();
    rows.wake = None;
    state.replace_rows(id, rows);
    state.tombstones.insert(id, at);
    true
}

fn outbox(state: &State, limit: u32, cursor: Option<&Cursor>) -> Result<Page<(SessionId, OutboxRow)>, StorageError> {
    let after: Option<(SessionId, SubmissionId)> = read_cursor("outbox", cursor)?;
    let from = after.map_or(Bound::Unbounded, |(session, _)| Bound::Included(session));
    let sessions = state.outgoing.range((from, Bound::Unbounded)).filter_map(|id| state.sessions.get(id));
    let rows = sessions.flat_map(|session| {
        let id = session.record.id;
        let above = after.filter(|(session, _)| *session == id).map_or(0, |(_, submission)| submission.get());
        rows::above(&session.rows.outbox, above).map(move |(_, row)| Ok((id, row.clone())))
    });
    page("outbox", limit, rows, |(session, row)| (*session, row.submission_id))
}
