//! Owners that stall inside a transaction.

use picofleet_session::storage::StorageError;

use super::world::{Owner, database, uuid};

/// A process that is frozen between Execute and Sync holds the place of the next row. The new owner ends its connection and goes on.
#[tokio::test]
async fn a_stalled_owner_is_ended() {
    let (database, store, _client) = database().await;
    let mut owner = Owner::new(&*store).await;
    owner.append().await.unwrap();
    let stalled = database.client().await;
    let open = "SET application_name = 'picofleet/another'; BEGIN";
    stalled.batch_execute(open).await.unwrap();
    let sql = "INSERT INTO commit SELECT session_id, seq + 1, gen_random_uuid(), epoch, next_id, opens, at FROM commit
        WHERE session_id = $1 ORDER BY seq DESC LIMIT 1";
    stalled.execute(sql, &[&uuid(owner.id)]).await.unwrap();
    let mut next = Owner::open(&*store, owner.id).await;
    assert_eq!(next.head.seq, owner.head.seq.next());
    assert!(stalled.batch_execute("COMMIT").await.is_err(), "its transaction was ended");
    next.append().await.unwrap();
    let outcome = owner.append().await;
    assert!(matches!(outcome, Err(StorageError::Fenced { .. })), "{outcome:?}");
}

/// The same for a group that meets it: the group is repeated, and the owner loses nothing.
#[tokio::test]
async fn a_group_ends_who_stalls_in_its_way() {
    let (database, store, _client) = database().await;
    let mut owner = Owner::new(&*store).await;
    let stalled = database.client().await;
    stalled.batch_execute("SET application_name = 'picofleet/another'; BEGIN").await.unwrap();
    let sql = "INSERT INTO commit SELECT session_id, seq + 1, gen_random_uuid(), epoch, next_id, opens, at FROM commit
        WHERE session_id = $1 ORDER BY seq DESC LIMIT 1";
    stalled.execute(sql, &[&uuid(owner.id)]).await.unwrap();
    let before = owner.head.seq;
    assert_eq!(owner.append().await.unwrap().seq, before.next());
}

/// A batch that the server refuses takes no other one of its group with it.
#[tokio::test]
async fn a_refused_batch_is_alone() {
    let (_database, store, client) = database().await;
    let mut owners = Vec::new();
    for _ in 0..12 {
        owners.push(Owner::new(&*store).await);
    }
    let culprit = owners[7].id;
    let check = format!("ALTER TABLE entry ADD CONSTRAINT refused CHECK (session_id <> '{}')", uuid(culprit));
    client.batch_execute(&check).await.unwrap();
    let outcomes = futures::future::join_all(owners.iter().map(|owner| owner.line.commit(owner.of_every_kind()))).await;
    for (owner, outcome) in owners.iter().zip(outcomes) {
        if owner.id == culprit {
            assert!(matches!(outcome, Err(StorageError::Rejected(_))), "{outcome:?}");
        } else {
            outcome.unwrap();
        }
    }
    client.batch_execute("ALTER TABLE entry DROP CONSTRAINT refused").await.unwrap();
    let owner = &mut owners[7];
    owner.append().await.unwrap();
}
