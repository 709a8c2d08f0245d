//! What a commit costs does not depend on the size of what it changes, counted in allocations.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and the figures are worth a look")]
#![allow(unsafe_code, reason = "a counting global allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use picofleet_conformance::documents::{IN_SESSION, commit};
use picofleet_conformance::{Memory, Mode, World};

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

/// The largest cost of one of several commits that append to a text of this size, as (allocations, bytes). A watch and a state look on.
fn cost(size: usize) -> (usize, usize) {
    let most = Cell::new((0, 0));
    let case = async |world: World| {
        let session = &world.session;
        commit(session, async |tx| Ok(tx.doc(&IN_SESSION, ()).await?.draft.key("text").set("x".repeat(size))?)).await.unwrap();
        let mut watch = session.watch_doc(&IN_SESSION, ()).await.unwrap().unwrap();
        let _state = session.document_state(&IN_SESSION, ()).await.unwrap().unwrap();
        // More than the definition's checkpoints lie apart, so that bases and deltas are both among them.
        for round in 0..30 {
            let text = format!("{round:020}");
            COUNTED.set((0, 0));
            commit(session, async |tx| Ok(tx.doc(&IN_SESSION, ()).await?.draft.key("text").append(&text)?)).await.unwrap();
            watch.next().await.unwrap();
            let (allocations, bytes) = COUNTED.get();
            most.set((most.get().0.max(allocations), most.get().1.max(bytes)));
        }
        let value = watch.value().unwrap().get("text").unwrap().as_str().unwrap().len();
        assert_eq!(value, size + 30 * 20);
    };
    picofleet_conformance::run(Memory, Mode::Warm, case);
    most.get()
}

#[test]
fn an_append_to_a_long_text_costs_the_append() {
    for size in [10_000, 10_000_000] {
        let cost = cost(size);
        println!("append 20 characters to {size} bytes: {} allocations, {} bytes", cost.0, cost.1);
        assert!(cost.0 <= BOUND.0 && cost.1 <= BOUND.1, "{cost:?} is more than {BOUND:?} for {size} bytes");
    }
}

/// As (allocations, bytes), a little above what was measured.
const BOUND: (usize, usize) = (150, 32_000);
