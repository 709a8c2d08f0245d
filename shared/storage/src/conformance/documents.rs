//! Documents: lifetimes, versions, addresses, replay (sections 3.2, 3.5 and 10).

use picofleet_delta::Op;
use picofleet_session::storage::{DocumentQuery, Rejection, StorageError, Write};
use picofleet_session::{DocumentAddress, DocumentContent, DocumentScope, Placement, Point, Seq};

use super::World;
use super::records::{
    address, all, at, cid, conversation, create, create_as, create_of, did, entry, json, latest, pending, put_task, rebase, retire,
    rewindable, set, set_as, task, tid, value,
};

const ROOT: fn() -> DocumentScope = || DocumentScope::Conversation { id: cid(1) };

/// Each committed value of a rewindable document can be read in its half-open lifetime.
pub async fn s016_a_rewindable_document_keeps_its_values(mut world: World) {
    world.root().await;
    let d = world.mint();
    let before = world.head.seq;
    let s1 = world.ok(vec![create(d, rewindable(1), r#"{"n":1}"#)]).await.seq;
    let s2 = world.ok(vec![set(d, "n", "2")]).await.seq;
    let s3 = world.ok(vec![set(d, "m", "3")]).await.seq;
    let between = world.ok(vec![]).await.seq;
    let s4 = world.ok(vec![retire(d)]).await.seq;
    let line = world.line().await;
    for (point, expected) in [
        (at(before), None),
        (at(Seq(0)), None),
        (at(s1), Some(r#"{"n":1}"#)),
        (at(s2), Some(r#"{"n":2}"#)),
        (at(s3), Some(r#"{"n":2,"m":3}"#)),
        (at(between), Some(r#"{"n":2,"m":3}"#)),
        (at(s4), None),
        (at(s4.next()), None),
        (Point::Current, None),
    ] {
        assert_eq!(value(&*line, d, point).await.as_deref(), expected, "{point:?}");
    }
    let record = line.document(did(d), at(s2)).await.unwrap().unwrap().record;
    assert_eq!((record.created_at, record.retired_at), (s1, Some(s4)));
    assert_eq!(line.document(did(900), Point::Current).await.unwrap(), None);
    assert_eq!(line.document(did(900), at(s1)).await.unwrap(), None);
}

/// In one commit content comes before retirement and retirement before creation, whatever the order of the writes.
pub async fn s017_commands_of_a_commit_have_their_own_order(mut world: World) {
    world.root().await;
    let a = world.mint();
    let created = world.ok(vec![create(a, rewindable(1), r#"{"n":1}"#)]).await.seq;
    let edited = world.ok(vec![set(a, "n", "2")]).await.seq;
    let b = world.mint();
    let swapped = world.ok(vec![create(b, rewindable(1), r#"{"b":1}"#), retire(a), set(a, "n", "3")]).await.seq;
    let line = world.line().await;
    for (point, id) in [(at(created), a), (at(edited), a), (at(swapped), b), (Point::Current, b)] {
        let found = line.find_document(address(ROOT()), point).await.unwrap().unwrap();
        assert_eq!(found.create.id, did(id), "{point:?}");
        let query = DocumentQuery { scope: ROOT(), at: point, kind: None };
        let listed = all(10, |limit, cursor| line.scan_documents(query.clone(), limit, cursor)).await;
        assert_eq!(listed, [found], "{point:?}");
    }
    assert_eq!(value(&*line, a, at(edited)).await.unwrap(), r#"{"n":2}"#);
    assert_eq!(value(&*line, a, at(swapped)).await, None);
    assert_eq!(value(&*line, b, at(swapped)).await.unwrap(), r#"{"b":1}"#);
    assert_eq!(line.find_document(address(ROOT()), at(Seq(created.0 - 1))).await.unwrap(), None);
}

/// An incarnation has one content command and one retirement in a commit.
pub async fn s017_one_content_and_one_retirement_in_a_commit(mut world: World) {
    world.root().await;
    let a = world.mint();
    world.ok(vec![create(a, rewindable(1), r#"{"n":1}"#)]).await;
    let b = world.mint();
    let of_kind = |id, kind| create_as(create_of(id, kind, None, rewindable(1)), "{}");
    for (writes, id) in [
        (vec![set(a, "n", "2"), set(a, "n", "3")], a),
        (vec![rebase(1, a, "{}"), set(a, "n", "3")], a),
        (vec![retire(a), retire(a)], a),
        (vec![of_kind(b, "x"), set(b, "n", "1")], b),
        (vec![rebase(1, b, "{}"), of_kind(b, "x")], b),
        (vec![of_kind(b, "x"), of_kind(b, "y")], b),
    ] {
        let reason = world.refused(writes).await;
        assert_eq!(reason, Rejection::Repeated { id });
    }
    world.ok(vec![retire(a), set(a, "n", "2"), of_kind(b, "x")]).await;
}

/// Changes need a document that is there and not retired, and bases are objects.
pub async fn s017_changes_need_a_living_document(mut world: World) {
    world.root().await;
    let [a, b] = world.mints();
    assert_eq!(world.refused(vec![set(a, "n", "1")]).await, Rejection::Missing { what: "document", id: a });
    assert_eq!(world.refused(vec![retire(a)]).await, Rejection::Missing { what: "document", id: a });
    world.ok(vec![create(a, rewindable(1), "{}"), entry(b, 1)]).await;
    assert_eq!(world.refused(vec![retire(b)]).await, Rejection::Missing { what: "document", id: b });
    for text in ["[]", "null", "1", r#""x""#] {
        assert!(matches!(world.refused(vec![rebase(1, a, text)]).await, Rejection::Malformed(_)), "{text}");
        let c = world.mint();
        assert!(matches!(world.refused(vec![create(c, latest(1), text)]).await, Rejection::Malformed(_)), "{text}");
    }
    world.ok(vec![retire(a)]).await;
    for write in [set(a, "n", "1"), rebase(1, a, "{}"), retire(a)] {
        assert_eq!(world.refused(vec![write]).await, Rejection::Retired { id: a });
    }
}

/// A current-only document has no past, and a delta does not cross a version.
pub async fn s020_versions_change_with_a_base(mut world: World) {
    world.root().await;
    let d = world.mint();
    let created = world.ok(vec![create(d, Placement::Session, r#"{"n":1}"#)]).await.seq;
    world.ok(vec![set(d, "n", "2")]).await;
    let reason = world.refused(vec![set_as(2, d, "n", "3")]).await;
    assert_eq!(reason, Rejection::VersionTransition { id: d, stored: 1, delta: 2 });
    world.ok(vec![rebase(2, d, r#"{"v":2}"#)]).await;
    let reason = world.refused(vec![set(d, "n", "3")]).await;
    assert_eq!(reason, Rejection::VersionTransition { id: d, stored: 2, delta: 1 });
    assert!(reason.to_string().contains("version transition requires a base"));
    let line = world.line().await;
    let current = line.document(did(d), Point::Current).await.unwrap().unwrap();
    assert_eq!((current.version, current.value.to_string(), current.deltas_since_base), (2, r#"{"v":2}"#.to_owned(), 0));
    let error = line.document(did(d), at(created)).await.err();
    assert!(matches!(error, Some(StorageError::NoHistory { document }) if document == did(d)), "{error:?}");
    assert!(error.unwrap().to_string().contains("does not retain historical content"));
    world.ok(vec![set_as(2, d, "v", "3")]).await;
    assert_eq!(value(&*world.line().await, d, Point::Current).await.unwrap(), r#"{"v":3}"#);
    world.ok(vec![retire(d)]).await;
    let line = world.line().await;
    assert_eq!(value(&*line, d, Point::Current).await, None);
    assert!(matches!(line.document(did(d), at(created)).await, Err(StorageError::NoHistory { .. })));
}

/// Scopes and keys are exact.
pub async fn s021_an_address_is_exact(mut world: World) {
    world.root().await;
    let [t, a, b, c, d, e, f] = world.mints();
    let in_task = Placement::Task { id: tid(t) };
    let member = |id, key, placement| create_as(create_of(id, "doc", Some(key), placement), "{}");
    world
        .ok(vec![
            put_task(&task(t, pending())),
            member(b, "constructor", Placement::Session),
            member(a, "__proto__", Placement::Session),
            create(c, latest(1), "{}"),
            create(d, in_task, "{}"),
            member(e, "k", in_task),
            create_as(create_of(f, "else", None, Placement::Session), "{}"),
        ])
        .await;
    let line = world.line().await;
    let task_scope = DocumentScope::Task { id: tid(t) };
    let find = async |scope, key: Option<&str>| {
        let address = DocumentAddress { kind: "doc".to_owned(), scope, key: key.map(str::to_owned) };
        line.find_document(address, Point::Current).await.unwrap().map(|record| record.create.id.get())
    };
    assert_eq!(find(DocumentScope::Session, None).await, None);
    assert_eq!(find(DocumentScope::Session, Some("__proto__")).await, Some(a));
    assert_eq!(find(DocumentScope::Session, Some("constructor")).await, Some(b));
    assert_eq!(find(ROOT(), None).await, Some(c));
    assert_eq!(find(task_scope, None).await, Some(d));
    assert_eq!(find(task_scope, Some("k")).await, Some(e));
    assert_eq!(find(task_scope, Some("")).await, None);
    for (scope, kind, expected) in [
        (DocumentScope::Session, None, vec![a, b, f]),
        (DocumentScope::Session, Some("doc"), vec![a, b]),
        (DocumentScope::Session, Some("none"), vec![]),
        (ROOT(), None, vec![c]),
        (task_scope, Some("doc"), vec![d, e]),
        (DocumentScope::Task { id: tid(c) }, None, vec![]),
    ] {
        let query = DocumentQuery { scope, at: Point::Current, kind: kind.map(str::to_owned) };
        for limit in [1, 2, 10] {
            let found = all(limit, |limit, cursor| line.scan_documents(query.clone(), limit, cursor)).await;
            assert_eq!(found.iter().map(|record| record.create.id.get()).collect::<Vec<_>>(), expected, "{query:?}");
        }
    }
}

/// An address has one current incarnation.
pub async fn s022_an_address_has_one_current_incarnation(mut world: World) {
    world.root().await;
    let a = world.mint();
    world.ok(vec![create(a, rewindable(1), r#"{"n":1}"#)]).await;
    let b = world.mint();
    let reason = world.refused(vec![set(a, "n", "2"), create(b, rewindable(1), "{}")]).await;
    assert!(reason.to_string().contains("already has a current incarnation"), "{reason}");
    assert_eq!(value(&*world.line().await, a, Point::Current).await.unwrap(), r#"{"n":1}"#);
    assert!(matches!(world.refused(vec![create(b, latest(1), "{}")]).await, Rejection::AddressTaken { .. }));
    let [c, d] = world.mints();
    let twice = vec![create_as(create_of(c, "new", None, latest(1)), "{}"), create_as(create_of(d, "new", None, latest(1)), "{}")];
    assert!(matches!(world.refused(twice).await, Rejection::AddressTaken { .. }));
    let member = create_as(create_of(b, "doc", Some("k"), rewindable(1)), "{}");
    world.ok(vec![member]).await;
}

/// What is created and retired in one commit can be read nowhere.
pub async fn s022_created_and_retired_at_once_is_unreadable(mut world: World) {
    world.root().await;
    let a = world.mint();
    let seq = world.ok(vec![retire(a), create(a, rewindable(1), r#"{"n":1}"#)]).await.seq;
    let line = world.line().await;
    for point in [Point::Current, at(seq), at(Seq(seq.0 - 1)), at(seq.next())] {
        assert_eq!(value(&*line, a, point).await, None);
        assert_eq!(line.find_document(address(ROOT()), point).await.unwrap(), None);
        let query = DocumentQuery { scope: ROOT(), at: point, kind: None };
        assert_eq!(line.scan_documents(query, 10, None).await.unwrap().items, []);
    }
    assert_eq!(world.refused(vec![set(a, "n", "2")]).await, Rejection::Retired { id: a });
    assert!(matches!(world.refused(vec![conversation(a)]).await, Rejection::IdTaken { owner: "document", .. }));
    let b = world.mint();
    world.ok(vec![create(b, rewindable(1), "{}")]).await;
    let c = world.mint();
    world.ok(vec![create(c, rewindable(1), "{}"), retire(c)]).await;
    let line = world.line().await;
    let current = line.find_document(address(ROOT()), Point::Current).await.unwrap().unwrap();
    assert_eq!(current.create.id, did(b), "one without a lifetime takes no address");
    assert_eq!(value(&*line, c, Point::Current).await, None);
}

/// An address can be used again, and each incarnation is read by its own id and time.
pub async fn s022_an_address_is_used_again(mut world: World) {
    world.root().await;
    let mut points = Vec::new();
    for n in 0..4 {
        let id = world.mint();
        let created = world.ok(vec![create(id, rewindable(1), &format!(r#"{{"n":{n}}}"#))]).await.seq;
        let retired = world.ok(vec![retire(id)]).await.seq;
        points.push((id, created, retired));
    }
    let line = world.line().await;
    for (n, (id, created, retired)) in points.into_iter().enumerate() {
        let found = line.find_document(address(ROOT()), at(created)).await.unwrap().unwrap();
        assert_eq!(found.create.id, did(id));
        assert_eq!(value(&*line, id, at(created)).await.unwrap(), format!(r#"{{"n":{n}}}"#));
        assert_eq!(line.find_document(address(ROOT()), at(retired)).await.unwrap(), None);
    }
}

/// Long tails with a root replacement in them replay exactly.
pub async fn x005_long_tails_replay_exactly(mut world: World) {
    world.root().await;
    let d = world.mint();
    let rows: Vec<String> = (0..512).map(|n| format!(r#""{n}":{{"n":{n}}}"#)).collect();
    let text = format!("{{{}}}", rows.join(","));
    let created = world.ok(vec![create(d, rewindable(1), &text)]).await.seq;
    let mut before = created;
    for n in 0..24 {
        before = world.ok(vec![set(d, &n.to_string(), "0")]).await.seq;
    }
    let replace = DocumentContent::Delta { version: 1, ops: vec![Op::Replace(json(r#"{"fresh":true}"#))].into() };
    let replaced = world.ok(vec![Write::DocumentChange { id: did(d), content: replace }]).await.seq;
    for n in 0..24 {
        world.ok(vec![set(d, "n", &n.to_string())]).await;
    }
    let line = world.line().await;
    assert_eq!(value(&*line, d, at(created)).await.unwrap(), text);
    let edited = value(&*line, d, at(before)).await.unwrap();
    assert!(edited.starts_with(r#"{"0":0,"1":0,"#) && edited.contains(r#""23":0,"24":{"n":24}"#), "{edited}");
    assert_eq!(value(&*line, d, at(replaced)).await.unwrap(), r#"{"fresh":true}"#);
    let current = line.document(did(d), Point::Current).await.unwrap().unwrap();
    assert_eq!((current.value.to_string(), current.deltas_since_base), (r#"{"fresh":true,"n":23}"#.to_owned(), 49));
}

/// A read tells how many deltas stand on the newest base.
pub async fn x007_reads_count_the_deltas_since_the_base(mut world: World) {
    world.root().await;
    let [a, b] = world.mints();
    world.ok(vec![create(a, rewindable(1), "{}"), create_as(create_of(b, "other", None, Placement::Session), "{}")]).await;
    let count =
        async |world: &mut World, id| world.line().await.document(did(id), Point::Current).await.unwrap().unwrap().deltas_since_base;
    for id in [a, b] {
        assert_eq!(count(&mut world, id).await, 0);
        for n in 1..4 {
            world.ok(vec![set(id, "n", &n.to_string())]).await;
            assert_eq!(count(&mut world, id).await, n);
        }
        world.ok(vec![rebase(1, id, r#"{"b":1}"#)]).await;
        assert_eq!(count(&mut world, id).await, 0);
        world.ok(vec![set(id, "n", "9")]).await;
        assert_eq!(count(&mut world, id).await, 1);
    }
}

/// The commits of a batch come one after another: what one retires is free for the next, and taken again for the one after it.
pub async fn x012_a_freed_address_is_taken_in_the_next_commit_of_a_batch(mut world: World) {
    world.root().await;
    let a = world.mint();
    world.ok(vec![create(a, rewindable(1), r#"{"a":1}"#)]).await;
    world.step().await;
    let before = world.head;
    // Each commit mints its own id.
    let first = world.commit_of(vec![retire(a)]);
    let b = world.mint();
    let second = world.commit_of(vec![create(b, rewindable(1), r#"{"b":1}"#)]);
    let c = world.mint();
    let third = world.commit_of(vec![create(c, rewindable(1), r#"{"c":1}"#)]);
    let batch = world.batch(vec![first.clone(), second.clone(), third]);
    let refused = super::rejection(world.same_line().commit(batch).await);
    assert_eq!(refused, Rejection::AddressTaken { address: address(ROOT()).to_string() });
    let found = world.same_line().find_document(address(ROOT()), Point::Current).await.unwrap();
    assert_eq!(found.map(|record| record.create.id), Some(did(a)), "a refused batch retires nothing");
    let after = world.send(world.batch(vec![first, second])).await.unwrap();
    assert_eq!(after.seq.0, before.seq.0 + 2);
    let line = world.line().await;
    for (point, expected) in [(before.seq, Some(a)), (before.seq.next(), None), (after.seq, Some(b))] {
        let found = line.find_document(address(ROOT()), at(point)).await.unwrap();
        assert_eq!(found.map(|record| record.create.id), expected.map(did), "{point:?}");
    }
    assert_eq!(value(&*line, b, Point::Current).await.unwrap(), r#"{"b":1}"#);
}
