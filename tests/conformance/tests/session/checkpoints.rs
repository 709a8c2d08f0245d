//! Checkpoints (scenarios S039, S040, X013).

use std::cell::{Cell, RefCell};

use picofleet_conformance::World;
use picofleet_conformance::documents::{AS_OF, IN_SESSION, Note, commit, json, ops, set_n, stored};
use picofleet_delta::{Json, Op};
use picofleet_session::storage::Write;
use picofleet_session::{
    CheckpointInfo, CommitError, DefinitionError, DocDefinition, DocToken, DocumentContent, EntryDraft, InSession, MigrateError, Violation,
};

scenarios! {
    s039_the_predicate_sees_each_ordinary_change_once,
    s040_the_predicate_selects_what_is_stored,
    s040_a_panicking_predicate_rolls_back_every_document,
    x013_tokens_of_two_versions_do_not_share_a_draft,
}

thread_local! {
    static CALLS: RefCell<Vec<(String, String, u32)>> = const { RefCell::new(Vec::new()) };
    static ANSWER: Cell<Option<bool>> = const { Cell::new(Some(false)) };
}

fn recorded(value: &Json, changed: &[Op], info: CheckpointInfo) -> bool {
    CALLS.with_borrow_mut(|calls| calls.push((value.to_string(), ops(changed), info.deltas_since_base)));
    ANSWER.get().unwrap_or_else(|| panic!("on purpose"))
}

const RECORDED: DocToken<Note, InSession> =
    DocToken::new("t.recorded", 1, || DocDefinition { initial: Note::default, migrate: None, checkpoint_when: recorded });

const RECORDED_2: DocToken<Note, InSession> = DocToken::new("t.recorded", 2, || DocDefinition {
    initial: Note::default,
    migrate: Some(|value, _| value.to().map_err(|error| MigrateError(error.to_string()))),
    checkpoint_when: recorded,
});

fn calls() -> Vec<(String, String, u32)> {
    CALLS.take()
}

async fn s039_the_predicate_sees_each_ordinary_change_once(mut world: World) {
    set_n(&world.session, &RECORDED, (), 1).await;
    assert_eq!(calls(), [], "called for a creation");
    for n in 2..5 {
        world.step().await;
        set_n(&world.session, &RECORDED, (), n).await;
        let deltas = u32::try_from(n - 2).unwrap();
        assert_eq!(calls(), [(format!(r#"{{"text":"","n":{n}}}"#), format!(r#"[["s",["n"],{n}]]"#), deltas)]);
    }
    world.step().await;
    commit(&world.session, async |tx| tx.doc(&RECORDED, ()).await?.read().map(|_| ())).await.unwrap();
    assert_eq!(calls(), [], "called for an empty batch");

    ANSWER.set(Some(true));
    set_n(&world.session, &RECORDED, (), 5).await;
    assert_eq!(calls().into_iter().map(|(_, _, deltas)| deltas).collect::<Vec<_>>(), [3]);
    ANSWER.set(Some(false));
    world.step().await;
    set_n(&world.session, &RECORDED, (), 6).await;
    set_n(&world.session, &RECORDED, (), 7).await;
    assert_eq!(calls().into_iter().map(|(_, _, deltas)| deltas).collect::<Vec<_>>(), [0, 1], "a base starts the count again");

    world.step().await;
    set_n(&world.session, &RECORDED_2, (), 8).await;
    assert_eq!(calls(), [], "called for a version transition");
    world.step().await;
    set_n(&world.session, &RECORDED_2, (), 9).await;
    assert_eq!(calls().into_iter().map(|(_, _, deltas)| deltas).collect::<Vec<_>>(), [0]);
}

async fn s040_the_predicate_selects_what_is_stored(mut world: World) {
    set_n(&world.session, &RECORDED, (), 1).await;
    world.step().await;
    let _ = world.probe.writes();
    set_n(&world.session, &RECORDED, (), 2).await;
    let writes = world.probe.writes();
    let [Write::DocumentChange { content: DocumentContent::Delta { version: 1, ops: delta }, .. }] = &writes[..] else {
        panic!("{writes:?}")
    };
    assert_eq!(ops(delta), r#"[["s",["n"],2]]"#);
    world.step().await;
    ANSWER.set(Some(true));
    set_n(&world.session, &RECORDED, (), 3).await;
    let writes = world.probe.writes();
    let [Write::DocumentChange { content: DocumentContent::Base { version: 1, value }, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(*value, json(r#"{"text":"","n":3}"#));
    // A root replacement is a delta unless the predicate says otherwise.
    ANSWER.set(Some(false));
    world.step().await;
    commit(&world.session, async |tx| Ok(tx.doc(&RECORDED, ()).await?.draft.set(json(r#"{"text":"new","n":4}"#))?)).await.unwrap();
    let writes = world.probe.writes();
    let [Write::DocumentChange { content: DocumentContent::Delta { ops: delta, .. }, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert!(matches!(&delta[..], [Op::Replace(_)]), "{}", ops(delta));
    assert_eq!(stored(&world.session, &RECORDED, ()).await, Some((1, 1, json(r#"{"text":"new","n":4}"#))));
}

async fn s040_a_panicking_predicate_rolls_back_every_document(mut world: World) {
    set_n(&world.session, &RECORDED, (), 1).await;
    set_n(&world.session, &IN_SESSION, (), 1).await;
    world.step().await;
    let _ = world.probe.writes();
    ANSWER.set(None);
    let root = world.root();
    let result = commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 2)?;
        tx.doc(&RECORDED, ()).await?.edit(|note| note.n = 2)?;
        tx.doc(&AS_OF, root).await?.edit(|note| note.n = 2)?;
        tx.append_entry(root, EntryDraft::new("t.entry")).await.map(|_| ())
    })
    .await;
    assert!(matches!(result, Err(CommitError::Definition(DefinitionError::Panicked { call: "checkpointWhen()", .. }))), "{result:?}");
    assert_eq!(world.probe.writes(), []);
    ANSWER.set(Some(false));
    world.step().await;
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 1);
    assert_eq!(world.session.snapshot(&RECORDED, ()).await.unwrap().unwrap().n, 1);
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), None);
    set_n(&world.session, &RECORDED, (), 3).await;
    assert_eq!(stored(&world.session, &RECORDED, ()).await.unwrap().1, 1);
}

async fn x013_tokens_of_two_versions_do_not_share_a_draft(world: World) {
    set_n(&world.session, &RECORDED, (), 1).await;
    let result = commit(&world.session, async |tx| {
        tx.doc(&RECORDED_2, ()).await?;
        tx.doc(&RECORDED, ()).await.map(|_| ())
    })
    .await;
    assert!(matches!(result, Err(CommitError::Invalid(Violation::TwoVersions { open: 2, asked: 1, .. }))), "{result:?}");
    assert_eq!(stored(&world.session, &RECORDED, ()).await.unwrap().0, 1);
}
