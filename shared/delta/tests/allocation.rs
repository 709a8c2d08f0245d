//! The cost of a change does not depend on the size of the document, counted in allocations.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and the figures are worth a look")]
#![allow(unsafe_code, reason = "a counting global allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use picofleet_delta::{Draft, Json, Tracker};

struct Counting;

thread_local! {
    /// Allocations and bytes of this thread, so that tests that run beside do not count.
    static COUNTED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: usize) {
    // The thread's cell is gone while it ends; nothing is measured then.
    let _ = COUNTED.try_with(|counted| {
        let (allocations, total) = counted.get();
        counted.set((allocations + 1, total + bytes));
    });
}

// SAFETY: every call goes to the system allocator with the arguments that came in.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(new_size);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The largest cost of one of several changes to `document`, as (allocations, bytes).
fn cost(document: Json, ops: usize, edit: impl Fn(Draft<'_>, usize)) -> (usize, usize) {
    let mut tracker = Tracker::new(document).unwrap();
    // An older revision that lives on, as a subscriber or an unfinished commit holds it.
    let mut older = tracker.value().clone();
    let mut most = (0, 0);
    for round in 0..50 {
        COUNTED.set((0, 0));
        let change = tracker.begin();
        edit(change.draft(), round);
        let prepared = change.prepare();
        assert_eq!(prepared.ops.len(), ops);
        let previous = std::mem::replace(&mut older, prepared.base.clone());
        tracker.adopt(prepared).unwrap();
        let (allocations, bytes) = COUNTED.get();
        drop(previous);
        most = (most.0.max(allocations), most.1.max(bytes));
    }
    most
}

fn check(what: &str, cost: (usize, usize), bound: (usize, usize)) {
    println!("{what}: {} allocations, {} bytes", cost.0, cost.1);
    assert!(cost.0 <= bound.0 && cost.1 <= bound.1, "{what}: {cost:?} is more than {bound:?}");
}

#[test]
fn an_append_to_a_long_text_costs_the_append() {
    for size in [10_000, 10_000_000] {
        let document = Json::object([("other", Json::array(0..1000)), ("text", Json::from("é".repeat(size / 2)))]);
        let cost = cost(document, 1, |root, round| root.key("text").append(&format!("{round:020}")).unwrap());
        check(&format!("append 20 characters to {size} bytes"), cost, APPEND);
    }
}

#[test]
fn a_front_trim_of_a_long_text_costs_the_trim() {
    for size in [20_000, 10_000_000] {
        let document = Json::object([("text", "x".repeat(size))]);
        let cost = cost(document, 1, |root, _| root.key("text").trim_utf16(20).unwrap());
        check(&format!("trim 20 characters of {size} bytes"), cost, APPEND);
    }
}

#[test]
fn an_item_of_a_long_array_costs_the_item() {
    for size in [1000, 100_000] {
        let document = Json::object([("slots", Json::array(0..size))]);
        let cost = cost(document, 1, |root, round| root.key("slots").index(round * 17).set("new").unwrap());
        check(&format!("set one of {size} items"), cost, ITEM);
    }
}

/// A removal or insertion away from the ends splits the persistent vector and joins the parts. The join evens out up to 64 nodes of about
/// a KB on both edges of each level, so that it costs some hundred of them: more than the item, and with the logarithm of the length.
#[test]
fn a_removal_in_the_middle_of_a_long_array_costs_hundreds_of_nodes_and_not_the_length() {
    for (size, bound) in [(1000, MIDDLE_OF_1_000), (100_000, MIDDLE_OF_100_000), (1_000_000, MIDDLE_OF_1_000_000)] {
        let document = Json::object([("slots", Json::array(0..size))]);
        let cost = cost(document, 1, |root, round| root.key("slots").splice(round * 17, 1, Vec::new()).unwrap());
        check(&format!("remove one of {size} items"), cost, bound);
    }
}

#[test]
fn a_rolling_array_costs_its_ends() {
    for size in [1000, 100_000] {
        let document = Json::object([("slots", Json::array(0..size))]);
        let roll = |root: Draft<'_>, round: usize| {
            root.key("slots").push(round).unwrap();
            root.key("slots").splice(0, 1, Vec::new()).unwrap();
        };
        check(&format!("roll {size} items"), cost(document, 2, roll), ROLL);
    }
}

#[test]
fn a_key_of_a_large_object_costs_the_key() {
    for size in [1000, 100_000] {
        let document = Json::object((0..size).map(|n| (format!("key {n}"), n)));
        let cost = cost(document, 1, |root, round| root.key(&format!("key {}", round * 17)).set("new").unwrap());
        check(&format!("set one of {size} keys"), cost, KEY);
    }
}

/// Bounds as (allocations, bytes), a little above what was measured.
const APPEND: (usize, usize) = (60, 16_000);
const ITEM: (usize, usize) = (45, 16_000);
const MIDDLE_OF_1_000: (usize, usize) = (110, 120_000);
const MIDDLE_OF_100_000: (usize, usize) = (320, 420_000);
const MIDDLE_OF_1_000_000: (usize, usize) = (420, 560_000);
const ROLL: (usize, usize) = (60, 28_000);
const KEY: (usize, usize) = (35, 9000);
