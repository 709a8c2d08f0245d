//! What `Store::examine` finds in a damaged SQLite file, and copies of one that is open.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::sync::Arc;

use picofleet_session::storage::{Batch, Commit, Rejection, SessionCreate, StorageError, Store};
use picofleet_session::{CommitToken, SessionId};
use picofleet_storage::conformance::records::{
    conversation, create, entry, input, pending, put_submission, put_task, rewindable, set, task,
};
use picofleet_storage::conformance::{NOW, export, fence, rejection};
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

/// A session with one record of each kind.
async fn filled(store: &dyn Store) -> SessionId {
    let id = SessionId::from_key("examine", "one");
    store.create(SessionCreate { id, ..SessionCreate::new(NOW) }).await.unwrap();
    let line = store.open(id, fence()).await.unwrap();
    let mut head = line.opened();
    let first = vec![
        conversation(1),
        entry(2, 1),
        put_task(&task(3, pending())),
        put_submission(&input(4, 1, Some("key"))),
        create(5, rewindable(1), r#"{"n":1}"#),
    ];
    for (next_id, writes) in [(6, first), (7, vec![set(5, "n", "2"), entry(6, 1)])] {
        let commit = Commit { token: CommitToken::random(), at: NOW, next_id, writes };
        head = line.commit(Batch { expect: (head.seq, head.token), commits: vec![commit] }).await.unwrap();
    }
    line.release().await.unwrap();
    id
}

async fn sqlite(path: &Path) {
    let store = SqliteStore::open(path, SqliteOptions::default()).unwrap();
    filled(&store).await;
    store.close().await.unwrap();
}

async fn rules(store: &dyn Store) -> Vec<&'static str> {
    let mut rules: Vec<_> = store.examine().await.unwrap().into_iter().map(|finding| finding.rule).collect();
    rules.dedup();
    rules
}

#[tokio::test]
async fn a_damaged_file_is_told_by_rule() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole.db");
    sqlite(&whole).await;
    assert_eq!(rules(&SqliteStore::open_read_only(&whole).unwrap()).await, <[&str; 0]>::default());
    let damages = [
        ("UPDATE task SET live = 0", "index"),
        ("UPDATE task SET kind = 'other'", "index"),
        ("UPDATE entry SET conversation = 9 WHERE id = 2", "index"),
        ("UPDATE submission SET request_id = NULL", "index"),
        ("UPDATE conversation SET owner_task = 3", "index"),
        ("UPDATE entry SET record = '{}' WHERE id = 6", "record"),
        ("UPDATE task SET record = 'x'", "record"),
        ("DELETE FROM commits WHERE seq = (SELECT max(seq) - 1 FROM commits)", "chain"),
        ("DELETE FROM commits", "chain"),
        ("UPDATE commits SET next_id = 3", "C1"),
        ("UPDATE entry SET seq = 99 WHERE id = 6", "C1"),
        ("DELETE FROM content WHERE base = 1", "content"),
        ("INSERT INTO wake (id, partition, at) VALUES (x'00000000000000000000000000000000', 1, 1)", "orphan"),
        ("INSERT INTO reclaim (session, document, below) VALUES (77, 5, 1)", "orphan"),
        ("INSERT INTO session (tenant, metadata, state, created_at) VALUES ('default', '{}', 3, 1)", "import"),
        ("UPDATE session SET state = 3", "session"),
    ];
    for (at, (sql, rule)) in damages.into_iter().enumerate() {
        let path = folder.path().join(format!("{at}.db"));
        std::fs::copy(&whole, &path).unwrap();
        Connection::open(&path).unwrap().execute_batch(sql).unwrap();
        let before = std::fs::read(&path).unwrap();
        let found = rules(&SqliteStore::open_read_only(&path).unwrap()).await;
        assert!(found.contains(&rule), "{sql}: {found:?}");
        assert!(std::fs::read(&path).unwrap() == before, "{sql}: the file was changed");
    }
}

#[tokio::test]
async fn sqlite_s_own_check_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.db");
    sqlite(&path).await;
    // An index that lacks a row: the page of the table stays as it is.
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = 'CREATE INDEX task_kind ON task (session, kind)' WHERE name = 'task_kind'").unwrap();
    drop(connection);
    let found = rules(&SqliteStore::open_read_only(&path).unwrap()).await;
    assert_eq!(found, ["integrity"]);
}

#[tokio::test]
async fn a_copy_of_an_open_store_is_that_store() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let id = filled(&store).await;
    // By the process that has it open, and by one that looks at it.
    store.copy_to(&copy).await.unwrap();
    let looking = SqliteStore::open_read_only(&path).unwrap();
    looking.copy_to(folder.path().join("other.db")).await.unwrap();
    let lines = export(&store, id).await;
    for name in ["copy.db", "other.db"] {
        let copied = SqliteStore::open(folder.path().join(name), SqliteOptions::default()).unwrap();
        assert_eq!(export(&copied, id).await, lines);
        assert_eq!(rules(&copied).await, <[&str; 0]>::default());
        copied.close().await.unwrap();
    }
    let again = store.copy_to(&copy).await.unwrap_err();
    assert!(std::error::Error::source(&again).is_some_and(|cause| cause.to_string().contains("exists")), "{again:?}");
    let nowhere = store.copy_to(folder.path().join("no/folder.db")).await;
    assert!(nowhere.is_err());
    let files: Vec<_> = folder.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!files.iter().any(|name| name.to_string_lossy().contains("-new")), "{files:?}");
    store.close().await.unwrap();
}

/// What is beside a copy is somebody else's, and so is what another copy to the same name writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copies_leave_other_files_and_each_other_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap();
    let id = filled(&store).await;
    let first = format!("copy.db-new-{}-0", std::process::id());
    let others = ["copy.db-new", &first, "copy.db-new-journal"].map(|name| folder.path().join(name));
    others.iter().for_each(|other| std::fs::write(other, "precious").unwrap());
    let results = futures::future::join_all((0..4).map(|_| store.copy_to(&copy))).await;
    assert!(results.iter().any(Result::is_ok), "{results:?}");
    for error in results.into_iter().filter_map(Result::err) {
        assert!(std::error::Error::source(&error).is_some_and(|cause| cause.to_string().contains("exists")), "{error:?}");
    }
    let copied = SqliteStore::open(&copy, SqliteOptions::default()).unwrap();
    assert_eq!(export(&copied, id).await, export(&store, id).await);
    copied.close().await.unwrap();
    assert!(others.iter().all(|other| std::fs::read(other).unwrap() == b"precious"));
    let files = folder.path().read_dir().unwrap().filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("-new"));
    assert_eq!(files.count(), others.len());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_directory_is_looked_at_while_it_is_open_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(folder.path(), JsonlOptions::default()).unwrap();
    let id = filled(&store).await;
    // As a kill in the middle of a commit leaves them: behind what is confirmed.
    let directory = folder.path().join(id.to_string());
    let append = |name: &str, text: &str| {
        let path = directory.join(name);
        let bytes = [std::fs::read(&path).unwrap_or_default(), text.as_bytes().to_vec()].concat();
        std::fs::write(path, bytes).unwrap();
    };
    append("main.jsonl", "{\"commits\":[");
    append("task-9.jsonl", "{\"seq\":99");
    std::fs::write(directory.join("doc-5.tmp"), "").unwrap();
    let looking = JsonlStore::open_read_only(folder.path()).unwrap();
    assert_eq!(export(&looking, id).await, export(&store, id).await);
    assert_eq!(rules(&looking).await, ["tail"]);
    assert!(directory.join("doc-5.tmp").exists() && directory.join("task-9.jsonl").exists());
    assert!(std::fs::read_to_string(directory.join("main.jsonl")).unwrap().ends_with("{\"commits\":["));
    let refused = rejection(looking.create(SessionCreate::new(NOW)).await);
    assert!(matches!(refused, Rejection::ReadOnly { .. }), "{refused:?}");
    assert!(looking.open(id, fence()).await.is_err());
    looking.close().await.unwrap();
    assert!(matches!(looking.examine().await, Err(StorageError::Closed)));
    store.close().await.unwrap();
    let missing = JsonlStore::open_read_only(folder.path().join("nothing"));
    assert!(missing.is_err() && !folder.path().join("nothing").exists());
}

#[tokio::test]
async fn a_damaged_directory_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = JsonlStore::open(folder.path(), JsonlOptions::default()).unwrap();
    let id = filled(&store).await;
    store.close().await.unwrap();
    std::fs::remove_file(folder.path().join(id.to_string()).join("doc-5.jsonl")).unwrap();
    let looking: Arc<dyn Store> = Arc::new(JsonlStore::open_read_only(folder.path()).unwrap());
    assert_eq!(rules(&*looking).await, ["files"]);
    assert!(matches!(looking.session(id).await, Err(StorageError::Corrupt(_))));
}
