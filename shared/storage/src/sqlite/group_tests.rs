//! What one unit of a group does to the others.

use std::sync::{Arc, Mutex};

use picofleet_session::storage::{Rejection, SessionCreate, SessionState, StorageError};
use picofleet_session::{Millis, PartitionCount, SessionId};
use tempfile::TempDir;

use super::errors::Place;
use super::export::Exports;
use super::tables::Tx;
use super::writer::{Imports, Unit, Writer};
use super::{SqliteOptions, admin, rows, schema, sql};
use crate::tables::Found;

struct Store {
    _directory: TempDir,
    writer: Writer,
}

fn store() -> Store {
    let directory = tempfile::tempdir().unwrap();
    let place = Place(directory.path().join("a.db").into());
    schema::create(&place, PartitionCount::DEFAULT).unwrap();
    let options = SqliteOptions::default();
    let connection = schema::writer(&place.0, options.durability).unwrap();
    let writer = Writer::new(place, PartitionCount::DEFAULT, options, connection, Imports::default(), Exports::default());
    Store { _directory: directory, writer }
}

type Answers = Arc<Mutex<Vec<(&'static str, Result<(), StorageError>)>>>;

/// A unit that does what a test says and keeps its answer.
struct Test<F> {
    name: &'static str,
    work: F,
    answers: Answers,
}

impl<F: FnMut(&mut Tx<'_>) -> Found<()> + Send> Unit for Test<F> {
    fn run(&mut self, tx: &mut Tx<'_>) -> Found<()> {
        (self.work)(tx)
    }

    fn settle(self: Box<Self>, outcome: Result<(), StorageError>) {
        self.answers.lock().unwrap().push((self.name, outcome));
    }
}

fn create(tx: &mut Tx<'_>, id: SessionId) -> Found<()> {
    admin::create(tx, &SessionCreate { id, ..SessionCreate::new(Millis(1)) }, "{}").map(drop)
}

fn good(name: &'static str, answers: &Answers) -> (SessionId, Box<dyn Unit>) {
    let id = SessionId::random();
    (id, Box::new(Test { name, work: move |tx: &mut Tx<'_>| create(tx, id), answers: Arc::clone(answers) }))
}

/// Runs `bad` between two good units: both must land, and nothing of the bad one.
fn between(writer: &mut Writer, bad: impl Fn(&mut Tx<'_>, SessionId) -> Found<()> + Send + 'static) -> StorageError {
    let answers = Answers::default();
    let (first, second) = (good("first", &answers), good("second", &answers));
    let id = SessionId::random();
    let bad = Test { name: "bad", work: move |tx: &mut Tx<'_>| bad(tx, id), answers: Arc::clone(&answers) };
    writer.group(vec![first.1, Box::new(bad), second.1]);
    let reader = schema::reader(&writer.place.0).unwrap();
    let there = |id: SessionId| reader.prepare(sql::SESSION).unwrap().exists([id.as_bytes()]).unwrap();
    assert!(there(first.0) && there(second.0), "the others landed");
    assert!(!there(id), "nothing of the failing one landed");
    let mut answers = answers.lock().unwrap();
    assert_eq!(answers.len(), 3, "each unit is answered once");
    for (name, outcome) in answers.iter() {
        assert_eq!(outcome.is_err(), *name == "bad", "{name}: {outcome:?}");
    }
    let bad = answers.iter().position(|(name, _)| *name == "bad").unwrap();
    answers.swap_remove(bad).1.unwrap_err()
}

fn refusal() -> StorageError {
    Rejection::Malformed("no".to_owned()).into()
}

#[test]
fn a_unit_that_is_refused_before_it_wrote_leaves_the_others() {
    let mut store = store();
    let error = between(&mut store.writer, |_, _| Err(refusal()));
    assert!(matches!(error, StorageError::Rejected(refused) if refused.reason == Rejection::Malformed("no".to_owned())));
}

#[test]
fn a_unit_that_is_refused_after_it_wrote_is_undone() {
    let mut store = store();
    let error = between(&mut store.writer, |tx, id| {
        create(tx, id)?;
        Err(refusal())
    });
    assert!(matches!(error, StorageError::Rejected(refused) if refused.reason == Rejection::Malformed("no".to_owned())));
}

#[test]
fn a_unit_whose_statement_fails_is_undone() {
    let mut store = store();
    let error = between(&mut store.writer, |tx, id| {
        create(tx, id)?;
        let state = rows::state_number(SessionState::Active);
        tx.run(sql::SESSION_INSERT, (id.as_bytes(), "twice", None::<String>, "{}", state, 0)).map(drop)
    });
    // No statement that the rules let through breaks a constraint: the file is not what it should be.
    assert!(matches!(error, StorageError::Rejected(refused) if matches!(refused.reason, Rejection::Damaged { .. })));
}

/// SQLite ends the whole transaction for some errors, here because a unit says so.
#[test]
fn a_unit_that_ends_the_transaction_does_not_fail_the_others() {
    let mut store = store();
    let error = between(&mut store.writer, |tx, id| {
        create(tx, id)?;
        tx.run("ROLLBACK", [])?;
        Err(refusal())
    });
    assert!(matches!(error, StorageError::Rejected(_)));
}

/// What does not fit is refused; what still fits is stored.
#[test]
fn a_unit_that_fills_the_disk_does_not_fail_the_others() {
    let mut store = store();
    let connection = store.writer.take_connection().unwrap();
    let pages: i64 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    connection.query_row(&format!("PRAGMA max_page_count = {}", pages + 20), [], |_| Ok(())).unwrap();
    store.writer.keep_connection(connection);
    let error = between(&mut store.writer, |tx, id| {
        create(tx, id)?;
        let state = rows::state_number(SessionState::Active);
        tx.run(sql::SESSION_INSERT, (None::<[u8; 16]>, "large", None::<String>, "x".repeat(1 << 20), state, 0)).map(drop)
    });
    let StorageError::Rejected(refused) = error else { panic!("{error:?}") };
    assert_eq!(refused.reason, Rejection::DiskFull { store: store.writer.place.name() });
}

/// A group that can't begin is refused, and the next one finds a fresh connection.
#[test]
fn a_group_that_cannot_begin_is_refused_and_the_next_one_lands() {
    let mut store = store();
    let connection = store.writer.take_connection().unwrap();
    // A connection that is in a transaction can't begin another one, and is not kept.
    connection.execute_batch("BEGIN").unwrap();
    store.writer.force_connection(connection);
    let answers = Answers::default();
    store.writer.group(vec![good("first", &answers).1]);
    store.writer.group(vec![good("second", &answers).1]);
    let answers = answers.lock().unwrap();
    let StorageError::Rejected(refused) = answers[0].1.clone().unwrap_err() else { panic!("{:?}", answers[0]) };
    assert!(matches!(refused.reason, Rejection::Unavailable { .. }));
    assert!(answers[1].1.is_ok(), "{:?}", answers[1]);
}

/// A COMMIT may fail after it landed. Work without a commit of a session is then found in the file all the same.
#[test]
fn work_without_a_commit_is_found_when_its_end_failed() {
    let mut store = store();
    let answers = Answers::default();
    let (id, unit) = good("made", &answers);
    store.writer.group(vec![unit]);
    // After this COMMIT the group's own one fails, as if the system had failed behind it.
    let work = move |tx: &mut Tx<'_>| {
        admin::set_quarantined(tx, id, true)?;
        tx.run("COMMIT", []).map(drop)
    };
    store.writer.group(vec![Box::new(Test { name: "landed", work, answers: Arc::clone(&answers) })]);
    let landed = answers.lock().unwrap().pop().unwrap();
    assert!(landed.1.is_ok(), "{landed:?}");
    let alone = store.writer.alone(|tx| {
        admin::set_quarantined(tx, id, false)?;
        tx.run("COMMIT", []).map(drop)
    });
    alone.unwrap();
}

/// Also where a savepoint is open, since the group is done again for another unit.
#[test]
fn a_unit_that_panics_is_undone() {
    let mut store = store();
    let error = between(&mut store.writer, |tx, id| {
        create(tx, id)?;
        panic!("a test asked for it")
    });
    assert!(matches!(error, StorageError::Rejected(refused) if matches!(refused.reason, Rejection::Unavailable { .. })));
    let answers = Answers::default();
    let half = Test {
        name: "half",
        work: |tx: &mut Tx<'_>| {
            create(tx, SessionId::random())?;
            Err(refusal())
        },
        answers: Arc::clone(&answers),
    };
    let panicking = Test { name: "panicking", work: |_: &mut Tx<'_>| panic!("a test asked for it"), answers: Arc::clone(&answers) };
    let good = good("good", &answers);
    store.writer.group(vec![Box::new(half), Box::new(panicking), good.1]);
    let mut answers = answers.lock().unwrap();
    answers.sort_by_key(|(name, _)| *name);
    let landed: Vec<_> = answers.iter().map(|(name, outcome)| (*name, outcome.is_ok())).collect();
    assert_eq!(landed, [("good", true), ("half", false), ("panicking", false)]);
}
