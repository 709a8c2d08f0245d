//! Access to documents: creation, drafts, semantics (scenarios S027-S035, X013-X015).

use std::sync::{Arc, Mutex};

use picofleet_conformance::World;
use picofleet_conformance::documents::{
    AS_OF, AS_OF_FAMILY, CURRENT, Failure, IN_SESSION, IN_TASK, INITIAL, Note, SESSION_FAMILY, append_plain, commit, initials, json, ops,
    set_n, stored,
};
use picofleet_delta::{DraftErrorKind, Json};
use picofleet_session::storage::Write;
use picofleet_session::{
    AsOf, CommitError, ConversationId, Current, DefinitionError, DocDefinition, DocToken, DocumentContent, EntryId, FamilyDefinition,
    FamilyToken, InSession, Initial, Latest, ReadError, Rewindable, Session, TaskId, Tx, ValueChange, every,
};
use serde::Serialize;

scenarios! {
    s027_the_first_access_creates_and_publishes_after_storage,
    s028_a_familys_first_seed_wins,
    s029_reads_of_absent_documents_create_nothing,
    s030_a_snapshot_is_a_shared_revision_that_stays,
    s031_a_change_that_ends_equal_is_stored_and_published,
    s031_a_change_that_did_nothing_stores_nothing,
    s033_a_failing_callback_changes_nothing,
    s034_values_that_are_no_json_are_refused_where_they_are_assigned,
    s034_definitions_that_give_no_json_object_reject,
    s034_a_panicking_initializer_fails_the_commit_alone,
    s035_a_token_of_other_semantics_rejects,
    x013_concurrent_acquisitions_share_a_draft,
    x015_an_acquisition_that_is_given_up_leaves_nothing,
}

async fn s027_the_first_access_creates_and_publishes_after_storage(mut world: World) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&seen);
    let subscription = world.session.subscribe_commits(move |publication| sink.lock().unwrap().push(publication.clone()));
    let hold = world.probe.hold();
    let _ = initials();
    let writing = commit(&world.session, async |tx| tx.doc(&AS_OF, world.root()).await?.edit(|note| note.n = 7));
    let watching = async {
        hold.arrived().await;
        assert!(seen.lock().unwrap().is_empty(), "published before storage had it");
        hold.release();
    };
    let (written, ()) = futures::join!(writing, watching);
    written.unwrap();
    assert_eq!(initials(), 1);

    let publications = std::mem::take(&mut *seen.lock().unwrap());
    let [publication] = publications.as_slice() else { panic!("{} publications", publications.len()) };
    let [change] = publication.documents.as_slice() else { panic!("{:?}", publication.documents) };
    let expected = json(r#"{"text":"initial","n":7}"#);
    assert!(matches!(&change.value, Some(ValueChange::Created { version: 1, value }) if *value == expected), "{change:?}");
    let writes = world.probe.writes();
    assert!(matches!(&writes[..], [Write::DocumentCreate { version: 1, value, .. }] if *value == expected), "{writes:?}");
    drop(subscription);

    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, world.root()).await.unwrap(), Some(Note { n: 7, ..Note::new("initial") }));
    // An access that changes nothing stores nothing and makes no second one.
    commit(&world.session, async |tx| tx.doc(&AS_OF, world.root()).await.map(|_| ())).await.unwrap();
    assert_eq!((world.probe.writes(), initials()), (Vec::new(), 0));
}

async fn s028_a_familys_first_seed_wins(mut world: World) {
    let _ = initials();
    commit(&world.session, async |tx| {
        let first = tx.doc_in(&SESSION_FAMILY, (), "a", &"first".to_owned()).await?;
        let second = tx.doc_in(&SESSION_FAMILY, (), "a", &"second".to_owned()).await?;
        assert_eq!(second.read()?.text, "first");
        second.edit(|note| note.n = 1)?;
        assert_eq!(first.read()?.n, 1, "they are one draft");
        tx.doc_in(&SESSION_FAMILY, (), "b", &"other".to_owned()).await.map(|_| ())
    })
    .await
    .unwrap();
    assert_eq!(initials(), 2);
    world.step().await;
    commit(&world.session, async |tx| {
        assert_eq!(tx.doc_in(&SESSION_FAMILY, (), "a", &"third".to_owned()).await?.read()?.text, "first");
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(initials(), 0);
    world.step().await;
    assert_eq!(world.session.snapshot_in(&SESSION_FAMILY, (), "b").await.unwrap(), Some(Note::new("other")));
    assert_eq!(world.session.snapshot_in(&SESSION_FAMILY, (), "c").await.unwrap(), None);
}

async fn s029_reads_of_absent_documents_create_nothing(mut world: World) {
    let entry = append_plain(&world.session, world.root()).await;
    let _ = (world.probe.writes(), initials());
    world.step().await;
    let (session, root) = (&world.session, world.root());
    assert_eq!(session.snapshot(&IN_SESSION, ()).await.unwrap(), None);
    assert_eq!(session.snapshot_in(&AS_OF_FAMILY, root, "k").await.unwrap(), None);
    assert_eq!(session.snapshot_as_of(&AS_OF, root, entry.id).await.unwrap(), None);
    assert_eq!(session.snapshot_as_of_in(&AS_OF_FAMILY, root, "k", entry.id).await.unwrap(), None);
    assert!(session.document_state(&AS_OF, root).await.unwrap().is_none());
    assert!(session.document_state_in(&AS_OF_FAMILY, root, "k").await.unwrap().is_none());
    assert!(session.watch_doc(&AS_OF, root).await.unwrap().is_none());
    assert!(session.watch_doc_in(&AS_OF_FAMILY, root, "k").await.unwrap().is_none());
    // Also where the task itself is not there.
    assert_eq!(session.snapshot(&IN_TASK, TaskId::new(999).unwrap()).await.unwrap(), None);
    assert_eq!((world.probe.writes(), initials()), (Vec::new(), 0));
    assert_eq!(stored(&world.session, &AS_OF, world.root()).await, None);
}

async fn s030_a_snapshot_is_a_shared_revision_that_stays(world: World) {
    let items: Vec<Json> = (0..100).map(Json::from).collect();
    commit(&world.session, async |tx| tx.doc(&IN_SESSION, ()).await?.edit(|note| note.items.clone_from(&items))).await.unwrap();
    let before = world.session.snapshot_json(&IN_SESSION, ()).await.unwrap().unwrap();
    let again = world.session.snapshot_json(&IN_SESSION, ()).await.unwrap().unwrap();
    assert!(before.same_revision(&again));
    set_n(&world.session, &IN_SESSION, (), 1).await;
    let after = world.session.snapshot_json(&IN_SESSION, ()).await.unwrap().unwrap();
    assert_eq!(before.get("n"), Some(&Json::from(0)));
    assert_eq!(after.get("n"), Some(&Json::from(1)));
    assert!(before.get("items").unwrap().same_revision(after.get("items").unwrap()), "an unchanged subtree was copied");
}

async fn s031_a_change_that_ends_equal_is_stored_and_published(mut world: World) {
    commit(&world.session, async |tx| tx.doc(&IN_SESSION, ()).await?.edit(|note| note.items = vec![1.into(), 2.into()])).await.unwrap();
    world.step().await;
    let _ = world.probe.writes();
    let before = world.session.snapshot_json(&IN_SESSION, ()).await.unwrap().unwrap();
    let mut watch = world.session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
    commit(&world.session, async |tx| {
        let items = tx.doc(&IN_SESSION, ()).await?.draft.key("items");
        items.splice(0, 1, vec![])?;
        Ok(items.splice(0, 0, vec![Json::from(1)])?)
    })
    .await
    .unwrap();
    let writes = world.probe.writes();
    let [Write::DocumentChange { content: DocumentContent::Delta { ops: written, .. }, .. }] = &writes[..] else { panic!("{writes:?}") };
    assert!(!written.is_empty());
    let frame = watch.next().await.unwrap();
    assert_eq!(frame.value.as_ref(), Some(&before));
    assert_eq!(ops(&frame.ops), ops(written));
}

async fn s031_a_change_that_did_nothing_stores_nothing(mut world: World) {
    set_n(&world.session, &IN_SESSION, (), 5).await;
    world.step().await;
    let head = world.session.store().head().await.unwrap();
    commit(&world.session, async |tx| {
        let doc = tx.doc(&IN_SESSION, ()).await?;
        doc.edit(|note| note.n = 5)?;
        doc.draft.key("items").set(Json::array([1]))?;
        doc.draft.key("items").remove()?;
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(world.session.store().head().await.unwrap(), head);
}

async fn s033_a_failing_callback_changes_nothing(mut world: World) {
    set_n(&world.session, &IN_SESSION, (), 1).await;
    set_n(&world.session, &AS_OF, world.root(), 2).await;
    world.step().await;
    let published = Arc::new(Mutex::new(0));
    let count = Arc::clone(&published);
    let _subscription = world.session.subscribe_commits(move |_| *count.lock().unwrap() += 1);
    let watch = world.session.watch_doc(&AS_OF, world.root()).await.unwrap().unwrap();
    let _ = world.probe.writes();
    let root = world.root();
    let failed: Result<(), Failure> = world
        .session
        .commit(async |tx: &Tx| {
            tx.doc(&IN_SESSION, ()).await?.edit(|note| note.n = 10)?;
            tx.doc(&AS_OF, root).await?.edit(|note| note.n = 20)?;
            tx.doc(&CURRENT, root).await?;
            Err(Failure::Own("on purpose"))
        })
        .await;
    assert!(matches!(failed, Err(Failure::Own("on purpose"))));
    assert_eq!((world.probe.writes(), *published.lock().unwrap()), (Vec::new(), 0));
    assert_eq!(watch.value().unwrap().get("n"), Some(&Json::from(2)));

    world.step().await;
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 1);
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 2);
    assert_eq!(world.session.snapshot(&CURRENT, root).await.unwrap(), None);
    set_n(&world.session, &AS_OF, root, 3).await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 3);
}

async fn s034_values_that_are_no_json_are_refused_where_they_are_assigned(mut world: World) {
    #[derive(Serialize)]
    struct Measured {
        value: f64,
    }
    commit(&world.session, async |tx| {
        let doc = tx.doc(&IN_SESSION, ()).await?;
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let refused = doc.draft.key("extra").set_serde(&Measured { value }).unwrap_err();
            assert_eq!(refused.kind(), DraftErrorKind::Value);
        }
        let deep = (0..600).fold(Json::null(), |inner, _| Json::array([inner]));
        assert_eq!(doc.draft.key("extra").set(deep).unwrap_err().kind(), DraftErrorKind::Depth);
        assert_eq!(doc.draft.key("extra").get(), None, "a refused assignment changed the draft");
        // What is absent in Rust deletes the property.
        doc.edit(|note| note.extra = Some(Json::from(1)))?;
        doc.edit(|note| note.extra = None)?;
        assert_eq!(doc.draft.get(), Some(json(r#"{"text":"initial","n":0}"#)));
        Ok(())
    })
    .await
    .unwrap();
    world.step().await;
    let root = commit(&world.session, async |tx| Ok(tx.doc(&IN_SESSION, ()).await?.draft.set(Json::array([1]))?)).await;
    assert!(matches!(root, Err(CommitError::Definition(DefinitionError::NotJson { .. }))), "{root:?}");
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap(), Some(Note::new("initial")));
}

async fn s034_definitions_that_give_no_json_object_reject(mut world: World) {
    const NAN: DocToken<Vec<f64>, InSession> =
        DocToken::new("t.nan", 1, || DocDefinition { initial: || vec![f64::NAN], migrate: None, checkpoint_when: every::<1> });
    const LIST: DocToken<Vec<i64>, InSession> =
        DocToken::new("t.session", 1, || DocDefinition { initial: || vec![1], migrate: None, checkpoint_when: every::<1> });
    const TO_LIST: DocToken<Vec<i64>, InSession> = DocToken::new("t.session", 2, || DocDefinition {
        initial: || vec![1],
        migrate: Some(|_, _| Ok(vec![1])),
        checkpoint_when: every::<1>,
    });
    let head = world.session.store().head().await.unwrap();
    for result in [
        commit(&world.session, async |tx| tx.doc(&NAN, ()).await.map(|_| ())).await,
        commit(&world.session, async |tx| tx.doc(&LIST, ()).await.map(|_| ())).await,
    ] {
        let Err(CommitError::Definition(error @ DefinitionError::NotJson { call: "initial()", .. })) = result else { panic!("{result:?}") };
        assert!(error.to_string().contains("strict JSON"), "{error}");
    }
    assert_eq!(world.session.store().head().await.unwrap(), head);

    set_n(&world.session, &IN_SESSION, (), 1).await;
    world.step().await;
    let migrated = commit(&world.session, async |tx| tx.doc(&TO_LIST, ()).await.map(|_| ())).await;
    assert!(matches!(migrated, Err(CommitError::Definition(DefinitionError::NotJson { call: "migrate()", .. }))), "{migrated:?}");
    let read = world.session.snapshot(&TO_LIST, ()).await;
    assert!(matches!(read, Err(ReadError::Definition(DefinitionError::NotJson { .. }))), "{read:?}");
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap().unwrap().n, 1);
}

async fn s034_a_panicking_initializer_fails_the_commit_alone(world: World) {
    const PANICS: DocToken<Note, InSession> =
        DocToken::new("t.panics", 1, || DocDefinition { initial: || panic!("on purpose"), migrate: None, checkpoint_when: every::<1> });
    let result = commit(&world.session, async |tx| {
        tx.doc(&IN_SESSION, ()).await?;
        tx.doc(&PANICS, ()).await.map(|_| ())
    })
    .await;
    assert!(matches!(result, Err(CommitError::Definition(DefinitionError::Panicked { call: "initial()", .. }))), "{result:?}");
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap(), None);
    // A caller that handles it goes on with the rest.
    commit(&world.session, async |tx| {
        assert!(tx.doc(&PANICS, ()).await.is_err());
        tx.doc(&IN_SESSION, ()).await.map(|_| ())
    })
    .await
    .unwrap();
    assert_eq!(world.session.snapshot(&IN_SESSION, ()).await.unwrap(), Some(Note::new("initial")));
}

fn plain() -> DocDefinition<Note> {
    DocDefinition { initial: Note::default, migrate: None, checkpoint_when: every::<1> }
}

fn plain_member() -> FamilyDefinition<Note, String> {
    FamilyDefinition { initial: |_| Note::default(), migrate: None, checkpoint_when: every::<1> }
}

fn mismatch<R: std::fmt::Debug>(result: Result<R, ReadError>) {
    let Err(ReadError::Definition(error @ DefinitionError::Semantics { .. })) = result else { panic!("{result:?}") };
    assert!(error.to_string().contains("does not match the supplied definition semantics"), "{error}");
}

fn tx_mismatch<R: std::fmt::Debug>(result: Result<R, CommitError>) {
    assert!(matches!(result, Err(CommitError::Definition(DefinitionError::Semantics { .. }))), "{result:?}");
}

const LATEST: DocToken<Note, Latest<Current>> = DocToken::new("t.asOf", 1, plain);
const OTHER_FORK: DocToken<Note, Rewindable<Initial>> = DocToken::new("t.asOf", 1, plain);
const REWINDABLE: DocToken<Note, Rewindable<AsOf>> = DocToken::new("t.current", 1, plain);
const FAMILY: FamilyToken<Note, String, Latest<Initial>> = FamilyToken::new("t.asOfFamily", 1, plain_member);

/// Every read with a token that does not fit.
async fn mismatching_reads(session: &Session, root: ConversationId, entry: EntryId) {
    mismatch(session.snapshot(&LATEST, root).await);
    mismatch(session.snapshot(&OTHER_FORK, root).await);
    mismatch(session.snapshot(&REWINDABLE, root).await);
    mismatch(session.snapshot_in(&FAMILY, root, "k").await);
    mismatch(session.snapshot_as_of(&OTHER_FORK, root, entry).await);
    mismatch(session.snapshot_as_of(&REWINDABLE, root, entry).await);
    mismatch(session.watch_doc(&LATEST, root).await.map(|watch| watch.is_some()));
    mismatch(session.document_state(&LATEST, root).await.map(|state| state.is_some()));
}

/// Every operation of a transaction with a token that does not fit, against what is stored and against an open draft.
async fn mismatching_commits(session: &Session, root: ConversationId) {
    tx_mismatch(commit(session, async |tx| tx.doc(&LATEST, root).await.map(|_| ())).await);
    tx_mismatch(commit(session, async |tx| tx.doc(&OTHER_FORK, root).await.map(|_| ())).await);
    tx_mismatch(commit(session, async |tx| tx.retire_doc(&LATEST, root).await).await);
    tx_mismatch(commit(session, async |tx| tx.doc_in(&FAMILY, root, "k", &String::new()).await.map(|_| ())).await);
    let open = commit(session, async |tx| {
        tx.doc(&AS_OF, root).await?.edit(|note| note.n = 9)?;
        tx.doc(&LATEST, root).await.map(|_| ())
    });
    tx_mismatch(open.await);
    let open = commit(session, async |tx| {
        tx.doc(&AS_OF, root).await?;
        tx.retire_doc(&LATEST, root).await
    });
    tx_mismatch(open.await);
}

async fn s035_a_token_of_other_semantics_rejects(mut world: World) {
    let root = world.root();
    commit(&world.session, async |tx| {
        tx.doc(&AS_OF, root).await?;
        tx.doc(&CURRENT, root).await?;
        tx.doc_in(&AS_OF_FAMILY, root, "k", &"seed".to_owned()).await.map(|_| ())
    })
    .await
    .unwrap();
    let entry = append_plain(&world.session, root).await.id;
    // Once from storage, and once from what the right token brought into memory.
    for warm in [false, true] {
        world.step().await;
        if warm {
            world.session.snapshot(&AS_OF, root).await.unwrap();
            world.session.snapshot(&CURRENT, root).await.unwrap();
        }
        mismatching_reads(&world.session, root, entry).await;
        mismatching_commits(&world.session, root).await;
    }
    world.step().await;
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap(), Some(Note::new("initial")));
    // A refused retirement leaves the document as it was for the rest of the transaction.
    commit(&world.session, async |tx| {
        tx.doc(&AS_OF, root).await?.edit(|note| note.n = 1)?;
        assert!(tx.retire_doc(&LATEST, root).await.is_err());
        tx.doc(&AS_OF, root).await?.edit(|note| note.n += 1)
    })
    .await
    .unwrap();
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 2);
}

async fn x013_concurrent_acquisitions_share_a_draft(mut world: World) {
    world.probe.slow(true);
    let root = world.root();
    let _ = initials();
    commit(&world.session, async |tx| {
        let (first, second, third) = futures::join!(tx.doc(&AS_OF, root), tx.doc(&AS_OF, root), tx.doc(&INITIAL, root));
        let (first, second) = (first?, second?);
        third?;
        first.edit(|note| note.n = 1)?;
        second.edit(|note| note.n += 1)?;
        assert_eq!(first.read()?.n, 2);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!(initials(), 2);
    let creates = world.probe.writes().iter().filter(|write| matches!(write, Write::DocumentCreate { .. })).count();
    assert_eq!(creates, 2);
    world.step().await;
    world.probe.slow(true);
    commit(&world.session, async |tx| {
        let (first, second) = futures::join!(tx.doc(&AS_OF, root), tx.doc(&AS_OF, root));
        first?.edit(|note| note.n += 1)?;
        second?.edit(|note| note.n += 1)
    })
    .await
    .unwrap();
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 4);
}

async fn x015_an_acquisition_that_is_given_up_leaves_nothing(world: World) {
    world.probe.slow(true);
    let root = world.root();
    let _ = initials();
    let head = world.session.store().head().await.unwrap();
    commit(&world.session, async |tx| {
        let mut given_up = Box::pin(tx.doc(&AS_OF, root));
        assert!(futures::poll!(&mut given_up).is_pending());
        drop(given_up);
        Ok(())
    })
    .await
    .unwrap();
    assert_eq!((initials(), world.session.store().head().await.unwrap()), (0, head), "it initialized or minted");
    // The error of the callback is the one that counts.
    let failed: Result<(), Failure> = world
        .session
        .commit(async |tx| {
            assert!(futures::poll!(Box::pin(tx.doc(&AS_OF, root))).is_pending());
            Err(Failure::Own("on purpose"))
        })
        .await;
    assert!(matches!(failed, Err(Failure::Own("on purpose"))));
    assert_eq!((initials(), world.session.store().head().await.unwrap()), (0, head));
    // Given up while another one waits for it: the other one goes on.
    commit(&world.session, async |tx| {
        let mut first = Box::pin(tx.doc(&AS_OF, root));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(tx.doc(&AS_OF, root));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        second.await?.edit(|note| note.n = 1)
    })
    .await
    .unwrap();
    assert_eq!(initials(), 1);
    assert_eq!(world.session.snapshot(&AS_OF, root).await.unwrap().unwrap().n, 1);
}
