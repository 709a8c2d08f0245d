//! Objects: keys in insertion order, small ones in one piece, large ones in two persistent maps.

use std::sync::Arc;

use imbl::OrdMap;
use imbl::shared_ptr::DefaultSharedPtr;

use crate::handle::{Body, Doomed, Handle};
use crate::height::{self, Height};
use crate::json::Json;

/// Most keys of an object that is copied whole on a change and searched one key after the other.
const SMALL_MAX: usize = 32;

type Entry = (Arc<str>, Json);

#[derive(Clone)]
pub(crate) struct Object(Handle<ObjectBody>);

#[derive(Clone)]
pub(crate) struct ObjectBody {
    height: Height,
    entries: Entries,
}

#[derive(Clone)]
enum Entries {
    Small(Vec<Entry>),
    Large(Large),
}

/// Invariant: `places[key] == n` exactly when `entries[n].0 == key`, and every place is below `next`.
#[derive(Clone, Default)]
struct Large {
    entries: OrdMap<u64, Entry>,
    places: OrdMap<Arc<str>, u64>,
    next: u64,
}

impl Body for ObjectBody {
    fn height(&self) -> &Height {
        &self.height
    }

    fn into_doomed(self) -> Doomed {
        Doomed::Object(self)
    }
}

impl Object {
    pub(crate) fn empty() -> Object {
        Object(Handle::new(ObjectBody { height: Height::new(1), entries: Entries::Small(Vec::new()) }))
    }

    /// Takes entries in order; a repeated key keeps its first place and its last value.
    pub(crate) fn new(entries: Vec<Entry>) -> Object {
        let repeats = || entries.iter().enumerate().any(|(at, (key, _))| entries[..at].iter().any(|(before, _)| before == key));
        if entries.len() > SMALL_MAX || repeats() {
            return entries.into_iter().collect();
        }
        let below = entries.iter().map(|(_, value)| height::bound(value)).max().unwrap_or(0);
        Object(Handle::new(ObjectBody { height: Height::new(below.saturating_add(1)), entries: Entries::Small(entries) }))
    }

    pub(crate) fn height(&self) -> &Height {
        &self.0.height
    }

    pub(crate) fn len(&self) -> usize {
        match &self.0.entries {
            Entries::Small(entries) => entries.len(),
            Entries::Large(large) => large.entries.len(),
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Json> {
        match &self.0.entries {
            Entries::Small(entries) => entries.iter().find(|(own, _)| &**own == key).map(|(_, value)| value),
            Entries::Large(large) => {
                let place = large.places.get(key)?;
                large.entries.get(place).map(|(_, value)| value)
            }
        }
    }

    pub(crate) fn iter(&self) -> ObjectIter<'_> {
        ObjectIter(match &self.0.entries {
            Entries::Small(entries) => Iter::Small(entries.iter()),
            Entries::Large(large) => Iter::Large(large.entries.values()),
        })
    }

    pub(crate) fn same_revision(&self, other: &Object) -> bool {
        self.0.ptr_eq(&other.0)
    }

    pub(crate) fn as_ref(&self) -> ObjectRef<'_> {
        ObjectRef(self)
    }

    /// The body for a change. The caller raises the height for what it puts in.
    pub(crate) fn edit(&mut self) -> &mut ObjectBody {
        self.0.make_mut()
    }
}

impl ObjectBody {
    pub(crate) fn raise(&mut self, bound: u32) {
        self.height.raise(bound);
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Json> {
        match &mut self.entries {
            Entries::Small(entries) => entries.iter_mut().find(|(own, _)| &**own == key).map(|(_, value)| value),
            Entries::Large(large) => {
                let place = large.places.get(key)?;
                large.entries.get_mut(place).map(|(_, value)| value)
            }
        }
    }

    /// A key that is present keeps its place; a new one goes last.
    pub(crate) fn set(&mut self, key: Arc<str>, value: Json) {
        self.height.raise(height::bound(&value).saturating_add(1));
        if let Some(slot) = self.get_mut(&key) {
            *slot = value;
            return;
        }
        match &mut self.entries {
            Entries::Small(entries) if entries.len() < SMALL_MAX => entries.push((key, value)),
            Entries::Small(entries) => {
                let mut large = Large::default();
                for (key, value) in std::mem::take(entries) {
                    large.push(key, value);
                }
                large.push(key, value);
                self.entries = Entries::Large(large);
            }
            Entries::Large(large) => large.push(key, value),
        }
    }

    pub(crate) fn remove(&mut self, key: &str) {
        match &mut self.entries {
            Entries::Small(entries) => entries.retain(|(own, _)| &**own != key),
            Entries::Large(large) => {
                if let Some(place) = large.places.remove(key) {
                    large.entries.remove(&place);
                }
            }
        }
    }
}

impl Large {
    fn push(&mut self, key: Arc<str>, value: Json) {
        self.places.insert(Arc::clone(&key), self.next);
        self.entries.insert(self.next, (key, value));
        self.next += 1;
    }
}

/// Builds an object from entries in order; a repeated key keeps its first place and its last value.
impl FromIterator<Entry> for Object {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Object {
        let mut object = Object::empty();
        let body = object.edit();
        for (key, value) in entries {
            body.set(key, value);
        }
        object
    }
}

/// An object inside a [`Json`].
#[derive(Clone, Copy)]
pub struct ObjectRef<'a>(&'a Object);

impl<'a> ObjectRef<'a> {
    /// Number of keys.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// True for `{}`.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    pub fn get(self, key: &str) -> Option<&'a Json> {
        self.0.get(key)
    }

    /// True when the key is present, also with the value `null`.
    pub fn contains_key(self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Keys and values in insertion order.
    pub fn iter(self) -> ObjectIter<'a> {
        self.0.iter()
    }

    /// Keys in insertion order.
    pub fn keys(self) -> impl Iterator<Item = &'a str> {
        self.iter().map(|(key, _)| key)
    }
}

impl<'a> IntoIterator for ObjectRef<'a> {
    type Item = (&'a str, &'a Json);
    type IntoIter = ObjectIter<'a>;

    fn into_iter(self) -> ObjectIter<'a> {
        self.iter()
    }
}

/// Keys and values of an object in insertion order; see [`ObjectRef::iter`].
pub struct ObjectIter<'a>(Iter<'a>);

enum Iter<'a> {
    Small(std::slice::Iter<'a, Entry>),
    Large(imbl::ordmap::Values<'a, u64, Entry, DefaultSharedPtr>),
}

impl<'a> Iterator for ObjectIter<'a> {
    type Item = (&'a str, &'a Json);

    fn next(&mut self) -> Option<Self::Item> {
        let entry = match &mut self.0 {
            Iter::Small(entries) => entries.next(),
            Iter::Large(entries) => entries.next(),
        };
        entry.map(|(key, value)| (&**key, value))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            Iter::Small(entries) => entries.size_hint(),
            Iter::Large(entries) => entries.size_hint(),
        }
    }
}
