//! Arrays: short ones in one piece, long ones in a persistent vector.

use imbl::Vector;
use imbl::shared_ptr::DefaultSharedPtr;

use crate::handle::{Body, Doomed, Handle};
use crate::height::{self, Height};
use crate::json::Json;

/// Longest array that is copied whole on a change.
const SHORT_MAX: usize = 32;

/// Most items at the front that are taken or put one by one: about a chunk of the vector.
const END_MAX: usize = 64;

#[derive(Clone)]
pub(crate) struct Array(Handle<ArrayBody>);

#[derive(Clone)]
pub(crate) struct ArrayBody {
    height: Height,
    items: Items,
}

#[derive(Clone)]
enum Items {
    Short(Vec<Json>),
    Long(Vector<Json>),
}

impl Body for ArrayBody {
    fn height(&self) -> &Height {
        &self.height
    }

    fn into_doomed(self) -> Doomed {
        Doomed::Array(self)
    }
}

impl Array {
    pub(crate) fn new(items: Vec<Json>) -> Array {
        let below = items.iter().map(height::bound).max().unwrap_or(0);
        let items = if items.len() <= SHORT_MAX { Items::Short(items) } else { Items::Long(items.into()) };
        Array(Handle::new(ArrayBody { height: Height::new(below.saturating_add(1)), items }))
    }

    pub(crate) fn height(&self) -> &Height {
        &self.0.height
    }

    pub(crate) fn len(&self) -> usize {
        match &self.0.items {
            Items::Short(items) => items.len(),
            Items::Long(items) => items.len(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Json> {
        match &self.0.items {
            Items::Short(items) => items.get(index),
            Items::Long(items) => items.get(index),
        }
    }

    pub(crate) fn iter(&self) -> ArrayIter<'_> {
        ArrayIter(match &self.0.items {
            Items::Short(items) => Iter::Short(items.iter()),
            Items::Long(items) => Iter::Long(items.iter()),
        })
    }

    pub(crate) fn same_revision(&self, other: &Array) -> bool {
        self.0.ptr_eq(&other.0)
    }

    pub(crate) fn as_ref(&self) -> ArrayRef<'_> {
        ArrayRef(self)
    }

    /// The body for a change. The caller raises the height for what it puts in.
    pub(crate) fn edit(&mut self) -> &mut ArrayBody {
        self.0.make_mut()
    }
}

impl ArrayBody {
    pub(crate) fn raise(&mut self, bound: u32) {
        self.height.raise(bound);
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Json> {
        match &mut self.items {
            Items::Short(items) => items.get_mut(index),
            Items::Long(items) => items.get_mut(index),
        }
    }

    pub(crate) fn push(&mut self, value: Json) {
        match &mut self.items {
            Items::Short(items) if items.len() < SHORT_MAX => items.push(value),
            Items::Short(items) => {
                let mut long: Vector<Json> = std::mem::take(items).into();
                long.push_back(value);
                self.items = Items::Long(long);
            }
            Items::Long(items) => items.push_back(value),
        }
    }

    /// Replaces `remove` items at `index`. The caller keeps the range inside the array.
    pub(crate) fn splice(&mut self, index: usize, remove: usize, insert: Vec<Json>) {
        match &mut self.items {
            Items::Short(items) => {
                items.splice(index..index + remove, insert);
                if items.len() > SHORT_MAX {
                    self.items = Items::Long(std::mem::take(items).into());
                }
            }
            Items::Long(items) => splice_long(items, index, remove, insert),
        }
    }

    /// `new[i] = old[order[i]]`. The caller passes a permutation of the array's length.
    pub(crate) fn permute(&mut self, order: &[usize]) {
        self.items = match &self.items {
            Items::Short(items) => Items::Short(order.iter().filter_map(|&from| items.get(from).cloned()).collect()),
            Items::Long(items) => Items::Long(order.iter().filter_map(|&from| items.get(from).cloned()).collect()),
        };
    }
}

/// The ends and overwritten items are cheap; elsewhere the vector is split and joined, for one item as for many.
fn splice_long(items: &mut Vector<Json>, index: usize, remove: usize, insert: Vec<Json>) {
    if remove == insert.len() {
        for (offset, value) in insert.into_iter().enumerate() {
            items.set(index + offset, value);
        }
    } else if index == 0 && remove.max(insert.len()) <= END_MAX {
        (0..remove).for_each(|_| drop(items.pop_front()));
        insert.into_iter().rev().for_each(|value| items.push_front(value));
    } else if index + remove == items.len() {
        items.truncate(index);
        items.extend(insert);
    } else {
        let tail = items.split_off(index + remove);
        items.truncate(index);
        items.append(insert.into());
        items.append(tail);
    }
}

/// An array inside a [`Json`].
#[derive(Clone, Copy)]
pub struct ArrayRef<'a>(&'a Array);

impl<'a> ArrayRef<'a> {
    /// Number of items.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// True for `[]`.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The item at `index`, which counts from 0.
    pub fn get(self, index: usize) -> Option<&'a Json> {
        self.0.get(index)
    }

    /// The items in order.
    pub fn iter(self) -> ArrayIter<'a> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for ArrayRef<'a> {
    type Item = &'a Json;
    type IntoIter = ArrayIter<'a>;

    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// Items of an array in order; see [`ArrayRef::iter`].
pub struct ArrayIter<'a>(Iter<'a>);

enum Iter<'a> {
    Short(std::slice::Iter<'a, Json>),
    Long(imbl::vector::Iter<'a, Json, DefaultSharedPtr>),
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = &'a Json;

    fn next(&mut self) -> Option<&'a Json> {
        match &mut self.0 {
            Iter::Short(items) => items.next(),
            Iter::Long(items) => items.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Iter::Short(items) => items.size_hint(),
            Iter::Long(items) => items.size_hint(),
        }
    }
}

impl DoubleEndedIterator for ArrayIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Iter::Short(items) => items.next_back(),
            Iter::Long(items) => items.next_back(),
        }
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}
