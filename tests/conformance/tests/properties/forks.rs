//! Random fork trees: what is visible, what is copied and what history says, against a model without any cleverness.

use std::collections::BTreeMap;

use picofleet_conformance::documents::{AS_OF, AS_OF_FAMILY, CURRENT, INITIAL, Note, REWINDABLE_CURRENT, REWINDABLE_INITIAL, commit};
use picofleet_conformance::{Memory, Mode, Sqlite, World, run};
use picofleet_session::storage::EntryQuery;
use picofleet_session::{ConversationId, ConversationOwnership, EntryDraft, EntryId, Session, Tx, TxError};
use proptest::prelude::*;

/// One commit of a history. Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    /// Some appended entries and edited documents of one conversation, in one commit.
    Change {
        conversation: usize,
        entries: usize,
        edits: Vec<(usize, Edit)>,
    },
    /// A fork of one conversation at one of its visible entries.
    Fork {
        conversation: usize,
        at: usize,
    },
    Reopen,
}

#[derive(Clone, Copy, Debug)]
enum Edit {
    Set(i64),
    Retire,
    RetireAndSet(i64),
}

/// The documents of the tree; the last two are members of a family.
const DOCUMENTS: usize = 7;

#[derive(Clone, Copy, PartialEq)]
enum Fork {
    AsOf,
    Current,
    Initial,
}

const POLICIES: [(Fork, bool); DOCUMENTS] = [
    (Fork::AsOf, true),
    (Fork::Current, false),
    (Fork::Initial, false),
    (Fork::Current, true),
    (Fork::Initial, true),
    (Fork::AsOf, true),
    (Fork::AsOf, true),
];

const KEYS: [&str; 2] = ["a", "b"];

fn step() -> impl Strategy<Value = Step> {
    let edit = prop_oneof![6 => (0..100_i64).prop_map(Edit::Set), 1 => Just(Edit::Retire), 1 => (0..100_i64).prop_map(Edit::RetireAndSet)];
    let change = (0..9_usize, 0..3_usize, prop::collection::vec((0..DOCUMENTS, edit), 0..4));
    prop_oneof![
        8 => change.prop_map(|(conversation, entries, edits)| Step::Change { conversation, entries, edits }),
        3 => (0..9_usize, 0..40_usize).prop_map(|(conversation, at)| Step::Fork { conversation, at }),
        1 => Just(Step::Reopen),
    ]
}

type Values = [Option<i64>; DOCUMENTS];

/// A conversation of the model: copies of everything.
#[derive(Clone, Default)]
struct Conversation {
    /// The visible entries with the conversation that owns them, oldest first.
    entries: Vec<(EntryId, ConversationId)>,
    now: Values,
}

#[derive(Default)]
struct Model {
    order: Vec<ConversationId>,
    conversations: BTreeMap<ConversationId, Conversation>,
    /// For each entry the documents of its conversation as its commit left them.
    at: BTreeMap<EntryId, Values>,
}

impl Model {
    fn pick(&self, index: usize) -> ConversationId {
        self.order[index % self.order.len()]
    }
}

async fn apply(tx: &Tx, conversation: ConversationId, document: usize, edit: Edit) -> Result<(), TxError> {
    macro_rules! single {
        ($token:expr) => {{
            if matches!(edit, Edit::Retire | Edit::RetireAndSet(_)) {
                tx.retire_doc($token, conversation).await?;
            }
            if let Edit::Set(n) | Edit::RetireAndSet(n) = edit {
                tx.doc($token, conversation).await?.edit(|note| note.n = n)?;
            }
        }};
    }
    match document {
        0 => single!(&AS_OF),
        1 => single!(&CURRENT),
        2 => single!(&INITIAL),
        3 => single!(&REWINDABLE_CURRENT),
        4 => single!(&REWINDABLE_INITIAL),
        member => {
            let key = KEYS[member - 5];
            if matches!(edit, Edit::Retire | Edit::RetireAndSet(_)) {
                tx.retire_doc_in(&AS_OF_FAMILY, conversation, key).await?;
            }
            if let Edit::Set(n) | Edit::RetireAndSet(n) = edit {
                tx.doc_in(&AS_OF_FAMILY, conversation, key, &String::new()).await?.edit(|note| note.n = n)?;
            }
        }
    }
    Ok(())
}

async fn change(session: &Session, model: &mut Model, conversation: ConversationId, entries: usize, edits: &[(usize, Edit)]) {
    let ids = commit(session, async |tx| {
        let mut ids = Vec::new();
        for (document, edit) in edits {
            apply(tx, conversation, *document, *edit).await?;
        }
        for _ in 0..entries {
            ids.push(tx.append_entry(conversation, EntryDraft::new("t.entry")).await?.id);
        }
        Ok(ids)
    })
    .await
    .unwrap();
    let of = model.conversations.get_mut(&conversation).unwrap();
    for (document, edit) in edits {
        of.now[*document] = match edit {
            Edit::Set(n) | Edit::RetireAndSet(n) => Some(*n),
            Edit::Retire => None,
        };
    }
    of.entries.extend(ids.iter().map(|id| (*id, conversation)));
    for id in ids {
        model.at.insert(id, of.now);
    }
}

async fn fork(session: &Session, model: &mut Model, parent: ConversationId, at: usize) {
    let visible = model.conversations[&parent].entries.clone();
    if visible.is_empty() {
        return;
    }
    let at = at % visible.len();
    let entry = visible[at].0;
    let child = commit(session, async |tx| tx.fork_conversation(parent, entry, ConversationOwnership::Ownerless).await).await.unwrap().id;
    let mut now = Values::default();
    for (document, (policy, _)) in POLICIES.iter().enumerate() {
        now[document] = match policy {
            Fork::AsOf => model.at[&entry][document],
            Fork::Current => model.conversations[&parent].now[document],
            Fork::Initial => None,
        };
    }
    model.order.push(child);
    model.conversations.insert(child, Conversation { entries: visible[..=at].to_vec(), now });
}

async fn read(session: &Session, conversation: ConversationId) -> Values {
    let n = |note: Option<Note>| note.map(|note| note.n);
    [
        n(session.snapshot(&AS_OF, conversation).await.unwrap()),
        n(session.snapshot(&CURRENT, conversation).await.unwrap()),
        n(session.snapshot(&INITIAL, conversation).await.unwrap()),
        n(session.snapshot(&REWINDABLE_CURRENT, conversation).await.unwrap()),
        n(session.snapshot(&REWINDABLE_INITIAL, conversation).await.unwrap()),
        n(session.snapshot_in(&AS_OF_FAMILY, conversation, KEYS[0]).await.unwrap()),
        n(session.snapshot_in(&AS_OF_FAMILY, conversation, KEYS[1]).await.unwrap()),
    ]
}

async fn read_as_of(session: &Session, conversation: ConversationId, at: EntryId) -> Values {
    let n = |note: Option<Note>| note.map(|note| note.n);
    [
        n(session.snapshot_as_of(&AS_OF, conversation, at).await.unwrap()),
        None,
        None,
        n(session.snapshot_as_of(&REWINDABLE_CURRENT, conversation, at).await.unwrap()),
        n(session.snapshot_as_of(&REWINDABLE_INITIAL, conversation, at).await.unwrap()),
        n(session.snapshot_as_of_in(&AS_OF_FAMILY, conversation, KEYS[0], at).await.unwrap()),
        n(session.snapshot_as_of_in(&AS_OF_FAMILY, conversation, KEYS[1], at).await.unwrap()),
    ]
}

async fn compare(session: &Session, model: &Model) {
    for (id, expected) in &model.conversations {
        let mut found = session.store().scan_entries(EntryQuery::all(*id), 1_000, None).await.unwrap().items;
        found.reverse();
        let found: Vec<_> = found.into_iter().map(|entry| (entry.id, entry.conversation_id)).collect();
        assert_eq!(found, expected.entries, "the visible entries of {id}");
        assert_eq!(read(session, *id).await, expected.now, "the documents of {id}");
        for (entry, _) in &expected.entries {
            let mut past = model.at[entry];
            for (document, (_, rewindable)) in POLICIES.iter().enumerate() {
                if !rewindable {
                    past[document] = None;
                }
            }
            assert_eq!(read_as_of(session, *id, *entry).await, past, "history of {id} at {entry}");
        }
        // Nothing else is visible.
        for entry in model.at.keys().filter(|entry| expected.entries.iter().all(|(visible, _)| visible != *entry)) {
            assert!(session.snapshot_as_of(&AS_OF, *id, *entry).await.is_err(), "{entry} in {id}");
        }
    }
}

async fn tree(mut world: World, steps: Vec<Step>) {
    let mut model = Model::default();
    model.order.push(world.root());
    model.conversations.insert(world.root(), Conversation::default());
    for step in steps {
        match step {
            Step::Change { conversation, entries, edits } => {
                let conversation = model.pick(conversation);
                change(&world.session, &mut model, conversation, entries, &edits).await;
            }
            Step::Fork { conversation, at } => {
                let parent = model.pick(conversation);
                fork(&world.session, &mut model, parent, at).await;
            }
            Step::Reopen => world.reopen().await,
        }
    }
    compare(&world.session, &model).await;
    world.reopen().await;
    compare(&world.session, &model).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn fork_trees_in_memory(steps in prop::collection::vec(step(), 1..40), cold in any::<bool>()) {
        run(Memory, if cold { Mode::Cold } else { Mode::Warm }, async |world| tree(world, steps).await);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20, ..ProptestConfig::default() })]

    #[test]
    fn fork_trees_in_sqlite(steps in prop::collection::vec(step(), 1..30), cold in any::<bool>()) {
        run(Sqlite::default(), if cold { Mode::Cold } else { Mode::Warm }, async |world| tree(world, steps).await);
    }
}
