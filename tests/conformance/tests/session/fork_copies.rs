//! Forks: how documents are copied (scenarios X020-X024).

use std::sync::{Arc, Mutex};

use picofleet_conformance::World;
use picofleet_conformance::documents::{AS_OF, AS_OF_FAMILY, CURRENT, Failure, INITIAL, Note, append_plain, commit, initials, json, set_n};
use picofleet_delta::Json;
use picofleet_session::storage::{DocumentQuery, Write};
use picofleet_session::{
    AsOf, ConversationId, Current, DefinitionError, DocDefinition, DocToken, DocumentScope, EntryDraft, Initial, Latest, MigrateError,
    Point, ReadError, Rewindable, TxError, ValueChange, every,
};

use super::forks::{OWNERLESS, edit_all, fork, n, visible};

scenarios! {
    x020_a_fork_runs_no_definition,
    x020_a_typed_access_in_the_fork_replaces_the_copy,
    x021_what_becomes_of_a_copy_in_its_transaction,
    x021_what_becomes_of_the_source_does_not_reach_the_child,
    x022_a_large_family_is_copied_completely,
    x023_a_failing_fork_leaves_nothing,
    x024_the_publication_announces_copies_without_values,
    x024_several_forks_in_one_transaction,
}

fn migrating(value: Json, _from: u32) -> Result<Note, MigrateError> {
    let note: Note = value.to().map_err(|error| MigrateError(error.to_string()))?;
    Ok(Note { n: note.n + 1_000, ..note })
}

const OLD: DocToken<Note, Rewindable<AsOf>> =
    DocToken::new("t.copied", 1, || DocDefinition { initial: Note::default, migrate: None, checkpoint_when: every::<2> });
const NEW: DocToken<Note, Rewindable<AsOf>> =
    DocToken::new("t.copied", 2, || DocDefinition { initial: Note::default, migrate: Some(migrating), checkpoint_when: every::<2> });
const BROKEN: DocToken<Note, Rewindable<AsOf>> = DocToken::new("t.copied", 2, || DocDefinition {
    initial: || panic!("not to be called"),
    migrate: Some(|_, _| panic!("on purpose")),
    checkpoint_when: |_, _, _| panic!("not to be called"),
});

async fn x020_a_fork_runs_no_definition(mut world: World) {
    let root = world.root();
    set_n(&world.session, &OLD, root, 1).await;
    set_n(&world.session, &OLD, root, 2).await;
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    // What is in memory is migrated; the copy is of what is stored.
    assert_eq!(n(&world.session, &NEW, root).await, Some(1_002));
    let _ = (world.probe.writes(), initials());
    let child = fork(&world.session, root, at).await;
    let writes = world.probe.writes();
    let copies: Vec<_> = writes.iter().filter(|write| matches!(write, Write::DocumentCopy(_))).collect();
    assert_eq!((copies.len(), writes.len()), (1, 2), "{writes:?}");
    assert_eq!(initials(), 0);
    world.step().await;
    assert!(world.session.snapshot(&BROKEN, child).await.is_err());
    assert_eq!(n(&world.session, &OLD, child).await, Some(2));
    assert_eq!(n(&world.session, &NEW, child).await, Some(1_002));
}

async fn x020_a_typed_access_in_the_fork_replaces_the_copy(mut world: World) {
    let root = world.root();
    set_n(&world.session, &OLD, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    set_n(&world.session, &OLD, root, 2).await;
    world.step().await;
    let _ = world.probe.writes();
    let child = commit(&world.session, async |tx| {
        let child = tx.fork_conversation(root, at, OWNERLESS).await?.id;
        let doc = tx.doc(&NEW, child).await?;
        assert_eq!(doc.read()?.n, 1_001);
        doc.edit(|note| note.n += 1)?;
        tx.doc(&NEW, child).await?.edit(|note| note.text = "child".to_owned())?;
        Ok(child)
    })
    .await
    .unwrap();
    let writes = world.probe.writes();
    let created: Vec<_> = writes.iter().filter(|write| !matches!(write, Write::Conversation(_))).collect();
    let [Write::DocumentCreate { version: 2, value, .. }] = created[..] else { panic!("{writes:?}") };
    assert_eq!(*value, json(r#"{"text":"child","n":1002}"#));
    world.step().await;
    assert_eq!(n(&world.session, &NEW, child).await, Some(1_002));
    assert_eq!(n(&world.session, &OLD, root).await, Some(2));
    assert!(matches!(world.session.snapshot(&OLD, child).await, Err(ReadError::Definition(DefinitionError::TooNew { .. }))));
}

async fn x021_what_becomes_of_a_copy_in_its_transaction(mut world: World) {
    const LIE: DocToken<Note, Latest<Current>> =
        DocToken::new("t.copied", 1, || DocDefinition { initial: Note::default, migrate: None, checkpoint_when: every::<2> });
    let root = world.root();
    set_n(&world.session, &OLD, root, 1).await;
    set_n(&world.session, &CURRENT, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    let _ = initials();
    let child = commit(&world.session, async |tx| {
        let child = tx.fork_conversation(root, at, OWNERLESS).await?.id;
        // A token of other semantics neither opens nor ends it.
        assert!(matches!(tx.doc(&LIE, child).await, Err(TxError::Definition(DefinitionError::Semantics { .. }))));
        assert!(matches!(tx.retire_doc(&LIE, child).await, Err(TxError::Definition(DefinitionError::Semantics { .. }))));
        assert_eq!(tx.doc(&OLD, child).await?.read()?.n, 1);
        // Ended before it was there: the next access makes one.
        tx.retire_doc(&CURRENT, child).await?;
        tx.doc(&CURRENT, child).await?.edit(|note| note.n = 7)?;
        Ok(child)
    })
    .await
    .unwrap();
    assert_eq!(initials(), 1);
    world.step().await;
    assert_eq!(n(&world.session, &CURRENT, child).await, Some(7));
    assert_eq!(n(&world.session, &OLD, child).await, Some(1));
    let child = commit(&world.session, async |tx| {
        let child = tx.fork_conversation(root, at, OWNERLESS).await?.id;
        tx.doc(&OLD, child).await?;
        tx.retire_doc(&OLD, child).await?;
        tx.retire_doc(&CURRENT, child).await?;
        Ok(child)
    })
    .await
    .unwrap();
    world.step().await;
    assert_eq!(n(&world.session, &CURRENT, child).await, None);
    assert_eq!(n(&world.session, &OLD, child).await, None);
    assert_eq!(n(&world.session, &OLD, root).await, Some(1));
}

async fn x021_what_becomes_of_the_source_does_not_reach_the_child(mut world: World) {
    let root = world.root();
    set_n(&world.session, &CURRENT, root, 1).await;
    set_n(&world.session, &AS_OF, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    let child = fork(&world.session, root, at).await;
    world.step().await;
    for n in 2..8 {
        set_n(&world.session, &CURRENT, root, n).await;
        set_n(&world.session, &AS_OF, root, n).await;
    }
    commit(&world.session, async |tx| {
        tx.retire_doc(&CURRENT, root).await?;
        tx.retire_doc(&AS_OF, root).await
    })
    .await
    .unwrap();
    world.store().maintain(10_000, picofleet_conformance::NOW).await.unwrap();
    world.step().await;
    assert_eq!(n(&world.session, &CURRENT, child).await, Some(1));
    assert_eq!(n(&world.session, &AS_OF, child).await, Some(1));
    set_n(&world.session, &CURRENT, child, 5).await;
    world.step().await;
    assert_eq!(n(&world.session, &CURRENT, child).await, Some(5));
}

async fn x022_a_large_family_is_copied_completely(mut world: World) {
    const MEMBERS: usize = 1_100;
    let root = world.root();
    commit(&world.session, async |tx| {
        for i in 0..MEMBERS {
            tx.doc_in(&AS_OF_FAMILY, root, &i.to_string(), &i.to_string()).await?;
        }
        Ok(())
    })
    .await
    .unwrap();
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    let child = fork(&world.session, root, at).await;
    world.step().await;
    for i in [0, 1, 999, 1_000, MEMBERS - 1] {
        let member = world.session.snapshot_in(&AS_OF_FAMILY, child, &i.to_string()).await.unwrap();
        assert_eq!(member.map(|note| note.text), Some(i.to_string()));
    }
    let query = DocumentQuery { scope: DocumentScope::Conversation { id: child }, at: Point::Current, kind: None };
    let first = world.session.store().scan_documents(query.clone(), 1_000, None).await.unwrap();
    let second = world.session.store().scan_documents(query, 1_000, first.next).await.unwrap();
    assert_eq!(first.items.len() + second.items.len(), MEMBERS);
}

async fn x023_a_failing_fork_leaves_nothing(mut world: World) {
    let root = world.root();
    set_n(&world.session, &CURRENT, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    let head = world.session.store().head().await.unwrap();
    let mut made = None;
    let failed: Result<(), Failure> = world
        .session
        .commit(async |tx| {
            let child = tx.fork_conversation(root, at, OWNERLESS).await?.id;
            tx.doc(&INITIAL, child).await?;
            tx.append_entry(child, EntryDraft::new("t.entry")).await?;
            made = Some(child);
            Err(Failure::Own("the setup failed"))
        })
        .await;
    assert!(failed.is_err());
    let child = made.unwrap();
    let broken = commit(&world.session, async |tx| {
        let child = tx.fork_conversation(root, at, OWNERLESS).await?.id;
        tx.doc(&CURRENT, child).await?.edit(|note| note.n = 2)?;
        // A copy whose migration fails.
        set_old(tx, child).await
    })
    .await;
    assert!(broken.is_err(), "{broken:?}");
    assert_eq!(world.session.store().head().await.unwrap(), head);
    assert_eq!(world.session.conversation(child).await.unwrap(), None);
    world.step().await;
    let next = fork(&world.session, root, at).await;
    assert!(next.get() > head.next_id - 1);
    assert_eq!(n(&world.session, &CURRENT, next).await, Some(1));
}

async fn set_old(tx: &picofleet_session::Tx, conversation: ConversationId) -> Result<(), TxError> {
    const PANICS: DocToken<Note, Latest<Initial>> =
        DocToken::new("t.panics", 1, || DocDefinition { initial: || panic!("on purpose"), migrate: None, checkpoint_when: every::<2> });
    tx.doc(&PANICS, conversation).await.map(|_| ())
}

async fn x024_the_publication_announces_copies_without_values(world: World) {
    let root = world.root();
    set_n(&world.session, &AS_OF, root, 1).await;
    set_n(&world.session, &CURRENT, root, 2).await;
    let at = append_plain(&world.session, root).await.id;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let _subscription = world.session.subscribe_commits(move |publication| sink.lock().unwrap().push(publication.clone()));
    let child = commit(&world.session, async |tx| {
        let child = tx.fork_conversation(root, at, OWNERLESS).await?.id;
        tx.doc(&CURRENT, child).await?.edit(|note| note.n = 3)?;
        Ok(child)
    })
    .await
    .unwrap();
    let publications = std::mem::take(&mut *seen.lock().unwrap());
    let [publication] = publications.as_slice() else { panic!("{publications:?}") };
    assert_eq!(publication.conversations.iter().map(|record| record.id).collect::<Vec<_>>(), [child]);
    let mut changes = publication.documents.iter().map(|change| (&*change.document.kind, change.value.as_ref().unwrap()));
    let (created, copied) = (changes.next().unwrap(), changes.next().unwrap());
    assert!(matches!(created, ("t.current", ValueChange::Created { value, .. }) if value.get("n") == Some(&Json::from(3))), "{created:?}");
    assert!(matches!(copied, ("t.asOf", ValueChange::Copied { .. })), "{copied:?}");
    assert!(changes.next().is_none());
    // Who observes the copy takes its value from storage, and the later ones from commits.
    let mut watch = world.session.watch_doc(&AS_OF, child).await.unwrap().unwrap();
    assert_eq!(watch.read().unwrap().unwrap().n, 1);
    set_n(&world.session, &AS_OF, child, 4).await;
    assert_eq!(watch.next().await.unwrap().read().unwrap().unwrap().n, 4);
}

async fn x024_several_forks_in_one_transaction(mut world: World) {
    let root = world.root();
    edit_all(&world.session, root, 1).await;
    let first = append_plain(&world.session, root).await.id;
    edit_all(&world.session, root, 2).await;
    let second = append_plain(&world.session, root).await.id;
    edit_all(&world.session, root, 3).await;
    world.step().await;
    let (a, b) = commit(&world.session, async |tx| {
        let a = tx.fork_conversation(root, first, OWNERLESS).await?.id;
        let b = tx.fork_conversation(root, second, OWNERLESS).await?.id;
        tx.append_entry(a, EntryDraft::new("t.entry")).await?;
        Ok((a, b))
    })
    .await
    .unwrap();
    world.step().await;
    assert_eq!((n(&world.session, &AS_OF, a).await, n(&world.session, &CURRENT, a).await), (Some(1), Some(3)));
    assert_eq!((n(&world.session, &AS_OF, b).await, n(&world.session, &CURRENT, b).await), (Some(2), Some(3)));
    assert_eq!(visible(&world.session, a).await.len(), 2);
    assert_eq!(visible(&world.session, b).await, [second, first]);
}
