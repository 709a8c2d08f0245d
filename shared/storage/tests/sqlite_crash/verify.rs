//! What must be there after a run.

use picofleet_session::Millis;
use picofleet_session::storage::{ExportLine, Rejection, StorageError, Store};
use picofleet_storage::conformance::snapshot::{everything, same};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use rusqlite::Connection;

use crate::program::{Model, NOW, SESSIONS, batch, batches, creation, fence, lines, sent, session};
use crate::run::Run;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// After a kill, or the normal end of a run that was not killed.
pub(crate) fn after_kill(run: &Run, thorough: bool) {
    block_on(async {
        let store = SqliteStore::open(run.store(), SqliteOptions::default()).unwrap_or_else(|error| panic!("{}: {error:?}", run.name));
        for number in 0..SESSIONS {
            check_session(run, &store, number, thorough).await;
        }
        check_import(run, &store).await;
        go_on(run, store).await;
    });
    sound(run);
}

/// After failures that ended: the program has come to its end. Whether it met one.
pub(crate) fn after_failure(run: &Run) -> bool {
    assert!(!run.killed && run.said.last().is_some_and(|line| line == "closed"), "{}: {:?}", run.name, run.said);
    for line in run.said.iter().filter(|line| line.starts_with("rejected") || line.starts_with("failed") || line.starts_with("uncertain")) {
        assert!(line.contains("store.db"), "{}: the error names the file: {line}", run.name);
    }
    after_kill(run, false);
    run.said.iter().any(|line| line.starts_with("rejected") || line.starts_with("failed") || line.starts_with("uncertain"))
}

fn said(run: &Run, line: &str) -> bool {
    run.said.iter().any(|said| said == line)
}

/// The model that has what was acknowledged, and the last thing that was tried.
async fn acknowledged(run: &Run, number: usize) -> (Model, Option<Tried>) {
    let mut model = Model::new(number).await;
    let mut tried = None;
    for line in &run.said {
        let words: Vec<&str> = line.split(' ').collect();
        let number_is = |word: &str| word == number.to_string();
        match words[..] {
            ["try", "open", of] if number_is(of) => tried = Some(Tried::Open),
            ["try", of, index] if number_is(of) => tried = Some(Tried::Batch(index.parse().unwrap())),
            ["opened", of, seq] if number_is(of) => {
                model.open(seq.parse().unwrap()).await;
                tried = None;
            }
            ["ack", of, index, seq] if number_is(of) => {
                model.commit(index.parse().unwrap()).await;
                assert_eq!(model.head.seq.to_string(), seq, "{}: {line}", run.name);
                tried = None;
            }
            // What was refused never lands.
            ["rejected", "commit", of, ..] if number_is(of) => tried = None,
            _ => {}
        }
    }
    (model, tried)
}

#[derive(Clone, Copy, Debug)]
enum Tried {
    Open,
    Batch(usize),
}

async fn check_session(run: &Run, store: &SqliteStore, number: usize, thorough: bool) {
    let id = session(number);
    let found = store.session(id).await.unwrap();
    let deleting = number == 1 && said(run, "try delete");
    if number == 1 && said(run, "deleted") {
        assert!(found.is_none(), "{}: a deleted session is there", run.name);
        let again = store.create(creation(number)).await;
        assert!(matches!(again, Err(StorageError::Rejected(refused)) if matches!(refused.reason, Rejection::SessionDeleted { .. })));
        return;
    }
    if found.is_none() {
        assert!(deleting || !said(run, &format!("created {number}")), "{}: an acknowledged session is gone", run.name);
        return;
    }
    let (mut model, tried) = acknowledged(run, number).await;
    let reader = store.reader(id).await.unwrap();
    let head = reader.head().await.unwrap();
    if head.seq != model.head.seq {
        match tried {
            Some(Tried::Batch(index)) => model.commit(index).await,
            Some(Tried::Open) => model.open(head.seq.0).await,
            None => {}
        }
    }
    assert_eq!((head.seq, head.next_id), (model.head.seq, model.head.next_id), "{}: session {number} after {tried:?}", run.name);
    let (stored, expected) = (lines(store, id).await, model.lines().await);
    assert_eq!(stored, expected, "{}: session {number} after {tried:?}", run.name);
    if thorough {
        let keys = ["once", "key 1", "key 13"];
        let stored = everything(&*reader, head.next_id, head.seq, &keys).await;
        let expected = everything(&*model.reader().await, head.next_id, head.seq, &keys).await;
        same(&stored, &expected);
    }
}

/// An import is there as a whole or not at all.
async fn check_import(run: &Run, store: &SqliteStore) {
    let listed = store.sessions(picofleet_session::storage::SessionQuery::default(), 100, None).await.unwrap().items;
    let imported: Vec<_> = listed.iter().filter(|record| (0..SESSIONS).all(|number| session(number) != record.id)).collect();
    let acknowledged = run.said.iter().find_map(|line| line.strip_prefix("imported "));
    if let Some(id) = acknowledged {
        assert!(imported.iter().any(|record| record.id.to_string() == id), "{}: an acknowledged import is gone", run.name);
    }
    assert!(imported.is_empty() || said(run, "try import"), "{}: an import that was never tried", run.name);
    for record in imported {
        let (copy, original) = (lines(store, record.id).await, lines(store, session(0)).await);
        assert_eq!(records(&copy), records(&original), "{}", run.name);
    }
}

/// The lines that don't name the session.
fn records(lines: &[ExportLine]) -> Vec<ExportLine> {
    lines.iter().filter(|line| !matches!(line, ExportLine::Session(_) | ExportLine::End { .. })).cloned().collect()
}

/// The chain and the ids go on, and what goes on is there after closing and opening again.
async fn go_on(run: &Run, store: SqliteStore) {
    let id = session(0);
    store.create(creation(0)).await.unwrap();
    let (mut model, _) = acknowledged(run, 0).await;
    let before = store.reader(id).await.unwrap().head().await.unwrap();
    if before.seq > model.head.seq {
        let (_, tried) = acknowledged(run, 0).await;
        match tried {
            Some(Tried::Batch(index)) => model.commit(index).await,
            _ => model.open(before.seq.0).await,
        }
    }
    store.set_quarantined(id, false).await.unwrap();
    let line = store.open(id, fence()).await.unwrap();
    let mut head = line.opened();
    model.open(head.seq.0).await;
    while model.batches < batches().len() {
        head = line.commit(batch(&head, model.batches)).await.unwrap_or_else(|error| panic!("{}: {error:?}", run.name));
        model.commit(model.batches).await;
    }
    assert!(model.batches > sent(), "{}: more than the child sent", run.name);
    while store.maintain(1_000, Millis(NOW.0 + 1)).await.unwrap().more {}
    store.close().await.unwrap();
    let store = SqliteStore::open(run.store(), SqliteOptions::default()).unwrap();
    assert_eq!(lines(&store, id).await, model.lines().await, "{}: after going on", run.name);
    store.close().await.unwrap();
}

/// The file itself: SQLite's own check, and what must hold between the tables once maintenance is done.
fn sound(run: &Run) {
    let connection = Connection::open(run.store()).unwrap();
    let text = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok", "{}", run.name);
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    for table in ["commits", "conversation", "entry", "task", "submission", "document", "content", "reclaim", "request"] {
        let lost = count(&format!("SELECT count(*) FROM {table} WHERE session NOT IN (SELECT n FROM session)"));
        assert_eq!(lost, 0, "{}: rows of {table} belong to no session", run.name);
    }
    let unneeded = [
        "SELECT count(*) FROM reclaim",
        "SELECT count(*) FROM session WHERE state > 1",
        "SELECT count(*) FROM content c JOIN document d ON d.session = c.session AND d.id = c.document
            WHERE d.policy < 20 AND (d.retired_at IS NOT NULL OR c.seq < (SELECT max(b.seq) FROM content b
                WHERE b.session = c.session AND b.document = c.document AND b.base = 1))",
    ];
    for sql in unneeded {
        assert_eq!(count(sql), 0, "{}: {sql}", run.name);
    }
    let without = count(
        "SELECT count(*) FROM document d WHERE (d.retired_at IS NULL OR (d.policy >= 20 AND d.retired_at > d.created_at))
            AND NOT EXISTS (SELECT 1 FROM content c WHERE c.session = d.session AND c.document = d.id AND c.base = 1)",
    );
    assert_eq!(without, 0, "{}: documents without a base", run.name);
    let gaps = count(
        "SELECT count(*) FROM commits c WHERE c.seq > (SELECT min(seq) FROM commits m WHERE m.session = c.session)
            AND NOT EXISTS (SELECT 1 FROM commits p WHERE p.session = c.session AND p.seq = c.seq - 1)",
    );
    assert_eq!(gaps, 0, "{}: the chain has a gap", run.name);
}
