//! The chain decides: the predecessor's check, the restriction to winners, the order of sessions in a group (`protocol.md` 1 and 2).

use picofleet_session::storage::StorageError;

use super::world::{Owner, counts, database, fence, store, uuid};

/// A server that was restored to an earlier state has lost the newest commit. The owner that remembers it does not go on.
#[tokio::test]
async fn a_history_that_lost_a_commit_is_not_continued() {
    let (_database, store, client) = database().await;
    let mut owner = Owner::new(&*store).await;
    owner.append().await.unwrap();
    let lost =
        client.execute("DELETE FROM commit WHERE session_id = $1 AND seq = $2", &[&uuid(owner.id), &owner.head.seq.0]).await.unwrap();
    assert_eq!(lost, 1);
    client.execute("DELETE FROM entry WHERE session_id = $1", &[&uuid(owner.id)]).await.unwrap();
    let before = counts(&client, owner.id).await;
    let outcome = owner.append().await;
    assert!(matches!(outcome, Err(StorageError::Fenced { .. })), "{outcome:?}");
    assert_eq!(counts(&client, owner.id).await, before);
    // Another commit in the place of the remembered one is no predecessor either.
    let replaced = "INSERT INTO commit SELECT session_id, seq + 1, gen_random_uuid(), epoch, next_id, opens, at FROM commit
        WHERE session_id = $1 ORDER BY seq DESC LIMIT 1";
    client.execute(replaced, &[&uuid(owner.id)]).await.unwrap();
    let outcome = owner.append().await;
    assert!(matches!(outcome, Err(StorageError::Fenced { .. })), "{outcome:?}");
    let mut next = Owner::open(&*store, owner.id).await;
    next.append().await.unwrap();
}

/// Of a group with owners that were taken over nothing of theirs is written, in no table.
#[tokio::test]
async fn nothing_of_a_loser_is_written() {
    let (database, ours, client) = database().await;
    let other = store(database.url()).await;
    let mut owners = Vec::new();
    for _ in 0..24 {
        owners.push(Owner::new(&*ours).await);
    }
    // Everything that a batch asks for is known, so that the next batches go out at once.
    for owner in &mut owners {
        owner.send(owner.of_every_kind()).await.unwrap();
        // What was only read is forgotten; what the owner wrote is not.
        owner.send(owner.blind(owner.document())).await.unwrap();
    }
    let stolen: Vec<_> = owners.iter().step_by(2).map(|owner| owner.id).collect();
    other.fence(stolen.clone(), fence(0)).await.unwrap();
    let mut before = Vec::new();
    for owner in &owners {
        before.push(counts(&client, owner.id).await);
    }
    let outcomes = futures::future::join_all(owners.iter().map(|owner| owner.line.commit(owner.blind(owner.document())))).await;
    for ((owner, outcome), before) in owners.iter().zip(outcomes).zip(before) {
        let after = counts(&client, owner.id).await;
        if stolen.contains(&owner.id) {
            assert!(matches!(outcome, Err(StorageError::Fenced { .. })), "{outcome:?}");
            assert_eq!(after, before);
        } else {
            let head = outcome.unwrap();
            assert_eq!(head.seq.0, owner.head.seq.0 + 2);
            for ((table, after), (_, before)) in after.into_iter().zip(before) {
                let more = match table {
                    "commit" | "document_content" => 2,
                    "wake" => 0,
                    _ => 1,
                };
                assert_eq!(after, before + more, "{table}");
            }
        }
    }
}
