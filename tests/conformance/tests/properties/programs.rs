//! Random programs of transactions, run on two backends: the same outcomes, the same reads, also after a restart.

use std::fmt::Debug;

use picofleet_conformance::documents::{AS_OF_FAMILY, CURRENT, Failure, IN_SESSION, IN_TASK, INITIAL, Note, child, completed, json, task};
use picofleet_conformance::{Fault, Memory, Mode, Postgres, Sqlite, World, run};
use picofleet_session::storage::{ConversationQuery, DocumentQuery, EntryQuery, Rejection, SubmissionQuery, TaskQuery};
use picofleet_session::{
    AsOf, ConversationId, ConversationOwnership, DocDefinition, DocToken, DocumentScope, DraftHead, EntryDraft, EntryId, InputState,
    MigrateError, Point, Rewindable, Settlement, SubmissionId, SubmissionState, TaskId, TaskRecord, TaskState, Tx, TxError, WriteState,
    every,
};
use proptest::prelude::*;

/// One operation of a transaction. Numbers pick among what earlier commits made.
#[derive(Clone, Debug)]
enum Action {
    Create { owner: Option<usize> },
    Fork { parent: usize, at: usize, owner: Option<usize> },
    Append { conversation: usize, head: Option<usize> },
    Task { conversation: usize, owner: Option<usize> },
    Put { task: usize, state: usize },
    Edit { document: usize, of: usize, n: i64 },
    Retire { document: usize, of: usize },
    Submit { conversation: usize, write: bool, key: Option<usize> },
    Place { submission: usize, entry: usize },
    Settle { submission: usize, answer: Option<usize> },
    Read { what: usize, of: usize },
}

#[derive(Clone, Copy, Debug)]
enum Ending {
    Commit,
    Fail,
    Refused,
}

#[derive(Clone, Debug)]
enum Step {
    Transaction(Vec<Action>, Ending),
    Reopen,
}

fn action() -> impl Strategy<Value = Action> {
    let owner = || prop::option::weighted(0.3, 0..8_usize);
    prop_oneof![
        1 => owner().prop_map(|owner| Action::Create { owner }),
        2 => (0..8_usize, 0..30_usize, owner()).prop_map(|(parent, at, owner)| Action::Fork { parent, at, owner }),
        4 => (0..8_usize, prop::option::weighted(0.2, 0..30_usize)).prop_map(|(conversation, head)| Action::Append { conversation, head }),
        2 => (0..8_usize, owner()).prop_map(|(conversation, owner)| Action::Task { conversation, owner }),
        2 => (0..8_usize, 0..5_usize).prop_map(|(task, state)| Action::Put { task, state }),
        8 => (0..DOCUMENTS, 0..8_usize, 0..50_i64).prop_map(|(document, of, n)| Action::Edit { document, of, n }),
        2 => (0..DOCUMENTS, 0..8_usize).prop_map(|(document, of)| Action::Retire { document, of }),
        2 => (0..8_usize, any::<bool>(), prop::option::of(0..3_usize))
            .prop_map(|(conversation, write, key)| Action::Submit { conversation, write, key }),
        2 => (0..8_usize, 0..30_usize).prop_map(|(submission, entry)| Action::Place { submission, entry }),
        2 => (0..8_usize, prop::option::of(0..30_usize)).prop_map(|(submission, answer)| Action::Settle { submission, answer }),
        2 => (0..6_usize, 0..8_usize).prop_map(|(what, of)| Action::Read { what, of }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let ending = prop_oneof![8 => Just(Ending::Commit), 1 => Just(Ending::Fail), 1 => Just(Ending::Refused)];
    prop_oneof![
        9 => (prop::collection::vec(action(), 1..7), ending).prop_map(|(actions, ending)| Step::Transaction(actions, ending)),
        1 => Just(Step::Reopen),
    ]
}

fn versioned() -> DocDefinition<Note> {
    let migrate = |value: picofleet_session::Json, _| {
        let note: Note = value.to().map_err(|error| MigrateError(error.to_string()))?;
        Ok(Note { n: note.n + 1_000, ..note })
    };
    DocDefinition { initial: Note::default, migrate: Some(migrate), checkpoint_when: every::<2> }
}

const V1: DocToken<Note, Rewindable<AsOf>> = DocToken::new("t.versioned", 1, versioned);
const V2: DocToken<Note, Rewindable<AsOf>> = DocToken::new("t.versioned", 2, versioned);

/// See `edit`: the session's, a task's, and five of a conversation.
const DOCUMENTS: usize = 7;

/// What earlier commits made.
#[derive(Clone, Debug, Default)]
struct Known {
    conversations: Vec<ConversationId>,
    entries: Vec<EntryId>,
    tasks: Vec<TaskId>,
    submissions: Vec<SubmissionId>,
}

/// The one that a number picks; one that never exists where there is none.
fn pick<K>(known: &[picofleet_session::Id<K>], index: usize) -> picofleet_session::Id<K> {
    if known.is_empty() { picofleet_session::Id::new(1_000_000).unwrap() } else { known[index % known.len()] }
}

fn ownership(known: &Known, owner: Option<usize>) -> ConversationOwnership {
    owner.map_or(ConversationOwnership::Ownerless, |owner| ConversationOwnership::Task { task_id: pick(&known.tasks, owner) })
}

async fn edit(tx: &Tx, known: &Known, document: usize, of: usize, n: i64) -> Result<String, TxError> {
    let conversation = pick(&known.conversations, of);
    let set = |note: &mut Note| {
        let before = note.clone();
        note.n = n;
        note.text.push('x');
        if n % 3 == 0 {
            note.items.insert(note.items.len() / 2, n.into());
        }
        format!("{before:?}")
    };
    match document {
        0 => tx.doc(&IN_SESSION, ()).await?.edit(set),
        1 => tx.doc(&IN_TASK, pick(&known.tasks, of)).await?.edit(set),
        2 => tx.doc(&CURRENT, conversation).await?.edit(set),
        3 => tx.doc(&INITIAL, conversation).await?.edit(set),
        4 => tx.doc(&V1, conversation).await?.edit(set),
        5 => tx.doc(&V2, conversation).await?.edit(set),
        _ => tx.doc_in(&AS_OF_FAMILY, conversation, &(n % 3).to_string(), &"seed".to_owned()).await?.edit(set),
    }
}

async fn retire(tx: &Tx, known: &Known, document: usize, of: usize) -> Result<(), TxError> {
    let conversation = pick(&known.conversations, of);
    match document {
        0 => tx.retire_doc(&IN_SESSION, ()).await,
        1 => tx.retire_doc(&IN_TASK, pick(&known.tasks, of)).await,
        2 => tx.retire_doc(&CURRENT, conversation).await,
        3 => tx.retire_doc(&INITIAL, conversation).await,
        4 => tx.retire_doc(&V1, conversation).await,
        5 => tx.retire_doc(&V2, conversation).await,
        _ => tx.retire_doc_in(&AS_OF_FAMILY, conversation, "1").await,
    }
}

async fn put(tx: &Tx, id: TaskId, state: usize) -> Result<(), TxError> {
    let Some(record) = tx.task(id).await? else { return Ok(()) };
    let checkpoint = json(r#"{"phase":"next"}"#);
    let record = match state {
        0 => TaskRecord { state: TaskState::Running { checkpoint }, ..record },
        1 => TaskRecord { abort_requested: true, ..record },
        2 => TaskRecord { state: TaskState::Completing { outcome: completed() }, ..record },
        _ => TaskRecord { state: TaskState::Terminal { outcome: completed() }, ..record },
    };
    tx.put_task(record).await
}

async fn read(tx: &Tx, known: &Known, what: usize, of: usize) -> Result<String, TxError> {
    let conversation = pick(&known.conversations, of);
    Ok(match what {
        0 => format!("{:?}", tx.conversation(conversation).await?),
        1 => format!("{:?}", tx.scan_entries(EntryQuery::all(conversation), 3, None).await?.items),
        2 => format!("{:?}", tx.task(pick(&known.tasks, of)).await?),
        3 => format!("{:?}", tx.latest_head_marker(conversation).await?),
        4 => format!("{:?}", tx.submission_by_request(conversation, &(of % 3).to_string()).await?),
        _ => format!("{:?}", tx.submission(pick(&known.submissions, of)).await?),
    })
}

fn told<T: Debug>(result: Result<T, TxError>) -> Result<String, TxError> {
    result.map(|value| format!("{value:?}"))
}

async fn act(tx: &Tx, known: &Known, new: &mut Known, action: &Action) -> Result<String, TxError> {
    match *action {
        Action::Create { owner } => {
            let record = tx.create_conversation(ownership(known, owner)).await?;
            new.conversations.push(record.id);
            Ok(format!("{record:?}"))
        }
        Action::Fork { parent, at, owner } => {
            let (parent, at) = (pick(&known.conversations, parent), pick(&known.entries, at));
            let record = tx.fork_conversation(parent, at, ownership(known, owner)).await?;
            new.conversations.push(record.id);
            Ok(format!("{record:?}"))
        }
        Action::Append { conversation, head } => {
            let draft = EntryDraft { head: head.map(|entry| DraftHead::Entry(pick(&known.entries, entry))), ..EntryDraft::new("t.entry") };
            let record = tx.append_entry(pick(&known.conversations, conversation), draft).await?;
            new.entries.push(record.id);
            Ok(format!("{record:?}"))
        }
        Action::Task { conversation, owner } => {
            let create = match owner {
                Some(owner) => child(pick(&known.tasks, owner)),
                None => task(pick(&known.conversations, conversation)),
            };
            let id = tx.create_task_raw(create).await?;
            new.tasks.push(id);
            Ok(format!("{id:?}"))
        }
        Action::Put { task, state } => told(put(tx, pick(&known.tasks, task), state).await),
        Action::Edit { document, of, n } => edit(tx, known, document, of, n).await,
        Action::Retire { document, of } => told(retire(tx, known, document, of).await),
        Action::Submit { conversation, write, key } => {
            let state = if write { SubmissionState::Write(WriteState::Queued) } else { SubmissionState::Input(InputState::Queued) };
            let key = key.map(|key| key.to_string());
            let record = tx.create_submission(pick(&known.conversations, conversation), key, state).await?;
            new.submissions.push(record.id);
            Ok(format!("{record:?}"))
        }
        Action::Place { submission, entry } => {
            told(tx.place_submission(pick(&known.submissions, submission), pick(&known.entries, entry)).await)
        }
        Action::Settle { submission, answer } => {
            let settlement = match answer {
                Some(answer) => Settlement::Done { answer: pick(&known.entries, answer) },
                None => Settlement::Unanswered { reason: "why".to_owned(), detail: Some(json("[null]")) },
            };
            told(tx.settle_submission(pick(&known.submissions, submission), settlement).await)
        }
        Action::Read { what, of } => read(tx, known, what, of).await,
    }
}

/// Everything that can be read, as text. Sequences and ids are the same on every backend, tokens are not part of it.
async fn dump(world: &World, known: &Known) -> Vec<String> {
    let (session, store) = (&world.session, world.session.store());
    let mut lines = Vec::new();
    let mut scopes = vec![DocumentScope::Session];
    lines.push(format!("{:?}", store.scan_conversations(ConversationQuery::default(), 1_000, None).await.unwrap().items));
    lines.push(format!("{:?}", store.scan_tasks(TaskQuery::default(), 1_000, None).await.unwrap().items));
    lines.push(format!("{:?}", store.scan_submissions(SubmissionQuery::default(), 1_000, None).await.unwrap().items));
    lines.push(format!("{:?}", session.snapshot(&IN_SESSION, ()).await));
    for id in &known.tasks {
        scopes.push(DocumentScope::Task { id: *id });
        lines.push(format!("{:?}", session.snapshot(&IN_TASK, *id).await));
    }
    for id in &known.conversations {
        scopes.push(DocumentScope::Conversation { id: *id });
        lines.push(format!("{id} {:?}", store.scan_entries(EntryQuery::all(*id), 1_000, None).await.unwrap().items));
        lines.push(format!("{:?} {:?}", session.snapshot(&CURRENT, *id).await, session.snapshot(&INITIAL, *id).await));
        lines.push(format!("{:?} {:?}", session.snapshot(&V1, *id).await, session.snapshot(&V2, *id).await));
        lines.push(format!("{:?}", session.snapshot_in(&AS_OF_FAMILY, *id, "1").await));
        lines.push(format!("{:?}", session.context(*id, None).await.map(|view| view.entries)));
        for entry in &known.entries {
            lines.push(format!("{:?}", session.snapshot_as_of(&V2, *id, *entry).await));
        }
    }
    for scope in scopes {
        let query = DocumentQuery { scope, at: Point::Current, kind: None };
        for record in store.scan_documents(query, 1_000, None).await.unwrap().items {
            lines.push(format!("{:?}", store.document(record.create.id, Point::Current).await.unwrap()));
        }
    }
    lines
}

/// Where the transactions of a program run.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Here,
    /// Elsewhere, where what they do can be replayed.
    Elsewhere,
}

/// Whether the writes of these actions can be taken from elsewhere.
fn replayable(actions: &[Action]) -> bool {
    !actions.iter().any(|action| matches!(action, Action::Put { .. } | Action::Submit { .. }))
}

async fn program(world: &mut World, steps: &[Step], way: Way) -> Vec<String> {
    let mut told = Vec::new();
    let mut known = Known { conversations: vec![world.root()], ..Known::default() };
    for step in steps {
        match step {
            Step::Reopen => world.reopen().await,
            Step::Transaction(actions, ending) => {
                let mut new = Known::default();
                let mut lines = Vec::new();
                let head = world.session.store().head().await.unwrap().seq;
                if matches!(ending, Ending::Refused) {
                    world.probe.fault(Fault::Rejected(Rejection::Overloaded));
                }
                let change = async |tx: &Tx| {
                    for action in actions {
                        // What is refused does not end a transaction that handles it.
                        lines.push(format!("{:?}", act(tx, &known, &mut new, action).await));
                    }
                    if matches!(ending, Ending::Fail) { Err(Failure::Own("on purpose")) } else { Ok(()) }
                };
                let outcome = match way {
                    Way::Elsewhere if replayable(actions) => crate::elsewhere::commit(world, change).await,
                    _ => world.session.commit(change).await,
                };
                if matches!(ending, Ending::Refused) {
                    world.probe.forget_plans();
                }
                let landed = world.session.store().head().await.unwrap().seq != head;
                assert!(!landed || outcome.is_ok(), "a failed transaction landed");
                lines.push(format!("{outcome:?}"));
                told.extend(lines);
                if outcome.is_ok() {
                    known.conversations.extend(new.conversations);
                    known.entries.extend(new.entries);
                    known.tasks.extend(new.tasks);
                    known.submissions.extend(new.submissions);
                }
            }
        }
    }
    told.extend(dump(world, &known).await);
    let before = dump(world, &known).await;
    world.reopen().await;
    assert_eq!(before, dump(world, &known).await, "a restart changed what is read");
    told
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_program_does_the_same_in_sqlite_as_in_memory(steps in prop::collection::vec(step(), 1..24), cold in any::<bool>()) {
        run(Memory, Mode::Warm, async |mut memory| {
            let mut sqlite = World::new(Sqlite::default(), if cold { Mode::Cold } else { Mode::Warm }).await;
            assert_eq!(program(&mut memory, &steps, Way::Here).await, program(&mut sqlite, &steps, Way::Here).await);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn a_program_does_the_same_in_postgres_as_in_memory(steps in prop::collection::vec(step(), 1..24), cold in any::<bool>()) {
        run(Memory, Mode::Warm, async |mut memory| {
            let mut postgres = World::new(Postgres::default(), if cold { Mode::Cold } else { Mode::Warm }).await;
            assert_eq!(program(&mut memory, &steps, Way::Here).await, program(&mut postgres, &steps, Way::Here).await);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Next to nothing in memory, against everything.
    #[test]
    fn a_program_does_the_same_whatever_is_in_memory(steps in prop::collection::vec(step(), 1..40)) {
        run(Memory, Mode::Warm, async |mut warm| {
            let mut cold = World::new(Memory, Mode::Cold).await;
            assert_eq!(program(&mut warm, &steps, Way::Here).await, program(&mut cold, &steps, Way::Here).await);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A transaction that runs elsewhere and is replayed, against one that runs here.
    #[test]
    fn a_program_does_the_same_elsewhere(steps in prop::collection::vec(step(), 1..40), cold in any::<bool>()) {
        run(Memory, Mode::Warm, async |mut here| {
            let mut there = World::new(Memory, if cold { Mode::Cold } else { Mode::Warm }).await;
            assert_eq!(program(&mut here, &steps, Way::Here).await, program(&mut there, &steps, Way::Elsewhere).await);
        });
    }
}
