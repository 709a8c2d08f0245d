//! Many commits at once, on several sessions and threads.

use std::sync::Arc;
use std::time::Duration;

use picofleet_conformance::documents::{AS_OF, IN_SESSION, commit};
use picofleet_conformance::{Backend, Memory, Mode, Postgres, Sqlite, World};
use picofleet_session::storage::EntryQuery;
use picofleet_session::{EntryDraft, ROOT_CONVERSATION_ID, Session};

const SESSIONS: usize = 5;
const COMMITS: i64 = 200;

/// Counts, and appends what it counted; an entry and two documents that must agree for ever.
async fn one(session: Session) {
    commit(&session, async |tx| {
        let number = tx.doc(&IN_SESSION, ()).await?.edit(|note| {
            note.n += 1;
            note.n
        })?;
        tx.doc(&AS_OF, ROOT_CONVERSATION_ID).await?.edit(|note| note.n = number)?;
        tx.append_entry(ROOT_CONVERSATION_ID, EntryDraft::new("t.entry").data(number)).await.map(|_| ())
    })
    .await
    .unwrap();
}

async fn many(backend: impl Backend) {
    let mut world = World::new(backend, Mode::Warm).await;
    let mut sessions = vec![world.session.clone()];
    for _ in 1..SESSIONS {
        sessions.push(world.another().await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    let mut observed = Vec::new();
    for session in &sessions {
        one(session.clone()).await;
        observed.push(session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap());
        for _ in 1..COMMITS {
            tasks.spawn(one(session.clone()));
        }
        // Readers in between always see what belongs together.
        for _ in 0..20 {
            let session = session.clone();
            tasks.spawn(async move {
                let first = session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n;
                let second = session.snapshot(&AS_OF, ROOT_CONVERSATION_ID).await.unwrap().unwrap().n;
                assert!(second >= first, "{second} after {first}");
            });
        }
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    for (session, mut watch) in sessions.iter().zip(observed) {
        assert_eq!(session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, COMMITS);
        let mut entries = session.store().scan_entries(EntryQuery::all(ROOT_CONVERSATION_ID), 1_000, None).await.unwrap().items;
        entries.reverse();
        let numbers: Vec<_> = entries.iter().map(|entry| entry.data.as_ref().unwrap().as_i64().unwrap()).collect();
        assert_eq!(numbers, (1..=COMMITS).collect::<Vec<_>>());
        for (number, entry) in (1..).zip(&entries).step_by(17) {
            let past = session.snapshot_as_of(&AS_OF, ROOT_CONVERSATION_ID, entry.id).await.unwrap().unwrap();
            assert_eq!(past.n, number, "an entry and a document of one commit");
        }
        let mut last = 0;
        while last < COMMITS {
            let n = watch.next().await.unwrap().read().unwrap().unwrap().n;
            assert!(n > last);
            last = n;
        }
    }
    drop(sessions);
    world.reopen().await;
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, COMMITS);
}

fn bounded(case: impl Future<Output = ()> + Send + 'static) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), tokio::spawn(case)).await.expect("it hangs").unwrap() });
}

#[test]
fn a_thousand_commits_at_once_in_memory() {
    bounded(many(Memory));
}

#[test]
fn a_thousand_commits_at_once_in_sqlite() {
    bounded(many(Sqlite::default()));
}

#[test]
fn a_thousand_commits_at_once_in_postgres() {
    bounded(many(Postgres::default()));
}

/// Commits, watchers and a close at the same time: every commit is whole or refused, and nothing waits for ever.
async fn closing(backend: impl Backend) {
    let mut world = World::new(backend, Mode::Warm).await;
    for round in 0..20_i64 {
        let session = world.session.clone();
        let before = session.snapshot(&IN_SESSION, ()).await.unwrap().map_or(0, |note| note.n);
        one(session.clone()).await;
        let mut tasks = tokio::task::JoinSet::new();
        let landed = Arc::new(std::sync::atomic::AtomicI64::new(before + 1));
        for i in 0..40 {
            let (session, landed) = (session.clone(), Arc::clone(&landed));
            tasks.spawn(async move {
                if i % 4 == 0 {
                    if let Ok(Some(mut watch)) = session.watch_doc(&IN_SESSION, ()).await {
                        while watch.next().await.is_some() {}
                        assert_eq!(watch.end().unwrap().reason(), "session_closed");
                    }
                } else if i == round * 2 + 1 {
                    session.close().await.unwrap();
                } else {
                    let result = commit(&session, async |tx| tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n += 1)).await;
                    landed.fetch_add(i64::from(result.is_ok()), std::sync::atomic::Ordering::SeqCst);
                }
            });
        }
        let close = session.clone();
        tasks.spawn(async move { close.close().await.unwrap() });
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        drop(session);
        world.open().await;
        let after = world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n;
        assert_eq!(after, landed.load(std::sync::atomic::Ordering::SeqCst));
    }
}

#[test]
fn closing_beside_commits_and_watches_in_memory() {
    bounded(closing(Memory));
}

#[test]
fn closing_beside_commits_and_watches_in_sqlite() {
    bounded(closing(Sqlite::default()));
}

#[test]
fn closing_beside_commits_and_watches_in_postgres() {
    bounded(closing(Postgres::default()));
}
