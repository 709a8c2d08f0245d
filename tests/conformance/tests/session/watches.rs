//! Watches and states (scenarios S184-S187, S189, X087, X088).

use std::cell::{Cell, RefCell};
use std::time::Duration;

use picofleet_conformance::documents::{AS_OF, IN_SESSION, IN_TASK, Note, SESSION_FAMILY, commit, completed, json, ops, put_state, task};
use picofleet_conformance::{World, wait_for};
use picofleet_delta::{Json, apply};
use picofleet_session::{
    CommitError, DocDefinition, DocToken, InSession, MigrateError, ReadError, Session, TaskState, WATCH_FRAMES_MAX, Watch, WatchEnd, every,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

scenarios! {
    s184_frames_are_exact_and_one_per_commit,
    s184_commits_never_wait_for_a_listener,
    s184_an_empty_commit_and_another_document_make_no_frame,
    s185_the_hundred_and_first_frame_folds_all,
    s185_the_frame_in_flight_is_not_folded,
    s186_retirement_is_the_last_frame,
    s186_retirement_folds_too,
    s186_final_content_comes_before_the_end,
    s187_a_failing_listener_ends_its_watch_alone,
    s187_a_cancelled_watch_ends,
    s187_a_stopped_watch_ends,
    s187_closing_drops_what_is_buffered,
    s187_closing_ends_a_retired_watch_that_is_behind,
    s187_a_release_is_a_takeover,
    s189_states_keep_their_last_value,
    s189_acquisitions_at_the_seal,
    s189_an_acquisition_that_reads_storage_at_the_seal,
    s189_a_commit_that_settles_while_closing_publishes_nothing,
    s189_a_session_that_is_dropped_ends_its_watches,
    x087_a_state_counts_revisions_and_attaches_without_a_gap,
    x088_operations_replay_to_every_frame,
    x088_operations_stand_on_what_the_watch_has_whatever_the_version,
}

#[derive(Debug, thiserror::Error)]
#[error("on purpose")]
struct Broken;

async fn set_n(session: &Session, n: i64) {
    commit(session, async |tx| tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = n)).await.unwrap();
}

async fn watch(session: &Session) -> Watch<Note> {
    session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap()
}

/// The next frame of a watch that has one.
async fn next(watch: &mut Watch<Note>) -> (Option<i64>, String) {
    let frame = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.unwrap().expect("the watch ended");
    (frame.read().unwrap().map(|note| note.n), ops(&frame.ops))
}

fn set_op(n: i64) -> String {
    format!(r#"[["s",["n"],{n}]]"#)
}

/// The reason of a watch that has ended.
async fn ended(watch: &mut Watch<Note>) -> &'static str {
    let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await.expect("the watch goes on");
    assert!(next.is_none(), "{next:?}");
    watch.end().unwrap().reason()
}

async fn s184_frames_are_exact_and_one_per_commit(mut world: World) {
    set_n(&world.session, 0).await;
    world.step().await;
    let mut watch = watch(&world.session).await;
    for n in 1..4 {
        set_n(&world.session, n).await;
    }
    assert_eq!(watch.value().unwrap().get("n"), Some(&Json::from(0)), "it moved before a frame was taken");
    for n in 1..4 {
        let before = watch.value().cloned().unwrap();
        assert_eq!(next(&mut watch).await, (Some(n), set_op(n)));
        assert_eq!(watch.value().unwrap().get("n"), Some(&Json::from(n)));
        assert_eq!(before.get("n"), Some(&Json::from(n - 1)), "an older revision changed");
    }
    // Several edits of one commit are one frame; the sequence is the commit's.
    commit(&world.session, async |tx| {
        let doc = tx.doc(&IN_SESSION, ()).await?;
        doc.edit(|note| note.n = 10)?;
        doc.edit(|note| note.text.push_str("ly"))
    })
    .await
    .unwrap();
    let frame = watch.next().await.unwrap();
    assert_eq!(frame.seq, world.session.store().head().await.unwrap().seq);
    assert_eq!(frame.read().unwrap().unwrap(), Note { n: 10, ..Note::new("initially") });
    assert!(futures::poll!(Box::pin(watch.next())).is_pending());
}

async fn s184_commits_never_wait_for_a_listener(world: World) {
    set_n(&world.session, 0).await;
    let watch = watch(&world.session).await;
    let stopper = watch.stopper();
    let (go, running, seen) = (Notify::new(), Cell::new(0), RefCell::new(Vec::new()));
    let delivering = watch.run(async |frame| {
        running.set(running.get() + 1);
        assert_eq!(running.get(), 1, "two callbacks at once");
        go.notified().await;
        seen.borrow_mut().push((frame.read().unwrap().unwrap().n, ops(&frame.ops)));
        running.set(running.get() - 1);
        Ok::<_, Broken>(())
    });
    let committing = async {
        for n in 1..6 {
            set_n(&world.session, n).await;
        }
        assert_eq!(*seen.borrow(), []);
        for n in 1..6_usize {
            go.notify_one();
            wait_for("a delivery", || seen.borrow().len() == n).await;
        }
        assert_eq!(stopper.stop().reason(), "stopped");
    };
    let (end, ()) = futures::join!(delivering, committing);
    assert_eq!(end.reason(), "stopped");
    assert_eq!(seen.into_inner(), (1..6).map(|n| (n, set_op(n))).collect::<Vec<_>>());
}

async fn s184_an_empty_commit_and_another_document_make_no_frame(world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    set_n(&world.session, 0).await;
    commit(&world.session, async |tx| tx.doc_in(&SESSION_FAMILY, (), "k", &"seed".to_owned()).await.map(|_| ())).await.unwrap();
    commit(&world.session, async |tx| tx.doc(&AS_OF, world.root()).await.map(|_| ())).await.unwrap();
    assert!(futures::poll!(Box::pin(watch.next())).is_pending());
    set_n(&world.session, 1).await;
    assert_eq!(next(&mut watch).await, (Some(1), set_op(1)));
}

fn replaced(n: i64) -> String {
    format!(r#"[["r",{{"text":"initial","n":{n}}}]]"#)
}

async fn s185_the_hundred_and_first_frame_folds_all(mut world: World) {
    set_n(&world.session, 0).await;
    world.step().await;
    assert_eq!(WATCH_FRAMES_MAX, 100);
    let (mut full, mut over) = (watch(&world.session).await, watch(&world.session).await);
    for n in 1..=100 {
        set_n(&world.session, n).await;
    }
    for n in 1..=100 {
        assert_eq!(next(&mut full).await, (Some(n), set_op(n)));
    }
    set_n(&world.session, 101).await;
    assert_eq!(next(&mut over).await, (Some(101), replaced(101)));
    assert!(futures::poll!(Box::pin(over.next())).is_pending());
    // Exact frames follow, and another overflow folds again.
    set_n(&world.session, 102).await;
    assert_eq!(next(&mut over).await, (Some(102), set_op(102)));
    for n in 103..=304 {
        set_n(&world.session, n).await;
    }
    let mut frames = Vec::new();
    while let std::task::Poll::Ready(frame) = futures::poll!(Box::pin(over.next())) {
        frames.push(ops(&frame.unwrap().ops));
    }
    // 100 frames, the next folds all into one, 99 fill up again, the next folds.
    let folded: Vec<_> = std::iter::once(replaced(303)).chain(std::iter::once(set_op(304))).collect();
    assert_eq!(frames, folded);
}

async fn s185_the_frame_in_flight_is_not_folded(world: World) {
    set_n(&world.session, 0).await;
    let watch = watch(&world.session).await;
    let (stopper, go, seen) = (watch.stopper(), Notify::new(), RefCell::new(Vec::new()));
    let delivering = watch.run(async |frame| {
        seen.borrow_mut().push(ops(&frame.ops));
        go.notified().await;
        Ok::<_, Broken>(())
    });
    let committing = async {
        set_n(&world.session, 1).await;
        wait_for("the first delivery", || seen.borrow().len() == 1).await;
        for n in 2..103 {
            set_n(&world.session, n).await;
        }
        go.notify_one();
        wait_for("the second delivery", || seen.borrow().len() == 2).await;
        go.notify_one();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        stopper.stop();
    };
    futures::join!(delivering, committing);
    assert_eq!(seen.into_inner(), [set_op(1), replaced(102)]);
}

async fn s186_retirement_is_the_last_frame(mut world: World) {
    set_n(&world.session, 0).await;
    world.step().await;
    let mut watch = watch(&world.session).await;
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    set_n(&world.session, 1).await;
    commit(&world.session, async |tx| tx.retire_doc(&IN_SESSION, ()).await).await.unwrap();
    // What comes after it at the same address is another document.
    set_n(&world.session, 2).await;
    assert_eq!(next(&mut watch).await, (Some(1), set_op(1)));
    assert!(watch.end().is_none());
    assert_eq!(next(&mut watch).await, (None, r#"[["r",null]]"#.to_owned()));
    assert_eq!(watch.value(), None);
    assert_eq!(ended(&mut watch).await, "retired");
    assert_eq!((state.value(), state.end().unwrap().reason()), (None, "retired"));
    let mut late = state.attach();
    assert_eq!(late.value(), None);
    assert_eq!(ended(&mut late).await, "retired");

    // The documents of a task end with it.
    let id = commit(&world.session, async |tx| {
        let id = tx.create_task_raw(task(world.root())).await?;
        tx.doc(&IN_TASK, id).await?;
        Ok(id)
    })
    .await
    .unwrap();
    world.step().await;
    let mut watch = world.session.watch_doc(&IN_TASK, id).await.unwrap().unwrap();
    commit(&world.session, async |tx| {
        let record = tx.task(id).await?.unwrap();
        put_state(tx, &record, TaskState::Terminal { outcome: completed() }).await
    })
    .await
    .unwrap();
    assert_eq!(next(&mut watch).await, (None, r#"[["r",null]]"#.to_owned()));
    assert_eq!(ended(&mut watch).await, "retired");
}

async fn s186_retirement_folds_too(world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    for n in 1..=100 {
        set_n(&world.session, n).await;
    }
    commit(&world.session, async |tx| tx.retire_doc(&IN_SESSION, ()).await).await.unwrap();
    assert_eq!(next(&mut watch).await, (None, r#"[["r",null]]"#.to_owned()));
    assert_eq!(ended(&mut watch).await, "retired");
}

async fn s186_final_content_comes_before_the_end(world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        tx.retire_doc(&IN_SESSION, ()).await
    })
    .await
    .unwrap();
    let mut value = watch.value().cloned();
    let mut last = None;
    while let Some(frame) = watch.next().await {
        let after = apply(value.as_ref(), &frame.ops).unwrap();
        assert_eq!(frame.value.clone().unwrap_or(Json::null()), after);
        (value, last) = (Some(after), Some(ops(&frame.ops)));
    }
    assert_eq!(last.as_deref(), Some(r#"[["r",null]]"#));
    assert_eq!(watch.end().unwrap().reason(), "retired");
}

async fn s187_a_failing_listener_ends_its_watch_alone(world: World) {
    set_n(&world.session, 0).await;
    let (failing, mut other) = (watch(&world.session).await, watch(&world.session).await);
    for n in 1..4 {
        set_n(&world.session, n).await;
    }
    let calls = Cell::new(0);
    let end = failing
        .run(async |_| {
            calls.set(calls.get() + 1);
            if calls.get() == 2 { Err(Broken) } else { Ok(()) }
        })
        .await;
    assert!(matches!(&end, WatchEnd::ListenerError(error) if error.to_string() == "on purpose"), "{end:?}");
    assert_eq!((end.reason(), calls.get()), ("listener_error", 2));
    for n in 1..4 {
        assert_eq!(next(&mut other).await.0, Some(n));
    }
    set_n(&world.session, 4).await;
    assert_eq!(next(&mut other).await.0, Some(4));
}

async fn s187_a_cancelled_watch_ends(world: World) {
    set_n(&world.session, 0).await;
    let token = CancellationToken::new();
    let mut first = watch(&world.session).await.until(token.clone());
    let mut other = watch(&world.session).await;
    set_n(&world.session, 1).await;
    set_n(&world.session, 2).await;
    assert_eq!(next(&mut first).await.0, Some(1));
    token.cancel();
    assert_eq!(ended(&mut first).await, "cancelled");
    assert_eq!(next(&mut other).await.0, Some(1));

    // While it waits.
    let token = CancellationToken::new();
    let mut waiting = watch(&world.session).await.until(token.clone());
    let cancel = async { token.cancel() };
    let (end, ()) = futures::join!(ended(&mut waiting), cancel);
    assert_eq!(end, "cancelled");
    // The first reason holds.
    assert_eq!(waiting.stopper().stop().reason(), "cancelled");
    world.session.close().await.unwrap();
    assert_eq!(waiting.end().unwrap().reason(), "cancelled");
}

async fn s187_a_stopped_watch_ends(world: World) {
    set_n(&world.session, 0).await;
    let stopped = watch(&world.session).await;
    let stopper = stopped.stopper();
    for n in 1..4 {
        set_n(&world.session, n).await;
    }
    let calls = Cell::new(0);
    // From its own listener, which is not disturbed.
    let end = stopped
        .run(async |_| {
            assert_eq!(stopper.stop().reason(), "stopped");
            tokio::task::yield_now().await;
            calls.set(calls.get() + 1);
            Ok::<_, Broken>(())
        })
        .await;
    assert_eq!((end.reason(), calls.get()), ("stopped", 1));
    assert_eq!(stopper.stop().reason(), "stopped");

    let mut waiting = watch(&world.session).await;
    let stopper = waiting.stopper();
    let (end, _) = futures::join!(ended(&mut waiting), async { stopper.stop() });
    assert_eq!(end, "stopped");
}

async fn s187_closing_drops_what_is_buffered(world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    set_n(&world.session, 1).await;
    set_n(&world.session, 2).await;
    assert_eq!(next(&mut watch).await.0, Some(1));
    world.session.close().await.unwrap();
    assert_eq!(ended(&mut watch).await, "session_closed");
    assert_eq!(watch.value().unwrap().get("n"), Some(&Json::from(1)));
}

async fn s187_closing_ends_a_retired_watch_that_is_behind(world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    set_n(&world.session, 1).await;
    commit(&world.session, async |tx| tx.retire_doc(&IN_SESSION, ()).await).await.unwrap();
    world.session.close().await.unwrap();
    assert_eq!(ended(&mut watch).await, "session_closed");
}

async fn s187_a_release_is_a_takeover(mut world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    let old = world.session.clone();
    old.release().await.unwrap();
    assert_eq!(ended(&mut watch).await, "takeover");
    let refused = commit(&old, async |tx| tx.doc(&IN_SESSION, ()).await.map(|_| ())).await;
    assert!(matches!(refused, Err(CommitError::NotOwner)), "{refused:?}");
    assert!(matches!(old.snapshot(&IN_SESSION, ()).await, Err(ReadError::NotOwner)));
    world.open().await;
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 0);
}

async fn s189_states_keep_their_last_value(world: World) {
    set_n(&world.session, 0).await;
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    set_n(&world.session, 1).await;
    assert_eq!(state.read().unwrap().unwrap().n, 1);
    world.session.close().await.unwrap();
    assert_eq!((state.read().unwrap().unwrap().n, state.end().unwrap().reason()), (1, "session_closed"));
    let mut late = state.attach();
    assert_eq!(late.read().unwrap().unwrap().n, 1);
    assert_eq!(ended(&mut late).await, "session_closed");
}

async fn s189_acquisitions_at_the_seal(world: World) {
    set_n(&world.session, 0).await;
    let hold = world.probe.hold();
    let committing = commit(&world.session, async |tx| tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1));
    let watching = world.session.watch_doc(&IN_SESSION, ());
    let attaching = world.session.document_state(&IN_SESSION, ());
    let closing = async {
        hold.arrived().await;
        let close = world.session.close();
        let release = async {
            tokio::task::yield_now().await;
            hold.release();
        };
        futures::join!(close, release).0.unwrap();
    };
    let (committed, watched, attached, ()) = futures::join!(committing, watching, attaching, closing);
    committed.unwrap();
    assert!(matches!(watched.map(|watch| watch.is_some()), Err(ReadError::Closed)), "queued at the seal");
    assert!(matches!(attached.map(|state| state.is_some()), Err(ReadError::Closed)), "queued at the seal");
}

/// It has the line already, so that it is not refused; but nothing may come of it that never ends.
async fn s189_an_acquisition_that_reads_storage_at_the_seal(mut world: World) {
    set_n(&world.session, 0).await;
    for release in [false, true] {
        world.reopen().await;
        world.probe.slow(true);
        let session = world.session.clone();
        let mut watching = Box::pin(session.watch_doc(&IN_SESSION, ()));
        assert!(futures::poll!(&mut watching).is_pending());
        let closing = async { if release { session.release().await } else { session.close().await } };
        let (watched, closed) = futures::join!(watching, closing);
        closed.unwrap();
        if let Ok(Some(mut watch)) = watched {
            assert_eq!(ended(&mut watch).await, if release { "takeover" } else { "session_closed" });
        }
        if release {
            world.open().await;
        }
    }
}

async fn s189_a_commit_that_settles_while_closing_publishes_nothing(mut world: World) {
    set_n(&world.session, 0).await;
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    let published = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = std::sync::Arc::clone(&published);
    let _subscription = world.session.subscribe_commits(move |_| {
        count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    });
    let hold = world.probe.hold();
    let committing = commit(&world.session, async |tx| tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1));
    let closing = async {
        hold.arrived().await;
        let release = async {
            tokio::task::yield_now().await;
            hold.release();
        };
        futures::join!(world.session.close(), release).0.unwrap();
    };
    let (committed, ()) = futures::join!(committing, closing);
    committed.unwrap();
    assert_eq!(published.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(state.read().unwrap().unwrap().n, 0);
    world.open().await;
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 1, "it settled all the same");
}

/// Nobody can commit any more, so that waiting would never end.
async fn s189_a_session_that_is_dropped_ends_its_watches(mut world: World) {
    set_n(&world.session, 0).await;
    let mut watch = watch(&world.session).await;
    world.open().await;
    assert_eq!(ended(&mut watch).await, "session_closed");
}

async fn x087_a_state_counts_revisions_and_attaches_without_a_gap(mut world: World) {
    set_n(&world.session, 0).await;
    world.step().await;
    let state = world.session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
    assert_eq!((state.cursor(), state.read().unwrap().unwrap().n), (0, 0));
    let mut attached = Vec::new();
    for n in 1..6 {
        attached.push((n - 1, state.attach()));
        set_n(&world.session, n).await;
        assert_eq!((state.cursor(), state.read().unwrap().unwrap().n), (u64::try_from(n).unwrap(), n));
    }
    for (from, mut watch) in attached {
        assert_eq!(watch.read().unwrap().unwrap().n, from);
        for n in from + 1..6 {
            assert_eq!(next(&mut watch).await, (Some(n), set_op(n)));
        }
    }
    // Giving the state up does not end what was attached, nor the other way round.
    let mut watch = state.attach();
    drop(state.attach());
    set_n(&world.session, 6).await;
    assert_eq!(state.read().unwrap().unwrap().n, 6);
    drop(state);
    set_n(&world.session, 7).await;
    assert_eq!(next(&mut watch).await.0, Some(6));
    assert_eq!(next(&mut watch).await.0, Some(7));
}

async fn x088_operations_replay_to_every_frame(mut world: World) {
    set_n(&world.session, 0).await;
    world.step().await;
    let mut watch = watch(&world.session).await;
    let mut value = watch.value().cloned().unwrap();
    for round in 0..5_i64 {
        for i in 0..30 * round {
            commit(&world.session, async |tx| {
                let doc = tx.doc(&IN_SESSION, ()).await?;
                doc.draft.key("text").append("é😀")?;
                doc.edit(|note| {
                    note.items.insert(note.items.len() / 2, Json::from(i));
                    if i % 3 == 0 {
                        note.items.remove(0);
                    }
                })
            })
            .await
            .unwrap();
        }
        let mut frames = 0;
        while let std::task::Poll::Ready(frame) = futures::poll!(Box::pin(watch.next())) {
            let frame = frame.unwrap();
            value = apply(Some(&value), &frame.ops).unwrap();
            assert_eq!(frame.value.as_ref(), Some(&value));
            assert_eq!(watch.value(), Some(&value));
            frames += 1;
        }
        let expected = if round == 4 { 20 } else { 30 * round };
        assert_eq!(frames, expected);
    }
    assert_eq!(world.session.snapshot_json(&IN_SESSION, ()).await.unwrap(), Some(value));
}

async fn x088_operations_stand_on_what_the_watch_has_whatever_the_version(mut world: World) {
    const OLD: DocToken<Json, InSession> = DocToken::new("t.versions", 1, || DocDefinition {
        initial: || json(r#"{"old":[1,2]}"#),
        migrate: None,
        checkpoint_when: every::<9>,
    });
    const NEW: DocToken<Json, InSession> = DocToken::new("t.versions", 2, || DocDefinition {
        initial: || json("{}"),
        migrate: Some(|value, _| match value.get("old") {
            Some(old) => Ok(Json::object([("new", old.clone())])),
            None => Err(MigrateError("no old value".to_owned())),
        }),
        checkpoint_when: every::<9>,
    });
    commit(&world.session, async |tx| tx.doc(&OLD, ()).await.map(|_| ())).await.unwrap();
    world.step().await;
    let session = &world.session;
    let watches = [session.watch_doc(&NEW, ()).await, session.watch_doc(&OLD, ()).await].map(|watch| watch.unwrap().unwrap());
    // Code of the older version goes on beside a reader of the newer one, then the newer one takes over.
    for i in 0..3 {
        commit(session, async |tx| Ok(tx.doc(&OLD, ()).await?.draft.key("old").push(i)?)).await.unwrap();
    }
    for i in 0..3 {
        commit(session, async |tx| Ok(tx.doc(&NEW, ()).await?.draft.key("new").push(i)?)).await.unwrap();
    }
    for mut watch in watches {
        let mut value = watch.value().cloned().unwrap();
        for _ in 0..6 {
            let frame = watch.next().await.unwrap();
            value = apply(Some(&value), &frame.ops).unwrap();
            assert_eq!(frame.value.as_ref(), Some(&value));
        }
        assert_eq!(value, json(r#"{"new":[1,2,0,1,2,0,1,2]}"#));
    }
}
