//! Forks: what the child has (scenarios S045-S051, X019).

use picofleet_conformance::World;
use picofleet_conformance::documents::{
    AS_OF, AS_OF_FAMILY, CURRENT, CURRENT_FAMILY, IN_SESSION, IN_TASK, INITIAL, INITIAL_FAMILY, Note, REWINDABLE_CURRENT,
    REWINDABLE_INITIAL, append, append_plain, assistant, commit, initials, json, set_n, task, tool_result, user,
};
use picofleet_delta::Json;
use picofleet_session::message::{Message, StopReason};
use picofleet_session::storage::{DocumentQuery, EntryQuery};
use picofleet_session::{
    CommitError, ConversationId, ConversationOwnership, DocDefinition, DocToken, DocumentId, DocumentScope, EntryDraft, EntryId, Initial,
    Latest, Point, Scope, Session, Violation, every,
};

scenarios! {
    s045_each_document_follows_its_policy,
    s045_copies_are_independent,
    s046_the_state_at_an_entry_is_its_commits_final_one,
    s047_a_fork_at_an_entry_of_the_grandparent,
    s048_a_fork_and_a_write_of_its_source_reject,
    s049_a_fork_point_must_be_visible,
    s050_shared_fresh_and_never_copied,
    s051_a_fork_inside_a_tool_round,
    x019_history_before_the_fork_is_the_parents,
}

pub(super) const OWNERLESS: ConversationOwnership = ConversationOwnership::Ownerless;

pub(super) async fn fork(session: &Session, parent: ConversationId, at: EntryId) -> ConversationId {
    commit(session, async |tx| tx.fork_conversation(parent, at, OWNERLESS).await).await.unwrap().id
}

pub(super) async fn n<S: Scope>(session: &Session, token: &DocToken<Note, S>, at: S::At) -> Option<i64> {
    session.snapshot(token, at).await.unwrap().map(|note| note.n)
}

pub(super) async fn ids(session: &Session, conversation: ConversationId) -> Vec<(String, Option<String>, DocumentId)> {
    let query = DocumentQuery { scope: DocumentScope::Conversation { id: conversation }, at: Point::Current, kind: None };
    let page = session.store().scan_documents(query, 1000, None).await.unwrap();
    page.items.into_iter().map(|record| (record.create.kind, record.create.key, record.create.id)).collect()
}

pub(super) async fn visible(session: &Session, conversation: ConversationId) -> Vec<EntryId> {
    let page = session.store().scan_entries(EntryQuery::all(conversation), 100, None).await.unwrap();
    page.items.into_iter().map(|entry| entry.id).collect()
}

pub(super) async fn edit_all(session: &Session, conversation: ConversationId, value: i64) {
    let seed = "seed".to_owned();
    commit(session, async |tx| {
        tx.doc(&AS_OF, conversation).await?.edit(|note| note.n = value)?;
        tx.doc(&CURRENT, conversation).await?.edit(|note| note.n = value)?;
        tx.doc(&REWINDABLE_CURRENT, conversation).await?.edit(|note| note.n = value)?;
        tx.doc(&INITIAL, conversation).await?.edit(|note| note.n = value)?;
        tx.doc(&REWINDABLE_INITIAL, conversation).await?.edit(|note| note.n = value)?;
        for key in ["a", "b"] {
            tx.doc_in(&AS_OF_FAMILY, conversation, key, &seed).await?.edit(|note| note.n = value)?;
            tx.doc_in(&CURRENT_FAMILY, conversation, key, &seed).await?.edit(|note| note.n = value)?;
            tx.doc_in(&INITIAL_FAMILY, conversation, key, &seed).await?.edit(|note| note.n = value)?;
        }
        Ok(())
    })
    .await
    .unwrap();
}

async fn s045_each_document_follows_its_policy(mut world: World) {
    let root = world.root();
    edit_all(&world.session, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    edit_all(&world.session, root, 2).await;
    commit(&world.session, async |tx| {
        // What was made after the entry is no part of its state; what ended meanwhile is none of the present one.
        tx.doc_in(&AS_OF_FAMILY, root, "late", &"late".to_owned()).await?;
        tx.doc_in(&CURRENT_FAMILY, root, "late", &"late".to_owned()).await?;
        tx.retire_doc_in(&AS_OF_FAMILY, root, "b").await?;
        tx.retire_doc_in(&CURRENT_FAMILY, root, "b").await
    })
    .await
    .unwrap();
    world.step().await;
    let child = fork(&world.session, root, at).await;
    world.step().await;
    let session = &world.session;
    assert_eq!(n(session, &AS_OF, child).await, Some(1));
    assert_eq!(n(session, &CURRENT, child).await, Some(2));
    assert_eq!(n(session, &REWINDABLE_CURRENT, child).await, Some(2));
    assert_eq!(n(session, &INITIAL, child).await, None);
    assert_eq!(n(session, &REWINDABLE_INITIAL, child).await, None);
    let member = async |key, current| {
        let (as_of, now) = futures::join!(session.snapshot_in(&AS_OF_FAMILY, child, key), session.snapshot_in(&CURRENT_FAMILY, child, key));
        let initial = session.snapshot_in(&INITIAL_FAMILY, child, key).await.unwrap();
        assert_eq!((as_of.unwrap().map(|note| note.n), now.unwrap().map(|note| note.n), initial), current, "{key}");
    };
    member("a", (Some(1), Some(2), None)).await;
    member("b", (Some(1), None, None)).await;
    member("late", (None, Some(0), None)).await;
    let (of_parent, of_child) = (ids(session, root).await, ids(session, child).await);
    assert_eq!(of_child.len(), 7, "{of_child:?}");
    assert!(of_child.iter().all(|(.., id)| of_parent.iter().all(|(.., other)| other != id)), "an incarnation is in both");
    // The first access makes what was not copied.
    let _ = initials();
    set_n(session, &INITIAL, child, 9).await;
    assert_eq!((initials(), n(session, &INITIAL, root).await), (1, Some(2)));
}

async fn s045_copies_are_independent(mut world: World) {
    let root = world.root();
    edit_all(&world.session, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    let child = fork(&world.session, root, at).await;
    world.step().await;
    edit_all(&world.session, root, 2).await;
    world.step().await;
    assert_eq!(n(&world.session, &AS_OF, child).await, Some(1));
    assert_eq!(n(&world.session, &CURRENT, child).await, Some(1));
    edit_all(&world.session, child, 3).await;
    world.step().await;
    for (conversation, expected) in [(root, 2), (child, 3)] {
        assert_eq!(n(&world.session, &AS_OF, conversation).await, Some(expected));
        assert_eq!(n(&world.session, &CURRENT, conversation).await, Some(expected));
        let member = world.session.snapshot_in(&CURRENT_FAMILY, conversation, "a").await.unwrap();
        assert_eq!(member.map(|note| note.n), Some(expected));
    }
}

async fn s046_the_state_at_an_entry_is_its_commits_final_one(mut world: World) {
    let root = world.root();
    set_n(&world.session, &AS_OF, root, 1).await;
    let (e, later) = commit(&world.session, async |tx| {
        let doc = tx.doc(&AS_OF, root).await?;
        doc.edit(|note| note.n = 2)?;
        let e = tx.append_entry(root, EntryDraft::new("t.entry")).await?.id;
        doc.edit(|note| note.n = 3)?;
        let later = tx.append_entry(root, EntryDraft::new("t.entry")).await?.id;
        doc.edit(|note| note.n = 4)?;
        Ok((e, later))
    })
    .await
    .unwrap();
    world.step().await;
    set_n(&world.session, &AS_OF, root, 5).await;
    let child = fork(&world.session, root, e).await;
    world.step().await;
    assert_eq!(visible(&world.session, child).await, [e]);
    assert_eq!(visible(&world.session, root).await, [later, e]);
    assert_eq!(n(&world.session, &AS_OF, child).await, Some(4));
}

async fn s047_a_fork_at_an_entry_of_the_grandparent(mut world: World) {
    let a = world.root();
    edit_all(&world.session, a, 1).await;
    let early = append_plain(&world.session, a).await.id;
    edit_all(&world.session, a, 2).await;
    let late = append_plain(&world.session, a).await.id;
    edit_all(&world.session, a, 3).await;
    world.step().await;
    let c = fork(&world.session, a, late).await;
    append_plain(&world.session, c).await;
    edit_all(&world.session, c, 10).await;
    world.step().await;
    let grandchild = fork(&world.session, c, early).await;
    world.step().await;
    assert_eq!(visible(&world.session, grandchild).await, [early]);
    assert_eq!(n(&world.session, &AS_OF, grandchild).await, Some(1), "the grandparent's at that entry");
    assert_eq!(n(&world.session, &CURRENT, grandchild).await, Some(10), "the immediate parent's");
    let members = futures::join!(
        world.session.snapshot_in(&AS_OF_FAMILY, grandchild, "a"),
        world.session.snapshot_in(&CURRENT_FAMILY, grandchild, "a")
    );
    assert_eq!((members.0.unwrap().unwrap().n, members.1.unwrap().unwrap().n), (1, 10));
}

async fn s048_a_fork_and_a_write_of_its_source_reject(mut world: World) {
    let root = world.root();
    edit_all(&world.session, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    let head = world.session.store().head().await.unwrap();
    let _ = world.probe.batches();
    let fork_source = |result: Result<(), CommitError>| {
        assert!(matches!(result, Err(CommitError::Invalid(Violation::ForkSource { .. }))), "{result:?}");
    };
    for write_first in [true, false] {
        let result = commit(&world.session, async |tx| {
            if write_first {
                tx.doc(&CURRENT, root).await?.edit(|note| note.n = 2)?;
            }
            tx.fork_conversation(root, at, OWNERLESS).await?;
            tx.doc(&CURRENT, root).await?.edit(|note| note.n = 2)
        })
        .await;
        fork_source(result);
    }
    let retired = commit(&world.session, async |tx| {
        tx.fork_conversation(root, at, OWNERLESS).await?;
        tx.retire_doc_in(&CURRENT_FAMILY, root, "a").await
    });
    fork_source(retired.await);
    // A member that the fork would have to copy, and can't.
    let created = commit(&world.session, async |tx| {
        tx.doc_in(&CURRENT_FAMILY, root, "new", &"seed".to_owned()).await?;
        tx.fork_conversation(root, at, OWNERLESS).await.map(|_| ())
    });
    fork_source(created.await);
    assert_eq!(world.probe.batches(), [], "storage was asked");
    assert_eq!(world.session.store().head().await.unwrap(), head);

    // Reading one, and writing what is not copied, is fine.
    let child = commit(&world.session, async |tx| {
        assert_eq!(tx.doc(&CURRENT, root).await?.read()?.n, 1);
        tx.doc(&INITIAL, root).await?.edit(|note| note.n = 5)?;
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 5)?;
        Ok(tx.fork_conversation(root, at, OWNERLESS).await?.id)
    })
    .await
    .unwrap();
    world.step().await;
    assert_eq!(n(&world.session, &CURRENT, child).await, Some(1));
    assert_eq!(n(&world.session, &INITIAL, root).await, Some(5));
}

async fn s049_a_fork_point_must_be_visible(mut world: World) {
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    let child = fork(&world.session, root, at).await;
    let later = append_plain(&world.session, root).await.id;
    let own = append_plain(&world.session, child).await.id;
    world.step().await;
    let _ = world.probe.batches();
    for (parent, at) in [(child, later), (root, own), (root, EntryId::new(9_999).unwrap())] {
        let result = commit(&world.session, async |tx| tx.fork_conversation(parent, at, OWNERLESS).await).await;
        let Err(CommitError::Invalid(error @ Violation::NotVisible { .. })) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("is not visible"), "{error}");
    }
    // An entry of the same transaction belongs to no commit yet.
    let result = commit(&world.session, async |tx| {
        let entry = tx.append_entry(root, EntryDraft::new("t.entry")).await?.id;
        tx.fork_conversation(root, entry, OWNERLESS).await
    })
    .await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::NotVisible { .. }))), "{result:?}");
    let unknown = ConversationId::new(9_999).unwrap();
    let result = commit(&world.session, async |tx| tx.fork_conversation(unknown, at, OWNERLESS).await).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownConversation { .. }))), "{result:?}");
    assert_eq!(world.probe.batches(), []);
    fork(&world.session, child, own).await;
}

async fn s050_shared_fresh_and_never_copied(mut world: World) {
    const LIVE: DocToken<Json, Latest<Initial>> =
        DocToken::new("pi.live", 1, || DocDefinition { initial: || json("{}"), migrate: None, checkpoint_when: every::<1> });
    const INBOX: DocToken<Json, Latest<Initial>> =
        DocToken::new("pi.inbox", 1, || DocDefinition { initial: || json(r#"{"items":[]}"#), migrate: None, checkpoint_when: every::<1> });
    const USAGE: DocToken<Json, Latest<Initial>> = DocToken::new("pi.usage", 1, || DocDefinition {
        initial: || json(r#"{"models":{},"tools":{}}"#),
        migrate: None,
        checkpoint_when: every::<1>,
    });
    let root = world.root();
    let at = append_plain(&world.session, root).await.id;
    let busy = commit(&world.session, async |tx| {
        tx.doc(&LIVE, root).await?.draft.key("message").set("partial")?;
        tx.doc(&INBOX, root).await?.draft.key("items").push(json(r#"{"id":1}"#))?;
        tx.doc(&USAGE, root).await?.draft.key("models").key("m").set(1)?;
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 1)?;
        let busy = tx.create_task_raw(task(root)).await?;
        tx.doc(&IN_TASK, busy).await?.edit(|note| note.n = 1)?;
        Ok(busy)
    })
    .await
    .unwrap();
    world.step().await;
    let child = fork(&world.session, root, at).await;
    world.step().await;
    let session = &world.session;
    assert_eq!(ids(session, child).await, []);
    let query = picofleet_session::storage::TaskQuery { conversation_id: Some(child), ..Default::default() };
    assert_eq!(session.store().scan_tasks(query, 10, None).await.unwrap().items, []);
    commit(session, async |tx| {
        assert_eq!(tx.doc(&LIVE, child).await?.draft.get(), Some(json("{}")));
        assert_eq!(tx.doc(&INBOX, child).await?.draft.get(), Some(json(r#"{"items":[]}"#)));
        assert_eq!(tx.doc(&USAGE, child).await?.draft.get(), Some(json(r#"{"models":{},"tools":{}}"#)));
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n += 1)
    })
    .await
    .unwrap();
    world.step().await;
    assert_eq!(world.session.snapshot(&LIVE, root).await.unwrap(), Some(json(r#"{"message":"partial"}"#)));
    assert_eq!(n(&world.session, &IN_SESSION, ()).await, Some(2));
    assert_eq!(n(&world.session, &IN_TASK, busy).await, Some(1));
}

async fn s051_a_fork_inside_a_tool_round(mut world: World) {
    let root = world.root();
    append(&world.session, root, EntryDraft::new("pi.user").model(vec![user("go")])).await;
    let calls = [("c2", "second"), ("c1", "first")];
    let calling = assistant("calling", &calls, StopReason::ToolUse);
    let at = append(&world.session, root, EntryDraft::new("pi.assistant").model(vec![calling.clone()])).await.id;
    append(&world.session, root, EntryDraft::new("pi.toolResult").model(vec![tool_result("c1", "one")])).await;
    append(&world.session, root, EntryDraft::new("pi.toolResult").model(vec![tool_result("c2", "two")])).await;
    world.step().await;
    let child = fork(&world.session, root, at).await;
    append(&world.session, child, EntryDraft::new("pi.user").model(vec![user("else")])).await;
    world.step().await;
    let view = world.session.context(child, None).await.unwrap();
    let [first, second, missing @ .., last] = view.messages.as_slice() else { panic!("{view:?}") };
    assert_eq!((first, second, last), (&user("go"), &calling, &user("else")));
    let missing: Vec<_> = missing
        .iter()
        .map(|message| match message {
            Message::ToolResult(result) => (&*result.tool_call_id, &*result.tool_name, result.is_error, result.details.clone()),
            other => panic!("{other:?}"),
        })
        .collect();
    let details = Some(json(r#"{"reason":"missing_result"}"#));
    assert_eq!(missing, [("c2", "second", true, details.clone()), ("c1", "first", true, details)]);
    let whole = world.session.context(root, None).await.unwrap().messages;
    assert_eq!(whole, [user("go"), calling, tool_result("c2", "two"), tool_result("c1", "one")]);
    // The same cut without a fork.
    assert_eq!(world.session.context(root, Some(at)).await.unwrap().messages, view.messages[..4]);
}

async fn x019_history_before_the_fork_is_the_parents(mut world: World) {
    let a = world.root();
    set_n(&world.session, &AS_OF, a, 1).await;
    let early = append_plain(&world.session, a).await.id;
    set_n(&world.session, &AS_OF, a, 2).await;
    let e = append_plain(&world.session, a).await.id;
    let b = fork(&world.session, a, e).await;
    world.step().await;
    set_n(&world.session, &AS_OF, b, 30).await;
    let own = append_plain(&world.session, b).await.id;
    world.step().await;
    let at = async |conversation, at| world.session.snapshot_as_of(&AS_OF, conversation, at).await.unwrap().map(|note| note.n);
    assert_eq!(at(b, early).await, Some(1));
    assert_eq!(at(b, e).await, Some(2), "the copy was made later than the entry");
    assert_eq!(at(b, own).await, Some(30));
    assert_eq!(at(a, e).await, Some(2));
}
