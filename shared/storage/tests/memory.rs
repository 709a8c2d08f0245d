//! The suite on memory, and what only memory has: faults.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use picofleet_storage::conformance::Memory;

picofleet_storage::conformance!(Memory);

mod faults {
    use std::sync::Arc;

    use picofleet_session::storage::{Batch, Commit, Rejection, SessionCreate, SessionStore, StorageError, Store, Write};
    use picofleet_session::{CommitToken, SessionId};
    use picofleet_storage::conformance::records::{cid, conversation};
    use picofleet_storage::conformance::{NOW, fence, rejection};
    use picofleet_storage::memory::{Fault, Faults, MemoryStore};

    struct Open {
        faults: Faults,
        store: MemoryStore,
        id: SessionId,
        line: Arc<dyn SessionStore>,
    }

    async fn open() -> Open {
        let faults = Faults::new();
        let store = MemoryStore::with_faults(faults.clone());
        let id = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
        let line = store.open(id, fence()).await.unwrap();
        Open { faults, store, id, line }
    }

    fn commit(writes: Vec<Write>) -> Commit {
        Commit { token: CommitToken::random(), at: NOW, next_id: 2, writes }
    }

    fn first(line: &dyn SessionStore) -> Batch {
        Batch { expect: (line.opened().seq, line.opened().token), commits: vec![commit(vec![conversation(1)])] }
    }

    #[tokio::test]
    async fn a_lost_batch_may_have_landed_or_not() {
        for (fault, landed) in [(Fault::LostBefore, false), (Fault::LostAfter, true)] {
            let Open { faults, store, id, line } = open().await;
            faults.push(fault);
            let batch = first(&*line);
            let token = batch.commits[0].token;
            assert!(matches!(line.commit(batch).await, Err(StorageError::Uncertain { .. })));
            let head = store.reader(id).await.unwrap().head().await.unwrap();
            assert_eq!(head.token == token, landed);
            let again = store.open(id, fence()).await.unwrap();
            assert_eq!(again.conversation(cid(1)).await.unwrap().is_some(), landed);
        }
    }

    #[tokio::test]
    async fn a_refusal_leaves_the_line_usable_and_meets_one_batch() {
        let Open { faults, line, .. } = open().await;
        faults.push(Fault::Rejected(Rejection::Overloaded));
        assert_eq!(rejection(line.commit(first(&*line)).await), Rejection::Overloaded);
        assert_eq!(line.conversation(cid(1)).await.unwrap(), None);
        line.commit(first(&*line)).await.unwrap();
    }

    #[tokio::test]
    async fn a_held_batch_is_in_flight_until_it_is_released() {
        let Open { faults, line, .. } = open().await;
        let hold = faults.hold();
        let waiting = line.commit(first(&*line));
        hold.arrived().await;
        assert_eq!(rejection(line.commit(first(&*line)).await), Rejection::InFlight);
        assert_eq!(line.conversation(cid(1)).await.unwrap(), None);
        hold.release();
        let head = waiting.await.unwrap();
        assert!(line.conversation(cid(1)).await.unwrap().is_some());
        line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit(vec![])] }).await.unwrap();
    }

    #[tokio::test]
    async fn a_held_batch_of_an_earlier_owner_does_not_land() {
        let Open { faults, store, id, line } = open().await;
        let hold = faults.hold();
        let stale = line.commit(first(&*line));
        hold.arrived().await;
        let next = store.open(id, fence()).await.unwrap();
        hold.release();
        assert!(matches!(stale.await, Err(StorageError::Fenced { .. })));
        assert_eq!(next.conversation(cid(1)).await.unwrap(), None);
        next.commit(first(&*next)).await.unwrap();
    }

    #[tokio::test]
    async fn a_hold_can_end_in_a_fault_and_be_gone_before_the_batch() {
        let Open { faults, line, .. } = open().await;
        let hold = faults.hold();
        hold.fail(Fault::LostBefore);
        assert!(matches!(line.commit(first(&*line)).await, Err(StorageError::Uncertain { .. })));
        drop(faults.hold());
        line.commit(first(&*line)).await.unwrap();
    }

    #[tokio::test]
    async fn release_and_close_wait_for_what_was_admitted() {
        let Open { faults, store, line, .. } = open().await;
        let hold = faults.hold();
        let waiting = line.commit(first(&*line));
        hold.arrived().await;
        let (released, closed, landed) = {
            let mut release = line.release();
            let mut close = store.close();
            assert!(futures::poll!(&mut release).is_pending());
            assert!(futures::poll!(&mut close).is_pending());
            hold.release();
            (release.await, close.await, waiting.await)
        };
        released.unwrap();
        closed.unwrap();
        landed.unwrap();
        assert!(matches!(line.commit(first(&*line)).await, Err(StorageError::Closed)));
    }

    #[tokio::test]
    async fn a_dropped_handle_cancels_nothing() {
        let Open { faults, line, .. } = open().await;
        let hold = faults.hold();
        drop(line.commit(first(&*line)));
        hold.release();
        assert!(line.conversation(cid(1)).await.unwrap().is_some());
    }
}
