//! The command line on a PostgreSQL database.

use picofleet_storage::conformance::Database;

use crate::place::{Place, RUNS};

const CALLS: &str = r#"
turns = [
    { when = { turn = 0 }, blocks = [{ type = "toolCall", name = "bash", arguments = { command = "echo from-the-tool" } }] },
    { when = { turn = 1 }, blocks = [{ type = "text", chunks = ["first answer"] }] },
    { when = {}, blocks = [{ type = "text", chunks = ["second answer"] }] },
]
"#;

#[tokio::test]
async fn a_database_is_made_ready_and_keeps_sessions() {
    let _runs = RUNS.read().await;
    let database = Database::empty().await;
    let mut place = Place::scripted(CALLS);
    place.set("PICOFLEET_STORAGE__URL", database.url());
    let unready = place.run(&["run", "hello"]).await.with(1);
    assert!(unready.contains("picofleet migrate"), "{unready}");
    for _ in 0..2 {
        let ready = place.run(&["migrate"]).await.with(0);
        assert!(ready.contains("is ready"), "{ready}");
    }
    let first = place.run(&["run", "hello"]).await.with(0);
    assert!(first.contains("from-the-tool") && first.contains("first answer"), "{first}");
    let id = first.split_once("; session ").unwrap().1.split(']').next().unwrap().to_owned();
    let more = place.run(&["run", "more", "--continue"]).await.with(0);
    assert!(more.contains("second answer") && more.contains(&id), "{more}");
    let sessions = place.run(&["inspect"]).await.with(0);
    assert!(sessions.contains(&id) && sessions.contains("hello"), "{sessions}");
    place.run(&["doctor"]).await.with(0);
    let lines = place.run(&["export", &id]).await;
    assert_eq!(lines.code, Some(0), "{lines:?}");
    place.write("a.jsonl", &lines.out);
    place.run(&["import", "a.jsonl", "--keep-id", "--store", "copy.db"]).await.with(0);
    assert_eq!(place.run(&["export", &id, "--store", "copy.db"]).await.out, lines.out);
    assert!(!place.path("picofleet.db").exists());
}

#[tokio::test]
async fn only_a_database_is_migrated_and_no_password_is_shown() {
    let mut place = Place::new();
    let files = place.run(&["migrate"]).await.with(64);
    assert!(files.contains("sqlite:./picofleet.db needs no migration"), "{files}");
    place.set("PICOFLEET_STORAGE__URL", "postgres://me:hunter2@127.0.0.1:1/d");
    for arguments in [&["migrate"][..], &["run", "hello", "--model", "scripted/demo"], &["inspect"], &["doctor"], &["config", "show"]] {
        let told = place.run(arguments).await;
        let text = format!("{}{}", told.out, told.err);
        assert!(text.contains("postgres://127.0.0.1:1/d") && !text.contains("hunter2"), "{arguments:?}: {text}");
    }
}
