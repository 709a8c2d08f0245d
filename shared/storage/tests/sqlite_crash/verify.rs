//! What must be there after a run.

use std::sync::Arc;

use picofleet_session::storage::{ExportLine, Finding, Rejection, SessionQuery, StorageError, Store};
use picofleet_session::{Millis, SessionId};
use picofleet_storage::conformance::snapshot::{everything, same};

use crate::program::{Model, NOW, SESSIONS, batch, batches, creation, fence, lines, sent, session};
use crate::run::Run;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

/// After a kill, or the normal end of a run that was not killed.
pub(crate) fn after_kill(run: &Run, thorough: bool) {
    block_on(async {
        let looked = looked_at(run).await;
        let store = crate::open(&run.store()).unwrap_or_else(|error| panic!("{}: {error:?}", run.name));
        for (id, lines_before) in looked {
            assert_eq!(lines_before, lines(&*store, id).await, "{}: looking showed something else than opening", run.name);
        }
        for number in 0..SESSIONS {
            check_session(run, &*store, number, thorough).await;
        }
        check_import(run, &*store).await;
        go_on(run, store).await;
        let store = crate::look(&run.store()).unwrap();
        assert_eq!(store.examine().await.unwrap(), [], "{}", run.name);
    });
    crate::sound(run);
}

/// After failures that ended: the program has come to its end. Whether it met one.
pub(crate) fn after_failure(run: &Run) -> bool {
    assert!(!run.killed && run.said.last().is_some_and(|line| line == "closed"), "{}: {:?}", run.name, run.said);
    for line in run.said.iter().filter(|line| line.starts_with("rejected") || line.starts_with("failed") || line.starts_with("uncertain")) {
        assert!(line.contains(crate::STORE), "{}: the error names the file: {line}", run.name);
    }
    after_kill(run, false);
    run.said.iter().any(|line| line.starts_with("rejected") || line.starts_with("failed") || line.starts_with("uncertain"))
}

/// What a look at the store shows before anybody opens it; nothing where it was never made.
async fn looked_at(run: &Run) -> Vec<(SessionId, Vec<ExportLine>)> {
    let Ok(store) = crate::look(&run.store()) else {
        assert!(!said(run, "created 0"), "{}: a store with a session can't be looked at", run.name);
        return Vec::new();
    };
    // What a kill leaves is no damage.
    let harmless = |finding: &Finding| ["tail", "import"].contains(&finding.rule);
    let found = store.examine().await.unwrap();
    assert!(found.iter().all(harmless), "{}: {found:?}", run.name);
    let mut seen = Vec::new();
    for record in store.sessions(SessionQuery::default(), 100, None).await.unwrap().items {
        seen.push((record.id, lines(&*store, record.id).await));
    }
    store.close().await.unwrap();
    seen
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

async fn check_session(run: &Run, store: &dyn Store, number: usize, thorough: bool) {
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
async fn check_import(run: &Run, store: &dyn Store) {
    let listed = store.sessions(SessionQuery::default(), 100, None).await.unwrap().items;
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
async fn go_on(run: &Run, store: Arc<dyn Store>) {
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
    let store = crate::open(&run.store()).unwrap();
    assert_eq!(lines(&*store, id).await, model.lines().await, "{}: after going on", run.name);
    store.close().await.unwrap();
}
