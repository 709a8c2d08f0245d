//! Request keys, settlement notices and wake times (`protocol.md` 3 and 5).

use picofleet_session::storage::{OutboxRow, RequestRow, SessionCreate, Wake, Write};
use picofleet_session::{Millis, SessionId};

use super::records::{all, json, sid};
use super::{NOW, World, fence};

fn request(key: &str, digest: &str) -> RequestRow {
    RequestRow { key: key.to_owned(), digest: digest.to_owned(), answer: json(r#"{"z":null,"a":1}"#), at: NOW }
}

/// The answer to a request key is stored with its commit; a later one takes its place.
pub async fn request_keys_keep_their_answer(mut world: World) {
    world.root().await;
    let row = request("key", "digest");
    world.ok(vec![Write::Request(Box::new(row.clone()))]).await;
    let stored = world.line().await.request("key".to_owned()).await.unwrap().unwrap();
    assert_eq!(stored, row);
    assert_eq!(stored.answer.to_string(), row.answer.to_string());
    assert_eq!(world.line().await.request("other".to_owned()).await.unwrap(), None);
    let later = RequestRow { digest: "d2".to_owned(), at: Millis(NOW.0 + 1), ..row };
    world.ok(vec![Write::Request(Box::new(later.clone()))]).await;
    assert_eq!(world.line().await.request("key".to_owned()).await.unwrap(), Some(later));
}

/// Settlement notices stay until they are acknowledged, in the order of sessions and ids.
pub async fn notices_stay_until_acknowledged(mut world: World) {
    world.root().await;
    let store = world.store().await;
    let other = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    let line = store.open(other, fence()).await.unwrap();
    let notice = |id: i64| OutboxRow { submission_id: sid(id), body: json(&format!(r#"{{"n":{id}}}"#)) };
    let write = |id| Write::Outbox(Box::new(notice(id)));
    let batch = picofleet_session::storage::Batch {
        expect: (line.opened().seq, line.opened().token),
        commits: vec![world.commit_of(vec![write(9), write(4)])],
    };
    line.commit(batch).await.unwrap();
    line.release().await.unwrap();
    world.ok(vec![write(12), write(3)]).await;
    let mut expected = vec![(world.session, notice(3)), (world.session, notice(12)), (other, notice(4)), (other, notice(9))];
    expected.sort_by_key(|(session, row)| (*session, row.submission_id));
    let store = world.store().await;
    for limit in [1, 2, 3, 10] {
        assert_eq!(all(limit, |limit, cursor| store.outbox(limit, cursor)).await, expected, "limit {limit}");
    }
    let first = (expected[0].0, expected[0].1.submission_id);
    store.acknowledge(vec![first, (other, sid(77)), (SessionId::random(), sid(1))]).await.unwrap();
    let store = world.store().await;
    assert_eq!(all(10, |limit, cursor| store.outbox(limit, cursor)).await, expected[1..]);
    store.acknowledge(vec![first]).await.unwrap();
    store.delete(other, NOW).await.unwrap();
    let store = world.store().await;
    assert!(all(10, |limit, cursor| store.outbox(limit, cursor)).await.iter().all(|(session, _)| *session == world.session));
}

async fn wake(world: &mut World, at: &[Option<i64>]) {
    world.ok(at.iter().map(|at| Write::Wake(at.map(Millis))).collect()).await;
}

/// A session has one wake time, the last that was written.
pub async fn a_session_has_one_wake_time(mut world: World) {
    world.root().await;
    assert_eq!(world.line().await.wake().await.unwrap(), None);
    let due = async |world: &mut World, until| {
        let store = world.store().await;
        let partitions = 0..store.partitions().get();
        all(10, |limit, cursor| store.due(partitions.clone(), Millis(until), limit, cursor)).await
    };
    for (writes, expected) in
        [(vec![Some(100)], Some(100)), (vec![None, Some(50)], Some(50)), (vec![], Some(50)), (vec![Some(1), None], None)]
    {
        wake(&mut world, &writes).await;
        assert_eq!(world.line().await.wake().await.unwrap(), expected.map(Millis));
        let expected: Vec<_> = expected.into_iter().map(|at| Wake { session: world.session, at: Millis(at) }).collect();
        assert_eq!(due(&mut world, 1_000).await, expected);
        assert_eq!(due(&mut world, 49).await, []);
    }
    wake(&mut world, &[Some(50)]).await;
    assert_eq!(due(&mut world, 50).await.len(), 1);
    world.store().await.delete(world.session, NOW).await.unwrap();
    world.restart().await;
    let store = world.same_store();
    assert_eq!(store.due(0..store.partitions().get(), Millis(1_000), 10, None).await.unwrap().items, []);
}

/// Due sessions come in the order of their times, by partition and page.
pub async fn due_sessions_come_in_order(mut world: World) {
    let store = world.store().await;
    let count = store.partitions();
    let mut expected = Vec::new();
    for n in 0..12i64 {
        let id = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
        let line = store.open(id, fence()).await.unwrap();
        let at = Millis(1_000 - (n / 2) * 10);
        let commit = world.commit_of(vec![Write::Wake(Some(at))]);
        let batch = picofleet_session::storage::Batch { expect: (line.opened().seq, line.opened().token), commits: vec![commit] };
        line.commit(batch).await.unwrap();
        line.release().await.unwrap();
        expected.push(Wake { session: id, at });
    }
    expected.sort_by_key(|wake| (wake.at, wake.session));
    let store = world.store().await;
    for limit in [1, 5, 12] {
        let found = all(limit, |limit, cursor| store.due(0..count.get(), Millis(1_000), limit, cursor)).await;
        assert_eq!(found.iter().map(|wake| wake.at).collect::<Vec<_>>(), expected.iter().map(|wake| wake.at).collect::<Vec<_>>());
        let mut sorted = found;
        sorted.sort_by_key(|wake| (wake.at, wake.session));
        assert_eq!(sorted, expected, "limit {limit}");
    }
    let early = all(2, |limit, cursor| store.due(0..count.get(), Millis(960), limit, cursor)).await;
    assert_eq!(early.len(), expected.iter().filter(|wake| wake.at <= Millis(960)).count());
    let middle = count.get() / 2;
    let low = all(3, |limit, cursor| store.due(0..middle, Millis(1_000), limit, cursor)).await;
    let high = all(3, |limit, cursor| store.due(middle..count.get(), Millis(1_000), limit, cursor)).await;
    assert_eq!(low.len() + high.len(), expected.len());
    assert!(low.iter().all(|wake| wake.session.partition(count) < middle));
    assert_eq!(store.due(0..0, Millis(1_000), 10, None).await.unwrap().items, []);
}
