//! A line without one of its guards is found out. The long form, over all guards: `picofleet-simulation --broken --seeds 100`.
#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]

use picofleet_simulation::{Guard, run};

/// How many seeds each guard is taken away for at most.
const SEEDS: u64 = 60;

fn missed(guard: Guard) {
    let broken = |seed: &u64| !run(*seed, Some(guard)).unwrap().violations.is_empty();
    assert!((0..SEEDS).find(broken).is_some(), "nothing was broken without {} in {SEEDS} seeds", guard.name());
}

#[test]
fn a_saying_that_is_applied_twice_is_found() {
    missed(Guard::Repeated);
}

#[test]
fn a_stale_decision_that_is_taken_is_found() {
    missed(Guard::StalePlan);
}

#[test]
fn progress_with_a_hole_is_found() {
    missed(Guard::Resync);
}
