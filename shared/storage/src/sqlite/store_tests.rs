//! What only this backend has: its thread, its queue, its log.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use futures::future::join_all;
use futures::{StreamExt as _, stream};
use picofleet_delta::Json;
use picofleet_session::storage::{
    Batch, Commit, Corruption, DocumentCopy, ExportLine, Fence, Head, ImportId, ImportTarget, OutboxRow, Rejection, RequestRow,
    SessionCreate, SessionStore, StorageError, Store, Tenant, Write,
};
use picofleet_session::{
    CommitToken, ConversationPolicy, ConversationRecord, DocumentContent, DocumentCreate, EntryRecord, Epoch, Id, LatestFork, Millis,
    Placement, Point, ROOT_CONVERSATION_ID, SessionId,
};
use tempfile::TempDir;

use super::{SqliteOptions, SqliteStore, schema};

const NOW: Millis = Millis(1_700_000_000_000);

fn open(directory: &TempDir) -> SqliteStore {
    SqliteStore::open(directory.path().join("a.db"), SqliteOptions::default()).unwrap()
}

async fn line(store: &SqliteStore) -> std::sync::Arc<dyn SessionStore> {
    let id = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
    store.open(id, Fence { epoch: Epoch(0), at: NOW }).await.unwrap()
}

fn batch(head: &Head, ids: i64, writes: Vec<Write>) -> Batch {
    let commit = Commit { token: CommitToken::random(), at: NOW, next_id: head.next_id + ids, writes };
    Batch { expect: (head.seq, head.token), commits: vec![commit] }
}

fn root() -> Write {
    Write::Conversation(ConversationRecord { id: ROOT_CONVERSATION_ID, parent: None, owner: None })
}

fn entry(id: i64, length: usize) -> Write {
    Write::Entry(Arc::new(EntryRecord {
        id: Id::new(id).unwrap(),
        conversation_id: ROOT_CONVERSATION_ID,
        kind: "note".to_owned(),
        model: None,
        data: Some(Json::from("x".repeat(length))),
        head: None,
        edits: None,
        by_task_id: None,
    }))
}

fn base(n: i64) -> DocumentContent {
    DocumentContent::Base { version: 1, value: Json::object([("n", Json::from(n))]) }
}

fn count(store: &SqliteStore, sql: &str) -> i64 {
    schema::reader(&store.0.place.0).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn sessions_that_commit_at_the_same_time_share_groups_and_not_faults() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let lines = join_all((0..40).map(|_| line(&store))).await;
    let sessions = lines.iter().enumerate().map(|(number, line)| async move {
        let mut head = line.opened();
        head = line.commit(batch(&head, 0, vec![root()])).await.unwrap();
        for _ in 0..5 {
            // The batches of every fourth session break a rule after they wrote something.
            let bad = number % 4 == 0;
            let writes = if bad { vec![entry(head.next_id, 9), entry(1, 9)] } else { vec![entry(head.next_id, 9)] };
            match line.commit(batch(&head, 1, writes)).await {
                Ok(landed) => {
                    assert!(!bad);
                    let found = line.entry(None, Id::new(head.next_id).unwrap()).await.unwrap();
                    assert!(found.is_some(), "a read after the answer sees the commit");
                    head = landed;
                }
                Err(StorageError::Rejected(refused)) => assert!(bad, "{refused:?}"),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(line.head().await.unwrap(), head);
    });
    join_all(sessions).await;
    assert_eq!(count(&store, "SELECT count(*) FROM entry"), 30 * 5);
    store.close().await.unwrap();
}

#[tokio::test]
async fn content_that_bases_replaced_leaves_with_the_commits() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let id = Id::new(2).unwrap();
    let create = DocumentCreate { id, kind: "k".to_owned(), key: None, placement: Placement::Session };
    let first = Write::DocumentCreate { create, version: 1, value: Json::object([("n", Json::from(0))]) };
    let mut head = line.commit(batch(&line.opened(), 1, vec![root(), first])).await.unwrap();
    for n in 0..200 {
        head = line.commit(batch(&head, 0, vec![Write::DocumentChange { id, content: base(n) }])).await.unwrap();
    }
    let kept = count(&store, "SELECT count(*) FROM content");
    assert!(kept <= 2, "{kept} rows of content for one value");
    assert_eq!(line.document(id, Point::Current).await.unwrap().unwrap().value, Json::object([("n", Json::from(199))]));
    line.commit(batch(&head, 0, vec![Write::DocumentRetire(id)])).await.unwrap();
    assert_eq!(count(&store, "SELECT count(*) FROM content"), 0);
    store.close().await.unwrap();
}

/// Stops the thread until the returned sender is dropped or sends.
async fn hold(store: &SqliteStore) -> mpsc::SyncSender<()> {
    let (go, wait) = mpsc::sync_channel::<()>(0);
    let (arrived, arrival) = tokio::sync::oneshot::channel();
    let queue = store.queue().unwrap().clone();
    tokio::spawn(async move {
        let held = queue.alone(move |_| {
            arrived.send(()).unwrap();
            // The end of the test is the bound.
            let _ = wait.recv_timeout(Duration::from_secs(30));
            Ok(())
        });
        held.await
    });
    arrival.await.unwrap();
    go
}

#[tokio::test]
async fn a_full_queue_refuses_and_recovers() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let go = hold(&store).await;
    let ids: Vec<SessionId> = (0..5_000).map(|_| SessionId::random()).collect();
    let mut calls: Vec<_> = ids.iter().map(|id| store.delete(*id, NOW)).collect();
    let mut refused = 0;
    for call in &mut calls {
        // The first poll sends. Without tokio's budget, which would make ready answers look pending.
        match tokio::task::unconstrained(async { futures::poll!(call) }).await {
            std::task::Poll::Ready(Err(StorageError::Rejected(rejected))) => {
                assert_eq!(rejected.reason, Rejection::Overloaded);
                refused += 1;
            }
            std::task::Poll::Ready(other) => panic!("{other:?}"),
            std::task::Poll::Pending => {}
        }
    }
    assert_eq!(refused, 5_000 - 4_096);
    let commit = line.commit(batch(&line.opened(), 0, vec![root()]));
    assert!(matches!(commit.await, Err(StorageError::Rejected(rejected)) if rejected.reason == Rejection::Overloaded));
    drop(go);
    drop(calls);
    // The refused batch is not in flight any more; room comes back as the queue is worked off.
    let landed = tokio::time::timeout(Duration::from_secs(30), async {
        loop {
            match line.commit(batch(&line.opened(), 0, vec![root()])).await {
                Ok(head) => return head,
                Err(StorageError::Rejected(rejected)) => assert_eq!(rejected.reason, Rejection::Overloaded),
                Err(error) => panic!("{error}"),
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(landed.await.unwrap().seq, line.opened().seq.next());
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_thread_that_dies_leaves_nobody_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let go = hold(&store).await;
    let commit = line.commit(batch(&line.opened(), 0, vec![root()]));
    let queue = store.queue().unwrap().clone();
    // It is behind the batch, so the batch lands; what comes after it meets a dead thread.
    let mut death = Box::pin(queue.alone::<()>(|_| panic!("a test ends the thread")));
    assert!(futures::poll!(&mut death).is_pending());
    let mut after = store.create(SessionCreate::new(NOW));
    assert!(futures::poll!(&mut after).is_pending());
    let mut behind = Box::pin(queue.alone(|_| Ok(())));
    assert!(futures::poll!(&mut behind).is_pending());
    drop(go);
    assert!(commit.await.is_ok());
    assert!(matches!(death.await, Err(StorageError::Uncertain { .. })));
    // What waited in the queue, and what comes later, was never begun.
    let later = line.commit(batch(&line.head().await.unwrap(), 0, vec![])).await;
    let results = [after.await.err(), behind.await.err(), later.err(), store.create(SessionCreate::new(NOW)).await.err()];
    for error in results {
        let Some(StorageError::Rejected(refused)) = error else { panic!("{error:?}") };
        assert!(matches!(refused.reason, Rejection::Unavailable { .. }), "{refused:?}");
        assert!(refused.cause.is_some_and(|cause| cause.to_string().contains("open the store again")));
    }
    line.release().await.unwrap();
    store.close().await.unwrap();
    // The lock went with the thread.
    open(&directory).close().await.unwrap();
}

#[tokio::test]
async fn a_panic_undoes_its_work_and_the_store_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let go = hold(&store).await;
    let queue = store.queue().unwrap().clone();
    let mut before = store.create(SessionCreate::new(NOW));
    assert!(futures::poll!(&mut before).is_pending());
    let id = SessionId::random();
    let mut panicking = Box::pin(queue.unit::<()>(move |tx| {
        super::admin::create(tx, &SessionCreate { id, ..SessionCreate::new(NOW) }, "{}")?;
        panic!("a test asked for it")
    }));
    assert!(futures::poll!(&mut panicking).is_pending());
    let commit = line.commit(batch(&line.opened(), 0, vec![root()]));
    drop(go);
    let error = panicking.await.unwrap_err();
    let StorageError::Rejected(refused) = error else { panic!("{error:?}") };
    assert!(matches!(refused.reason, Rejection::Unavailable { .. }), "{refused:?}");
    assert!(refused.cause.unwrap().to_string().contains("panicked and was undone: a test asked for it"));
    before.await.unwrap();
    let head = commit.await.unwrap();
    let alone = queue.alone::<()>(|writer| writer.alone(|_| panic!("a test asked for it"))).await;
    assert!(matches!(alone, Err(StorageError::Rejected(_))), "{alone:?}");
    line.commit(batch(&head, 1, vec![entry(head.next_id, 9)])).await.unwrap();
    assert!(store.session(id).await.unwrap().is_none(), "nothing of the panicking work was written");
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_copy_of_damaged_content_says_what_is_damaged() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let policy = ConversationPolicy::Latest(LatestFork::Current);
    let placement = Placement::Conversation { id: ROOT_CONVERSATION_ID, policy };
    let create = |id: i64| DocumentCreate { id: Id::new(id).unwrap(), kind: "k".to_owned(), key: None, placement };
    let first = Write::DocumentCreate { create: create(2), version: 1, value: Json::object([("n", Json::from(0))]) };
    let head = line.commit(batch(&line.opened(), 1, vec![root(), first])).await.unwrap();
    rusqlite::Connection::open(&store.0.place.0).unwrap().execute("UPDATE content SET base = 0, body = '[]'", []).unwrap();
    let copy = DocumentCopy { create: create(3), source: Id::new(2).unwrap(), at: Point::Current };
    let error = line.commit(batch(&head, 1, vec![Write::DocumentRetire(Id::new(2).unwrap()), Write::DocumentCopy(copy.clone())])).await;
    assert!(matches!(error, Err(StorageError::Rejected(refused)) if refused.cause.is_none()), "a rule, not damage");
    let error = line.commit(batch(&head, 1, vec![Write::DocumentCopy(copy)])).await.unwrap_err();
    let StorageError::Rejected(refused) = error else { panic!("{error:?}") };
    assert!(matches!(refused.reason, Rejection::Copy { id: 3, origin: 2, .. }), "{refused:?}");
    let cause = refused.cause.unwrap();
    assert!(cause.downcast_ref::<Corruption>().is_some() && cause.to_string().contains("its base is missing"), "{cause}");
    store.close().await.unwrap();
}

/// Groups end at a size whatever the texts are in.
#[tokio::test]
async fn large_work_of_any_kind_makes_small_groups() {
    const LARGE: usize = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let lines = join_all((0..4).map(|_| line(&store))).await;
    let value = Json::object([("text", Json::from("x".repeat(LARGE)))]);
    let id = Id::new(2).unwrap();
    let create = DocumentCreate { id, kind: "k".to_owned(), key: None, placement: Placement::Session };
    let request = RequestRow { key: "k".to_owned(), digest: "d".to_owned(), answer: value.clone(), at: NOW };
    let writes = [
        Write::DocumentCreate { create, version: 1, value: value.clone() },
        Write::Request(request.into()),
        Write::Outbox(OutboxRow { submission_id: Id::new(2).unwrap(), body: value.clone() }.into()),
        entry(2, LARGE),
    ];
    let groups = || store.queue().unwrap().alone(|writer| Ok(writer.groups));
    let before = groups().await.unwrap();
    let go = hold(&store).await;
    let commits: Vec<_> =
        lines.iter().zip(writes).map(|(line, write)| line.commit(batch(&line.opened(), 1, vec![root(), write]))).collect();
    let mut session = store.create(SessionCreate { metadata: value.clone(), ..SessionCreate::new(NOW) });
    assert!(futures::poll!(&mut session).is_pending());
    let mut small = store.create(SessionCreate::new(NOW));
    assert!(futures::poll!(&mut small).is_pending());
    drop(go);
    for outcome in join_all(commits).await {
        outcome.unwrap();
    }
    assert_eq!(session.await.unwrap().session.metadata, value);
    small.await.unwrap();
    assert_eq!(groups().await.unwrap() - before, 6, "one group for each large one and one for the small one");
    assert_eq!(lines[0].document(id, Point::Current).await.unwrap().unwrap().value, value);
    assert_eq!(lines[1].request("k".to_owned()).await.unwrap().unwrap().answer, value);
    assert_eq!(store.outbox(10, None).await.unwrap().items[0].1.body, value);
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_export_shows_one_state_while_commits_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let mut head = line.commit(batch(&line.opened(), 0, vec![root()])).await.unwrap();
    for _ in 0..600 {
        head = line.commit(batch(&head, 1, vec![entry(head.next_id, 9)])).await.unwrap();
    }
    let mut lines = store.export(line.id()).await.unwrap();
    let mut entries = 0;
    while let Some(exported) = lines.next().await {
        if matches!(exported.unwrap(), ExportLine::Entry { .. }) {
            entries += 1;
            head = line.commit(batch(&head, 1, vec![entry(head.next_id, 9)])).await.unwrap();
        }
    }
    assert_eq!(entries, 600);
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_export_ends_when_the_log_grows_too_large() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let mut head = line.commit(batch(&line.opened(), 0, vec![root()])).await.unwrap();
    for _ in 0..300 {
        head = line.commit(batch(&head, 1, vec![entry(head.next_id, 10_000)])).await.unwrap();
    }
    let mut lines = store.export(line.id()).await.unwrap();
    assert!(lines.next().await.unwrap().is_ok());
    store.0.exports.shed_above(&store.0.place, u64::MAX);
    assert!(lines.next().await.unwrap().is_ok(), "the log is not that large");
    store.0.exports.shed_above(&store.0.place, 1_000);
    let rest: Vec<_> = lines.collect().await;
    let error = rest.into_iter().find_map(Result::err).expect("the export ends with an error");
    let StorageError::Failed { operation, cause } = error else { panic!("{error:?}") };
    assert!(operation.contains(&line.id().to_string()), "{operation}");
    assert!(cause.to_string().contains("the log grew too large"), "{cause}");
    store.close().await.unwrap();
}

#[tokio::test]
async fn an_import_that_ends_early_is_never_seen_and_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let line = line(&store).await;
    let mut head = line.commit(batch(&line.opened(), 0, vec![root()])).await.unwrap();
    for _ in 0..600 {
        head = line.commit(batch(&head, 1, vec![entry(head.next_id, 9)])).await.unwrap();
    }
    let lines: Vec<_> = store.export(line.id()).await.unwrap().collect().await;
    let target = ImportTarget { id: ImportId::New, tenant: Tenant::default(), at: NOW };
    let imported = "SELECT count(*) FROM entry WHERE session <> 1";
    let listed = |store: SqliteStore| async move { store.sessions(Default::default(), 10, None).await.unwrap().items.len() };

    // The stream stops in the middle and the caller goes.
    let part: Vec<_> = lines.iter().take(520).cloned().collect();
    let mut running = store.import(target.clone(), stream::iter(part).chain(stream::pending()).boxed());
    let both = async {
        while count(&store, imported) < 500 {
            assert!(futures::poll!(&mut running).is_pending());
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), both).await.unwrap();
    while store.maintain(10_000, NOW).await.unwrap().more {}
    assert!(count(&store, imported) >= 500, "maintenance leaves an import alone that runs");
    assert_eq!(listed(store.clone()).await, 1);
    drop(running);
    while store.maintain(10_000, NOW).await.unwrap().more {}
    assert_eq!(count(&store, imported), 0);
    assert_eq!(count(&store, "SELECT count(*) FROM session"), 1);

    // The stream fails.
    let failing = lines.iter().take(400).cloned().chain([Err(StorageError::Closed)]);
    let failed = store.import(target.clone(), stream::iter(failing.collect::<Vec<_>>()).boxed()).await;
    assert!(matches!(failed, Err(StorageError::Closed)));
    while store.maintain(10_000, NOW).await.unwrap().more {}
    assert_eq!(count(&store, "SELECT count(*) FROM session"), 1);

    // A store that is opened again knows of no import that runs.
    let mut running = store.import(target, stream::iter(lines.into_iter().take(300)).chain(stream::pending()).boxed());
    while count(&store, imported) == 0 {
        assert!(futures::poll!(&mut running).is_pending());
        tokio::task::yield_now().await;
    }
    store.close().await.unwrap();
    let store = open(&directory);
    while store.maintain(10_000, NOW).await.unwrap().more {}
    assert_eq!(count(&store, "SELECT count(*) FROM session"), 1);
    store.close().await.unwrap();
}

#[tokio::test]
async fn a_batch_that_never_fits_is_not_told_to_try_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory);
    let queue = store.queue().unwrap().clone();
    let error = queue.sized::<()>(257 << 20, |_| Ok(())).await.unwrap_err();
    assert!(matches!(&error, StorageError::Rejected(refused) if matches!(refused.reason, Rejection::TooLarge { .. })), "{error:?}");
    assert!(!error.to_string().contains("try again"), "{error}");
    queue.sized(255 << 20, |_| Ok(())).await.unwrap();
    store.close().await.unwrap();
}

#[test]
fn a_write_that_meets_damage_is_not_told_to_try_again() {
    let place = super::errors::Place(std::path::Path::new("a.db").into());
    let code = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
    let error = place.rejected("commit", code(rusqlite::ffi::SQLITE_CORRUPT));
    assert!(matches!(&error, StorageError::Rejected(refused) if matches!(refused.reason, Rejection::Damaged { .. })), "{error:?}");
    assert!(error.to_string().contains("a.db") && !error.to_string().contains("try again"), "{error}");
    let error = place.rejected("commit", code(rusqlite::ffi::SQLITE_IOERR));
    assert!(matches!(&error, StorageError::Rejected(refused) if matches!(refused.reason, Rejection::Unavailable { .. })), "{error:?}");
}
