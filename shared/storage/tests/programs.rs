//! Random programs of batches, valid and invalid, on one store against another: the same outcomes and the same reads.

#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "programs/program.rs"]
mod program;

use std::sync::Arc;

use picofleet_session::SessionId;
use picofleet_session::storage::{Batch, Head, SessionCreate, SessionStore, StorageError, Store};
use picofleet_storage::conformance::snapshot::{everything, same};
use picofleet_storage::conformance::{NOW, export, fence};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use program::{Expect, KEYS, Known, Program, Step, program};
use proptest::prelude::*;

/// One of the two stores, with the session.
struct Side {
    store: Arc<dyn Store>,
    line: Arc<dyn SessionStore>,
    head: Head,
}

impl Side {
    async fn new(store: Arc<dyn Store>, id: SessionId) -> Self {
        store.create(SessionCreate { id, ..SessionCreate::new(NOW) }).await.unwrap();
        let line = store.open(id, fence()).await.unwrap();
        let head = line.opened();
        Self { store, line, head }
    }

    async fn reopen(&mut self, id: SessionId) {
        self.line.release().await.unwrap();
        self.store.set_quarantined(id, false).await.unwrap();
        self.line = self.store.open(id, fence()).await.unwrap();
        self.head = self.line.opened();
    }

    async fn send(&mut self, expect: Expect, commits: Vec<picofleet_session::storage::Commit>) -> Result<Head, StorageError> {
        let outcome = self.line.commit(Batch { expect: expect.on(&self.head), commits }).await;
        if let Ok(head) = &outcome {
            self.head = *head;
        }
        outcome
    }
}

/// What two stores have to agree on; tokens of fences are each store's own.
fn comparable(outcome: &Result<Head, StorageError>) -> String {
    match outcome {
        Ok(head) => format!("seq {} next {} opens {} epoch {:?} at {:?}", head.seq, head.next_id, head.opens, head.epoch, head.at),
        Err(error) => format!("{error:?}"),
    }
}

async fn run(program: &Program, left: Arc<dyn Store>, right: Arc<dyn Store>) {
    let id = SessionId::from_key("programs", "one");
    let (mut left, mut right) = (Side::new(left, id).await, Side::new(right, id).await);
    let mut known = Known::new(left.head.next_id);
    let root = vec![known.root()];
    left.send(Expect::Right, root.clone()).await.unwrap();
    right.send(Expect::Right, root).await.unwrap();
    for (number, step) in program.0.iter().enumerate() {
        match step {
            Step::Batch { expect, commits } => {
                let (commits, after) = known.resolve(commits, left.head.seq);
                let one = left.send(*expect, commits.clone()).await;
                let other = right.send(*expect, commits.clone()).await;
                assert_eq!(comparable(&one), comparable(&other), "step {number}: {commits:#?}");
                if one.is_ok() {
                    known = after;
                }
            }
            Step::Reopen => {
                left.reopen(id).await;
                right.reopen(id).await;
            }
            Step::Maintain => {
                let at = picofleet_session::Millis(NOW.0 + 1);
                while left.store.maintain(7, at).await.unwrap().more {}
                while right.store.maintain(7, at).await.unwrap().more {}
            }
        }
    }
    compare(&left, &right, id).await;
}

async fn compare(left: &Side, right: &Side, id: SessionId) {
    let (below, newest) = (left.head.next_id, left.head.seq);
    let one = everything(&*left.store.reader(id).await.unwrap(), below, newest, &KEYS).await;
    let other = everything(&*right.store.reader(id).await.unwrap(), below, newest, &KEYS).await;
    same(&one, &other);
    assert_eq!(export(&*left.store, id).await, export(&*right.store, id).await);
    let outbox = (left.store.outbox(100, None).await.unwrap(), right.store.outbox(100, None).await.unwrap());
    assert_eq!(outbox.0.items, outbox.1.items);
    let partitions = 0..left.store.partitions().get();
    let far = picofleet_session::Millis(i64::MAX);
    let due = (left.store.due(partitions.clone(), far, 10, None).await.unwrap(), right.store.due(partitions, far, 10, None).await.unwrap());
    assert_eq!(due.0.items, due.1.items);
}

fn block_on(future: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 400, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_sqlite_agree(program in program()) {
        let directory = tempfile::tempdir().unwrap();
        block_on(async {
            let sqlite: Arc<dyn Store> = Arc::new(SqliteStore::open(directory.path().join("p.db"), SqliteOptions::default()).unwrap());
            run(&program, Arc::new(MemoryStore::new()), Arc::clone(&sqlite)).await;
            sqlite.close().await.unwrap();
        });
    }
}
