//! What a change costs at different sizes of the document, and what parsing and writing cost.
//!
//! `cargo bench -p picofleet-delta`. The figures of a group should not grow with the size, but for parse and write.
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use picofleet_delta::{Draft, Json, Tracker, apply};

/// One change on a document that stays as it is: open, edit, prepare, adopt.
fn change(document: &Json, edit: impl Fn(Draft<'_>)) -> Tracker {
    let Ok(mut tracker) = Tracker::new(document.clone()) else { return unreachable_document() };
    let change = tracker.begin();
    edit(change.draft());
    let adopted = tracker.adopt(change.prepare());
    debug_assert!(adopted.is_ok());
    tracker
}

fn unreachable_document() -> Tracker {
    unreachable!("the documents are flat")
}

fn append(c: &mut Criterion) {
    let mut group = c.benchmark_group("append 20 characters");
    for size in [1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
        let document = Json::object([("text", "x".repeat(size))]);
        group.bench_with_input(BenchmarkId::from_parameter(size), &document, |b, document| {
            b.iter(|| change(document, |root| drop(root.key("text").append("01234567890123456789"))));
        });
    }
    group.finish();
}

fn slot(c: &mut Criterion) {
    let mut group = c.benchmark_group("set one item");
    for size in [100, 1_000, 10_000, 100_000] {
        let document = Json::object([("slots", Json::array(0..size))]);
        group.bench_with_input(BenchmarkId::from_parameter(size), &document, |b, document| {
            b.iter(|| change(document, |root| drop(root.key("slots").index(size / 2).set("new"))));
        });
    }
    group.finish();
}

fn key(c: &mut Criterion) {
    let mut group = c.benchmark_group("set one key");
    for size in [100, 1_000, 10_000, 100_000] {
        let document = Json::object((0..size).map(|n| (format!("key {n}"), n)));
        let name = format!("key {}", size / 2);
        group.bench_with_input(BenchmarkId::from_parameter(size), &document, |b, document| {
            b.iter(|| change(document, |root| drop(root.key(&name).set("new"))));
        });
    }
    group.finish();
}

fn follow(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply an append");
    for size in [1_000, 100_000, 10_000_000] {
        let document = Json::object([("text", "x".repeat(size))]);
        let Ok(tracker) = Tracker::new(document.clone()) else { continue };
        let open = tracker.begin();
        drop(open.draft().key("text").append("01234567890123456789"));
        let ops = open.prepare().ops;
        group.bench_with_input(BenchmarkId::from_parameter(size), &document, |b, document| {
            b.iter(|| apply(Some(black_box(document)), &ops));
        });
    }
    group.finish();
}

fn text(c: &mut Criterion) {
    let entry = |n: i64| {
        Json::build_object()
            .with("id", n)
            .with("kind", "message")
            .with("text", format!("Line {n} of a log, with \"quotes\" and a newline\n"))
            .with("tags", Json::array(["a", "b"]))
            .with("done", n % 2 == 0)
            .build()
    };
    let many = Json::array((0..8_000).map(entry));
    let long = Json::object([("text", "A long tool output with few escapes.\n".repeat(30_000))]);
    for (name, document) in [("many entries", many), ("long text", long)] {
        let written = document.to_vec();
        let mut group = c.benchmark_group(name);
        group.throughput(Throughput::Bytes(written.len() as u64));
        group.bench_function("parse", |b| b.iter(|| Json::parse(black_box(&written))));
        group.bench_function("write", |b| b.iter(|| black_box(&document).to_vec()));
        group.bench_function("serde_json parse", |b| b.iter(|| serde_json::from_slice::<serde_json::Value>(black_box(&written))));
        group.finish();
    }
}

criterion_group!(benches, append, slot, key, follow, text);
criterion_main!(benches);
