//! JSON lines under crashes and failing disks: the child, the program and the checks of `sqlite_crash`, on a directory. A store whose
//! write failed takes no more until it is opened again, so that every failure here ends the process.
//!
//! `PICOFLEET_CRASH_RUNS=100000` walks all boundaries, in both ways of opening the store.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and its child process speaks on stdout"
)]
#![allow(dead_code, reason = "the modules are those of sqlite_crash, which uses more of them")]

#[path = "../sqlite_crash/child.rs"]
mod child;
#[path = "../sqlite_crash/program.rs"]
mod program;
#[path = "../sqlite_crash/run.rs"]
mod run;
#[path = "../sqlite_crash/verify.rs"]
mod verify;

use std::path::Path;
use std::sync::Arc;

use picofleet_session::storage::{StorageError, Store};
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use run::{Fault, Run};

/// The name of the store.
const STORE: &str = "store.jsonl";

/// Sidecars are written anew as often as can be, and everything is flushed, so that there are more calls to fail.
const FLUSHED: &str = "flushed";
/// As a store is opened by default.
const DEFAULT: &str = "default";

fn open(path: &Path) -> Result<Arc<dyn Store>, StorageError> {
    let flushed = JsonlOptions { fsync: true, reclaim_bytes: 1, ..JsonlOptions::default() };
    let default = std::env::var(child::MODE).is_ok_and(|mode| mode == DEFAULT);
    Ok(Arc::new(JsonlStore::open(path, if default { JsonlOptions::default() } else { flushed })?))
}

fn look(path: &Path) -> Result<Arc<dyn Store>, StorageError> {
    Ok(Arc::new(JsonlStore::open_read_only(path)?))
}

/// Nothing is left over once the store was used again: no replacement, no file of a task that is over, no line that nothing confirms.
fn sound(run: &Run) {
    let mut open = vec![run.store()];
    while let Some(directory) = open.pop() {
        for entry in directory.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(!name.ends_with(".tmp"), "{}: {}", run.name, path.display());
            if path.is_dir() {
                open.push(path);
            } else if name.ends_with(".jsonl") {
                let bytes = std::fs::read(&path).unwrap();
                assert!(bytes.ends_with(b"\n") || name == "tombstones.jsonl" && bytes.is_empty(), "{}: {}", run.name, path.display());
            }
        }
    }
}

fn walk(fault: Fault, shift: usize) {
    walk_in(FLUSHED, fault, shift);
    walk_in(DEFAULT, fault, shift + 1);
}

fn walk_in(mode: &str, fault: Fault, shift: usize) {
    let runs_max = std::env::var("PICOFLEET_CRASH_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(40_usize);
    let counting = Run::counting(fault, mode);
    assert!(counting.said.last().is_some_and(|line| line == "closed"), "{:?}", counting.said);
    let total = counting.total();
    assert!(total > 30, "only {total} calls were counted, {mode}: is the library in place?");
    let stride = total.div_ceil(runs_max).max(1);
    let (mut killed, mut walked) = (0, 0);
    for at in (1 + shift % stride..=total).step_by(stride) {
        walked += 1;
        let run = Run::with(fault, at, mode);
        killed += usize::from(run.killed);
        verify::after_kill(&run, at % 8 == 0);
    }
    // How many calls a run makes depends on how its commits met, so the last ones of the walk may be beyond its end.
    assert!(4 * killed > walked, "only {killed} of {walked} runs were ended, {mode}");
    let run = Run::with(fault, total + 1_000, mode);
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

#[test]
fn a_full_disk_leaves_what_was_acknowledged() {
    walk(Fault::DiskFullThenKilled, 5);
}

#[test]
fn a_failing_disk_leaves_what_was_acknowledged() {
    walk(Fault::FailingThenKilled, 6);
}

/// The program of the child process; without its variables it is no test.
#[test]
fn child() {
    if let Some(plan) = child::Plan::from_environment() {
        child::run(&plan);
    }
}
