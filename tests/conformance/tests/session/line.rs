//! The line: order, nesting, cancellation, uncertain failures and the end of a session (scenarios S058-S060, X097, X098).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use futures::FutureExt as _;
use picofleet_conformance::documents::{AS_OF, AS_OF_FAMILY, CURRENT, IN_SESSION, IN_TASK, Note, append_plain, commit, task};
use picofleet_conformance::{Fault, Hold, NOW, World, wait_for};
use picofleet_session::storage::{EntryQuery, Rejection, StorageError};
use picofleet_session::{
    Clock, CloseError, CommitError, ConversationId, ConversationOwnership, EntryDraft, EntryId, Millis, OpenError, ReadError, Session,
    SessionFailed, SessionId, SessionOptions,
};

scenarios! {
    s058_a_commit_in_storage_settles_without_its_caller,
    s059_an_uncertain_failure_that_landed,
    s059_an_uncertain_failure_that_did_not_land,
    s059_an_uncertain_failure_without_a_caller,
    s060_a_rejected_batch_rolls_back,
    x025_a_panicking_listener_ends_the_session,
    x028_waits_that_could_never_end_are_refused,
    x028_a_commit_of_another_session_inside_one,
    x029_commits_are_serial_in_the_order_of_their_calls,
    x029_a_commit_interrupted_anywhere_is_whole_or_absent,
    x029_a_commit_given_up_in_the_queue_or_the_callback,
    x029_a_panicking_callback_rolls_back,
    x097_the_admitted_commit_settles_and_the_queue_is_refused,
    x097_an_open_callback_settles_at_the_seal,
    x097_closing_twice_and_through_clones,
    x097_a_close_that_is_given_up,
    x097_everything_is_refused_after_closing,
    x098_a_failure_while_closing_is_reported,
    x098_a_fenced_owner_ends,
    x099_opening_and_the_time_of_a_commit,
}

async fn add(session: &Session) -> Result<i64, CommitError> {
    commit(session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| {
            note.n += 1;
            note.n
        })
    })
    .await
}

/// Drives a commit until its batch is inside storage.
async fn bring<R>(commit: &mut (impl Future<Output = R> + Unpin), hold: &Hold) {
    while !hold.has_arrived() {
        assert!(futures::poll!(&mut *commit).is_pending(), "it did not wait for storage");
        tokio::task::yield_now().await;
    }
}

async fn n(session: &Session) -> i64 {
    session.snapshot(&IN_SESSION, ()).await.unwrap().map_or(0, |note| note.n)
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
async fn x025_a_panicking_listener_ends_the_session(mut world: World) {
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

async fn x028_waits_that_could_never_end_are_refused(world: World) {
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    let session = &world.session;
    commit(session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        let nested = session.commit(async |_| Ok::<_, CommitError>(())).await;
        assert!(matches!(nested, Err(CommitError::Nested)), "{nested:?}");
        let clone = session.clone();
        assert!(matches!(add(&clone).await, Err(CommitError::Nested)));
        assert!(matches!(session.snapshot(&IN_SESSION, ()).await, Err(ReadError::Nested)));
        assert!(matches!(session.snapshot_in(&AS_OF_FAMILY, root, "k").await, Err(ReadError::Nested)));
        assert!(matches!(session.watch_doc(&IN_SESSION, ()).await.map(|_| ()), Err(ReadError::Nested)));
        assert!(matches!(session.document_state(&IN_SESSION, ()).await.map(|_| ()), Err(ReadError::Nested)));
        assert!(matches!(session.context(root, None).await.map(|_| ()), Err(ReadError::Nested)));
        assert!(matches!(session.close().await, Err(CloseError::Nested)));
        assert!(matches!(session.release().await, Err(CloseError::Nested)));
        // What needs no line is as before.
        assert_eq!(session.conversation(root).await.unwrap().map(|record| record.id), Some(root));
        assert_eq!(session.snapshot_as_of(&AS_OF, root, at).await.unwrap(), None);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(n(session).await, 1, "a refusal broke the outer commit");
}

async fn x028_a_commit_of_another_session_inside_one(world: World) {
    let other = world.another().await;
    let session = &world.session;
    commit(session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        commit(&other, async |inner| {
            inner.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 2)?;
            // The outer line is held in here too.
            assert!(matches!(add(session).await, Err(CommitError::Nested)));
            assert!(matches!(other.snapshot(&IN_SESSION, ()).await, Err(ReadError::Nested)));
            Ok(())
        })
        .await
        .unwrap();
        assert_eq!(other.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 2);
        assert!(matches!(add(session).await, Err(CommitError::Nested)));
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((n(session).await, n(&other).await), (1, 2));
}

async fn x029_commits_are_serial_in_the_order_of_their_calls(mut world: World) {
    let root = world.root();
    let (running, session) = (AtomicUsize::new(0), &world.session);
    let one = async |i: i64| {
        commit(session, async |tx| {
            assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0, "two callbacks at once");
            let doc = tx.doc(&IN_SESSION, ()).await?;
            let before = doc.read()?.n;
            tokio::task::yield_now().await;
            tx.append_entry(root, EntryDraft::new("t.entry").data(i)).await?;
            doc.edit(|note| note.n = before + 1)?;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok(before)
        })
        .await
        .unwrap()
    };
    let seen = futures::future::join_all((0..50).map(one)).await;
    assert_eq!(seen, (0..50).collect::<Vec<_>>());
    world.step().await;
    let entries = world.session.store().scan_entries(EntryQuery::all(root), 100, None).await.unwrap().items;
    let data: Vec<_> = entries.iter().rev().map(|entry| entry.data.as_ref().unwrap().as_i64().unwrap()).collect();
    assert_eq!(data, (0..50).collect::<Vec<_>>());
    assert_eq!(n(&world.session).await, 50);
}

/// A future that is given up after a number of polls: at once, or when it would be polled again.
struct GivenUp<F> {
    future: Pin<Box<F>>,
    polls: usize,
    at_once: bool,
}

impl<F: Future> Future for GivenUp<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.polls == 0 {
            return Poll::Ready(None);
        }
        self.polls -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.at_once && self.polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// One commit that touches everything: documents of every scope, an entry, a fork, a task that ends with its documents.
async fn everything(session: &Session, root: ConversationId, at: EntryId) -> Result<(), CommitError> {
    commit(session, async |tx| {
        let number = tx.doc(&IN_SESSION, ()).await?.edit(|note| {
            note.n += 1;
            note.n
        })?;
        let seed = String::new();
        let (as_of, member) = futures::join!(tx.doc(&AS_OF, root), tx.doc_in(&AS_OF_FAMILY, root, "k", &seed));
        as_of?.edit(|note| note.n += 1)?;
        member?.edit(|note| note.n += 1)?;
        tx.append_entry(root, EntryDraft::new("t.entry").data(number)).await?;
        let child = tx.fork_conversation(root, at, ConversationOwnership::Ownerless).await?.id;
        tx.doc(&CURRENT, child).await?.edit(|note| note.n = number)?;
        let id = tx.create_task_raw(task(root)).await?;
        tx.doc(&IN_TASK, id).await?;
        tx.retire_doc(&IN_TASK, id).await?;
        Ok(())
    })
    .await
}

async fn x029_a_commit_interrupted_anywhere_is_whole_or_absent(mut world: World) {
    let root = world.root();
    commit(&world.session, async |tx| tx.doc(&CURRENT, root).await.map(|_| ())).await.unwrap();
    let at = append_plain(&world.session, root).await.id;
    world.probe.slow(true);
    let (mut done, mut absent) = (0, 0);
    for polls in 1.. {
        let mut completed = true;
        for at_once in [true, false] {
            let interrupted = GivenUp { future: Box::pin(everything(&world.session, root, at)), polls, at_once };
            completed &= interrupted.await.transpose().unwrap().is_some();
            // It may have been admitted before it was given up; then it settles first.
            let now = n(&world.session).await;
            assert!(now == done || now == done + 1, "{now} after {done}");
            absent += i32::from(now == done);
            done = now;
            let as_of = world.session.snapshot(&AS_OF, root).await.unwrap().map_or(0, |note| note.n);
            let member = world.session.snapshot_in(&AS_OF_FAMILY, root, "k").await.unwrap().map_or(0, |note| note.n);
            assert_eq!((as_of, member), (done, done), "a part of the commit at {polls} polls");
        }
        if completed {
            break;
        }
        assert!(polls < 500, "it never completes");
    }
    assert!(absent > 5, "the commit had too few places to be interrupted at: {absent}");
    let entries = world.session.store().scan_entries(EntryQuery::all(root), 1_000, None).await.unwrap().items;
    assert_eq!(i64::try_from(entries.len()).unwrap(), done + 1);
    let forks = world.session.store().scan_conversations(Default::default(), 1_000, None).await.unwrap().items;
    assert_eq!(i64::try_from(forks.len()).unwrap(), done + 1);
    world.reopen().await;
    assert_eq!(n(&world.session).await, done);
    everything(&world.session, root, at).await.unwrap();
    assert_eq!(n(&world.session).await, done + 1);
}

async fn x029_a_commit_given_up_in_the_queue_or_the_callback(world: World) {
    let session = &world.session;
    let mut first = Box::pin(commit(session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 100)?;
        std::future::pending::<()>().await;
        Ok(())
    }));
    assert!(futures::poll!(&mut first).is_pending());
    let mut queued: Vec<_> = (0..4).map(|_| Box::pin(add(session))).collect();
    let mut read = Box::pin(session.snapshot(&IN_SESSION, ()));
    for commit in &mut queued {
        assert!(futures::poll!(commit).is_pending());
    }
    assert!(futures::poll!(&mut read).is_pending());
    // One in the middle of the queue, and the one that holds the line.
    drop(queued.remove(1));
    drop(first);
    let order = futures::future::join_all(queued).await;
    let order: Vec<_> = order.into_iter().map(Result::unwrap).collect();
    assert_eq!(order, [1, 2, 3]);
    assert_eq!(read.await.unwrap().unwrap().n, 3);
    assert_eq!(add(session).await.unwrap(), 4);
}

async fn x029_a_panicking_callback_rolls_back(mut world: World) {
    add(&world.session).await.unwrap();
    world.step().await;
    let session = &world.session;
    let root = world.root();
    let panicked = AssertUnwindSafe(commit(session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 100)?;
        tx.append_entry(root, EntryDraft::new("t.entry")).await?;
        panic!("on purpose");
        #[expect(unreachable_code, reason = "the type of the callback")]
        Ok(())
    }))
    .catch_unwind()
    .await;
    assert!(panicked.is_err());
    assert_eq!(n(session).await, 1);
    assert_eq!(add(session).await.unwrap(), 2);
    assert_eq!(session.store().scan_entries(EntryQuery::all(root), 9, None).await.unwrap().items, []);
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

async fn x097_an_open_callback_settles_at_the_seal(mut world: World) {
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

async fn x097_closing_twice_and_through_clones(mut world: World) {
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

async fn x097_a_close_that_is_given_up(mut world: World) {
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

async fn x097_everything_is_refused_after_closing(world: World) {
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

async fn x098_a_failure_while_closing_is_reported(mut world: World) {
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

async fn x098_a_fenced_owner_ends(mut world: World) {
    let reports = reports(&mut world);
    world.reopen().await;
    add(&world.session).await.unwrap();
    let old = world.session.clone();
    let mut watch = old.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    world.on_report(Arc::new(|_| panic!("the winner failed")));
    world.open().await;
    assert_eq!(add(&world.session).await.unwrap(), 2);
    let Err(CommitError::Failed(failed)) = add(&old).await else { panic!() };
    assert!(failed.cause.to_string().contains("another owner"), "{}", failed.cause);
    assert!(matches!(add(&old).await, Err(CommitError::Failed(_))));
    assert!(watch.next().await.is_none());
    assert_eq!(reports.lock().unwrap().len(), 1);
    old.close().await.unwrap();
    // Nothing of the winner is lost.
    assert_eq!(add(&world.session).await.unwrap(), 3);
}

async fn x099_opening_and_the_time_of_a_commit(mut world: World) {
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
