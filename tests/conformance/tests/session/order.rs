//! The order of commits, what may not wait for what, and commits that are interrupted or can't read.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::FutureExt as _;
use picofleet_conformance::World;
use picofleet_conformance::documents::{
    AS_OF, AS_OF_FAMILY, CURRENT, IN_SESSION, IN_TASK, add, append_plain, child, commit, completed, n, put_state, task, task_record,
};
use picofleet_session::storage::EntryQuery;
use picofleet_session::{
    CloseError, CommitError, ConversationId, ConversationOwnership, EntryDraft, EntryId, ReadError, Session, TaskId, TaskState, TxError,
};

scenarios! {
    line_waits_that_could_never_end_are_refused,
    line_a_commit_of_another_session_inside_one,
    line_commits_are_serial_in_the_order_of_their_calls,
    line_a_commit_interrupted_anywhere_is_whole_or_absent,
    line_a_commit_given_up_in_the_queue_or_the_callback,
    line_a_panicking_callback_rolls_back,
    line_a_failed_read_fails_its_commit_alone,
    line_a_failed_read_of_the_session,
}

async fn line_waits_that_could_never_end_are_refused(world: World) {
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

async fn line_a_commit_of_another_session_inside_one(world: World) {
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

async fn line_commits_are_serial_in_the_order_of_their_calls(mut world: World) {
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

async fn line_a_commit_interrupted_anywhere_is_whole_or_absent(mut world: World) {
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

async fn line_a_commit_given_up_in_the_queue_or_the_callback(world: World) {
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

async fn line_a_panicking_callback_rolls_back(mut world: World) {
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

/// One commit that reads as much as a commit can: what it opens, what it forks, whom it owns by, what it ends.
async fn reading(session: &Session, root: ConversationId, at: EntryId, [ends, owner]: [TaskId; 2]) -> Result<TaskId, CommitError> {
    commit(session, async |tx| {
        let record = tx.task(ends).await?.unwrap();
        tx.latest_head_marker(root).await?;
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n += 1)?;
        tx.doc(&AS_OF, root).await?.edit(|note| note.n += 1)?;
        tx.retire_doc(&CURRENT, root).await?;
        tx.append_entry(root, EntryDraft::new("t.entry")).await?;
        tx.fork_conversation(root, at, ConversationOwnership::Task { task_id: owner }).await.map(|_| ())?;
        put_state(tx, &record, TaskState::Terminal { outcome: completed() }).await?;
        tx.create_task_raw(child(owner)).await
    })
    .await
}

async fn line_a_failed_read_fails_its_commit_alone(mut world: World) {
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    add(&world.session).await.unwrap();
    let tasks = commit(&world.session, async |tx| {
        let [ends, owner] = [tx.create_task_raw(task(root)).await?, tx.create_task_raw(task(root)).await?];
        tx.doc(&IN_TASK, ends).await?;
        Ok([ends, owner])
    })
    .await
    .unwrap();
    let mut failures = 0;
    let created = loop {
        // Nothing is in memory, so that everything is read.
        world.reopen().await;
        world.probe.fail_read(failures);
        let head = world.session.store().opened();
        match reading(&world.session, root, at, tasks).await {
            Ok(created) => break created,
            Err(error) => assert!(matches!(error, CommitError::Tx(TxError::Read(_))), "{error:?}"),
        }
        assert_eq!(world.session.store().head().await.unwrap(), head);
        assert_eq!(n(&world.session).await, 1, "a part of the commit after {failures} reads");
        assert!(world.session.snapshot(&IN_TASK, tasks[0]).await.unwrap().is_some());
        failures += 1;
        assert!(failures < 200);
    };
    world.probe.fail_read(usize::MAX);
    assert!(failures > 8, "the commit read too little: {failures}");
    assert_eq!(task_record(&world.session, created).await.unwrap().owner, Some(tasks[1]));
    assert_eq!((n(&world.session).await, world.session.snapshot(&IN_TASK, tasks[0]).await.unwrap()), (2, None));
}

async fn line_a_failed_read_of_the_session(mut world: World) {
    add(&world.session).await.unwrap();
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    for failing in 0..2 {
        world.reopen().await;
        let session = &world.session;
        world.probe.fail_read(failing);
        assert!(matches!(session.snapshot(&IN_SESSION, ()).await, Err(ReadError::Storage(_))));
        world.probe.fail_read(failing);
        assert!(matches!(session.watch_doc(&IN_SESSION, ()).await.map(|_| ()), Err(ReadError::Storage(_))));
        world.probe.fail_read(failing);
        assert!(matches!(session.snapshot_as_of(&AS_OF, root, at).await, Err(ReadError::Storage(_))));
        world.probe.fail_read(failing);
        assert!(matches!(session.context(root, None).await, Err(ReadError::Storage(_))));
        assert_eq!(n(session).await, 1);
    }
}
