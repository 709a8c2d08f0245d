//! Values at the limit of depth come back, and deeper ones are refused before they are written.

#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]

use std::sync::Arc;

use futures::StreamExt as _;
use picofleet_session::storage::{Batch, Commit, ExportLine, Fence, OutboxRow, Rejection, SessionCreate, StorageError, Store, Write};
use picofleet_session::{
    CommitToken, DocumentContent, DocumentCreate, DocumentId, Epoch, Json, Millis, Op, Placement, Point, Segment, SubmissionId,
};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};

/// Arrays in arrays, this many.
fn nested(depth: usize) -> Json {
    (0..depth).fold(Json::null(), |inner, _| Json::array([inner]))
}

async fn values_at_the_limit_come_back(store: Arc<dyn Store>) {
    let id = store.create(SessionCreate::new(Millis(0))).await.unwrap().session.id;
    let line = store.open(id, Fence { epoch: Epoch(0), at: Millis(0) }).await.unwrap();
    let document = DocumentId::new(2).unwrap();
    let create = DocumentCreate { id: document, kind: "deep".into(), key: None, placement: Placement::Session };
    let commit = |next_id, writes| Commit { token: CommitToken::random(), at: Millis(0), next_id, writes };
    let value = |inner: Json| Json::object([("v", inner)]);
    let first = commit(3, vec![Write::DocumentCreate { create, version: 1, value: value(nested(511)) }]);
    let head = line.opened();
    let head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![first] }).await.unwrap();
    let ops = Arc::from([Op::Set(vec![Segment::Key("v".into())], nested(511))]);
    let change = Write::DocumentChange { id: document, content: DocumentContent::Delta { version: 1, ops } };
    let head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit(3, vec![change])] }).await.unwrap();
    let stored = line.document(document, Point::Current).await.unwrap().unwrap();
    assert_eq!((stored.value, stored.deltas_since_base), (value(nested(511)), 1));

    let lines: Vec<Result<ExportLine, StorageError>> = store.export(id).await.unwrap().collect().await;
    for line in lines {
        let text = line.unwrap().to_text().unwrap();
        ExportLine::from_text(&text).unwrap();
    }

    let notice = Write::Outbox(Box::new(OutboxRow { submission_id: SubmissionId::new(9).unwrap(), body: nested(600) }));
    let refused = line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit(3, vec![notice])] }).await;
    assert!(matches!(refused, Err(StorageError::Rejected(_))), "{refused:?}");
    for metadata in [value(nested(600)), Json::null()] {
        let refused = store.create(SessionCreate { metadata, ..SessionCreate::new(Millis(0)) }).await;
        let Err(StorageError::Rejected(rejected)) = refused else { panic!("{refused:?}") };
        assert!(matches!(rejected.reason, Rejection::Malformed(_)));
    }
}

#[tokio::test]
async fn on_memory() {
    values_at_the_limit_come_back(Arc::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    values_at_the_limit_come_back(Arc::new(SqliteStore::open(folder.path().join("d.db"), SqliteOptions::default()).unwrap())).await;
}
