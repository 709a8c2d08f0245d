//! Who owns the line of a session (`protocol.md` 1 and 4).

use picofleet_session::storage::{Fence, Head, OPENS_MAX, SessionCreate, SessionState, StorageError};
use picofleet_session::{Epoch, SessionId};

use super::records::{cid, conversation, eid, entry};
use super::{NOW, World, fence};

fn by(epoch: i64) -> Fence {
    Fence { epoch: Epoch(epoch), at: NOW }
}

fn fenced(outcome: Result<Head, StorageError>, session: SessionId) {
    assert!(matches!(outcome, Err(StorageError::Fenced { session: of }) if of == session), "{outcome:?}");
}

/// Opening is a commit: the earlier owner's next one does not land.
pub async fn opening_fences_the_earlier_owner(mut world: World) {
    world.root().await;
    let earlier = world.line().await;
    let e = world.mint();
    let stale = world.batch(vec![world.commit_of(vec![entry(e, 1)])]);
    let before = world.head;
    world.open().await;
    assert_eq!(world.head.seq, before.seq.next());
    assert_ne!(world.head.token, before.token);
    assert_eq!(world.head.next_id, before.next_id);
    fenced(earlier.commit(stale).await, world.session);
    assert_eq!(world.same_line().entry(None, eid(e)).await.unwrap(), None);
    world.send(world.batch(vec![world.commit_of(vec![entry(e, 1)])])).await.unwrap();
    assert!(earlier.entry(None, eid(e)).await.unwrap().is_some(), "reads go on");
}

/// The fence stands on what was committed: nothing of the earlier owner is lost, and its newest commit can't be repeated.
pub async fn a_fence_keeps_what_was_committed(mut world: World) {
    world.root().await;
    let line = world.line().await;
    let e = world.mint();
    let batch = world.batch(vec![world.commit_of(vec![entry(e, 1)])]);
    let landed = line.commit(batch.clone()).await.unwrap();
    world.open().await;
    assert_eq!(world.head.seq, landed.seq.next());
    fenced(line.commit(batch).await, world.session);
    assert!(world.same_line().entry(None, eid(e)).await.unwrap().is_some());
}

/// A lower epoch can't open a session, an equal or higher one can.
pub async fn epochs_do_not_go_down(mut world: World) {
    world.root().await;
    world.restart().await;
    let store = world.same_store();
    store.set_quarantined(world.session, false).await.unwrap();
    let opened = store.open(world.session, by(5)).await.unwrap().opened();
    assert_eq!(opened.epoch, Epoch(5));
    world.restart().await;
    let store = world.same_store();
    let lower = store.open(world.session, by(4)).await.err();
    assert!(matches!(lower, Some(StorageError::Fenced { .. })), "{lower:?}");
    assert_eq!(store.reader(world.session).await.unwrap().head().await.unwrap(), opened);
    let again = store.open(world.session, by(5)).await.unwrap();
    assert_eq!(again.opened().seq, opened.seq.next());
    let commit = world.commit_of(vec![]);
    let expect = (again.opened().seq, again.opened().token);
    let head = again.commit(picofleet_session::storage::Batch { expect, commits: vec![commit] }).await.unwrap();
    assert_eq!(head.epoch, Epoch(5));
    assert_eq!(store.open(world.session, by(6)).await.unwrap().opened().epoch, Epoch(6));
}

/// Many sessions are fenced at once; what is not there or has a higher epoch is left out.
pub async fn many_sessions_are_fenced_at_once(mut world: World) {
    world.root().await;
    let earlier = world.line().await;
    let store = world.same_store();
    let resting = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    let higher = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    store.open(higher, by(9)).await.unwrap();
    let stale = world.batch(vec![world.commit_of(vec![])]);
    let answer = store.fence(vec![world.session, SessionId::random(), higher, resting], by(7)).await.unwrap();
    let mut ids: Vec<_> = answer.iter().map(|(id, _)| *id).collect();
    ids.sort();
    let mut expected = vec![world.session, resting];
    expected.sort();
    assert_eq!(ids, expected);
    for (id, head) in &answer {
        assert_eq!(head.epoch, Epoch(7));
        assert_eq!(store.reader(*id).await.unwrap().head().await.unwrap(), *head);
    }
    fenced(earlier.commit(stale).await, world.session);
    let lower = store.open(resting, by(6)).await.err();
    assert!(matches!(lower, Some(StorageError::Fenced { .. })), "{lower:?}");
}

/// A takeover is not an open: it does not bring a resting session nearer to quarantine.
pub async fn a_takeover_is_not_counted_as_an_open(mut world: World) {
    world.root().await;
    world.restart().await;
    let store = world.same_store();
    for epoch in 1..6 {
        assert_eq!(store.fence(vec![world.session], by(epoch)).await.unwrap().len(), 1);
    }
    store.open(world.session, by(6)).await.unwrap();
}

/// A reader sees commits as they land and does not disturb the owner.
pub async fn a_reader_does_not_fence(mut world: World) {
    world.root().await;
    let line = world.line().await;
    let store = world.same_store();
    let reader = store.reader(world.session).await.unwrap();
    assert_eq!(reader.head().await.unwrap(), world.head);
    let id = world.mint();
    let head = line.commit(world.batch(vec![world.commit_of(vec![conversation(id)])])).await.unwrap();
    assert_eq!(reader.head().await.unwrap(), head);
    assert!(reader.conversation(cid(id)).await.unwrap().is_some());
    assert_eq!(store.reader(world.session).await.unwrap().id(), world.session);
}

/// The fourth open in a row without a commit is refused.
pub async fn three_opens_without_a_commit_quarantine(mut world: World) {
    world.root().await;
    for opens in 1..=3 {
        world.restart().await;
        let store = world.same_store();
        if opens == 1 {
            store.set_quarantined(world.session, false).await.unwrap();
        }
        assert_eq!(store.open(world.session, fence()).await.unwrap().opened().opens, opens);
    }
    world.restart().await;
    let store = world.same_store();
    for _ in 0..2 {
        let fourth = store.open(world.session, fence()).await.err();
        assert!(matches!(fourth, Some(StorageError::Quarantined { session }) if session == world.session), "{fourth:?}");
    }
    world.restart().await;
    let store = world.same_store();
    assert_eq!(store.session(world.session).await.unwrap().unwrap().state, SessionState::Quarantined);
    assert!(store.reader(world.session).await.unwrap().conversation(cid(1)).await.unwrap().is_some());
    store.set_quarantined(world.session, false).await.unwrap();
    assert_eq!(store.session(world.session).await.unwrap().unwrap().state, SessionState::Active);
    assert_eq!(store.open(world.session, fence()).await.unwrap().opened().opens, 1);
}

/// Cleared, the count begins again for every later owner, also where nobody opened the session before the process ended.
pub async fn a_cleared_quarantine_lasts(mut world: World) {
    world.root().await;
    world.restart().await;
    world.same_store().set_quarantined(world.session, false).await.unwrap();
    for _ in 0..OPENS_MAX {
        world.same_store().open(world.session, fence()).await.unwrap();
        world.restart().await;
    }
    let refused = world.same_store().open(world.session, fence()).await.err();
    assert!(matches!(refused, Some(StorageError::Quarantined { .. })), "{refused:?}");
    world.restart().await;
    world.same_store().set_quarantined(world.session, false).await.unwrap();
    world.restart().await;
    let store = world.same_store();
    assert_eq!(store.session(world.session).await.unwrap().unwrap().state, SessionState::Active);
    assert_eq!(store.reader(world.session).await.unwrap().head().await.unwrap().opens, 0);
    for opens in 1..=OPENS_MAX {
        assert_eq!(world.same_store().open(world.session, fence()).await.unwrap().opened().opens, opens);
        world.restart().await;
    }
    let refused = world.same_store().open(world.session, fence()).await.err();
    assert!(matches!(refused, Some(StorageError::Quarantined { .. })), "{refused:?}");
}

/// A commit starts the count again.
pub async fn a_commit_clears_the_count_of_opens(mut world: World) {
    world.root().await;
    for _ in 0..5 {
        world.restart().await;
        world.open().await;
        assert_eq!(world.head.opens, 1);
        let head = world.send(world.batch(vec![world.commit_of(vec![])])).await.unwrap();
        assert_eq!(head.opens, 0);
    }
}

/// An operator's quarantine holds until it is cleared.
pub async fn a_quarantined_session_is_not_opened(mut world: World) {
    world.root().await;
    let line = world.line().await;
    let store = world.same_store();
    store.set_quarantined(world.session, true).await.unwrap();
    drop(line);
    world.restart().await;
    let store = world.same_store();
    let refused = store.open(world.session, fence()).await.err();
    assert!(matches!(refused, Some(StorageError::Quarantined { .. })), "{refused:?}");
    store.set_quarantined(world.session, false).await.unwrap();
    world.open().await;
    assert!(world.same_line().conversation(cid(1)).await.unwrap().is_some());
}
