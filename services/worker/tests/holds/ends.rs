//! Closures that come to nothing.

use std::sync::Arc;
use std::time::Duration;

use picofleet_harness::effects::{Fault, HoldError};
use picofleet_harness::task::NextState;
use picofleet_harness::wire::{Answer, HostCall, Request, WorkerId};
use picofleet_session::storage::EntryQuery;
use picofleet_session::{CommitError, EntryDraft, InvocationId, TaskState, TxError};

use crate::world::{LONG, NOTE, Oops, ROOT, World, worlds};

/// The line takes commits, and what the closure wrote is not there.
async fn untouched(world: &World, before: i64) {
    world
        .line
        .session()
        .commit(async |tx| {
            tx.append_entry(ROOT, EntryDraft::new("line")).await?;
            Ok::<_, CommitError>(())
        })
        .await
        .unwrap();
    assert_eq!(world.seq().await, before + 1, "{}", world.name);
    assert_eq!(world.kinds(ROOT).await, ["first", "line"], "{}", world.name);
    assert_eq!(world.note().await.text, "old");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_not_read_behind_a_write() {
    for world in worlds(LONG).await {
        let before = world.seq().await;
        let result = world
            .invocation
            .commit(async |tx, _| {
                tx.append_entry(ROOT, EntryDraft::new("a")).await?;
                let error = tx.scan_entries(EntryQuery::all(ROOT), 1, None).await.unwrap_err();
                Err::<((), NextState), Oops>(error.into())
            })
            .await;
        assert!(matches!(result, Err(Oops::Tx(TxError::ReadAfterWrite))), "{result:?}");
        untouched(&world, before).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_writes_nothing_and_the_invocation_goes_on() {
    for world in worlds(LONG).await {
        let before = world.seq().await;
        let result = world
            .invocation
            .commit(async |tx, _| {
                tx.append_entry(ROOT, EntryDraft::new("a")).await?;
                tx.doc(&NOTE, ROOT).await?.draft.key("text").set("b")?;
                Err::<((), NextState), _>(Oops::Said)
            })
            .await;
        assert!(matches!(result, Err(Oops::Said)), "{result:?}");
        untouched(&world, before).await;
        world.invocation.commit(async |_, _| Ok::<_, Oops>(((), NextState::Stay))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_closure_gives_the_line_back() {
    for world in worlds(LONG).await {
        let before = world.seq().await;
        let begun = tokio::sync::Notify::new();
        let commit = world.invocation.commit(async |tx, _| {
            tx.append_entry(ROOT, EntryDraft::new("a")).await?;
            begun.notify_one();
            std::future::pending::<()>().await;
            Ok::<_, Oops>(((), NextState::Stay))
        });
        tokio::select! {
            _ = commit => panic!("it never ends"),
            () = begun.notified() => {}
        }
        untouched(&world, before).await;
        world.invocation.commit(async |_, _| Ok::<_, Oops>(((), NextState::Stay))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_over_its_bound_loses_its_invocation() {
    for world in worlds(Duration::from_millis(30)).await {
        let before = world.seq().await;
        let result = world
            .invocation
            .commit(async |tx, _| {
                tx.append_entry(ROOT, EntryDraft::new("a")).await?;
                std::future::pending::<()>().await;
                Ok::<_, Oops>(((), NextState::Stay))
            })
            .await;
        assert!(matches!(result, Err(Oops::Fault(Fault::Ended))), "{result:?}");
        untouched(&world, before).await;
        let result = world.invocation.commit(async |_, _| Ok::<_, Oops>(((), NextState::Stay))).await;
        assert!(matches!(result, Err(Oops::Fault(Fault::Ended))), "{result:?}");
        // The task is free for another one.
        let (invocation, worker) = (InvocationId::random(), WorkerId(InvocationId::random()));
        let again =
            world.transport.call(world.id, Request::Reserve { task: world.task, invocation, worker, definition: None }).await.unwrap();
        assert!(matches!(again, Answer::Reserved(_)), "{again:?}");
        // A host's hold runs out as well.
        let result = world.host(async |_| std::future::pending::<Result<(), Oops>>().await).await;
        assert!(matches!(result, Err(Oops::Hold(HoldError::Gone))), "{result:?}");
        world.host(async |tx| Ok(tx.append_entry(ROOT, EntryDraft::new("b")).await?.id)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_in_a_closure_on_the_same_session_is_refused() {
    for world in worlds(LONG).await {
        world
            .invocation
            .commit(async |_, _| {
                let nested = Box::pin(world.invocation.commit(async |_, _| Ok::<_, Oops>(((), NextState::Stay)))).await;
                assert!(matches!(nested, Err(Oops::Commit(CommitError::Nested))), "{nested:?}");
                let nested = Box::pin(world.host(async |_| Ok::<_, Oops>(()))).await;
                assert!(matches!(nested, Err(Oops::Commit(CommitError::Nested))), "{nested:?}");
                Ok::<_, Oops>(((), NextState::Stay))
            })
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_somebody_aborted_commits_nothing() {
    for world in worlds(LONG).await {
        let abort = Request::Host(Box::new(HostCall::AbortTask { task: world.task }));
        // It waits for the run to join, which here goes on.
        let (transport, id) = (Arc::clone(&world.transport), world.id);
        tokio::spawn(async move { transport.call(id, abort).await });
        while !world.record().await.abort_requested {
            tokio::task::yield_now().await;
        }
        let before = world.seq().await;
        let result = world.invocation.commit(async |_, _| -> Result<((), NextState), Oops> { panic!("it does not run") }).await;
        assert!(matches!(result, Err(Oops::Fault(Fault::Ended))), "{result:?}");
        untouched(&world, before).await;
        assert!(matches!(world.record().await.state, TaskState::Running { .. }));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_decision_writes_nothing() {
    for world in worlds(LONG).await {
        let before = world.seq().await;
        let result = world
            .invocation
            .commit(async |tx, _| {
                tx.append_entry(ROOT, EntryDraft::new("a")).await?;
                Ok::<_, Oops>(((), NextState::Stale))
            })
            .await;
        assert!(matches!(result, Err(Oops::Fault(Fault::Stale))), "{result:?}");
        untouched(&world, before).await;
    }
}
