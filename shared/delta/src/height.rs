//! How deep a value nests, kept as an upper bound so that an edit does not measure its surroundings.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::DEPTH_MAX;
use crate::array::ArrayIter;
use crate::json::{Json, Repr};
use crate::object::ObjectIter;

/// An upper bound of a container's depth: 1 for a container of scalars.
///
/// Edits only raise it. A measurement lowers it to the truth, also in shared bodies, hence the atomic; each stored
/// number is a valid bound, so no ordering between threads is needed.
pub(crate) struct Height(AtomicU32);

impl Height {
    pub(crate) fn new(bound: u32) -> Height {
        Height(AtomicU32::new(bound))
    }

    pub(crate) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&mut self, bound: u32) {
        let own = self.0.get_mut();
        *own = (*own).max(bound);
    }

    fn tighten(&self, exact: u32) {
        self.0.fetch_min(exact, Ordering::Relaxed);
    }
}

impl Clone for Height {
    fn clone(&self) -> Height {
        Height::new(self.get())
    }
}

/// True when `value`, placed inside `above` containers, stays within [`DEPTH_MAX`].
///
/// Costs a comparison; a value whose bound is too high is measured, so no value is refused by a stale bound.
pub(crate) fn fits(value: &Json, above: u32) -> bool {
    fits_within(value, above, DEPTH_MAX)
}

/// [`fits`] with another limit.
pub(crate) fn fits_within(value: &Json, above: u32, limit: u32) -> bool {
    let Some(allowed) = limit.checked_sub(above) else { return false };
    bound(value) <= allowed || measure(value) <= allowed
}

/// The kept upper bound; 0 for a scalar.
pub(crate) fn bound(value: &Json) -> u32 {
    match &value.0 {
        Repr::Array(array) => array.height().get(),
        Repr::Object(object) => object.height().get(),
        _ => 0,
    }
}

enum Children<'a> {
    Array(ArrayIter<'a>),
    Object(ObjectIter<'a>),
}

struct Frame<'a> {
    height: &'a Height,
    children: Children<'a>,
    below: u32,
}

/// The exact depth. Walks containers of containers only, and stores what it finds in each.
fn measure(value: &Json) -> u32 {
    let mut stack: Vec<Frame<'_>> = Vec::new();
    let mut found = 0;
    let mut next = Some(value);
    loop {
        if let Some(value) = next.take() {
            match &value.0 {
                Repr::Array(array) if array.height().get() > 1 => {
                    stack.push(Frame { height: array.height(), children: Children::Array(array.iter()), below: 0 });
                }
                Repr::Object(object) if object.height().get() > 1 => {
                    stack.push(Frame { height: object.height(), children: Children::Object(object.iter()), below: 0 });
                }
                _ => found = bound(value),
            }
        }
        let Some(frame) = stack.last_mut() else { return found };
        frame.below = frame.below.max(std::mem::take(&mut found));
        next = match &mut frame.children {
            Children::Array(items) => items.next(),
            Children::Object(entries) => entries.next().map(|(_, value)| value),
        };
        if next.is_none() {
            found = frame.below + 1;
            frame.height.tighten(found);
            stack.pop();
        }
    }
}
