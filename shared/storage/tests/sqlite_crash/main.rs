//! SQLite under crashes and failing disks.
//!
//! A child process runs the program of [`child`] on a store while the library of `tests/faultfs` counts every call that changes a file and
//! kills the process, or fails the call, at one of them. The child says what it tries and what was acknowledged. Afterwards the store is
//! opened, compared with the same program on memory, and used further.
//!
//! All boundaries take some minutes: `PICOFLEET_CRASH_RUNS=100000` walks them all, without it each test walks some of them, evenly.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and its child process speaks on stdout"
)]

mod bad_files;
mod child;
mod program;
mod run;
mod sound;
mod verify;

use std::path::Path;
use std::sync::Arc;

use picofleet_session::storage::{StorageError, Store};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use run::{Fault, Run};
use sound::sound;

/// The name of the store.
const STORE: &str = "store.db";

/// There is one way in which the child opens it.
const MODE: &str = "power";

fn open(path: &Path) -> Result<Arc<dyn Store>, StorageError> {
    Ok(Arc::new(SqliteStore::open(path, SqliteOptions::default())?))
}

fn look(path: &Path) -> Result<Arc<dyn Store>, StorageError> {
    Ok(Arc::new(SqliteStore::open_read_only(path)?))
}

/// How many boundaries a test walks at most.
fn runs_max() -> usize {
    std::env::var("PICOFLEET_CRASH_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(90)
}

/// Numbers from 1 to `total`, evenly, at most `max`; `shift` moves them so that tests walk different ones.
fn boundaries(total: usize, max: usize, shift: usize) -> Vec<usize> {
    let stride = total.div_ceil(max).max(1);
    (1 + shift % stride..=total).step_by(stride).collect()
}

/// How many calls of a run without a fault the fault may meet.
fn total(fault: Fault) -> usize {
    let run = Run::counting(fault, MODE);
    assert!(run.said.last().is_some_and(|line| line == "closed"), "{:?}", run.said);
    let total = run.total();
    assert!(total > 30, "only {total} calls were counted: is the library in place?");
    total
}

/// Walks the boundaries until the child ends normally.
fn walk(fault: Fault, shift: usize) {
    let total = total(fault);
    let mut killed = 0;
    for at in boundaries(total, runs_max(), shift) {
        let run = Run::with(fault, at, MODE);
        killed += usize::from(run.killed);
        verify::after_kill(&run, at % 8 == 0);
    }
    assert!(killed > 0, "no run was killed");
    // Beyond the last call nothing happens.
    let run = Run::with(fault, total + 1_000, MODE);
    assert!(!run.killed, "a child that is not killed ends normally");
    verify::after_kill(&run, true);
}

#[test]
fn a_kill_after_any_write_leaves_a_committed_state() {
    walk(Fault::KillAfter, 0);
}

#[test]
fn a_kill_in_the_middle_of_any_write_leaves_a_committed_state() {
    walk(Fault::KillHalf, 3);
}

/// The child goes on once there is space again, and ends normally.
fn fail(fault: Fault, shift: usize) {
    let total = total(fault);
    let mut met = 0;
    // How many calls a run makes depends on how many commits share a write, so the last ones of the walk may be beyond its end.
    let walked = boundaries(total, runs_max() / 2, shift);
    for at in &walked {
        let run = Run::with(fault, *at, MODE);
        met += usize::from(verify::after_failure(&run));
    }
    assert!(4 * met > walked.len(), "only {met} of {} runs met the fault", walked.len());
}

#[test]
fn a_full_disk_is_told_and_nothing_acknowledged_is_lost() {
    fail(Fault::DiskFull, 1);
}

#[test]
fn a_failing_disk_is_told_and_nothing_acknowledged_is_lost() {
    fail(Fault::Failing, 2);
}

#[test]
fn one_failing_call_is_told_and_nothing_acknowledged_is_lost() {
    fail(Fault::FailingOnce, 4);
}

/// A refusal is final: also when the process ends right after it and the log is read again, nothing of the batch is there.
fn refuse(fault: Fault, shift: usize) {
    let (mut refused, mut uncertain) = (0, 0);
    // How many there are depends on how many commits share a write, and so on the machine.
    let walked = boundaries(total(fault), runs_max() / 2, shift);
    for at in &walked {
        let at = *at;
        let run = Run::with(fault, at, MODE);
        refused += usize::from(run.said.iter().any(|line| line.starts_with("rejected commit")));
        uncertain += usize::from(run.said.iter().any(|line| line.starts_with("uncertain commit")));
        verify::after_kill(&run, false);
    }
    assert!(4 * (refused + uncertain) > walked.len(), "{refused} refused, {uncertain} uncertain of {}", walked.len());
}

#[test]
fn a_batch_refused_by_a_full_disk_never_lands() {
    refuse(Fault::DiskFullThenKilled, 5);
}

#[test]
fn a_batch_refused_by_a_failing_disk_never_lands() {
    refuse(Fault::FailingThenKilled, 6);
}

/// The transaction is complete in the log when its sync fails: it would come back when the log is read again.
#[test]
fn a_batch_refused_after_a_failed_sync_never_lands() {
    refuse(Fault::SyncOnceThenKilled, 0);
}

#[test]
fn a_batch_is_uncertain_when_a_failed_sync_cannot_be_settled() {
    refuse(Fault::SyncThenKilled, 0);
}

/// Another process that has a store open; without its variable it is no test.
#[test]
fn holder() {
    if let Some(store) = std::env::var_os(bad_files::HELD) {
        child::hold(store.as_ref());
    }
}

/// The program of the child process; without its variables it is no test.
#[test]
fn child() {
    if let Some(plan) = child::Plan::from_environment() {
        child::run(&plan);
    }
}
