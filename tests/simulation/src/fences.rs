//! Stands before the store and shows its fences to the checker: they are commits, and batches are all that a store shows by itself.

use std::ops::Range;
use std::sync::Arc;

use futures::stream::BoxStream;
use picofleet_session::storage::{
    Created, Cursor, ExportLine, Fence, Fut, Head, ImportTarget, Maintained, OutboxRow, Page, SessionCreate, SessionQuery, SessionReader,
    SessionRecord, SessionStore, StorageError, Store, Wake,
};
use picofleet_session::{Millis, PartitionCount, SessionId, SubmissionId};
use picofleet_storage::memory::MemoryStore;

use crate::checker::Checker;

/// A store in memory whose fences are seen. It answers at once, so that no batch is written between a fence and its report.
pub(crate) struct Fences {
    pub(crate) store: MemoryStore,
    pub(crate) checker: Checker,
}

impl Store for Fences {
    fn open(&self, id: SessionId, fence: Fence) -> Fut<'_, Arc<dyn SessionStore>> {
        Box::pin(async move {
            let line = self.store.open(id, fence).await?;
            self.checker.fenced(id, &line.opened());
            Ok(line)
        })
    }

    fn fence(&self, sessions: Vec<SessionId>, fence: Fence) -> Fut<'_, Vec<(SessionId, Head)>> {
        Box::pin(async move {
            let fenced = self.store.fence(sessions, fence).await?;
            for (session, head) in &fenced {
                self.checker.fenced(*session, head);
            }
            Ok(fenced)
        })
    }

    fn partitions(&self) -> PartitionCount {
        self.store.partitions()
    }

    fn create(&self, session: SessionCreate) -> Fut<'_, Created> {
        self.store.create(session)
    }

    fn session(&self, id: SessionId) -> Fut<'_, Option<SessionRecord>> {
        self.store.session(id)
    }

    fn sessions(&self, query: SessionQuery, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<SessionRecord>> {
        self.store.sessions(query, limit, cursor)
    }

    fn reader(&self, id: SessionId) -> Fut<'_, Arc<dyn SessionReader>> {
        self.store.reader(id)
    }

    fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Fut<'_, ()> {
        self.store.set_quarantined(id, quarantined)
    }

    fn delete(&self, id: SessionId, at: Millis) -> Fut<'_, bool> {
        self.store.delete(id, at)
    }

    fn export(&self, id: SessionId) -> Fut<'_, BoxStream<'static, Result<ExportLine, StorageError>>> {
        self.store.export(id)
    }

    fn import(&self, target: ImportTarget, lines: BoxStream<'static, Result<ExportLine, StorageError>>) -> Fut<'_, SessionRecord> {
        self.store.import(target, lines)
    }

    fn due(&self, partitions: Range<u16>, until: Millis, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<Wake>> {
        self.store.due(partitions, until, limit, cursor)
    }

    fn outbox(&self, limit: u32, cursor: Option<Cursor>) -> Fut<'_, Page<(SessionId, OutboxRow)>> {
        self.store.outbox(limit, cursor)
    }

    fn acknowledge(&self, rows: Vec<(SessionId, SubmissionId)>) -> Fut<'_, ()> {
        self.store.acknowledge(rows)
    }

    fn maintain(&self, budget: u32, now: Millis) -> Fut<'_, Maintained> {
        self.store.maintain(budget, now)
    }

    fn close(&self) -> Fut<'_, ()> {
        self.store.close()
    }
}
