//! Closures that land.

use std::sync::atomic::Ordering;

use picofleet_harness::config::CONFIG;
use picofleet_harness::effects::CommitOptions;
use picofleet_harness::inbox::INBOX;
use picofleet_harness::live::LIVE;
use picofleet_harness::task::{NextState, checkpoint};
use picofleet_harness::usage::USAGE;
use picofleet_harness::wire::Next;
use picofleet_session::storage::EntryQuery;
use picofleet_session::{
    ConversationOwnership, DocumentAddress, DocumentScope, EntryDraft, Frame, Json, Op, Session, SessionOptions, TaskOutcome,
    TaskOwnership, TaskState, ops_to_json,
};

use crate::world::{LONG, NOTE, NOTE_2, Note, Oops, ROOT, World, at, idle, worlds};

/// Every test runs on all of them.
async fn all() -> Vec<World> {
    worlds(LONG).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_lands_as_one_commit() {
    for world in all().await {
        let before = world.seq().await;
        let (child, conversation) = world
            .invocation
            .commit(async |tx, record| {
                let first = tx.scan_entries(EntryQuery::all(ROOT), 10, None).await?;
                assert_eq!(first.items.len(), 1);
                assert_eq!(tx.now().0, 1_000);
                tx.doc(&NOTE, ROOT).await?.draft.key("text").append(" new")?;
                tx.append_entry(ROOT, EntryDraft::new("second").data(1)).await?;
                let child = tx.create_task_raw(idle(TaskOwnership::Task { task_id: record.id }, None)).await?;
                let conversation = tx.create_conversation(ConversationOwnership::Task { task_id: child }).await?;
                tx.append_entry(conversation.id, EntryDraft::new("inside")).await?;
                Ok::<_, Oops>(((child, conversation.id), NextState::Checkpoint(at("next"))))
            })
            .await
            .unwrap();
        assert_eq!(world.seq().await, before + 1, "{}", world.name);
        assert_eq!(world.kinds(ROOT).await, ["first", "second"]);
        assert_eq!(world.kinds(conversation).await, ["inside"]);
        assert_eq!(world.entries(ROOT).await[1].by_task_id, Some(world.task));
        assert_eq!(world.note().await.text, "old new");
        assert_eq!(checkpoint(&world.record().await), Some(&at("next")));
        let store = world.line.session().store();
        assert_eq!(store.task(child).await.unwrap().unwrap().owner, Some(world.task));
        assert_eq!(store.conversation(conversation).await.unwrap().unwrap().owner.unwrap().task_id, child);
        // The line goes on with ids behind those of the closure.
        let next = world.host(async |tx| Ok(tx.append_entry(ROOT, EntryDraft::new("third")).await?.id.get())).await.unwrap();
        assert!(next > conversation.get(), "{next}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_without_reads_is_two_messages() {
    for world in all().await {
        world
            .invocation
            .commit(async |tx, record| {
                tx.append_entry(record.conversation_id, EntryDraft::new("a")).await?;
                tx.create_task_raw(idle(TaskOwnership::Task { task_id: record.id }, None)).await?;
                tx.create_conversation(ConversationOwnership::Task { task_id: record.id }).await?;
                Ok::<_, Oops>(((), NextState::Stay))
            })
            .await
            .unwrap();
        assert_eq!(world.messages(), 2, "{}", world.name);
        // A document costs one more, unless it is named.
        let append = async |tx: &picofleet_session::Tx, _: &picofleet_session::TaskRecord| {
            tx.doc(&NOTE, ROOT).await?.draft.key("text").append("!")?;
            Ok::<_, Oops>(((), NextState::Stay))
        };
        world.invocation.commit(append).await.unwrap();
        assert_eq!(world.messages(), 3, "{}", world.name);
        let address = DocumentAddress { kind: NOTE.kind.into(), scope: DocumentScope::Conversation { id: ROOT }, key: None };
        let options = CommitOptions { documents: vec![address], last: false };
        world.invocation.commit_with(options, append).await.unwrap();
        assert_eq!(world.messages(), 2, "{}", world.name);
        assert_eq!(world.note().await.text, "old!!");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_closure_of_a_phase_runs_the_step() {
    for world in all().await {
        let (_, next) = world.invocation.commit_last(async |_, _| Ok::<_, Oops>(((), NextState::Checkpoint(at("next"))))).await.unwrap();
        let Next::Continue(record) = next else { panic!("{next:?}") };
        assert_eq!(checkpoint(&record), Some(&at("next")));
        let outcome = TaskOutcome::Completed { result: Json::from(7) };
        let (_, next) = world.invocation.commit_last(async |_, _| Ok::<_, Oops>(((), NextState::End(outcome.clone())))).await.unwrap();
        assert_eq!(next, Next::Stop);
        assert_eq!(world.record().await.state, TaskState::Terminal { outcome });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_and_later_commits_see_what_was_replayed() {
    for world in all().await {
        let session = world.line.session();
        let mut watch = session.watch_doc(&NOTE, ROOT).await.unwrap().unwrap();
        world
            .host(async |tx| {
                let draft = tx.doc(&NOTE, ROOT).await?.draft;
                draft.key("text").append(" new")?;
                draft.key("items").push(Json::from(1))?;
                Ok(())
            })
            .await
            .unwrap();
        let frame = watch.next().await.unwrap();
        assert_eq!(ops(&frame), r#"[["a",["text"]," new"],["p",["items"],0,0,[1]]]"#, "{}", world.name);
        // The line's own commit stands on it.
        session
            .commit(async |tx| {
                tx.doc(&NOTE, ROOT).await?.draft.key("text").append(" line")?;
                Ok::<_, picofleet_session::CommitError>(())
            })
            .await
            .unwrap();
        assert_eq!(ops(&watch.next().await.unwrap()), r#"[["a",["text"]," line"]]"#);
        assert_eq!(world.note().await, Note { text: "old new line".into(), items: vec![Json::from(1)] });
        // And so does storage, for somebody who has nothing in memory.
        let again = Session::open(&*world.store, world.id, SessionOptions::default()).await.unwrap();
        assert_eq!(again.snapshot(&NOTE, ROOT).await.unwrap().unwrap().text, "old new line");
    }
}

fn ops(frame: &Frame<Note>) -> String {
    let ops: &[Op] = &frame.ops;
    ops_to_json(ops).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_of_the_worker_is_a_replacement_for_who_watches() {
    for world in all().await {
        let mut watch = world.line.session().watch_doc(&NOTE, ROOT).await.unwrap().unwrap();
        world
            .host(async |tx| {
                tx.doc(&NOTE_2, ROOT).await?.draft.key("text").append("!")?;
                Ok(())
            })
            .await
            .unwrap();
        let value = r#"{"text":"old of 2!","items":[]}"#;
        assert_eq!(ops(&watch.next().await.unwrap()), format!(r#"[["r",{value}]]"#), "{}", world.name);
        assert_eq!(world.line.session().snapshot(&NOTE_2, ROOT).await.unwrap().unwrap().text, "old of 2!");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_conversation_gets_its_documents_and_a_fork_keeps_its_configuration() {
    for world in all().await {
        let session = world.line.session();
        let first = world.entries(ROOT).await[0].id;
        let configured = async |tx: &picofleet_session::Tx| {
            tx.doc(&CONFIG, ROOT).await?.edit(|config| config.thinking_level = "high".into())?;
            Ok(tx.append_entry(ROOT, EntryDraft::new("configured")).await?.id)
        };
        let at = world.host(configured).await.unwrap();
        assert!(at > first);
        let (new, fork) = world
            .host(async |tx| {
                let new = tx.create_conversation(ConversationOwnership::Ownerless).await?;
                let fork = tx.fork_conversation(ROOT, at, ConversationOwnership::Ownerless).await?;
                Ok((new.id, fork.id))
            })
            .await
            .unwrap();
        for id in [ROOT, new, fork] {
            assert!(session.snapshot(&LIVE, id).await.unwrap().is_some(), "{}", world.name);
            assert!(session.snapshot(&INBOX, id).await.unwrap().is_some());
            assert!(session.snapshot(&USAGE, id).await.unwrap().is_some());
        }
        assert_eq!(session.snapshot(&CONFIG, new).await.unwrap().unwrap().thinking_level, "off");
        assert_eq!(session.snapshot(&CONFIG, fork).await.unwrap().unwrap().thinking_level, "high");
        assert_eq!(session.snapshot(&NOTE, fork).await.unwrap().unwrap().text, "old");
        assert_eq!(world.kinds(fork).await, ["first", "configured"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_whose_copy_is_opened_and_a_document_that_ends_and_begins_again() {
    for world in all().await {
        let at = world.entries(ROOT).await[0].id;
        let fork = world
            .host(async |tx| {
                let fork = tx.fork_conversation(ROOT, at, ConversationOwnership::Ownerless).await?;
                tx.doc(&NOTE, fork.id).await?.draft.key("text").append(" of the fork")?;
                Ok(fork.id)
            })
            .await
            .unwrap();
        let session = world.line.session();
        assert_eq!(session.snapshot(&NOTE, fork).await.unwrap().unwrap().text, "old of the fork", "{}", world.name);
        world
            .host(async |tx| {
                tx.retire_doc(&NOTE, fork).await?;
                tx.doc(&NOTE, fork).await?.draft.key("text").set("again")?;
                tx.retire_doc(&NOTE, ROOT).await?;
                Ok(())
            })
            .await
            .unwrap();
        assert_eq!(session.snapshot(&NOTE, fork).await.unwrap().unwrap().text, "again");
        assert!(session.snapshot(&NOTE, ROOT).await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_at_the_limit_of_depth_survives_the_way() {
    for world in all().await {
        let mut deep = Json::from(1);
        for _ in 0..510 {
            deep = [deep].into_iter().collect();
        }
        world
            .invocation
            .commit(async |tx, _| {
                tx.append_entry(ROOT, EntryDraft::new("deep").data(deep.clone())).await?;
                tx.doc(&NOTE, ROOT).await?.draft.key("items").push(deep.clone().as_array().unwrap().get(0).unwrap().clone())?;
                Ok::<_, Oops>(((), NextState::Stay))
            })
            .await
            .unwrap();
        assert_eq!(world.entries(ROOT).await[1].data, Some(deep), "{}", world.name);
        // It is read again through a hold.
        let items = world.host(async |tx| Ok(tx.doc(&NOTE, ROOT).await?.read()?.items.len())).await.unwrap();
        assert_eq!(items, 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_commits_once() {
    for world in all().await {
        let before = world.seq().await;
        world.counted.lose.store(2, Ordering::SeqCst);
        let write = async |tx: &picofleet_session::Tx, kind: &str| {
            tx.append_entry(ROOT, EntryDraft::new(kind)).await?;
            Ok::<_, Oops>(())
        };
        world.invocation.commit(async |tx, _| Ok::<_, Oops>((write(tx, "once").await?, NextState::Stay))).await.unwrap();
        assert_eq!(world.messages(), 4, "{}", world.name);
        world.counted.lose.store(2, Ordering::SeqCst);
        world.host(async |tx| write(tx, "twice").await).await.unwrap();
        assert_eq!(world.seq().await, before + 2);
        assert_eq!(world.kinds(ROOT).await, ["first", "once", "twice"]);
        // The next saying has the next number.
        world.invocation.commit(async |tx, _| Ok::<_, Oops>((write(tx, "thrice").await?, NextState::Stay))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_only_reads_commits_nothing() {
    for world in all().await {
        let before = world.seq().await;
        let text = world.host(async |tx| Ok(tx.doc(&NOTE, ROOT).await?.read()?.text)).await.unwrap();
        assert_eq!(text, "old");
        // The line is free again.
        world.host(async |tx| Ok(tx.append_entry(ROOT, EntryDraft::new("a")).await?.id)).await.unwrap();
        assert_eq!(world.seq().await, before + 1, "{}", world.name);
    }
}
