//! Versions, migrations and past values (scenarios S036-S038, S043, S044, X016-X018).

use std::cell::Cell;

use picofleet_conformance::World;
use picofleet_conformance::documents::{AS_OF, Failure, Note, append_plain, commit, json, ops, set_n};
use picofleet_delta::Json;
use picofleet_session::storage::{EntryQuery, Write};
use picofleet_session::{
    AsOf, CommitError, ConversationOwnership, Current, DefinitionError, DocDefinition, DocToken, DocumentAddress, DocumentContent,
    EntryDraft, EntryId, Latest, MigrateError, Point, ReadError, Rewindable, Scope, TxError, Violation, every,
};

scenarios! {
    s036_what_a_token_cannot_read_rejects,
    s036_a_failing_migration_rejects_and_keeps_what_is_stored,
    s037_a_read_migrates_once_per_load_and_stores_nothing,
    s038_an_access_stores_a_base_of_the_new_version,
    s038_an_equal_value_base_makes_no_frame,
    s043_an_entry_that_is_not_visible_rejects,
    s043_a_document_without_history_rejects,
    s044_history_selects_the_incarnation_of_its_time,
    s044_history_migrates_after_the_replay,
    x016_migration_and_edits_are_one_base,
    x016_a_failing_callback_persists_no_migration,
    x017_a_cached_migration_serves_no_other_version,
    x018_what_nobody_accesses_keeps_its_version,
}

thread_local! {
    static MIGRATIONS: Cell<u32> = const { Cell::new(0) };
}

fn migrations() -> u32 {
    MIGRATIONS.take()
}

fn v1() -> DocDefinition<Note> {
    DocDefinition { initial: || Note::new("one"), migrate: None, checkpoint_when: every::<9> }
}

/// Version 2 doubles the number, version 3 adds a hundred to what version 2 has.
fn up(value: Json, from: u32, to: u32) -> Result<Note, MigrateError> {
    MIGRATIONS.set(MIGRATIONS.get() + 1);
    let mut note: Note = value.to().map_err(|error| MigrateError(error.to_string()))?;
    if from < 2 {
        note.n *= 2;
    }
    if to > 2 {
        note.n += 100;
    }
    Ok(note)
}

fn v2() -> DocDefinition<Note> {
    DocDefinition { initial: || Note::new("two"), migrate: Some(|value, from| up(value, from, 2)), checkpoint_when: every::<9> }
}

fn v3() -> DocDefinition<Note> {
    DocDefinition { initial: || Note::new("three"), migrate: Some(|value, from| up(value, from, 3)), checkpoint_when: every::<9> }
}

type Doc = DocToken<Note, Rewindable<AsOf>>;
const V1: Doc = DocToken::new("t.versioned", 1, v1);
const V2: Doc = DocToken::new("t.versioned", 2, v2);
const V3: Doc = DocToken::new("t.versioned", 3, v3);
/// Leaves the value as it is.
const SAME_2: Doc = DocToken::new("t.versioned", 2, || DocDefinition {
    initial: Note::default,
    migrate: Some(|value, _| value.to().map_err(|error| MigrateError(error.to_string()))),
    checkpoint_when: every::<9>,
});
const FAILS_2: Doc = DocToken::new("t.versioned", 2, || DocDefinition {
    initial: Note::default,
    migrate: Some(|_, from| Err(MigrateError(format!("cannot read version {from}")))),
    checkpoint_when: every::<9>,
});
const PANICS_2: Doc = DocToken::new("t.versioned", 2, || DocDefinition {
    initial: Note::default,
    migrate: Some(|_, _| panic!("on purpose")),
    checkpoint_when: every::<9>,
});

/// The version, the deltas behind the base and the value that storage has.
async fn stored(world: &World) -> (u32, u32, Json) {
    let scope = Rewindable::<AsOf>::placement(world.root()).scope();
    let address = DocumentAddress { kind: V1.kind.to_owned(), scope, key: None };
    let store = world.session.store();
    let record = store.find_document(address, Point::Current).await.unwrap().unwrap();
    let stored = store.document(record.create.id, Point::Current).await.unwrap().unwrap();
    (stored.version, stored.deltas_since_base, stored.value)
}

async fn s036_what_a_token_cannot_read_rejects(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V2, root, 1).await;
    let entry = append_plain(&world.session, root).await.id;
    let old_without_migrate: Doc = DocToken::new("t.versioned", 3, || DocDefinition { migrate: None, ..v3() });
    world.step().await;
    let _ = world.probe.writes();
    let session = &world.session;
    for read in [session.snapshot(&V1, root).await, session.snapshot_as_of(&V1, root, entry).await] {
        assert!(matches!(read, Err(ReadError::Definition(DefinitionError::TooNew { stored: 2, known: 1, .. }))), "{read:?}");
    }
    let read = session.watch_doc(&V1, root).await.map(|watch| watch.is_some());
    assert!(matches!(read, Err(ReadError::Definition(DefinitionError::TooNew { .. }))), "{read:?}");
    let access = commit(session, async |tx| tx.doc(&V1, root).await.map(|_| ())).await;
    assert!(matches!(access, Err(CommitError::Definition(DefinitionError::TooNew { .. }))), "{access:?}");
    let read = session.snapshot(&old_without_migrate, root).await;
    assert!(matches!(read, Err(ReadError::Definition(DefinitionError::NoMigration { from: 2, to: 3, .. }))), "{read:?}");
    let access = commit(session, async |tx| tx.doc(&old_without_migrate, root).await.map(|_| ())).await;
    assert!(matches!(access, Err(CommitError::Definition(DefinitionError::NoMigration { .. }))), "{access:?}");
    assert_eq!(world.probe.writes(), []);
    assert_eq!(session.snapshot(&V2, root).await.unwrap().unwrap().n, 1);
    // Retirement reads no value, so that any version can end it.
    commit(session, async |tx| tx.retire_doc(&V1, root).await).await.unwrap();
    assert_eq!(session.snapshot(&V2, root).await.unwrap(), None);
}

async fn s036_a_failing_migration_rejects_and_keeps_what_is_stored(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 3).await;
    world.step().await;
    let _ = world.probe.writes();
    let read = world.session.snapshot(&FAILS_2, root).await;
    let Err(ReadError::Definition(error @ DefinitionError::Migration { from: 1, to: 2, .. })) = read else { panic!("{read:?}") };
    assert!(error.to_string().contains("cannot read version 1"), "{error}");
    let access = commit(&world.session, async |tx| tx.doc(&PANICS_2, root).await.map(|_| ())).await;
    assert!(matches!(access, Err(CommitError::Definition(DefinitionError::Panicked { call: "migrate()", .. }))), "{access:?}");
    assert_eq!(world.probe.writes(), []);
    assert_eq!(world.session.snapshot(&V1, root).await.unwrap().unwrap().n, 3);
    assert_eq!(world.session.snapshot(&V2, root).await.unwrap().unwrap().n, 6);
}

async fn s037_a_read_migrates_once_per_load_and_stores_nothing(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    world.step().await;
    let before = stored(&world).await;
    let _ = (world.probe.writes(), migrations());
    for _ in 0..3 {
        assert_eq!(world.session.snapshot(&V2, root).await.unwrap().unwrap().n, 10);
    }
    let watch = world.session.watch_doc(&V2, root).await.unwrap().unwrap();
    assert_eq!(watch.read().unwrap().unwrap().n, 10);
    assert_eq!(migrations(), 1);
    assert_eq!(world.probe.writes(), []);
    assert_eq!(stored(&world).await, before);
    world.reopen().await;
    assert_eq!(world.session.snapshot(&V2, root).await.unwrap().unwrap().n, 10);
    assert_eq!(migrations(), 1);
    assert_eq!(stored(&world).await, before);
}

async fn s038_an_access_stores_a_base_of_the_new_version(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    for read_first in [true, false] {
        world.step().await;
        let _ = world.probe.writes();
        if read_first {
            assert_eq!(world.session.snapshot(&SAME_2, root).await.unwrap().unwrap().n, 5);
        }
        commit(&world.session, async |tx| tx.doc(&SAME_2, root).await.map(|_| ())).await.unwrap();
        let writes = world.probe.writes();
        if read_first {
            let [Write::DocumentChange { content: DocumentContent::Base { version: 2, value }, .. }] = &writes[..] else {
                panic!("{writes:?}")
            };
            assert_eq!(*value, json(r#"{"text":"one","n":5}"#));
        } else {
            assert_eq!(writes, [], "the second access stored something");
        }
    }
    world.step().await;
    set_n(&world.session, &SAME_2, root, 6).await;
    let writes = world.probe.writes();
    assert!(matches!(&writes[..], [Write::DocumentChange { content: DocumentContent::Delta { version: 2, .. }, .. }]), "{writes:?}");
    assert_eq!(stored(&world).await, (2, 1, json(r#"{"text":"one","n":6}"#)));
}

async fn s038_an_equal_value_base_makes_no_frame(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    world.step().await;
    let mut old = world.session.watch_doc(&V1, root).await.unwrap().unwrap();
    let mut new = world.session.watch_doc(&SAME_2, root).await.unwrap().unwrap();
    commit(&world.session, async |tx| tx.doc(&SAME_2, root).await.map(|_| ())).await.unwrap();
    set_n(&world.session, &SAME_2, root, 6).await;
    for watch in [&mut old, &mut new] {
        let frame = watch.next().await.unwrap();
        assert_eq!(ops(&frame.ops), r#"[["s",["n"],6]]"#);
    }
}

async fn s043_an_entry_that_is_not_visible_rejects(mut world: World) {
    let root = world.root();
    set_n(&world.session, &AS_OF, root, 1).await;
    let visible = append_plain(&world.session, root).await.id;
    let child =
        commit(&world.session, async |tx| tx.fork_conversation(root, visible, ConversationOwnership::Ownerless).await).await.unwrap().id;
    let later = append_plain(&world.session, root).await.id;
    let own = append_plain(&world.session, child).await.id;
    world.step().await;
    let session = &world.session;
    for (conversation, at) in [(child, later), (root, own), (root, EntryId::new(9_999).unwrap())] {
        let read = session.snapshot_as_of(&AS_OF, conversation, at).await;
        let Err(ReadError::Invalid(error @ Violation::NotVisible { .. })) = read else { panic!("{read:?}") };
        assert!(error.to_string().contains("is not visible"), "{error}");
    }
    let read = session.snapshot_as_of(&AS_OF, picofleet_session::ConversationId::new(9_999).unwrap(), visible).await;
    assert!(matches!(read, Err(ReadError::Invalid(Violation::UnknownConversation { .. }))), "{read:?}");
    assert_eq!(session.snapshot_as_of(&AS_OF, child, visible).await.unwrap().unwrap().n, 1);
}

/// A token can't ask a latest document for its past (`tests/compile_fail`); a token that lies about the history meets this.
async fn s043_a_document_without_history_rejects(mut world: World) {
    const STORED: DocToken<Note, Latest<Current>> = DocToken::new("t.lie", 1, v1);
    const LIE: DocToken<Note, Rewindable<Current>> = DocToken::new("t.lie", 1, v1);
    let root = world.root();
    set_n(&world.session, &STORED, root, 1).await;
    let at = append_plain(&world.session, root).await.id;
    world.step().await;
    let read = world.session.snapshot_as_of(&LIE, root, at).await;
    assert!(matches!(read, Err(ReadError::Definition(DefinitionError::Semantics { .. }))), "{read:?}");
}

async fn s044_history_selects_the_incarnation_of_its_time(mut world: World) {
    let root = world.root();
    let mut entries = Vec::new();
    entries.push((append_plain(&world.session, root).await.id, None));
    set_n(&world.session, &V1, root, 1).await;
    entries.push((append_plain(&world.session, root).await.id, Some(1)));
    for n in 2..14 {
        set_n(&world.session, &V1, root, n).await;
        world.step().await;
        entries.push((append_plain(&world.session, root).await.id, Some(n)));
    }
    commit(&world.session, async |tx| tx.retire_doc(&V1, root).await).await.unwrap();
    entries.push((append_plain(&world.session, root).await.id, None));
    world.step().await;
    set_n(&world.session, &V1, root, 50).await;
    entries.push((append_plain(&world.session, root).await.id, Some(50)));
    // The state at an entry is the final one of its commit.
    let entry = commit(&world.session, async |tx| {
        let entry = tx.append_entry(root, EntryDraft::new("t.entry")).await?;
        tx.doc(&V1, root).await?.edit(|note| note.n = 51)?;
        Ok(entry.id)
    })
    .await
    .unwrap();
    entries.push((entry, Some(51)));
    world.step().await;
    for (at, n) in entries {
        let value = world.session.snapshot_as_of(&V1, root, at).await.unwrap();
        assert_eq!(value.map(|note| note.n), n, "at {at}");
    }
}

async fn s044_history_migrates_after_the_replay(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 1).await;
    set_n(&world.session, &V1, root, 2).await;
    let old = append_plain(&world.session, root).await.id;
    world.step().await;
    set_n(&world.session, &V2, root, 7).await;
    let new = append_plain(&world.session, root).await.id;
    world.step().await;
    let _ = (world.probe.writes(), migrations());
    let at = async |token: &Doc, at| world.session.snapshot_as_of(token, root, at).await.map(|note| note.unwrap().n);
    assert_eq!(at(&V1, old).await.unwrap(), 2, "stored history was rewritten");
    assert_eq!(at(&V2, old).await.unwrap(), 4);
    assert_eq!(at(&V3, old).await.unwrap(), 104);
    assert_eq!(migrations(), 2);
    assert_eq!(at(&V2, new).await.unwrap(), 7);
    assert_eq!(at(&V3, new).await.unwrap(), 107);
    assert!(matches!(at(&V1, new).await, Err(ReadError::Definition(DefinitionError::TooNew { .. }))));
    assert_eq!(world.probe.writes(), []);
}

async fn x016_migration_and_edits_are_one_base(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    world.step().await;
    let mut old = world.session.watch_doc(&V1, root).await.unwrap().unwrap();
    let mut new = world.session.watch_doc(&V2, root).await.unwrap().unwrap();
    let _ = world.probe.writes();
    commit(&world.session, async |tx| {
        let doc = tx.doc(&V2, root).await?;
        doc.edit(|note| note.n += 1)?;
        doc.edit(|note| note.text = "edited".to_owned())
    })
    .await
    .unwrap();
    let writes = world.probe.writes();
    let [Write::DocumentChange { content: DocumentContent::Base { version: 2, value }, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(*value, json(r#"{"text":"edited","n":11}"#));
    // What an observer gets stands on what it has.
    for watch in [&mut old, &mut new] {
        let before = watch.value().cloned();
        let frame = watch.next().await.unwrap();
        assert_eq!(frame.value.as_ref(), Some(value));
        assert_eq!(picofleet_delta::apply(before.as_ref(), &frame.ops).unwrap(), *value);
    }
    world.step().await;
    assert_eq!(stored(&world).await, (2, 0, value.clone()));
}

async fn x016_a_failing_callback_persists_no_migration(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    world.step().await;
    let before = stored(&world).await;
    let failed: Result<(), Failure> = world
        .session
        .commit(async |tx| {
            tx.doc(&V2, root).await?.edit(|note| note.n = 0)?;
            Err(Failure::Own("on purpose"))
        })
        .await;
    assert!(failed.is_err());
    assert_eq!(stored(&world).await, before);
    assert_eq!(world.session.snapshot(&V2, root).await.unwrap().unwrap().n, 10);
    assert_eq!(world.session.snapshot(&V1, root).await.unwrap().unwrap().n, 5);
    // The base is still to be written.
    commit(&world.session, async |tx| tx.doc(&V2, root).await.map(|_| ())).await.unwrap();
    assert_eq!(stored(&world).await, (2, 0, json(r#"{"text":"one","n":10}"#)));
}

async fn x017_a_cached_migration_serves_no_other_version(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    world.step().await;
    let _ = migrations();
    assert_eq!(world.session.snapshot(&V2, root).await.unwrap().unwrap().n, 10);
    assert_eq!(world.session.snapshot(&V1, root).await.unwrap().unwrap().n, 5, "the older token got the migrated value");
    assert_eq!(world.session.snapshot(&V2, root).await.unwrap().unwrap().n, 10);
    assert_eq!(world.session.snapshot(&V3, root).await.unwrap().unwrap().n, 110, "migrated from another than the stored version");
    assert_eq!(migrations(), 3);
    // The older token goes on where nobody stored the newer version.
    set_n(&world.session, &V1, root, 6).await;
    assert_eq!(stored(&world).await, (1, 1, json(r#"{"text":"one","n":6}"#)));
    set_n(&world.session, &V3, root, 200).await;
    let refused = commit(&world.session, async |tx| tx.doc(&V2, root).await.map(|_| ())).await;
    assert!(matches!(refused, Err(CommitError::Definition(DefinitionError::TooNew { stored: 3, known: 2, .. }))), "{refused:?}");
}

async fn x018_what_nobody_accesses_keeps_its_version(mut world: World) {
    let root = world.root();
    set_n(&world.session, &V1, root, 5).await;
    let before = stored(&world).await;
    for _ in 0..3 {
        world.reopen().await;
        append_plain(&world.session, root).await;
    }
    assert_eq!(stored(&world).await, before);
    assert_eq!(world.session.store().scan_entries(EntryQuery::all(root), 10, None).await.unwrap().items.len(), 3);
    // A read inside a transaction that then fails touches nothing either.
    let failed = commit(&world.session, async |tx| {
        tx.doc(&V2, root).await?;
        Err::<(), _>(TxError::ReadAfterWrite)
    })
    .await;
    assert!(failed.is_err());
    assert_eq!(stored(&world).await, before);
}
