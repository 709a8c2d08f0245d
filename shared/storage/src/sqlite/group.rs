//! One group: the work of many sessions in one SQL transaction.
//!
//! A unit that fails before it wrote anything leaves nothing to undo, and that is nearly every refusal. Where one fails later, the group is
//! done again with a savepoint for each unit: savepoints for every group would cost a tenth of its time. Where SQLite ended the whole
//! transaction, or where the unit panicked, the others are done again without it. A COMMIT that fails is settled in three steps, see
//! [`Writer::settle`].

use std::panic::{AssertUnwindSafe, catch_unwind};

use picofleet_session::storage::StorageError;
use rusqlite::Connection;

use super::errors::nothing_landed;
use super::maintain;
use super::schema;
use super::sql;
use super::tables::{Mark, Tx};
use super::writer::{Unit, Writer};
use crate::tables::Found;

/// How many rows that became unnecessary leave with a group for each of its units, besides the configured ones. A unit brings rows one by
/// one, so on the average this is more than what becomes unnecessary.
const RECLAIM_ROWS_PER_UNIT: u32 = 4;

type Outcome = Result<(), StorageError>;

/// How a group is done.
#[derive(Clone, Copy)]
struct How {
    /// Each unit has a savepoint.
    save: bool,
    /// Content that became unnecessary is removed.
    reclaim: bool,
}

/// What became of an attempt.
enum Attempt {
    /// The transaction is in the file; each unit has its outcome.
    Landed(Vec<Outcome>),
    /// Nothing is in the file. This unit ended the transaction with this error; the others can be done again.
    Without(usize, StorageError),
    /// Nothing is in the file. The units can be done again in this way.
    Again(How),
    /// Nothing is in the file. Smaller groups may succeed.
    Absent(rusqlite::Error),
    /// Nothing is in the file and nothing was tried: the file can't be written at all.
    Unable(rusqlite::Error),
    /// Whether it is in the file can't be told. Units that would have failed anyway have their outcomes.
    Unknown(rusqlite::Error, Vec<Outcome>),
}

impl Writer {
    /// Does the units and answers each.
    pub(super) fn group(&mut self, units: Vec<Box<dyn Unit>>) {
        // Halves of a group that failed as a whole wait here, the earliest on top.
        let mut rest = vec![units];
        let mut how = How { save: false, reclaim: true };
        while let Some(mut units) = rest.pop() {
            if units.is_empty() {
                continue;
            }
            match self.attempt(&mut units, how) {
                Attempt::Landed(outcomes) => {
                    for (unit, outcome) in units.into_iter().zip(outcomes) {
                        unit.settle(outcome);
                    }
                }
                Attempt::Without(index, error) => {
                    units.remove(index).settle(Err(error));
                    rest.push(units);
                }
                Attempt::Again(other) => {
                    how = other;
                    rest.push(units);
                }
                Attempt::Absent(error) if units.len() == 1 => self.refuse(units, error),
                Attempt::Absent(error) => {
                    tracing::warn!(store = %self.place.name(), units = units.len(), %error, "group did not commit, trying its halves");
                    let second = units.split_off(units.len() / 2);
                    rest.push(second);
                    rest.push(units);
                }
                Attempt::Unable(error) => self.refuse(units, error),
                Attempt::Unknown(error, outcomes) => {
                    tracing::error!(store = %self.place.name(), units = units.len(), %error, "whether a group committed can't be told");
                    let uncertain = self.place.uncertain("commit", error);
                    for (unit, outcome) in units.into_iter().zip(outcomes) {
                        unit.settle(outcome.and_then(|()| Err(uncertain.clone())));
                    }
                }
            }
        }
    }

    fn refuse(&self, units: Vec<Box<dyn Unit>>, error: rusqlite::Error) {
        let refused = self.place.rejected("commit", error);
        for unit in units {
            unit.settle(Err(refused.clone()));
        }
    }

    fn attempt(&mut self, units: &mut [Box<dyn Unit>], how: How) -> Attempt {
        let connection = match self.take_connection() {
            Ok(connection) => connection,
            Err(error) => return Attempt::Unable(error),
        };
        let attempt = self.attempt_on(&connection, units, how);
        if let Attempt::Unknown(..) = attempt {
            // Its view of the log may be another than the file's.
            return attempt;
        }
        self.keep_connection(connection);
        attempt
    }

    fn attempt_on(&mut self, connection: &Connection, units: &mut [Box<dyn Unit>], how: How) -> Attempt {
        if let Err(error) = execute(connection, BEGIN) {
            return Attempt::Unable(error);
        }
        let place = self.place.clone();
        let mut tx = Tx::new(connection, &place, self.partitions);
        let before = connection.total_changes();
        let mut outcomes = Vec::with_capacity(units.len());
        for (index, unit) in units.iter_mut().enumerate() {
            let guarded = if how.save { guarded(&mut tx, |tx| unit.run(tx)) } else { checked(&mut tx, |tx| unit.run(tx)) };
            match guarded {
                Guarded::Kept(outcome) => outcomes.push(outcome),
                Guarded::Half => {
                    undo(connection);
                    return Attempt::Again(How { save: true, ..how });
                }
                Guarded::Lost(error) => {
                    undo(connection);
                    return Attempt::Without(index, error);
                }
            }
        }
        self.reclaim.due |= tx.reclaimable;
        let reclaimed = how.reclaim && self.reclaim.due && self.options.reclaim_rows > 0;
        if reclaimed {
            let budget = self.options.reclaim_rows + RECLAIM_ROWS_PER_UNIT * u32::try_from(units.len()).unwrap_or(0);
            let reclaim = &mut self.reclaim;
            match guarded(&mut tx, |tx| maintain::reclaim(tx, reclaim, budget).map(drop)) {
                // It has time: a later group or maintenance does it.
                Guarded::Kept(Err(error)) => tracing::warn!(store = %place.name(), %error, "removal of unnecessary content put off"),
                Guarded::Kept(Ok(())) | Guarded::Half => {}
                Guarded::Lost(error) => {
                    tracing::warn!(store = %place.name(), %error, "removal of unnecessary content put off");
                    undo(connection);
                    return Attempt::Again(How { reclaim: false, ..how });
                }
            }
        }
        if connection.total_changes() == before || (outcomes.iter().all(Result::is_err) && !reclaimed) {
            // There is nothing to write, or only what was undone.
            undo(connection);
            return Attempt::Landed(outcomes);
        }
        let mark = match tx.mark() {
            Ok(mark) => mark,
            Err(error) => {
                undo(connection);
                return Attempt::Absent(error);
            }
        };
        match execute(connection, COMMIT) {
            Ok(()) => Attempt::Landed(outcomes),
            Err(error) => self.settle(connection, mark, error, outcomes),
        }
    }

    /// Finds out what a failed COMMIT left.
    ///
    /// SQLite writes the frames of a transaction to the log, the one that commits it last, syncs, and then makes it visible in the shared
    /// index of the log. When the write of a frame fails for lack of space, the last frame is not complete: nothing landed. When the sync
    /// or a step after it fails, the transaction is invisible now, but its frames may be complete in the file: a crash at this moment
    /// would bring it back, since recovery reads the file and not the index. "Not landed" can therefore not be read, only made true: the
    /// next commit overwrites those frames, and only once it has succeeded are they gone. Where that fails too, the file may say either
    /// after a crash, and the answer has to be [`StorageError::Uncertain`].
    fn settle(&mut self, connection: &Connection, mark: Mark, error: rusqlite::Error, outcomes: Vec<Outcome>) -> Attempt {
        undo(connection);
        // The old connection stays open meanwhile: with it the index of the log stays, and with that what is visible.
        let seen = schema::reader(&self.place.0).and_then(|fresh| mark.landed(&fresh));
        if let Ok(true) = seen {
            return Attempt::Landed(outcomes);
        }
        if nothing_landed(&error) {
            return Attempt::Absent(error);
        }
        let settled = schema::writer(&self.place.0, self.options.durability).and_then(|fresh| {
            execute(&fresh, BEGIN)?;
            let seen = mark.landed(&fresh)?;
            execute(&fresh, sql::SETTLE)?;
            execute(&fresh, COMMIT)?;
            Ok(seen)
        });
        match settled {
            Ok(true) => Attempt::Landed(outcomes),
            Ok(false) => Attempt::Absent(error),
            Err(_) => Attempt::Unknown(error, outcomes),
        }
    }

    /// Does one thing in a transaction of its own.
    pub(super) fn alone<T>(&mut self, work: impl FnOnce(&mut Tx<'_>) -> Found<T>) -> Found<T> {
        let connection = self.take_connection().map_err(|error| self.place.rejected("write", error))?;
        execute(&connection, BEGIN).map_err(|error| self.place.rejected("write", error))?;
        let place = self.place.clone();
        let mut tx = Tx::new(&connection, &place, self.partitions);
        let done = caught(&mut tx, "write", work).and_then(|done| done);
        self.reclaim.due |= tx.reclaimable;
        let marked = done.and_then(|value| Ok((value, tx.mark().map_err(|error| place.rejected("write", error))?)));
        let (value, mark) = match marked {
            Ok(marked) => marked,
            Err(error) => {
                undo(&connection);
                self.keep_connection(connection);
                return Err(error);
            }
        };
        let attempt = match execute(&connection, COMMIT) {
            Ok(()) => Attempt::Landed(Vec::new()),
            Err(error) => self.settle(&connection, mark, error, Vec::new()),
        };
        match attempt {
            Attempt::Unknown(error, _) => Err(self.place.uncertain("write", error)),
            Attempt::Absent(error) => {
                self.keep_connection(connection);
                Err(self.place.rejected("write", error))
            }
            _ => {
                self.keep_connection(connection);
                Ok(value)
            }
        }
    }
}

pub(super) const BEGIN: &str = "BEGIN IMMEDIATE";
const COMMIT: &str = "COMMIT";
const ROLLBACK: &str = "ROLLBACK";
const SAVE: &str = "SAVEPOINT unit";
const RELEASE: &str = "RELEASE unit";
const BACK: &str = "ROLLBACK TO unit";

pub(super) fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// Ends the transaction without effect. SQLite has often done so itself; then there is nothing left to do.
fn undo(connection: &Connection) {
    if !connection.is_autocommit()
        && let Err(error) = execute(connection, ROLLBACK)
    {
        tracing::error!(%error, "a transaction could not be rolled back");
    }
}

/// What a piece of work in a transaction left.
enum Guarded {
    /// The transaction goes on, with the work or without any of it.
    Kept(Outcome),
    /// The transaction goes on, with a part of the work in it.
    Half,
    /// The transaction is over.
    Lost(StorageError),
}

/// Does a piece of work that mostly fails before it writes.
fn checked(tx: &mut Tx<'_>, work: impl FnOnce(&mut Tx<'_>) -> Outcome) -> Guarded {
    let connection = tx.connection;
    let changes = connection.total_changes();
    match caught(tx, "commit", work) {
        Err(panicked) => Guarded::Lost(panicked),
        Ok(Ok(())) => Guarded::Kept(Ok(())),
        Ok(Err(error)) if connection.is_autocommit() => Guarded::Lost(error),
        Ok(Err(error)) if connection.total_changes() == changes => Guarded::Kept(Err(error)),
        Ok(Err(_)) => Guarded::Half,
    }
}

/// Does a piece of work. One that panics gives the outer error, and its transaction has to be undone.
fn caught<T>(tx: &mut Tx<'_>, operation: &str, work: impl FnOnce(&mut Tx<'_>) -> Found<T>) -> Result<Found<T>, StorageError> {
    let place = tx.place;
    // Whatever it left half done is in the transaction, or is made again with the next one.
    catch_unwind(AssertUnwindSafe(|| work(tx))).map_err(|payload| place.panicked(operation, &*payload))
}

/// Does a piece of work that leaves nothing where it fails.
fn guarded(tx: &mut Tx<'_>, work: impl FnOnce(&mut Tx<'_>) -> Outcome) -> Guarded {
    let connection = tx.connection;
    if let Err(error) = execute(connection, SAVE) {
        return Guarded::Lost(tx.place.rejected("commit", error));
    }
    let (marks, reclaimable) = (tx.marks.len(), tx.reclaimable);
    let outcome = match caught(tx, "commit", work) {
        Ok(outcome) => outcome,
        Err(panicked) => return Guarded::Lost(panicked),
    };
    let end = match &outcome {
        Ok(()) => execute(connection, RELEASE),
        Err(_) if connection.is_autocommit() => Ok(()),
        Err(_) => execute(connection, BACK).and_then(|()| execute(connection, RELEASE)),
    };
    match (outcome, end) {
        (Ok(()), Ok(())) => Guarded::Kept(Ok(())),
        (Ok(()), Err(error)) => Guarded::Lost(tx.place.rejected("commit", error)),
        (Err(error), Err(_)) => Guarded::Lost(error),
        (Err(error), Ok(())) if connection.is_autocommit() => Guarded::Lost(error),
        (Err(error), Ok(())) => {
            tx.marks.truncate(marks);
            tx.reclaimable = reclaimable;
            Guarded::Kept(Err(error))
        }
    }
}
