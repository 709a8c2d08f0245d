//! The Rust half of `tests/bench/chord`: runs the scripts and prints one JSON line for each, with nanoseconds a change.
#![allow(clippy::disallowed_methods, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark measures time and prints it")]

use std::time::Instant;

use picofleet_delta::{Draft, Json, Tracker, apply};

const TEXT: &str = "01234567890123456789";

fn report(script: &str, size: usize, started: Instant, changes: usize) {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let ns = started.elapsed().as_nanos() as f64 / changes as f64;
    let line = Json::build_object().with("script", script).with("size", size).with("ns", Json::try_from(ns.round()).unwrap());
    println!("{}", line.build());
}

/// Runs changes one after the other, each on the revision that the one before made.
fn run(script: &str, size: usize, changes: usize, document: Json, edit: impl Fn(Draft<'_>, usize)) {
    let mut tracker = Tracker::new(document.clone()).unwrap();
    let mut batches = Vec::with_capacity(changes);
    let started = Instant::now();
    for n in 0..changes {
        let change = tracker.begin();
        edit(change.draft(), n);
        let prepared = change.prepare();
        batches.push(prepared.ops.clone());
        tracker.adopt(prepared).unwrap();
    }
    report(&format!("{script}, change"), size, started, changes);
    let mut value = document;
    let started = Instant::now();
    for ops in &batches {
        value = apply(Some(&value), ops).unwrap();
    }
    report(&format!("{script}, apply"), size, started, changes);
    assert_eq!(&value, tracker.value());
}

fn main() {
    let changes = std::env::args().nth(1).map_or(2000, |count| count.parse().unwrap());
    // The first runs warm up allocator and caches.
    for warm in [true, false] {
        let changes = if warm { changes / 10 } else { changes };
        if !warm {
            println!("{}", Json::from("measured"));
        }
        for size in [1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
            let document = Json::object([("output", "x".repeat(size))]);
            run("append 20 characters", size, changes, document, |root, _| root.key("output").append(TEXT).unwrap());
        }
        for size in [100, 1_000, 10_000, 100_000] {
            let slot = |n: usize| Json::build_object().with("id", n).with("status", "waiting").build();
            let document = Json::object([("slots", Json::array((0..size).map(slot)))]);
            let edit = |root: Draft<'_>, n: usize| root.key("slots").index(n * 17 % size).key("status").set(format!("step {n}")).unwrap();
            run("set one slot", size, changes, document, edit);
        }
    }
}
