//! How a session ends for whoever works with it at that moment: reads, listeners, closers that give up, and the log.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use picofleet_conformance::documents::{AS_OF, IN_SESSION, add, append_plain, commit, n};
use picofleet_conformance::{Fault, Logs, NOW, World};
use picofleet_session::storage::{Fence, SessionCreate, StorageError, Store};
use picofleet_session::{CommitError, Epoch, ReadError, Session, SessionOptions};
use picofleet_storage::memory::MemoryStore;
use tracing::Level;

scenarios! {
    reads_that_meet_a_close_say_so,
    reads_that_meet_a_release_say_so,
    a_read_of_a_closed_store_says_so,
    a_panicking_close_listener_changes_nothing,
    a_panicking_report_changes_nothing,
    watches_have_ended_when_close_listeners_are_called,
    a_failure_and_a_lost_line_call_close_listeners_once,
    an_end_that_is_given_up_clears_the_count_of_opens,
    a_later_closer_waits_for_the_end,
    orderly_ends_without_a_commit_quarantine_nothing,
    a_failure_is_logged_with_its_causes,
    a_lost_line_is_a_warning,
    one_id_in_two_stores_is_two_sessions,
}

/// The reads of a session at once: those that hold the line and those that don't.
async fn reads(session: &Session, at: picofleet_session::EntryId) -> Vec<(&'static str, Result<(), ReadError>)> {
    let root = picofleet_session::ROOT_CONVERSATION_ID;
    let (conversation, as_of, context, snapshot, watch) = futures::join!(
        session.conversation(root),
        session.snapshot_as_of(&AS_OF, root, at),
        session.context(root, None),
        session.snapshot(&IN_SESSION, ()),
        session.watch_doc(&IN_SESSION, ()),
    );
    vec![
        ("conversation", conversation.map(drop)),
        ("snapshot_as_of", as_of.map(drop)),
        ("context", context.map(drop)),
        ("snapshot", snapshot.map(drop)),
        ("watch_doc", watch.map(drop)),
    ]
}

/// Ends the session after each number of steps of its reads.
async fn reads_that_meet(world: &mut World, end: impl AsyncFn(&Session), ended: fn(&ReadError) -> bool) {
    let root = world.root();
    add(&world.session).await.unwrap();
    commit(&world.session, async |tx| tx.doc(&AS_OF, root).await.map(drop)).await.unwrap();
    let at = append_plain(&world.session, root).await.id;
    let mut met = 0;
    for polls in 0..10 {
        world.session.close().await.unwrap();
        world.open().await;
        world.probe.slow(true);
        let session = world.session.clone();
        let mut reading = Box::pin(reads(&session, at));
        for _ in 0..polls {
            if let std::task::Poll::Ready(read) = futures::poll!(&mut reading) {
                assert!(read.iter().all(|(_, read)| read.is_ok()), "{read:?}");
                reading = Box::pin(reads(&session, at));
            }
        }
        let (read, ()) = futures::join!(reading, end(&session));
        for (what, read) in read {
            if let Err(error) = read {
                assert!(ended(&error), "{what} after {polls} polls: {error:?}");
                met += 1;
            }
        }
    }
    assert!(met > 5, "too few reads met the end: {met}");
    world.open().await;
}

async fn reads_that_meet_a_close_say_so(mut world: World) {
    let close = async |session: &Session| session.close().await.unwrap();
    reads_that_meet(&mut world, close, |error| matches!(error, ReadError::Closed)).await;
}

async fn reads_that_meet_a_release_say_so(mut world: World) {
    let release = async |session: &Session| session.release().await.unwrap();
    reads_that_meet(&mut world, release, |error| matches!(error, ReadError::NotOwner)).await;
}

/// The session itself goes on, so that what storage says is the answer.
async fn a_read_of_a_closed_store_says_so(world: World) {
    add(&world.session).await.unwrap();
    world.session.store().release().await.unwrap();
    let read = world.session.conversation(world.root()).await;
    assert!(matches!(read, Err(ReadError::Storage(StorageError::Closed))), "{read:?}");
}

async fn a_panicking_close_listener_changes_nothing(mut world: World) {
    add(&world.session).await.unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let listener = |panics: bool| {
        let calls = Arc::clone(&calls);
        move || {
            calls.fetch_add(1, Ordering::SeqCst);
            assert!(!panics, "on purpose");
        }
    };
    let subscriptions = [world.session.subscribe_close(listener(true)), world.session.subscribe_close(listener(false))];
    let mut watch = world.session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    world.session.close().await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2, "one that panicked kept the end from another");
    assert!(watch.next().await.is_none());
    assert_eq!(watch.end().unwrap().reason(), "session_closed");
    assert!(matches!(world.session.store().head().await, Err(StorageError::Closed)), "the line is still open");
    drop(subscriptions);
    world.open().await;
    assert_eq!(n(&world.session).await, 1);
}

async fn a_panicking_report_changes_nothing(mut world: World) {
    let told = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&told);
    world.on_report(Arc::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    }));
    world.reopen().await;
    add(&world.session).await.unwrap();
    let watch = world.session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    world.probe.fault(Fault::LostAfter);
    let Err(CommitError::Failed(failed)) = add(&world.session).await else { panic!() };
    assert!(matches!(&*failed.cause, StorageError::Uncertain { .. }), "{failed:?}");
    assert_eq!((told.load(Ordering::SeqCst), watch.end().unwrap().reason()), (1, "failed"));
}

async fn watches_have_ended_when_close_listeners_are_called(world: World) {
    add(&world.session).await.unwrap();
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    let seen = Arc::new(Mutex::new(None));
    let sink = Arc::clone(&seen);
    let _subscription = world.session.subscribe_close(move || *sink.lock().unwrap() = state.end().map(|end| end.reason()));
    world.session.close().await.unwrap();
    assert_eq!(*seen.lock().unwrap(), Some("session_closed"));
}

/// Whoever waits looks again: nothing else would wake it.
async fn a_failure_and_a_lost_line_call_close_listeners_once(mut world: World) {
    for lost in [false, true] {
        add(&world.session).await.unwrap();
        let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&seen);
        let subscription = world.session.subscribe_close(move || sink.lock().unwrap().push(state.end().map(|end| end.reason())));
        if lost {
            world.store().open(world.session.id(), Fence { epoch: Epoch(0), at: NOW }).await.unwrap();
            assert!(matches!(add(&world.session).await, Err(CommitError::NotOwner)));
        } else {
            world.probe.fault(Fault::LostAfter);
            assert!(matches!(add(&world.session).await, Err(CommitError::Failed(_))));
        }
        let _ = world.session.close().await;
        assert_eq!(*seen.lock().unwrap(), [Some(if lost { "takeover" } else { "failed" })]);
        drop(subscription);
        world.open().await;
    }
}

/// Opens the session as its only owner does, with every opening counted.
async fn counted(world: &World) -> Session {
    let line = world.store().open(world.session.id(), Fence { epoch: Epoch(0), at: NOW }).await.unwrap();
    Session::over(world.probe.before(line), SessionOptions::default())
}

/// Begins to wait for `future` and gives up.
async fn give_up<R>(future: impl Future<Output = R>) {
    let mut future = Box::pin(future);
    assert!(futures::poll!(&mut future).is_pending());
}

async fn an_end_that_is_given_up_clears_the_count_of_opens(world: World) {
    add(&world.session).await.unwrap();
    for _ in 0..8 {
        let session = counted(&world).await;
        // Something to wait for: with the line free an end might be over at the first poll.
        let hold = world.probe.hold();
        let held = if session.store().opened().opens >= 2 {
            Some(hold)
        } else {
            drop(hold);
            world.probe.forget_plans();
            None
        };
        give_up(session.close()).await;
        if let Some(hold) = held {
            hold.arrived().await;
            give_up(session.close()).await;
            hold.release();
        }
        session.close().await.unwrap();
        assert!(matches!(session.store().head().await, Err(StorageError::Closed)), "the line is still open");
    }
    let session = counted(&world).await;
    assert_eq!(add(&session).await.unwrap(), 2);
}

async fn a_later_closer_waits_for_the_end(world: World) {
    add(&world.session).await.unwrap();
    drop(counted(&world).await);
    let session = counted(&world).await;
    let hold = world.probe.hold();
    let mut first = Box::pin(session.close());
    assert!(futures::poll!(&mut first).is_pending());
    hold.arrived().await;
    let mut later = Box::pin(session.release());
    for _ in 0..100 {
        assert!(futures::poll!(&mut later).is_pending(), "it did not wait for the end that had begun");
        tokio::task::yield_now().await;
    }
    drop(first);
    hold.release();
    later.await.unwrap();
    // The first one says how it ended.
    assert!(matches!(add(&session).await, Err(CommitError::Closed)));
    assert!(matches!(session.store().head().await, Err(StorageError::Closed)), "the line is still open");
    assert_eq!(counted(&world).await.store().opened().opens, 1, "the count was not cleared");
}

async fn orderly_ends_without_a_commit_quarantine_nothing(world: World) {
    add(&world.session).await.unwrap();
    for i in 0..8 {
        let session = counted(&world).await;
        if i % 2 == 0 { session.close().await.unwrap() } else { session.release().await.unwrap() }
    }
    add(&counted(&world).await).await.unwrap();
    // Openings whose owners neither commit nor end in order are counted.
    let opened = [counted(&world).await, counted(&world).await, counted(&world).await];
    let fourth = Session::open(&**world.store(), world.session.id(), SessionOptions::default()).await;
    assert!(fourth.is_err_and(|error| error.to_string() == "open session"));
    drop(opened);
}

async fn a_failure_is_logged_with_its_causes(mut world: World) {
    world.reopen().await;
    let logs = Logs::listen();
    world.probe.fault(Fault::LostAfter);
    let Err(CommitError::Failed(failed)) = add(&world.session).await else { panic!() };
    let mut error: Option<&dyn std::error::Error> = Some(&*failed.cause);
    let mut causes = 0;
    let lines = logs.lines();
    let [(Level::ERROR, line)] = &lines[..] else { panic!("{lines:?}") };
    while let Some(cause) = error {
        assert!(line.contains(&cause.to_string()), "{line} has no {cause}");
        (error, causes) = (cause.source(), causes + 1);
    }
    assert!(causes > 1);
    assert!(line.contains(&world.session.id().to_string()));
}

async fn a_lost_line_is_a_warning(mut world: World) {
    add(&world.session).await.unwrap();
    let old = world.session.clone();
    world.open().await;
    let logs = Logs::listen();
    assert!(add(&old).await.is_err());
    assert!(add(&old).await.is_err());
    let lines = logs.lines();
    assert!(matches!(&lines[..], [(Level::WARN, line)] if line.contains("another owner")), "{lines:?}");
}

async fn one_id_in_two_stores_is_two_sessions(world: World) {
    let store = MemoryStore::new();
    let create = SessionCreate { id: world.session.id(), ..SessionCreate::new(NOW) };
    store.create(create).await.unwrap();
    let other = Session::open(&store, world.session.id(), SessionOptions::default()).await.unwrap();
    commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        assert_eq!(add(&other).await.unwrap(), 1);
        assert_eq!(other.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 1);
        assert!(matches!(add(&world.session).await, Err(CommitError::Nested)));
        Ok(())
    })
    .await
    .unwrap();
    other.close().await.unwrap();
    assert_eq!(n(&world.session).await, 1);
}
