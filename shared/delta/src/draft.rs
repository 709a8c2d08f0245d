//! Edits of an open change.

mod edit;
mod emit;
mod error;
mod overlay;
mod pieces;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::json::Json;
use crate::op::{Op, Segment};

pub use error::{DraftError, DraftErrorKind};
pub(crate) use overlay::Overlay;

use overlay::NodeId;

/// A place in an open change. It is `Copy` and ends with the change.
///
/// What a draft means depends on how it was reached:
///
/// - [`Draft::key`] means the key, whatever the object holds there at the time of use, also nothing yet.
/// - [`Draft::index`] of an item that exists means that item: it follows the item through splices and reorders, and
///   fails when the item was removed or its array replaced.
/// - [`Draft::index`] of an item that does not exist means the position.
///
/// Every edit is checked completely before anything changes, and reads give the current content. Threads may share
/// drafts; each call is atomic.
#[derive(Clone, Copy)]
pub struct Draft<'t> {
    overlay: &'t Mutex<Overlay>,
    node: NodeId,
}

impl<'t> Draft<'t> {
    pub(crate) fn root(overlay: &'t Mutex<Overlay>) -> Draft<'t> {
        Draft { overlay, node: NodeId::ROOT }
    }

    fn lock(&self) -> MutexGuard<'t, Overlay> {
        // Nothing that can panic leaves the overlay half changed.
        self.overlay.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of a key. It need not exist.
    #[must_use]
    pub fn key(self, name: &str) -> Draft<'t> {
        let node = self.lock().key(self.node, name);
        Draft { node, ..self }
    }

    /// The place of an array item, from 0. It need not exist. In an object it means the key with the same decimal text.
    #[must_use]
    pub fn index(self, index: usize) -> Draft<'t> {
        let node = self.lock().index(self.node, index);
        Draft { node, ..self }
    }

    /// The place at a path below this one.
    #[must_use]
    pub fn at(self, path: &[Segment]) -> Draft<'t> {
        let node = self.lock().descend(self.node, path);
        Draft { node, ..self }
    }

    /// The current content, O(depth). `None` when the place does not exist.
    pub fn get(self) -> Option<Json> {
        self.lock().get(self.node)
    }

    /// Puts a value here: over an existing one, as a new key, or as the item after the last. A container does not
    /// differ by parts from what stood here: it is sent whole.
    ///
    /// # Errors
    ///
    /// `MissingParent`, `NotAContainer`, `KeyOnArray`, `IndexOutOfRange`, `ItemRemoved`, `Depth`.
    pub fn set(self, value: impl Into<Json>) -> Result<(), DraftError> {
        let value = value.into();
        self.lock().set(self.node, &value)
    }

    /// [`Draft::set`] of a converted value; see [`Json::from_serde`].
    ///
    /// # Errors
    ///
    /// As [`Draft::set`], and `Value`.
    pub fn set_serde<T: Serialize + ?Sized>(self, value: &T) -> Result<(), DraftError> {
        let value = Json::from_serde(value);
        let mut overlay = self.lock();
        match value {
            Ok(value) => overlay.set(self.node, &value),
            Err(error) => Err(overlay.value_error(self.node, &error)),
        }
    }

    /// Removes an object key; one that is missing is fine. Array items are removed by [`Draft::splice`].
    ///
    /// A key that is removed and set again goes last, unless its value is equal to the one in the base: that is no
    /// change, and the key keeps its place.
    ///
    /// # Errors
    ///
    /// `NotRemovable`, `MissingParent`, `NotAContainer`, `KeyOnArray`, `ItemRemoved`.
    pub fn remove(self) -> Result<(), DraftError> {
        self.lock().remove(self.node)
    }

    /// Adds an item to the end of the array.
    ///
    /// # Errors
    ///
    /// As [`Draft::splice`].
    pub fn push(self, value: impl Into<Json>) -> Result<(), DraftError> {
        let value = value.into();
        self.lock().push(self.node, value)
    }

    /// Replaces `remove` items of the array from `index` on.
    ///
    /// # Errors
    ///
    /// `NotAnArray`, `IndexOutOfRange` when the range is not inside the array, `ItemRemoved`, `Depth`.
    pub fn splice(self, index: usize, remove: usize, items: Vec<Json>) -> Result<(), DraftError> {
        self.lock().splice(self.node, index, remove, items)
    }

    /// Removes the items of the array for which `keep` is false. What stays is not sent again.
    ///
    /// `keep` gets index and item, and may use other drafts.
    ///
    /// # Errors
    ///
    /// `NotAnArray`, `ItemRemoved`; `Changed` when `keep` or another thread changed the array meanwhile.
    pub fn retain(self, mut keep: impl FnMut(usize, &Json) -> bool) -> Result<(), DraftError> {
        let array = self.lock().array(self.node)?;
        let flags: Vec<bool> = array.as_array().into_iter().flatten().enumerate().map(|(index, item)| keep(index, item)).collect();
        self.lock().retain(self.node, &array, &flags)
    }

    /// Reorders the array: `new[i] = old[order[i]]`.
    ///
    /// # Errors
    ///
    /// `NotAnArray`, `NotAPermutation`, `ItemRemoved`.
    pub fn reorder(self, order: &[usize]) -> Result<(), DraftError> {
        self.lock().reorder(self.node, order)
    }

    /// Appends to the string.
    ///
    /// # Errors
    ///
    /// `NotAString`, `ItemRemoved`.
    pub fn append(self, text: &str) -> Result<(), DraftError> {
        self.lock().append(self.node, text)
    }

    /// Drops `count` UTF-16 units from the front of the string, at most all.
    ///
    /// # Errors
    ///
    /// `NotAString`, `SplitPair`, `ItemRemoved`.
    pub fn trim_utf16(self, count: usize) -> Result<(), DraftError> {
        self.lock().trim_utf16(self.node, count)
    }

    /// Performs operations whose paths start at this place; [`Op::Replace`] is [`Draft::set`]. All or none.
    ///
    /// # Errors
    ///
    /// `Operation` with the class that [`crate::apply`](fn@crate::apply) reports, `Depth`, `SplitPair`, and those of
    /// [`Draft::set`].
    pub fn apply_relative(self, ops: &[Op]) -> Result<(), DraftError> {
        self.lock().apply_relative(self.node, ops)
    }
}

impl fmt::Debug for Draft<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Draft").field(&self.get()).finish()
    }
}
