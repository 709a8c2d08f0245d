//! What maintenance may remove (section 3.5; `protocol.md` 1 and 3).

use picofleet_session::storage::{Batch, RequestRow, SessionCreate, Store, Write};
use picofleet_session::{Millis, Placement, Point, TaskState};

use super::records::{
    completed, create, create_as, create_of, did, entry, json, latest, pending, put_task, rebase, retire, rewindable, set, task, tid, value,
};
use super::snapshot::{everything, same};
use super::{NOW, World};

const MINUTE: i64 = 60 * 1_000;
const HOUR: i64 = 60 * MINUTE;

/// Maintains in small steps until nothing is left to do; how much was removed.
async fn maintain(store: &dyn Store, now: Millis) -> u64 {
    let mut removed = 0;
    for _ in 0..10_000 {
        let step = store.maintain(3, now).await.unwrap();
        removed += step.removed;
        if !step.more {
            return removed;
        }
    }
    panic!("maintenance does not end");
}

/// Bases and retirements let go what is older where no history is kept; every value that can be read stays.
pub async fn x011_reclamation_changes_no_value(mut world: World) {
    world.root().await;
    let t = world.mint();
    let [a, b, c, d, gone] = world.mints();
    let placements = [(a, rewindable(1)), (b, latest(1)), (c, Placement::Session), (d, Placement::Task { id: tid(t) }), (gone, latest(1))];
    let creates = placements.map(|(id, placement)| create_as(create_of(id, &format!("k{id}"), None, placement), r#"{"n":0}"#));
    world.ok(creates.into_iter().chain([put_task(&task(t, pending()))]).collect()).await;
    for n in 1..6 {
        world.ok([a, b, c, d, gone].map(|id| set(id, "n", &n.to_string())).to_vec()).await;
    }
    let untouched = maintain(&*world.store().await, NOW).await;
    assert_eq!(untouched, 0, "a delta alone lets nothing go");
    world.ok([a, b, c, d].map(|id| rebase(1, id, r#"{"base":1}"#)).to_vec()).await;
    world.ok([a, b, c].map(|id| set(id, "n", "9")).to_vec()).await;
    let ended = task(t, TaskState::Terminal { outcome: completed() });
    world.ok(vec![retire(d), retire(gone), put_task(&ended)]).await;
    let (below, newest) = (world.head.next_id, world.head.seq);
    let before = everything(&*world.line().await, below, newest, &[]).await;
    let removed = maintain(&*world.store().await, NOW).await;
    assert!(removed >= 4 * 6, "{removed} rows");
    same(&before, &everything(&*world.line().await, below, newest, &[]).await);
    assert_eq!(maintain(&*world.store().await, NOW).await, 0);
    world.ok([a, b, c].map(|id| set(id, "m", "1")).to_vec()).await;
    assert_eq!(value(&*world.line().await, b, Point::Current).await.unwrap(), r#"{"base":1,"n":9,"m":1}"#);
}

/// The history of a rewindable document is never let go, not even after a base and its retirement.
pub async fn x011_history_is_kept(mut world: World) {
    world.root().await;
    let a = world.mint();
    let mut points = vec![(world.ok(vec![create(a, rewindable(1), r#"{"n":0}"#)]).await.seq, 0)];
    for n in 1..4 {
        points.push((world.ok(vec![set(a, "n", &n.to_string())]).await.seq, n));
    }
    points.push((world.ok(vec![rebase(1, a, r#"{"n":4}"#)]).await.seq, 4));
    world.ok(vec![retire(a)]).await;
    assert_eq!(maintain(&*world.store().await, Millis(NOW.0 + 100 * HOUR)).await, 0);
    let line = world.line().await;
    for (seq, n) in points {
        assert_eq!(value(&*line, a, Point::At(seq)).await.unwrap(), format!(r#"{{"n":{n}}}"#));
    }
}

/// Commit rows go when they are both far behind and old; the chain goes on.
pub async fn commit_rows_go_when_far_behind_and_old(mut world: World) {
    world.root().await;
    for _ in 0..5 {
        world.step().await;
        let commits = (0..Batch::COMMITS_MAX).map(|_| world.commit_of(vec![])).collect();
        let batch = world.batch(commits);
        world.send(batch).await.unwrap();
    }
    let store = world.store().await;
    assert_eq!(maintain(&*store, Millis(NOW.0 + 9 * MINUTE)).await, 0, "young rows stay");
    let behind = u64::try_from(world.head.seq.0 - 256).unwrap();
    let removed = maintain(&*store, Millis(NOW.0 + 11 * MINUTE)).await;
    assert!(removed >= 1 && removed <= behind + 1, "{removed} of {behind} rows that are far behind");
    let e = world.mint();
    world.ok(vec![entry(e, 1)]).await;
    assert_eq!(world.store().await.reader(world.session).await.unwrap().head().await.unwrap(), world.head);
}

/// Request keys go after 48 hours.
pub async fn request_keys_go_after_two_days(mut world: World) {
    world.root().await;
    let row = |key: &str, at| {
        let row = RequestRow { key: key.to_owned(), digest: "d".to_owned(), answer: json("1"), at };
        Write::Request(Box::new(row))
    };
    world.ok(vec![row("old", NOW), row("renewed", NOW)]).await;
    world.ok(vec![row("renewed", Millis(NOW.0 + 2 * HOUR))]).await;
    let found = async |world: &mut World| {
        let line = world.line().await;
        let old = line.request("old".to_owned()).await.unwrap().is_some();
        (old, line.request("renewed".to_owned()).await.unwrap().is_some())
    };
    maintain(&*world.store().await, Millis(NOW.0 + 47 * HOUR)).await;
    assert_eq!(found(&mut world).await, (true, true));
    maintain(&*world.store().await, Millis(NOW.0 + 49 * HOUR)).await;
    assert_eq!(found(&mut world).await, (false, true));
    maintain(&*world.store().await, Millis(NOW.0 + 51 * HOUR)).await;
    assert_eq!(found(&mut world).await, (false, false));
}

/// Old tombstones go like everything else: some in each step. Their sessions can be made again.
pub async fn tombstones_go_in_bounded_steps(mut world: World) {
    let store = world.store().await;
    let sessions: Vec<SessionCreate> = (0..10).map(|_| SessionCreate::new(NOW)).collect();
    for session in &sessions {
        store.create(session.clone()).await.unwrap();
        assert!(store.delete(session.id, NOW).await.unwrap());
    }
    maintain(&*world.store().await, NOW).await;
    let later = Millis(NOW.0 + 31 * 24 * HOUR);
    let mut removed = 0;
    for _ in 0..100 {
        let step = world.store().await.maintain(3, later).await.unwrap();
        assert!(step.removed <= 3, "{} rows in a step of 3", step.removed);
        removed += step.removed;
        if !step.more {
            break;
        }
    }
    assert_eq!(removed, 10);
    let store = world.store().await;
    for session in sessions {
        assert!(!store.create(session).await.unwrap().existed);
    }
}

/// An empty store needs nothing.
pub async fn maintenance_of_nothing_ends(mut world: World) {
    let store = world.another_store().await;
    let step = store.maintain(10, NOW).await.unwrap();
    assert_eq!((step.removed, step.more), (0, false));
    assert_eq!(world.line().await.document(did(5), Point::Current).await.unwrap(), None);
}
