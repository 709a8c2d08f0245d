//! The end of documents (scenarios S041, S042, X015).

use picofleet_conformance::World;
use picofleet_conformance::documents::{
    AS_OF, AS_OF_FAMILY, IN_TASK, Note, TASK_FAMILY, append_plain, commit, completed, initials, put_state, set_n, task, task_record,
};
use picofleet_session::storage::{DocumentQuery, Write};
use picofleet_session::{
    CommitError, ConversationId, DocToken, DocumentAddress, DocumentId, DocumentScope, EntryDraft, Point, Scope, Session, TaskId,
    TaskRecord, TaskState, TxError, Violation,
};

scenarios! {
    s041_retirement_stores_the_final_content_and_a_later_access_creates,
    s041_retirement_of_what_was_made_in_the_transaction,
    s041_retirement_without_access_and_of_nothing,
    s042_task_documents_end_with_their_task,
    s042_documents_need_their_conversation_or_task,
    x015_a_retirement_beside_a_pending_acquisition,
}

async fn s041_retirement_stores_the_final_content_and_a_later_access_creates(mut world: World) {
    let root = world.root();
    set_n(&world.session, &AS_OF, root, 1).await;
    let before = append_plain(&world.session, root).await.id;
    world.step().await;
    let old = id_of(&world.session, &AS_OF, root).await.unwrap();
    let _ = (world.probe.writes(), initials());
    commit(&world.session, async |tx| {
        tx.doc(&AS_OF, root).await?.edit(|note| note.n = 2)?;
        tx.retire_doc(&AS_OF, root).await?;
        let new = tx.doc(&AS_OF, root).await?;
        assert_eq!(new.read()?, Note::new("initial"));
        new.edit(|note| note.n = 3)
    })
    .await
    .unwrap();
    assert_eq!(initials(), 1);
    let writes = world.probe.writes();
    let kinds: Vec<_> = writes
        .iter()
        .map(|write| match write {
            Write::DocumentChange { id, .. } => ("change", *id),
            Write::DocumentCreate { create, .. } => ("create", create.id),
            Write::DocumentRetire(id) => ("retire", *id),
            other => panic!("{other:?}"),
        })
        .collect();
    let new = id_of(&world.session, &AS_OF, root).await.unwrap();
    assert_eq!(kinds, [("change", old), ("create", new), ("retire", old)]);
    assert_ne!(new, old);
    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 3);
    assert_eq!(world.session.snapshot_as_of(&AS_OF, root, before).await.unwrap().unwrap().n, 1);
}

async fn id_of<S: Scope>(session: &Session, token: &DocToken<Note, S>, at: S::At) -> Option<DocumentId> {
    let address = DocumentAddress { kind: token.kind.to_owned(), scope: S::placement(at).scope(), key: None };
    session.store().find_document(address, Point::Current).await.unwrap().map(|record| record.create.id)
}

async fn s041_retirement_of_what_was_made_in_the_transaction(mut world: World) {
    let root = world.root();
    let entry = commit(&world.session, async |tx| {
        tx.doc(&AS_OF, root).await?.edit(|note| note.n = 1)?;
        tx.retire_doc(&AS_OF, root).await?;
        tx.append_entry(root, EntryDraft::new("t.entry")).await
    })
    .await
    .unwrap();
    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None);
    assert_eq!(world.session.snapshot_as_of(&AS_OF, root, entry.id).await.unwrap(), None, "its lifetime is empty");
    let _ = initials();
    commit(&world.session, async |tx| {
        for n in 1..4 {
            tx.doc(&AS_OF, root).await?.edit(|note| note.n = n)?;
            tx.retire_doc(&AS_OF, root).await?;
        }
        tx.doc(&AS_OF, root).await?.edit(|note| note.n = 4)
    })
    .await
    .unwrap();
    assert_eq!(initials(), 4);
    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 4);
    // Twice at one address in one transaction, when one is committed: the second finds nothing.
    commit(&world.session, async |tx| {
        tx.retire_doc(&AS_OF, root).await?;
        tx.retire_doc(&AS_OF, root).await
    })
    .await
    .unwrap();
    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None);
}

async fn s041_retirement_without_access_and_of_nothing(mut world: World) {
    let root = world.root();
    let head = world.session.store().head().await.unwrap();
    commit(&world.session, async |tx| {
        tx.retire_doc(&AS_OF, root).await?;
        tx.retire_doc_in(&AS_OF_FAMILY, root, "k").await
    })
    .await
    .unwrap();
    assert_eq!(world.session.store().head().await.unwrap(), head);
    set_n(&world.session, &AS_OF, root, 1).await;
    commit(&world.session, async |tx| tx.doc_in(&AS_OF_FAMILY, root, "k", &"seed".to_owned()).await.map(|_| ())).await.unwrap();
    world.step().await;
    let _ = initials();
    // It may be in memory and is not open.
    world.session.snapshot(&AS_OF, root).await.unwrap().unwrap();
    commit(&world.session, async |tx| {
        tx.retire_doc(&AS_OF, root).await?;
        tx.retire_doc_in(&AS_OF_FAMILY, root, "k").await
    })
    .await
    .unwrap();
    assert_eq!(initials(), 0);
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None);
    assert_eq!(world.session.snapshot_in(&AS_OF_FAMILY, root, "k").await.unwrap(), None);
    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None);
    commit(&world.session, async |tx| tx.doc(&AS_OF, root).await.map(|_| ())).await.unwrap();
    assert_eq!(initials(), 1);
}

async fn s042_task_documents_end_with_their_task(mut world: World) {
    let root = world.root();
    let id = commit(&world.session, async |tx| tx.create_task_raw(task(root)).await).await.unwrap();
    set_n(&world.session, &IN_TASK, id, 1).await;
    commit(&world.session, async |tx| tx.doc_in(&TASK_FAMILY, id, "old", &"seed".to_owned()).await.map(|_| ())).await.unwrap();
    world.step().await;
    let record = task_record(&world.session, id).await.unwrap();
    let over = commit(&world.session, async |tx| {
        tx.doc(&IN_TASK, id).await?.edit(|note| note.n = 2)?;
        tx.doc_in(&TASK_FAMILY, id, "new", &"seed".to_owned()).await?;
        put_state(tx, &record, TaskState::Terminal { outcome: completed() }).await?;
        // Its documents are gone from here on, also the one that is open.
        assert!(matches!(tx.doc(&IN_TASK, id).await, Err(TxError::Invalid(Violation::TaskOver { .. }))));
        Ok(())
    })
    .await;
    over.unwrap();
    world.step().await;
    assert_eq!(world.session.snapshot(&IN_TASK, id).await.unwrap(), None);
    for key in ["old", "new"] {
        assert_eq!(world.session.snapshot_in(&TASK_FAMILY, id, key).await.unwrap(), None, "{key}");
    }
    let query = DocumentQuery { scope: DocumentScope::Task { id }, at: Point::Current, kind: None };
    assert_eq!(world.session.store().scan_documents(query, 10, None).await.unwrap().items, []);
    let again = commit(&world.session, async |tx| tx.doc(&IN_TASK, id).await.map(|_| ())).await;
    assert!(matches!(again, Err(CommitError::Invalid(Violation::TaskOver { .. }))), "{again:?}");

    // A task that begins and ends in one transaction.
    let short = commit(&world.session, async |tx| {
        let id = tx.create_task_raw(task(root)).await?;
        tx.doc(&IN_TASK, id).await?;
        let record = TaskRecord { id, ..record.clone() };
        put_state(tx, &record, TaskState::Terminal { outcome: completed() }).await?;
        Ok(id)
    })
    .await
    .unwrap();
    assert_eq!(world.session.snapshot(&IN_TASK, short).await.unwrap(), None);
}

async fn s042_documents_need_their_conversation_or_task(world: World) {
    let conversation = ConversationId::new(999).unwrap();
    let result = commit(&world.session, async |tx| tx.doc(&AS_OF, conversation).await.map(|_| ())).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownConversation { .. }))), "{result:?}");
    let result = commit(&world.session, async |tx| tx.doc(&IN_TASK, TaskId::new(999).unwrap()).await.map(|_| ())).await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::UnknownTask { .. }))), "{result:?}");
}

async fn x015_a_retirement_beside_a_pending_acquisition(mut world: World) {
    let root = world.root();
    for committed in [false, true] {
        if committed {
            set_n(&world.session, &AS_OF, root, 1).await;
        }
        world.step().await;
        world.probe.slow(true);
        commit(&world.session, async |tx| {
            let (opened, retired) = futures::join!(tx.doc(&AS_OF, root), tx.retire_doc(&AS_OF, root));
            opened?.edit(|note| note.n = 2)?;
            retired
        })
        .await
        .unwrap();
        assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None, "committed before: {committed}");
        world.step().await;
        assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None, "committed before: {committed}");

        // The other way round: what is opened behind the retirement is a new one.
        if committed {
            set_n(&world.session, &AS_OF, root, 1).await;
        }
        commit(&world.session, async |tx| {
            let (retired, again, opened) = futures::join!(tx.retire_doc(&AS_OF, root), tx.retire_doc(&AS_OF, root), tx.doc(&AS_OF, root));
            assert_eq!(opened?.read()?, Note::new("initial"));
            retired.and(again)
        })
        .await
        .unwrap();
        assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), Some(Note::new("initial")), "committed before: {committed}");
        commit(&world.session, async |tx| tx.retire_doc(&AS_OF, root).await).await.unwrap();
    }
}
