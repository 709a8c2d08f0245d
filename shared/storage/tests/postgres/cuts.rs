//! Connections that are lost with a group on them (`protocol.md` 2): every batch is stored once, and every session goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::storage::{EntryQuery, Rejection, SessionStore, StorageError, Store};
use picofleet_session::{DocumentId, Point};
use picofleet_storage::conformance::Database;
use picofleet_storage::conformance::records::{cid, did, eid};
use tokio_postgres::Client;

use super::proxy::{Cut, Proxy};
use super::world::{Owner, database, store, uuid};

/// The entries of a session are those that were acknowledged, each once, and the rows of its chain follow each other.
async fn sound(store: &dyn Store, client: &Client, owner: &Owner, acknowledged: &[i64]) {
    let reader = store.reader(owner.id).await.unwrap();
    let page = reader.scan_entries(EntryQuery::all(cid(1)), 1_000, None).await.unwrap();
    let mut stored: Vec<i64> = page.items.iter().map(|entry| entry.id.get()).collect();
    stored.reverse();
    assert_eq!(stored, acknowledged);
    let gaps =
        "SELECT count(*) FROM (SELECT seq - lag(seq) OVER (ORDER BY seq) AS step FROM commit WHERE session_id = $1) c WHERE step <> 1";
    assert_eq!(client.query_one(gaps, &[&uuid(owner.id)]).await.unwrap().get::<_, i64>(0), 0);
    assert_eq!(reader.head().await.unwrap().seq, owner.head.seq);
    assert_eq!(store.examine().await.unwrap(), []);
}

/// A connection is cut inside and behind every message of a group, and inside and behind every message of the answer.
#[tokio::test]
async fn a_group_is_written_once_wherever_its_connection_is_cut() {
    let database = Database::new().await;
    let proxy = Proxy::new(&database);
    let (store, client) = (store(&proxy.url()).await, database.client().await);
    let mut owner = Owner::new(&*store).await;
    let mut acknowledged = Vec::new();
    let mut append = async |owner: &mut Owner| {
        let id = owner.head.next_id;
        let head = owner.append().await.unwrap();
        acknowledged.push(id);
        (head.seq.0, acknowledged.clone())
    };
    append(&mut owner).await;
    proxy.arm(None);
    append(&mut owner).await;
    let (_, sent, answered) = proxy.done();
    // Bind; Execute has 10 bytes and Sync 5. The answer ends with ReadyForQuery, which has 6.
    let up = [0, 1, 5, sent / 2, sent - 16, sent - 15, sent - 10, sent - 5, sent - 1];
    let down = [0, 1, 5, answered / 2, answered - 7, answered - 6, answered - 1];
    let cuts = up.map(Cut::ToServer).into_iter().chain(down.map(Cut::ToClient));
    for cut in cuts {
        let before = owner.head.seq.0;
        proxy.arm(Some(cut));
        let (seq, acknowledged) = append(&mut owner).await;
        assert!(proxy.done().0, "{cut:?} was not reached");
        let expected = match cut {
            // It never landed, which a fence made sure of.
            Cut::ToServer(_) => before + 2,
            // It had landed.
            Cut::ToClient(_) => before + 1,
        };
        assert_eq!(seq, expected, "{cut:?}");
        sound(&*store, &client, &owner, &acknowledged).await;
        // The statement is prepared on the new connection, so that the next cut is at the same place.
        append(&mut owner).await;
    }
}

/// A batch that is sent again stands one sequence further with all of its rows.
#[tokio::test]
async fn a_batch_on_top_of_a_fence_is_whole() {
    let database = Database::new().await;
    let proxy = Proxy::new(&database);
    let store = store(&proxy.url()).await;
    let mut owner = Owner::new(&*store).await;
    owner.send(owner.of_every_kind()).await.unwrap();
    owner.send(owner.blind(owner.document())).await.unwrap();
    let (before, id) = (owner.head.seq.0, owner.head.next_id);
    proxy.arm(Some(Cut::ToServer(700)));
    let batch = owner.blind(owner.document());
    let changed = id - 2;
    owner.send(batch).await.unwrap();
    assert!(proxy.done().0);
    assert_eq!(owner.head.seq.0, before + 3, "a fence and two commits");
    let (_, seq) = owner.line.entry(None, eid(id)).await.unwrap().unwrap();
    assert_eq!(seq.0, before + 2);
    let made = owner.line.document(did(id + 4), Point::Current).await.unwrap().unwrap();
    assert_eq!(made.record.created_at.0, before + 2);
    assert_eq!(value(&*owner.line, did(changed)).await, r#"{"n":2}"#);
    assert_eq!(store.examine().await.unwrap(), []);
    owner.send(owner.blind(id + 4)).await.unwrap();
    assert_eq!(value(&*owner.line, did(id + 4)).await, r#"{"n":2}"#);
}

async fn value(line: &dyn SessionStore, id: DocumentId) -> String {
    line.document(id, Point::Current).await.unwrap().unwrap().value.to_string()
}

/// Committers are ended by an operator again and again while sessions commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_go_on_while_their_connections_are_ended() {
    let (_database, store, client) = database().await;
    let client = Arc::new(client);
    let (done, mut sessions) = (Arc::new(AtomicBool::new(false)), Vec::new());
    for _ in 0..8 {
        let (store, mut owner) = (Arc::clone(&store), Owner::new(&*store).await);
        sessions.push(tokio::spawn(async move {
            let mut acknowledged = Vec::new();
            while acknowledged.len() < 40 {
                let id = owner.head.next_id;
                match owner.append().await {
                    Ok(_) => acknowledged.push(id),
                    // Admission is closed while a committer has no connection.
                    Err(StorageError::Rejected(refused)) if matches!(refused.reason, Rejection::Unavailable { .. }) => {
                        tokio::task::yield_now().await;
                    }
                    Err(error) => panic!("{error:?}"),
                }
            }
            drop(store);
            (owner, acknowledged)
        }));
    }
    let (killer, stop) = (Arc::clone(&client), Arc::clone(&done));
    let killed = tokio::spawn(async move {
        let mut killed = 0;
        while !stop.load(Ordering::SeqCst) {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database()
                AND application_name LIKE 'picofleet/%' AND random() < 0.3";
            killed += killer.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
            killer.batch_execute("SELECT pg_sleep(0.03)").await.unwrap();
        }
        killed
    });
    let mut owners = Vec::new();
    for session in sessions {
        owners.push(session.await.unwrap());
    }
    done.store(true, Ordering::SeqCst);
    assert!(killed.await.unwrap() > 0);
    for (owner, acknowledged) in &owners {
        sound(&*store, &client, owner, acknowledged).await;
    }
}
