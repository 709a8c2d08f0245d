//! Who owns an id, and what a stored value is.

use std::sync::Arc;

use picofleet_delta::{Op, Segment, apply};
use picofleet_session::storage::{Commit, Rejection, StorageError, Write};
use picofleet_session::{CommitToken, EntryRecord, FIRST_MINTED_ID, ID_MAX, SubmissionState, TaskState, WriteState};

use super::records::{
    cid, conversation, create, did, eid, entry, entry_record, input, json, passive, pending, put_submission, put_task, sid, task, tid,
};
use super::{NOW, World, rejection};

/// The first minted id is 2, and the root conversation can be written once.
pub async fn s001_the_root_conversation_is_made_once(mut world: World) {
    assert_eq!(world.head.next_id, FIRST_MINTED_ID);
    assert_eq!(world.mint(), 2);
    world.ok(vec![conversation(1)]).await;
    let reason = world.refused(vec![conversation(1)]).await;
    assert_eq!(reason, Rejection::IdTaken { id: 1, owner: "conversation" });
    assert_eq!(reason.to_string(), "ID 1 already belongs to conversation");
}

/// What was handed in and is changed afterwards changes nothing stored.
pub async fn s004_what_was_committed_is_a_copy(mut world: World) {
    world.root().await;
    let [e, t, s] = world.mints();
    let entry = EntryRecord { data: Some(json(r#"{"a":[1]}"#)), ..entry_record(e, 1) };
    let record = task(t, pending());
    let state = SubmissionState::Write(WriteState::Unanswered { reason: "no".to_owned(), detail: Some(json(r#"{"d":1}"#)) });
    let submission = picofleet_session::SubmissionRecord { state, ..passive(s, 1) };
    let writes = vec![Write::Entry(Arc::new(entry.clone())), put_task(&record), put_submission(&submission)];
    let mut kept = writes.clone();
    world.ok(writes).await;
    let [Write::Entry(mutated), ..] = &mut kept[..] else { unreachable!() };
    let change = [Op::Set(vec![Segment::from("a"), Segment::from(0)], json("2"))];
    let mutated = Arc::make_mut(mutated);
    mutated.data = mutated.data.take().map(|data| apply(Some(&data), &change).unwrap());
    assert_ne!(mutated.data, entry.data);
    let line = world.line().await;
    assert_eq!(line.entry(None, eid(e)).await.unwrap().unwrap().0, entry);
    assert_eq!(line.task(tid(t)).await.unwrap().unwrap(), record);
    assert_eq!(line.submission(sid(s)).await.unwrap().unwrap(), submission);
}

/// What a read gave and is changed afterwards changes nothing stored.
pub async fn s005_what_was_read_is_a_copy(mut world: World) {
    world.root().await;
    let [t, d] = world.mints();
    world.ok(vec![put_task(&task(t, pending())), create(d, super::records::rewindable(1), r#"{"a":{"b":1}}"#)]).await;
    let line = world.line().await;
    let mut first = line.task(tid(t)).await.unwrap().unwrap();
    first.kind.push('!');
    first.state = TaskState::Pending { checkpoint: json("null") };
    assert_eq!(line.task(tid(t)).await.unwrap().unwrap(), task(t, pending()));
    let document = line.document(did(d), picofleet_session::Point::Current).await.unwrap().unwrap();
    let change = [Op::Delete(vec![Segment::from("a")])];
    assert_eq!(apply(Some(&document.value), &change).unwrap(), json("{}"));
    assert_eq!(world.line().await.document(did(d), picofleet_session::Point::Current).await.unwrap().unwrap(), document);
}

/// A new record has an id that its commit mints, and no other record has it.
pub async fn s012_new_ids_are_those_of_the_commit(mut world: World) {
    world.root().await;
    let [first, second] = world.mints();
    world.ok(vec![entry(first, 1), create(second, super::records::latest(1), "{}")]).await;
    for (write, owner) in [
        (conversation(first), "entry"),
        (put_task(&task(second, pending())), "document"),
        (put_submission(&input(first, 1, None)), "entry"),
        (entry(1, 1), "conversation"),
        (create(first, super::records::rewindable(1), "{}"), "entry"),
    ] {
        let reason = world.refused(vec![write]).await;
        assert!(matches!(reason, Rejection::IdTaken { owner: found, .. } if found == owner), "{reason:?}");
    }
    let unminted = world.head.next_id;
    let from = world.head.next_id;
    let reason = world.refused(vec![entry(unminted, 1)]).await;
    assert_eq!(reason, Rejection::IdNotMinted { id: unminted, what: "entry", from, below: from });
    let skipped = world.mint();
    world.ok(vec![]).await;
    let reason = world.refused(vec![conversation(skipped)]).await;
    assert!(matches!(reason, Rejection::IdNotMinted { id, what: "conversation", .. } if id == skipped), "{reason:?}");
}

/// One id names one record, also inside a commit.
pub async fn s012_two_records_of_a_commit_have_two_ids(mut world: World) {
    world.root().await;
    let id = world.mint();
    let reason = world.refused(vec![entry(id, 1), entry(id, 1)]).await;
    assert_eq!(reason, Rejection::IdTaken { id, owner: "entry" });
    let reason = world.refused(vec![put_task(&task(id, pending())), conversation(id)]).await;
    assert_eq!(reason, Rejection::IdTaken { id, owner: "task" });
    let reason = world.refused(vec![create(id, super::records::latest(1), "{}"), put_submission(&input(id, 1, None))]).await;
    assert_eq!(reason, Rejection::IdTaken { id, owner: "submission" });
    world.ok(vec![entry(id, 1)]).await;
}

/// The next id never goes down, and not above what JSON can hold.
pub async fn s012_the_next_id_does_not_go_down(mut world: World) {
    world.root().await;
    world.mints::<5>();
    world.ok(vec![]).await;
    for next_id in [world.head.next_id - 1, 0, -1, ID_MAX + 2, i64::MAX] {
        world.step().await;
        let batch = world.batch(vec![Commit { token: CommitToken::random(), at: NOW, next_id, writes: vec![] }]);
        let reason = rejection(world.send(batch).await);
        assert!(matches!(reason, Rejection::Malformed(_)), "{next_id}: {reason:?}");
    }
    world.ok(vec![]).await;
}

/// After closing, everything fails as closed.
pub async fn s025_a_closed_store_refuses_everything(mut world: World) {
    world.root().await;
    let store = world.store().await;
    let line = world.same_line();
    let reader = store.reader(world.session).await.unwrap();
    store.close().await.unwrap();
    let closed = |error: Option<StorageError>| assert!(matches!(error, Some(StorageError::Closed)), "{error:?}");
    closed(line.commit(world.batch(vec![world.commit_of(vec![])])).await.err());
    closed(line.conversation(cid(1)).await.err());
    closed(line.head().await.err());
    closed(reader.scan_tasks(picofleet_session::storage::TaskQuery::default(), 10, None).await.err());
    closed(store.session(world.session).await.err());
    closed(store.open(world.session, super::fence()).await.err());
    closed(store.reader(world.session).await.err());
    closed(store.create(picofleet_session::storage::SessionCreate::new(NOW)).await.err());
    closed(store.maintain(10, NOW).await.err());
    store.close().await.unwrap();
}

/// A released line refuses everything; the session is there for the next one.
pub async fn s025_a_released_line_refuses_everything(mut world: World) {
    world.root().await;
    let line = world.line().await;
    line.release().await.unwrap();
    assert!(matches!(line.commit(world.batch(vec![world.commit_of(vec![])])).await, Err(StorageError::Closed)));
    assert!(matches!(line.conversation(cid(1)).await, Err(StorageError::Closed)));
    world.open().await;
    assert!(world.same_line().conversation(cid(1)).await.unwrap().is_some());
}

/// Ids and sequences go on above everything that was stored, also above ids that were minted and not used.
pub async fn s026_ids_and_sequences_go_on(mut world: World) {
    world.root().await;
    let before = world.head;
    world.mints::<3>();
    let last = world.mint();
    world.ok(vec![entry(last, 1)]).await;
    let unused = world.mint();
    let landed = world.ok(vec![]).await;
    assert_eq!(landed.next_id, unused + 1);
    let store = world.store().await;
    let opened = store.open(world.session, super::fence()).await.unwrap().opened();
    assert!(opened.seq > landed.seq && landed.seq > before.seq);
    assert_eq!(opened.next_id, unused + 1);
}

/// Keys that mean something to JavaScript are plain keys.
pub async fn x001_every_key_of_an_object_is_a_plain_key(mut world: World) {
    world.root().await;
    let id = world.mint();
    let data = json(r#"{"__proto__":{"polluted":true},"constructor":[1,2],"toString":"text"}"#);
    world.ok(vec![Write::Entry(Arc::new(EntryRecord { data: Some(data.clone()), ..entry_record(id, 1) }))]).await;
    let stored = world.line().await.entry(None, eid(id)).await.unwrap().unwrap().0.data.unwrap();
    assert_eq!(stored.to_string(), data.to_string());
}
