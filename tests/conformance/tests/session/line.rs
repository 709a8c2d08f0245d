//! What storage does to a commit, and the end of a session (scenarios S058-S060, S200, X097, and X098 with S059).

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use picofleet_conformance::documents::{AS_OF, AS_OF_FAMILY, IN_SESSION, Note, add, append_plain, commit, n};
use picofleet_conformance::{Fault, Hold, NOW, World, wait_for};
use picofleet_session::storage::{EntryQuery, Fence, Rejection, StorageError};
use picofleet_session::{
    Clock, CloseError, CommitError, ConversationOwnership, EntryDraft, Epoch, Millis, OpenError, ReadError, Session, SessionFailed,
    SessionId, SessionOptions,
};

scenarios! {
    s058_a_commit_in_storage_settles_without_its_caller,
    s059_an_uncertain_failure_that_landed,
    s059_an_uncertain_failure_that_did_not_land,
    s059_an_uncertain_failure_without_a_caller,
    s060_a_rejected_batch_rolls_back,
    a_panicking_listener_ends_the_session,
    x097_the_admitted_commit_settles_and_the_queue_is_refused,
    an_open_callback_settles_at_the_seal,
    closing_twice_and_through_clones,
    a_close_that_is_given_up,
    everything_is_refused_after_closing,
    a_failure_while_closing_is_reported,
    s200_a_fenced_owner_ends,
    opening_and_the_time_of_a_commit,
    an_end_that_cannot_clear_the_count_gives_the_line_back,
}

/// Drives a commit until its batch is inside storage.
async fn bring<R>(commit: &mut (impl Future<Output = R> + Unpin), hold: &Hold) {
    while !hold.has_arrived() {
        assert!(futures::poll!(&mut *commit).is_pending(), "it did not wait for storage");
        tokio::task::yield_now().await;
    }
}

async fn s058_a_commit_in_storage_settles_without_its_caller(mut world: World) {
    add(&world.session).await.unwrap();
    world.step().await;
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    let hold = world.probe.hold();
    let session = world.session.clone();
    let mut caller = Box::pin(add(&session));
    bring(&mut caller, &hold).await;
    drop(caller);
    // Whoever comes now waits for the line and meets the settled state.
    let (seen, next, ()) = futures::join!(n(&world.session), add(&world.session), async { hold.release() });
    assert_eq!((seen, next.unwrap()), (2, 3));
    assert_eq!(state.read().unwrap().unwrap().n, 3);
    world.step().await;
    assert_eq!(n(&world.session).await, 3);
}

/// Counts reports.
fn reports(world: &mut World) -> Arc<Mutex<Vec<String>>> {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    world.on_report(Arc::new(move |failed: &SessionFailed| sink.lock().unwrap().push(failed.cause.to_string())));
    reports
}

async fn uncertain(mut world: World, fault: Fault, expected: i64) {
    let reports = reports(&mut world);
    world.reopen().await;
    add(&world.session).await.unwrap();
    let root = world.root();
    let before = append_plain(&world.session, root).await.id;
    let mut watch = world.session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    let published = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&published);
    let _subscription = world.session.subscribe_commits(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });

    let hold = world.probe.hold();
    let failing = commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n += 1)?;
        tx.append_entry(root, EntryDraft::new("t.entry")).await
    });
    let queued = futures::future::join(add(&world.session), world.session.snapshot(&IN_SESSION, ()));
    let fail = async {
        hold.arrived().await;
        hold.fail(fault);
    };
    let (failed, (queued_commit, queued_read), ()) = futures::join!(failing, queued, fail);
    let Err(CommitError::Failed(failed)) = failed else { panic!("{failed:?}") };
    assert!(failed.cause.to_string().contains("can't be told"), "{}", failed.cause);
    assert!(matches!(queued_commit, Err(CommitError::Failed(_))), "{queued_commit:?}");
    assert!(matches!(queued_read, Err(ReadError::Failed(_))), "{queued_read:?}");
    // Everything after it too, with the same cause.
    let Err(CommitError::Failed(later)) = add(&world.session).await else { panic!() };
    assert!(Arc::ptr_eq(&failed.cause, &later.cause));
    assert!(matches!(world.session.watch_doc(&IN_SESSION, ()).await.map(|watch| watch.is_some()), Err(ReadError::Failed(_))));
    assert!(matches!(world.session.snapshot_as_of(&AS_OF, root, before).await, Err(ReadError::Failed(_))));
    assert!(matches!(world.session.context(root, None).await, Err(ReadError::Failed(_))));
    assert!(matches!(world.session.conversation(root).await, Err(ReadError::Failed(_))));
    assert_eq!(published.load(Ordering::SeqCst), 0);
    assert!(watch.next().await.is_none());
    assert_eq!(watch.end().unwrap().reason(), "failed");
    assert_eq!((state.read().unwrap().unwrap().n, state.end().unwrap().reason()), (1, "failed"));
    assert_eq!(reports.lock().unwrap().len(), 1, "{reports:?}");

    world.reopen().await;
    assert_eq!(n(&world.session).await, expected);
    let entries = world.session.store().scan_entries(EntryQuery::all(root), 10, None).await.unwrap().items;
    assert_eq!(entries.len(), usize::try_from(expected).unwrap(), "a part of the commit is there");
    let new = append_plain(&world.session, root).await.id;
    assert!(entries.iter().all(|entry| entry.id < new), "an id was used again");
    assert_eq!(add(&world.session).await.unwrap(), expected + 1);
    assert_eq!(reports.lock().unwrap().len(), 1);
}

async fn s059_an_uncertain_failure_that_landed(world: World) {
    uncertain(world, Fault::LostAfter, 2).await;
}

async fn s059_an_uncertain_failure_that_did_not_land(world: World) {
    uncertain(world, Fault::LostBefore, 1).await;
}

async fn s059_an_uncertain_failure_without_a_caller(mut world: World) {
    let reports = reports(&mut world);
    world.reopen().await;
    add(&world.session).await.unwrap();
    let hold = world.probe.hold();
    let session = world.session.clone();
    let mut caller = Box::pin(add(&session));
    bring(&mut caller, &hold).await;
    drop(caller);
    hold.fail(Fault::LostAfter);
    assert!(matches!(add(&world.session).await, Err(CommitError::Failed(_))));
    assert_eq!(reports.lock().unwrap().len(), 1);
    world.reopen().await;
    assert_eq!(n(&world.session).await, 2);
}

async fn s060_a_rejected_batch_rolls_back(mut world: World) {
    let reports = reports(&mut world);
    world.reopen().await;
    add(&world.session).await.unwrap();
    let root = world.root();
    let mut watch = world.session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    let head = world.session.store().head().await.unwrap();
    world.probe.fault(Fault::Rejected(Rejection::Overloaded));
    let rejected = commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 100)?;
        tx.doc(&AS_OF, root).await?;
        let conversation = tx.create_conversation(ConversationOwnership::Ownerless).await?;
        tx.append_entry(conversation.id, EntryDraft::new("t.entry")).await
    })
    .await;
    assert!(matches!(&rejected, Err(CommitError::Rejected(why)) if why.reason == Rejection::Overloaded), "{rejected:?}");
    assert_eq!(world.session.store().head().await.unwrap(), head);
    assert_eq!(n(&world.session).await, 1);
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None);
    assert_eq!(add(&world.session).await.unwrap(), 2);
    assert_eq!(watch.next().await.unwrap().read().unwrap().unwrap().n, 2, "a frame of what was refused");
    world.step().await;
    assert_eq!(n(&world.session).await, 2);
    assert_eq!(reports.lock().unwrap().len(), 0);
}

/// It is not allowed; what follows must be clear all the same: frames may be missing, so nobody goes on.
async fn a_panicking_listener_ends_the_session(mut world: World) {
    for with_caller in [true, false] {
        let before = n(&world.session).await;
        let reports = reports(&mut world);
        world.reopen().await;
        let subscription = world.session.subscribe_commits(|_| panic!("on purpose"));
        let session = world.session.clone();
        if with_caller {
            let failed = add(&session).await;
            assert!(matches!(failed, Err(CommitError::Failed(_))), "{failed:?}");
        } else {
            let hold = world.probe.hold();
            let mut caller = Box::pin(add(&session));
            bring(&mut caller, &hold).await;
            drop(caller);
            hold.release();
        }
        wait_for("the report", || reports.lock().unwrap().len() == 1).await;
        drop(subscription);
        assert!(matches!(add(&world.session).await, Err(CommitError::Failed(_))));
        world.reopen().await;
        assert_eq!(n(&world.session).await, before + 1);
    }
}

async fn x097_the_admitted_commit_settles_and_the_queue_is_refused(mut world: World) {
    add(&world.session).await.unwrap();
    let hold = world.probe.hold();
    let session = world.session.clone();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let subscription = world.session.subscribe_close(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let closing = async {
        hold.arrived().await;
        let mut close = Box::pin(session.close());
        assert!(futures::poll!(&mut close).is_pending(), "it did not wait for the commit");
        assert_eq!(begun.load(Ordering::SeqCst), 1, "the listeners were not called at once");
        // Sealed: what comes now is refused at once, although the line is held.
        assert!(matches!(add(&session).await, Err(CommitError::Closed)));
        hold.release();
        close.await.unwrap();
    };
    let (admitted, queued, ()) = futures::join!(add(&world.session), add(&world.session), closing);
    assert_eq!(admitted.unwrap(), 2);
    assert!(matches!(queued, Err(CommitError::Closed)), "{queued:?}");
    drop(subscription);
    world.open().await;
    assert_eq!(n(&world.session).await, 2);
}

async fn an_open_callback_settles_at_the_seal(mut world: World) {
    let session = world.session.clone();
    let inside = tokio::sync::Notify::new();
    let go = tokio::sync::Notify::new();
    let committing = commit(&session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        inside.notify_one();
        go.notified().await;
        tx.doc(&AS_OF, world.root()).await?.edit(|note| note.n = 1)
    });
    let closing = async {
        inside.notified().await;
        let mut release = Box::pin(session.release());
        assert!(futures::poll!(&mut release).is_pending());
        go.notify_one();
        release.await.unwrap();
    };
    let (committed, ()) = futures::join!(committing, closing);
    committed.unwrap();
    world.open().await;
    assert_eq!(n(&world.session).await, 1);
    assert_eq!(world.session.snapshot(&AS_OF, world.root()).await.unwrap(), Some(Note { n: 1, ..Note::new("initial") }));
}

async fn closing_twice_and_through_clones(mut world: World) {
    add(&world.session).await.unwrap();
    let clone = world.session.clone();
    let begun = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&begun);
    let _subscription = clone.subscribe_close(move || {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let (first, second, third) = futures::join!(clone.close(), world.session.close(), world.session.release());
    first.unwrap();
    second.unwrap();
    third.unwrap();
    clone.close().await.unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    // The first one says how it ended.
    assert!(matches!(add(&clone).await, Err(CommitError::Closed)));
    world.open().await;
    assert!(matches!(add(&clone).await, Err(CommitError::Closed)), "another opening opened the old handle");
    assert_eq!(add(&world.session).await.unwrap(), 2);
}

async fn a_close_that_is_given_up(mut world: World) {
    let hold = world.probe.hold();
    let session = world.session.clone();
    let mut caller = Box::pin(add(&session));
    bring(&mut caller, &hold).await;
    let mut close = Box::pin(session.close());
    assert!(futures::poll!(&mut close).is_pending());
    drop(close);
    assert!(matches!(add(&session).await, Err(CommitError::Closed)), "giving the wait up opened admission again");
    hold.release();
    assert_eq!(caller.await.unwrap(), 1);
    session.close().await.unwrap();
    world.open().await;
    assert_eq!(n(&world.session).await, 1);
}

async fn everything_is_refused_after_closing(world: World) {
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    let session = &world.session;
    session.close().await.unwrap();
    assert!(matches!(add(session).await, Err(CommitError::Closed)));
    assert!(matches!(session.snapshot(&IN_SESSION, ()).await, Err(ReadError::Closed)));
    assert!(matches!(session.snapshot_in(&AS_OF_FAMILY, root, "k").await, Err(ReadError::Closed)));
    assert!(matches!(session.snapshot_as_of(&AS_OF, root, at).await, Err(ReadError::Closed)));
    assert!(matches!(session.watch_doc(&IN_SESSION, ()).await.map(|_| ()), Err(ReadError::Closed)));
    assert!(matches!(session.document_state(&IN_SESSION, ()).await.map(|_| ()), Err(ReadError::Closed)));
    assert!(matches!(session.context(root, None).await, Err(ReadError::Closed)));
    assert!(matches!(session.conversation(root).await, Err(ReadError::Closed)));
}

async fn a_failure_while_closing_is_reported(mut world: World) {
    let reports = reports(&mut world);
    world.reopen().await;
    let hold = world.probe.hold();
    let session = world.session.clone();
    let closing = async {
        hold.arrived().await;
        let mut close = Box::pin(session.close());
        assert!(futures::poll!(&mut close).is_pending());
        hold.fail(Fault::LostAfter);
        close.await.unwrap();
    };
    let (failed, ()) = futures::join!(add(&world.session), closing);
    assert!(matches!(failed, Err(CommitError::Failed(_))), "{failed:?}");
    assert_eq!(reports.lock().unwrap().len(), 1, "nobody was told");
    assert!(matches!(add(&session).await, Err(CommitError::Closed)));
    world.open().await;
    assert_eq!(n(&world.session).await, 1);
}

async fn s200_a_fenced_owner_ends(mut world: World) {
    let reports = reports(&mut world);
    world.reopen().await;
    add(&world.session).await.unwrap();
    let old = world.session.clone();
    let mut watch = old.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    world.on_report(Arc::new(|_| panic!("the winner failed")));
    world.open().await;
    assert_eq!(add(&world.session).await.unwrap(), 2);
    let (fenced, queued, read) = futures::join!(add(&old), add(&old), old.snapshot(&IN_SESSION, ()));
    assert!(matches!(fenced, Err(CommitError::NotOwner)), "{fenced:?}");
    assert!(matches!(queued, Err(CommitError::NotOwner)), "{queued:?}");
    assert!(matches!(read, Err(ReadError::NotOwner)), "{read:?}");
    assert!(matches!(add(&old).await, Err(CommitError::NotOwner)));
    assert!(matches!(old.conversation(world.root()).await, Err(ReadError::NotOwner)));
    assert!(watch.next().await.is_none());
    assert_eq!(watch.end().unwrap().reason(), "takeover");
    let told = std::mem::take(&mut *reports.lock().unwrap());
    assert!(matches!(&told[..], [cause] if cause.contains("another owner")), "{told:?}");
    old.close().await.unwrap();
    assert!(matches!(add(&old).await, Err(CommitError::NotOwner)));
    assert_eq!(reports.lock().unwrap().len(), 0);
    // Nothing of the winner is lost.
    assert_eq!(add(&world.session).await.unwrap(), 3);
}

async fn opening_and_the_time_of_a_commit(mut world: World) {
    let later = Millis(NOW.0 + 5_000);
    let now = commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?;
        world.clock.set(later);
        Ok(tx.now())
    })
    .await
    .unwrap();
    assert_eq!(now, NOW, "a transaction has the time of its beginning");
    assert_eq!(world.session.store().head().await.unwrap().at, NOW);
    add(&world.session).await.unwrap();
    assert_eq!(world.session.store().head().await.unwrap().at, later);
    world.step().await;

    let options = SessionOptions { clock: Clock::manual(later), ..SessionOptions::default() };
    let absent = Session::open(&**world.store(), SessionId::random(), options.clone()).await;
    assert!(matches!(absent.map(|_| ()), Err(OpenError::Storage(StorageError::NotFound { .. }))));
    let session = Session::open(&**world.store(), world.session.id(), options).await.unwrap();
    assert_eq!((session.clock().now(), n(&session).await), (later, 1));
    assert_eq!(add(&session).await.unwrap(), 2);
    session.close().await.unwrap();
    world.open().await;
    assert_eq!(n(&world.session).await, 2);
}

async fn an_end_that_cannot_clear_the_count_gives_the_line_back(mut world: World) {
    // A second opening without a commit in between, so that the end has something to write.
    let line = world.store().open(world.session.id(), Fence { epoch: Epoch(0), at: NOW }).await.unwrap();
    drop(line);
    let line = world.store().open(world.session.id(), Fence { epoch: Epoch(0), at: NOW }).await.unwrap();
    let session = Session::over(world.probe.before(line), SessionOptions::default());
    world.probe.fault(Fault::Rejected(Rejection::Overloaded));
    let closed = session.close().await;
    assert!(matches!(closed, Err(CloseError::Storage(StorageError::Rejected(_)))), "{closed:?}");
    assert!(matches!(session.store().head().await, Err(StorageError::Closed)), "the line is still open");
    assert!(matches!(add(&session).await, Err(CommitError::Closed)));
    // There is one end, and whoever asks for it again hears how it went.
    assert!(matches!(session.close().await, Err(CloseError::Storage(StorageError::Rejected(_)))));
    world.open().await;
    assert_eq!(add(&world.session).await.unwrap(), 1);
}
