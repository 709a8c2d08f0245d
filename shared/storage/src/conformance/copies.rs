//! Copies of documents, as forks make them (sections 3.7 and 10).

use picofleet_session::storage::{Rejection, Write};
use picofleet_session::{ConversationPolicy, DocumentCreate, LatestFork, Placement, Point, RewindableFork};

use super::World;
use super::records::{
    at, cid, copy, create, create_as, create_of, did, entries, entry, fork, latest, pending, put_task, rebase, retire, rewindable, set,
    set_as, task, tid, value,
};

fn singleton(id: i64, placement: Placement) -> DocumentCreate {
    create_of(id, "doc", None, placement)
}

/// A copy has what the source had before the commit, whatever the order of the writes.
pub async fn s018_a_copy_reads_what_was_there_before(mut world: World) {
    world.root().await;
    let [e, a] = world.mints();
    world.ok(vec![entry(e, 1), create(a, rewindable(1), r#"{"n":1}"#)]).await;
    let then = world.ok(vec![rebase(3, a, r#"{"n":2}"#)]).await.seq;
    world.ok(vec![set_as(3, a, "n", "3")]).await;
    let [child, copied] = world.mints();
    world.ok(vec![copy(singleton(copied, rewindable(child)), a, at(then)), fork(child, 1, e)]).await;
    let line = world.line().await;
    let document = line.document(did(copied), Point::Current).await.unwrap().unwrap();
    assert_eq!((document.version, document.value.to_string(), document.deltas_since_base), (3, r#"{"n":2}"#.to_owned(), 0));
    assert_eq!(value(&*line, a, Point::Current).await.unwrap(), r#"{"n":3}"#);
    let [other, b] = world.mints();
    world.ok(vec![copy(singleton(b, rewindable(other)), copied, Point::Current), fork(other, child, e)]).await;
    assert_eq!(value(&*world.line().await, b, Point::Current).await.unwrap(), r#"{"n":2}"#);
}

/// In a batch of several commits a copy sees the commits before its own.
pub async fn s018_a_copy_sees_earlier_commits_of_its_batch(mut world: World) {
    world.root().await;
    world.step().await;
    let [e, a] = world.mints();
    let made = world.commit_of(vec![entry(e, 1), create(a, rewindable(1), r#"{"n":1}"#)]);
    let changed = world.commit_of(vec![set(a, "n", "2")]);
    let [child, b] = world.mints();
    let copied = world.commit_of(vec![fork(child, 1, e), copy(singleton(b, rewindable(child)), a, Point::Current)]);
    let batch = world.batch(vec![made, changed, copied]);
    world.send(batch).await.unwrap();
    assert_eq!(value(&*world.line().await, b, Point::Current).await.unwrap(), r#"{"n":2}"#);
}

/// A source that the same commit touches, or that is not like the copy, takes the whole batch with it.
pub async fn s019_a_copy_needs_a_source_of_its_kind(mut world: World) {
    world.root().await;
    let [a, b, c, d, e, t] = world.mints();
    let created = world
        .ok(vec![
            put_task(&task(t, pending())),
            create(a, rewindable(1), r#"{"n":1}"#),
            create_as(create_of(b, "latest", None, latest(1)), "{}"),
            create_as(create_of(c, "session", None, Placement::Session), "{}"),
            create_as(create_of(d, "task", None, Placement::Task { id: tid(t) }), "{}"),
            create_as(create_of(e, "gone", None, rewindable(1)), "{}"),
        ])
        .await
        .seq;
    world.ok(vec![retire(e)]).await;
    let [child, new, probe] = world.mints();
    let with_policy = |policy| Placement::Conversation { id: cid(child), policy };
    let like = singleton(new, rewindable(child));
    let now = Point::Current;
    let cases: Vec<(&str, Vec<Write>)> = vec![
        ("retired with the copy", vec![copy(like.clone(), a, now), retire(a)]),
        ("changed with the copy", vec![set(a, "n", "2"), copy(like.clone(), a, now)]),
        ("another key", vec![copy(create_of(new, "doc", Some("k"), rewindable(child)), a, now)]),
        ("another kind", vec![copy(create_of(new, "other", None, rewindable(child)), a, now)]),
        ("another history", vec![copy(singleton(new, latest(child)), a, now)]),
        ("another fork policy", vec![copy(singleton(new, with_policy(ConversationPolicy::Rewindable(RewindableFork::Current))), a, now)]),
        ("to the session", vec![copy(singleton(new, Placement::Session), a, now)]),
        ("of the session", vec![copy(create_of(new, "session", None, Placement::Session), c, now)]),
        ("of a task", vec![copy(create_of(new, "task", None, Placement::Task { id: tid(t) }), d, now)]),
        ("not alive now", vec![copy(create_of(new, "gone", None, rewindable(child)), e, now)]),
        ("not alive then", vec![copy(like.clone(), a, at(picofleet_session::Seq(created.0 - 1)))]),
        ("a past of what keeps none", vec![copy(create_of(new, "latest", None, latest(child)), b, at(created))]),
        (
            "another fork policy of a latest one",
            vec![copy(create_of(new, "latest", None, with_policy(ConversationPolicy::Latest(LatestFork::Initial))), b, now)],
        ),
    ];
    for (what, mut writes) in cases {
        writes.push(entry(probe, 1));
        let reason = world.refused(writes).await;
        assert!(matches!(reason, Rejection::Copy { id, .. } if id == new), "{what}: {reason:?}");
    }
    let line = world.line().await;
    assert_eq!(line.entry(None, super::records::eid(probe)).await.unwrap(), None);
    assert_eq!(value(&*line, a, now).await.unwrap(), r#"{"n":1}"#);
    assert_eq!(line.document(did(new), now).await.unwrap(), None);
}

/// A source that is made by the same commit, or is not there, takes the whole batch with it.
pub async fn s019_a_copy_needs_a_source_before_the_commit(mut world: World) {
    world.root().await;
    let [a, b, child] = world.mints();
    let reason = world.refused(vec![create(a, rewindable(1), "{}"), copy(singleton(b, rewindable(child)), a, Point::Current)]).await;
    assert!(matches!(reason, Rejection::Copy { id, origin, .. } if (id, origin) == (b, a)), "{reason:?}");
    let reason = world.refused(vec![copy(singleton(b, rewindable(child)), a, Point::Current)]).await;
    assert_eq!(reason, Rejection::Missing { what: "document", id: a });
}

/// What happens to the source later does not reach the copy, nor the other way round.
pub async fn s024_a_copy_is_independent(mut world: World) {
    world.root().await;
    let [e, a, l] = world.mints();
    world.ok(vec![entry(e, 1), create(a, rewindable(1), r#"{"n":1}"#), create_as(create_of(l, "l", None, latest(1)), r#"{"l":1}"#)]).await;
    let [child, ca, cl] = world.mints();
    let copies = vec![
        fork(child, 1, e),
        copy(singleton(ca, rewindable(child)), a, Point::Current),
        copy(create_of(cl, "l", None, latest(child)), l, Point::Current),
    ];
    let forked = world.ok(copies).await.seq;
    world.ok(vec![set(a, "n", "2"), rebase(1, l, r#"{"l":2}"#)]).await;
    world.ok(vec![set(ca, "c", "3"), set(cl, "c", "3")]).await;
    world.ok(vec![retire(a), retire(l)]).await;
    world.store().await.maintain(1_000, super::NOW).await.unwrap();
    let line = world.line().await;
    assert_eq!(value(&*line, ca, Point::Current).await.unwrap(), r#"{"n":1,"c":3}"#);
    assert_eq!(value(&*line, ca, at(forked)).await.unwrap(), r#"{"n":1}"#);
    assert_eq!(value(&*line, cl, Point::Current).await.unwrap(), r#"{"l":1,"c":3}"#);
    let record = line.document(did(ca), Point::Current).await.unwrap().unwrap().record;
    assert_eq!((record.created_at, record.create), (forked, singleton(ca, rewindable(child))));
}

/// Copies as of the fork point have the value at the entry's commit, current ones the newest.
pub async fn s045_copies_follow_the_policy(mut world: World) {
    world.root().await;
    let current = |id| Placement::Conversation { id: cid(id), policy: ConversationPolicy::Rewindable(RewindableFork::Current) };
    let [e, a, f, c] = world.mints();
    let point = world
        .ok(vec![
            entry(e, 1),
            create(a, rewindable(1), r#"{"n":1}"#),
            create_as(create_of(f, "doc", Some("m"), rewindable(1)), r#"{"m":1}"#),
            create_as(create_of(c, "current", None, current(1)), r#"{"c":1}"#),
        ])
        .await
        .seq;
    world.ok(vec![set(a, "n", "2"), set(f, "m", "2"), set(c, "c", "2")]).await;
    let [child, ca, cf, cc] = world.mints();
    world
        .ok(vec![
            fork(child, 1, e),
            copy(singleton(ca, rewindable(child)), a, at(point)),
            copy(create_of(cf, "doc", Some("m"), rewindable(child)), f, at(point)),
            copy(create_of(cc, "current", None, current(child)), c, Point::Current),
        ])
        .await;
    let line = world.line().await;
    for (id, expected) in [(ca, r#"{"n":1}"#), (cf, r#"{"m":1}"#), (cc, r#"{"c":2}"#)] {
        assert_eq!(value(&*line, id, Point::Current).await.unwrap(), expected);
    }
}

/// The document state at an entry is that of its whole commit.
pub async fn s046_a_fork_point_has_its_commit_s_documents(mut world: World) {
    world.root().await;
    let a = world.mint();
    world.ok(vec![create(a, rewindable(1), r#"{"n":1}"#)]).await;
    let [e, later] = world.mints();
    world.ok(vec![entry(e, 1), set(a, "n", "2"), entry(later, 1)]).await;
    let point = world.line().await.entry(None, super::records::eid(e)).await.unwrap().unwrap().1;
    world.ok(vec![set(a, "n", "3")]).await;
    let [child, copied] = world.mints();
    world.ok(vec![fork(child, 1, e), copy(singleton(copied, rewindable(child)), a, at(point))]).await;
    let line = world.line().await;
    assert_eq!(value(&*line, copied, Point::Current).await.unwrap(), r#"{"n":2}"#);
    let (seen, _) = entries(&*line, picofleet_session::storage::EntryQuery::all(cid(child)), 10, None).await;
    assert_eq!(seen, [e]);
}

/// A fork at a grandparent's entry copies the grandparent's past, and the parent's present.
pub async fn s047_a_copy_may_skip_a_generation(mut world: World) {
    world.root().await;
    let latest_of = |id| latest(id);
    let [e, a, l] = world.mints();
    let point = world
        .ok(vec![entry(e, 1), create(a, rewindable(1), r#"{"a":1}"#), create_as(create_of(l, "l", None, latest_of(1)), r#"{"l":1}"#)])
        .await
        .seq;
    let [child, ca, cl] = world.mints();
    world
        .ok(vec![
            fork(child, 1, e),
            copy(singleton(ca, rewindable(child)), a, at(point)),
            copy(create_of(cl, "l", None, latest_of(child)), l, Point::Current),
        ])
        .await;
    world.ok(vec![set(cl, "l", "2"), set(a, "a", "9"), set(ca, "a", "8")]).await;
    let [grandchild, ga, gl] = world.mints();
    world
        .ok(vec![
            fork(grandchild, child, e),
            copy(singleton(ga, rewindable(grandchild)), a, at(point)),
            copy(create_of(gl, "l", None, latest_of(grandchild)), cl, Point::Current),
        ])
        .await;
    let line = world.line().await;
    assert_eq!(value(&*line, ga, Point::Current).await.unwrap(), r#"{"a":1}"#);
    assert_eq!(value(&*line, gl, Point::Current).await.unwrap(), r#"{"l":2}"#);
}
