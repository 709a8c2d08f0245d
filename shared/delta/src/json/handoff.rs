//! Passes whole values through serde between our own two ends.
//!
//! A [`Json`] inside a larger serde type announces itself as a newtype struct with a private name. Our serializer and
//! deserializer know the name and move the value through a thread-local slot: O(1), shared, no recursion. Every other
//! format sees the ordinary data model, since a newtype struct is transparent there.

use std::cell::RefCell;

use super::Json;

/// The private name. Nothing else may use it for a newtype struct.
pub(super) const NAME: &str = "$picofleet::Json";

enum Slot {
    Empty,
    /// Our serializer waits for a value.
    Wanted,
    /// A value on its way, in either direction.
    Filled(Json),
}

thread_local! {
    static SLOT: RefCell<Slot> = const { RefCell::new(Slot::Empty) };
}

fn replace(slot: Slot) -> Slot {
    SLOT.with(|own| own.replace(slot))
}

/// Runs `serialize` and returns what a [`Json`] put into the slot meanwhile.
pub(super) fn receive<T>(serialize: impl FnOnce() -> T) -> (T, Option<Json>) {
    replace(Slot::Wanted);
    let result = serialize();
    match replace(Slot::Empty) {
        Slot::Filled(value) => (result, Some(value)),
        Slot::Empty | Slot::Wanted => (result, None),
    }
}

/// Puts `value` into the slot if our serializer waits for it.
pub(super) fn deliver(value: &Json) -> bool {
    match replace(Slot::Empty) {
        Slot::Wanted => {
            replace(Slot::Filled(value.clone()));
            true
        }
        Slot::Empty | Slot::Filled(_) => false,
    }
}

/// Offers `value` to the visitor that `visit` runs.
pub(super) fn offer<T>(value: &Json, visit: impl FnOnce() -> T) -> T {
    replace(Slot::Filled(value.clone()));
    let result = visit();
    replace(Slot::Empty);
    result
}

/// The value that our deserializer offers, if it does.
pub(super) fn accept() -> Option<Json> {
    match replace(Slot::Empty) {
        Slot::Filled(value) => Some(value),
        Slot::Empty | Slot::Wanted => None,
    }
}
