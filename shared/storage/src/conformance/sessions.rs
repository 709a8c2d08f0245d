//! Many sessions: creation, lists, deletion (`protocol.md` 3 and 7).

use picofleet_session::storage::{Created, Rejection, SessionCreate, SessionQuery, SessionState, StorageError, Store, Tenant};
use picofleet_session::{Millis, SessionId};

use super::records::{all, cid, conversation, eid, entry, json};
use super::{NOW, World, export, fence, rejection};

const DAY: i64 = 24 * 60 * 60 * 1_000;

fn keyed(tenant: &str, key: &str) -> SessionCreate {
    let (tenant, id) = (Tenant(tenant.to_owned()), SessionId::from_key(tenant, key));
    SessionCreate { id, tenant, key: Some(key.to_owned()), metadata: json(r#"{"z":1,"a":2}"#), at: NOW }
}

/// A session begins without records, and making it again answers the one that is there.
pub async fn sessions_are_made_once(mut world: World) {
    let store = world.store().await;
    let request = keyed("acme", "k");
    let Created { session, existed } = store.create(request.clone()).await.unwrap();
    assert!(!existed);
    assert_eq!((session.id, &session.tenant, &session.key), (request.id, &request.tenant, &request.key));
    assert_eq!((session.state, session.created_at), (SessionState::Active, NOW));
    assert_eq!(session.metadata.to_string(), request.metadata.to_string());
    let store = world.store().await;
    let again = SessionCreate { metadata: json("{}"), at: Millis(NOW.0 + 1), ..request };
    assert_eq!(store.create(again).await.unwrap(), Created { session: session.clone(), existed: true });
    assert_eq!(store.session(session.id).await.unwrap(), Some(session.clone()));
    let reader = store.reader(session.id).await.unwrap();
    assert_eq!(reader.conversation(cid(1)).await.unwrap(), None);
    assert_eq!(reader.head().await.unwrap().next_id, 2);
    let unknown = SessionId::random();
    assert_eq!(store.session(unknown).await.unwrap(), None);
    for error in [store.open(unknown, fence()).await.err(), store.reader(unknown).await.err(), store.export(unknown).await.err()] {
        assert!(matches!(error, Some(StorageError::NotFound { session }) if session == unknown), "{error:?}");
    }
    assert!(matches!(store.set_quarantined(unknown, true).await, Err(StorageError::NotFound { .. })));
}

/// Lists by tenant, key and state, in the order of the ids.
pub async fn sessions_are_listed(mut world: World) {
    let store = world.store().await;
    let requests = [keyed("a", "1"), keyed("a", "2"), keyed("a", "3"), keyed("b", "1")];
    for request in &requests {
        store.create(request.clone()).await.unwrap();
    }
    store.set_quarantined(requests[1].id, true).await.unwrap();
    store.delete(requests[2].id, NOW).await.unwrap();
    let store = world.store().await;
    let listed = async |query: SessionQuery| {
        let one_by_one = all(1, |limit, cursor| store.sessions(query.clone(), limit, cursor)).await;
        assert_eq!(one_by_one, all(100, |limit, cursor| store.sessions(query.clone(), limit, cursor)).await);
        one_by_one.iter().map(|session| session.id).collect::<Vec<_>>()
    };
    let sorted = |ids: &[SessionId]| {
        let mut ids = ids.to_vec();
        ids.sort();
        ids
    };
    let [a1, a2, a3, b1] = requests.map(|request| request.id);
    let of = |tenant: &str| SessionQuery { tenant: Some(Tenant(tenant.to_owned())), ..SessionQuery::default() };
    assert_eq!(listed(SessionQuery::default()).await, sorted(&[a1, a2, b1, world.session]));
    assert_eq!(listed(of("a")).await, sorted(&[a1, a2]));
    assert_eq!(listed(of("b")).await, [b1]);
    assert_eq!(listed(of("c")).await, []);
    assert_eq!(listed(SessionQuery { key: Some("1".to_owned()), ..SessionQuery::default() }).await, sorted(&[a1, b1]));
    assert_eq!(listed(SessionQuery { key: Some("1".to_owned()), ..of("a") }).await, [a1]);
    assert_eq!(listed(SessionQuery { state: Some(SessionState::Quarantined), ..of("a") }).await, [a2]);
    assert_eq!(listed(SessionQuery { state: Some(SessionState::Active), ..of("a") }).await, [a1]);
    assert_eq!(listed(SessionQuery { state: Some(SessionState::Deleting), ..SessionQuery::default() }).await, [a3]);
}

/// Sessions do not see each other's records, and their ids are their own.
pub async fn sessions_are_apart(mut world: World) {
    world.root().await;
    let e = world.mint();
    world.ok(vec![entry(e, 1)]).await;
    let store = world.store().await;
    let other = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    let line = store.open(other, fence()).await.unwrap();
    let opened = line.opened();
    let commit = picofleet_session::storage::Commit {
        token: picofleet_session::CommitToken::random(),
        at: NOW,
        next_id: e + 5,
        writes: vec![conversation(1), conversation(e)],
    };
    line.commit(picofleet_session::storage::Batch { expect: (opened.seq, opened.token), commits: vec![commit] }).await.unwrap();
    assert!(line.conversation(cid(e)).await.unwrap().is_some());
    assert_eq!(line.entry(None, eid(e)).await.unwrap(), None);
    line.release().await.unwrap();
    assert!(world.line().await.entry(None, eid(e)).await.unwrap().is_some());
    assert_eq!(world.line().await.conversation(cid(e)).await.unwrap(), None);
}

/// A deleted session is gone at once for everybody, and its owner's next commit does not land.
pub async fn a_deleted_session_is_gone_at_once(mut world: World) {
    world.root().await;
    let store = world.store().await;
    let line = world.same_line();
    assert!(store.delete(world.session, NOW).await.unwrap());
    let outcome = line.commit(world.batch(vec![world.commit_of(vec![])])).await;
    assert!(matches!(outcome, Err(StorageError::Fenced { .. } | StorageError::NotFound { .. })), "{outcome:?}");
    world.restart().await;
    let store = world.same_store();
    assert!(!store.delete(world.session, NOW).await.unwrap());
    assert!(!store.delete(SessionId::random(), NOW).await.unwrap());
    assert_eq!(store.session(world.session).await.unwrap(), None);
    for error in [
        store.open(world.session, fence()).await.err(),
        store.reader(world.session).await.err(),
        store.export(world.session).await.err(),
        store.set_quarantined(world.session, false).await.err(),
    ] {
        assert!(matches!(error, Some(StorageError::NotFound { .. })), "{error:?}");
    }
    assert_eq!(store.fence(vec![world.session], fence()).await.unwrap(), []);
    revived(&*store, world.session).await;
}

async fn revived(store: &dyn Store, id: SessionId) {
    let request = SessionCreate { id, ..SessionCreate::new(NOW) };
    assert_eq!(rejection(store.create(request).await), Rejection::SessionDeleted { session: id });
}

/// The rows of a deleted session go in bounded steps, its tombstone after 30 days.
pub async fn a_deleted_session_is_swept(mut world: World) {
    world.root().await;
    let ids: Vec<_> = (0..300).map(|_| world.mint()).collect();
    world.ok(ids.iter().map(|id| entry(*id, 1)).collect()).await;
    let store = world.store().await;
    let kept = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    store.delete(world.session, NOW).await.unwrap();
    let first = world.same_store().maintain(1, Millis(NOW.0 + 31 * DAY)).await.unwrap();
    assert!(first.more, "rows are left");
    revived(&*store, world.session).await;
    let mut removed = 0;
    for _ in 0..1_000 {
        world.restart().await;
        let step = world.same_store().maintain(20, NOW).await.unwrap();
        removed += step.removed;
        if !step.more {
            break;
        }
    }
    assert!(removed >= 200, "{removed} rows");
    let store = world.same_store();
    assert!(!store.maintain(20, NOW).await.unwrap().more);
    let deleting = SessionQuery { state: Some(SessionState::Deleting), ..SessionQuery::default() };
    assert_eq!(store.sessions(deleting, 10, None).await.unwrap().items, []);
    assert!(store.session(kept).await.unwrap().is_some());
    revived(&*store, world.session).await;
    store.maintain(20, Millis(NOW.0 + 29 * DAY)).await.unwrap();
    revived(&*store, world.session).await;
    store.maintain(20, Millis(NOW.0 + 31 * DAY)).await.unwrap();
    let request = SessionCreate { id: world.session, ..SessionCreate::new(NOW) };
    let created = store.create(request).await.unwrap();
    assert!(!created.existed);
    let reader = store.reader(world.session).await.unwrap();
    assert_eq!(reader.entry(None, eid(ids[0])).await.unwrap(), None);
    assert_eq!(export(&*store, world.session).await.len(), 2);
}
