//! What a look at the whole database finds.

use super::world::{Owner, database, uuid};

#[tokio::test]
async fn damage_is_found_and_named() {
    let (_database, store, client) = database().await;
    let mut owner = Owner::new(&*store).await;
    for _ in 0..3 {
        owner.send(owner.of_every_kind()).await.unwrap();
    }
    assert_eq!(store.examine().await.unwrap(), []);
    let id = uuid(owner.id);
    let damages = [
        ("chain", "DELETE FROM commit WHERE session_id = $1 AND seq = 3"),
        ("C1", "UPDATE commit SET next_id = 9000 WHERE session_id = $1 AND seq = 4"),
        ("C1", "INSERT INTO entry SELECT session_id, 9000, conversation, seq, head, record FROM entry WHERE session_id = $1 LIMIT 1"),
        ("C1", "UPDATE entry SET seq = 9000 WHERE session_id = $1"),
        ("content", "DELETE FROM document_content WHERE session_id = $1 AND base"),
        ("index", "INSERT INTO task_done SELECT * FROM task_live WHERE session_id = $1"),
        ("orphan", "DELETE FROM session WHERE id = $1"),
    ];
    for (rule, damage) in damages {
        let before = store.examine().await.unwrap();
        assert!(client.execute(damage, &[&id]).await.unwrap() > 0, "{damage}");
        let found = store.examine().await.unwrap();
        assert!(found.iter().any(|finding| finding.rule == rule && !before.contains(finding)), "{damage}: {found:?}");
    }
}
