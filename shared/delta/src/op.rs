//! The seven operations in decoded form, and their JSON tuples.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::json::{Json, JsonRef, deserialize_envelope};

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Segment {
    /// A key of an object. `__proto__`, `constructor` and `prototype` are no valid segments of an operation.
    Key(Arc<str>),
    /// An index of an array, from 0. In an object it means the key with the same decimal text.
    Index(usize),
}

/// A complete path from the root. Empty for the root itself.
pub type Path = Vec<Segment>;

/// Keys that JavaScript objects inherit; operations must not name them, payloads may hold them.
const RESERVED: [&str; 3] = ["__proto__", "constructor", "prototype"];

/// True for a key that no operation may name.
pub(crate) fn reserved_key(key: &str) -> bool {
    RESERVED.contains(&key)
}

impl Segment {
    /// The object key that the segment names.
    pub(crate) fn as_key(&self) -> Cow<'_, str> {
        match self {
            Segment::Key(key) => Cow::Borrowed(key),
            Segment::Index(index) => Cow::Owned(index.to_string()),
        }
    }

    pub(crate) fn to_key(&self) -> Arc<str> {
        match self {
            Segment::Key(key) => Arc::clone(key),
            Segment::Index(index) => Arc::from(index.to_string()),
        }
    }

    fn reserved(&self) -> bool {
        matches!(self, Segment::Key(key) if reserved_key(key))
    }

    fn to_json(&self) -> Json {
        match self {
            Segment::Key(key) => Json::from(Arc::clone(key)),
            Segment::Index(index) => Json::from(*index),
        }
    }
}

impl From<&str> for Segment {
    fn from(key: &str) -> Segment {
        Segment::Key(Arc::from(key))
    }
}

impl From<Arc<str>> for Segment {
    fn from(key: Arc<str>) -> Segment {
        Segment::Key(key)
    }
}

impl From<String> for Segment {
    fn from(key: String) -> Segment {
        Segment::Key(Arc::from(key))
    }
}

impl From<usize> for Segment {
    fn from(index: usize) -> Segment {
        Segment::Index(index)
    }
}

/// One operation on a JSON value. Serializes as its tuple, verb first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// `["r", value]`: the whole value becomes this one.
    Replace(Json),
    /// `["s", path, value]`: sets an object key, an array item, or the item after the last.
    Set(Path, Json),
    /// `["d", path]`: removes an object key, present or not, or an array item.
    Delete(Path),
    /// `["a", path, text]`: appends to a string.
    Append(Path, Arc<str>),
    /// `["t", path, count]`: drops UTF-16 units from the front of a string, at most all.
    TrimUtf16(Path, usize),
    /// `["p", path, index, remove, items]`: replaces a range of an array; the range is cut to the array.
    Splice {
        /// The array.
        path: Path,
        /// First item of the range.
        index: usize,
        /// Length of the range.
        remove: usize,
        /// What takes its place.
        items: Vec<Json>,
    },
    /// `["m", path, order]`: reorders an array, `new[i] = old[order[i]]`.
    Move(Path, Vec<usize>),
}

/// An operation is malformed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operation is malformed: {detail}")]
pub struct OpError {
    kind: OpErrorKind,
    detail: String,
}

/// The class of an error about an operation. The names are those of Chord's error classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OpErrorKind {
    /// The tuple has the wrong form (`TypeError`).
    Type,
    /// A segment is reserved, or no valid segment for the container that it enters (`UnsafePathError`).
    UnsafePath,
    /// The path or the operation does not fit the value (`PathError`).
    Path,
    /// The result would nest too deep. Not known to Chord.
    Depth,
    /// A trim would split a surrogate pair. Chord allows that; a Rust string cannot hold the rest.
    SplitPair,
}

impl OpError {
    pub(crate) fn new(kind: OpErrorKind, detail: impl Into<String>) -> OpError {
        OpError { kind, detail: detail.into() }
    }

    pub(crate) fn shape(detail: impl Into<String>) -> OpError {
        OpError::new(OpErrorKind::Type, detail)
    }

    /// The class, to decide what to do.
    pub fn kind(&self) -> OpErrorKind {
        self.kind
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }
}

impl Op {
    /// The decoded tuple.
    pub fn to_json(&self) -> Json {
        let path = self.path().map(|path| path_to_json(path));
        std::iter::once(Json::from(self.verb())).chain(path).chain(self.arguments()).collect()
    }

    pub(crate) fn verb(&self) -> &'static str {
        match self {
            Op::Replace(_) => "r",
            Op::Set(..) => "s",
            Op::Delete(_) => "d",
            Op::Append(..) => "a",
            Op::TrimUtf16(..) => "t",
            Op::Splice { .. } => "p",
            Op::Move(..) => "m",
        }
    }

    /// The place that the operation changes; `None` for the whole value.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Op::Replace(_) => None,
            Op::Set(path, _)
            | Op::Delete(path)
            | Op::Append(path, _)
            | Op::TrimUtf16(path, _)
            | Op::Splice { path, .. }
            | Op::Move(path, _) => Some(path),
        }
    }

    /// What follows verb and path in the tuple.
    pub(crate) fn arguments(&self) -> Vec<Json> {
        match self {
            Op::Replace(value) | Op::Set(_, value) => vec![value.clone()],
            Op::Delete(_) => Vec::new(),
            Op::Append(_, text) => vec![Json::from(Arc::clone(text))],
            Op::TrimUtf16(_, count) => vec![Json::from(*count)],
            Op::Splice { index, remove, items, .. } => {
                vec![Json::from(*index), Json::from(*remove), Json::array(items)]
            }
            Op::Move(_, order) => vec![Json::array(order.iter().copied())],
        }
    }

    /// Reads a decoded tuple.
    ///
    /// # Errors
    ///
    /// `Type` or `UnsafePath`: everything that can be wrong without a value at hand.
    pub fn from_json(tuple: &Json) -> Result<Op, OpError> {
        let (verb, rest) = split_tuple(tuple)?;
        match (&*verb, &*rest) {
            ("r", [value]) => Ok(Op::Replace((*value).clone())),
            ("s", [path, value]) => Ok(Op::Set(path_from_json(path)?, (*value).clone())),
            ("d", [path]) => Ok(Op::Delete(path_from_json(path)?)),
            ("a", [path, text]) => Ok(Op::Append(path_from_json(path)?, text_from_json(text)?)),
            ("t", [path, count]) => Ok(Op::TrimUtf16(path_from_json(path)?, count_from_json(count, "count")?)),
            ("p", [path, index, remove, items]) => Ok(Op::Splice {
                path: path_from_json(path)?,
                index: count_from_json(index, "index")?,
                remove: count_from_json(remove, "remove count")?,
                items: items_from_json(items)?,
            }),
            ("m", [path, order]) => Ok(Op::Move(path_from_json(path)?, order_from_json(order)?)),
            ("r" | "s" | "d" | "a" | "t" | "p" | "m", _) => {
                Err(OpError::shape(format!("{verb:?} has the wrong number of elements: {}", rest.len() + 1)))
            }
            _ => Err(OpError::shape(format!("verb {verb:?} is unknown; use one of r s d a t p m"))),
        }?
        .checked()
    }

    fn checked(self) -> Result<Op, OpError> {
        self.validate().map(|()| self)
    }

    /// Checks what can be checked without a value: the path, and that an order is a permutation.
    pub(crate) fn validate(&self) -> Result<(), OpError> {
        let Some(path) = self.path() else { return Ok(()) };
        match self {
            Op::Splice { .. } => {}
            Op::Move(_, order) if is_permutation(order) => {}
            Op::Move(..) => return Err(OpError::shape("the order is no permutation of its indices")),
            _ if path.is_empty() => {
                return Err(OpError::shape("the path is empty; name a key or an item, or use \"r\""));
            }
            _ => {}
        }
        check_path(path)
    }
}

pub(crate) fn check_path(path: &[Segment]) -> Result<(), OpError> {
    match path.iter().find(|segment| segment.reserved()) {
        Some(segment) => {
            Err(OpError::new(OpErrorKind::UnsafePath, format!("path segment {:?} is reserved; use another key", segment.as_key())))
        }
        None => Ok(()),
    }
}

pub(crate) fn is_permutation(order: &[usize]) -> bool {
    let mut seen = vec![false; order.len()];
    order.iter().all(|&index| seen.get_mut(index).is_some_and(|seen| !std::mem::replace(seen, true)))
}

/// The verb and the other elements of a tuple.
pub(crate) fn split_tuple(tuple: &Json) -> Result<(Cow<'_, str>, Vec<&Json>), OpError> {
    let Some(array) = tuple.as_array() else {
        return Err(OpError::shape(format!("an operation is an array, found {}", tuple.kind_name())));
    };
    match array.get(0).and_then(Json::as_str) {
        Some(verb) => Ok((verb, array.iter().skip(1).collect())),
        None => Err(OpError::shape("an operation starts with its verb, a string")),
    }
}

pub(crate) fn path_to_json(path: &[Segment]) -> Json {
    Json::array(path.iter().map(Segment::to_json))
}

pub(crate) fn path_from_json(path: &Json) -> Result<Path, OpError> {
    let Some(segments) = path.as_array() else {
        return Err(OpError::shape(format!("a path is an array, found {}", path.kind_name())));
    };
    segments.iter().map(segment_from_json).collect()
}

fn segment_from_json(segment: &Json) -> Result<Segment, OpError> {
    match segment.as_ref() {
        JsonRef::String(key) => Ok(Segment::Key(key.to_arc())),
        JsonRef::Int(index) if let Ok(index) = usize::try_from(index) => Ok(Segment::Index(index)),
        _ => Err(OpError::new(
            OpErrorKind::UnsafePath,
            format!("path segment {segment} is neither a string nor an integer from 0 to 2^53 - 1"),
        )),
    }
}

pub(crate) fn text_from_json(text: &Json) -> Result<Arc<str>, OpError> {
    match text.as_text() {
        Some(text) => Ok(text.to_arc()),
        None => Err(OpError::shape(format!("appended text must be a string, found {}", text.kind_name()))),
    }
}

/// A count may be larger than any array: JavaScript takes every integral double.
pub(crate) fn count_from_json(count: &Json, what: &str) -> Result<usize, OpError> {
    match count.as_ref() {
        JsonRef::Int(count) if let Ok(count) = usize::try_from(count) => Ok(count),
        JsonRef::Float(count) if count > 0.0 && count.trunc() == count => Ok(usize::MAX),
        _ => Err(OpError::shape(format!("{what} {count} is no integer of 0 or more"))),
    }
}

pub(crate) fn items_from_json(items: &Json) -> Result<Vec<Json>, OpError> {
    match items.as_array() {
        Some(items) => Ok(items.iter().cloned().collect()),
        None => Err(OpError::shape(format!("inserted items must be an array, found {}", items.kind_name()))),
    }
}

pub(crate) fn order_from_json(order: &Json) -> Result<Vec<usize>, OpError> {
    let Some(order) = order.as_array() else {
        return Err(OpError::shape(format!("an order is an array, found {}", order.kind_name())));
    };
    order.iter().map(|index| count_from_json(index, "order index")).collect()
}

/// Reads a batch: an array of tuples.
///
/// # Errors
///
/// As [`Op::from_json`], for the first malformed operation.
pub fn ops_from_json(batch: &Json) -> Result<Vec<Op>, OpError> {
    match batch.as_array() {
        Some(ops) => ops.iter().map(Op::from_json).collect(),
        None => Err(OpError::shape(format!("a batch is an array of operations, found {}", batch.kind_name()))),
    }
}

/// The array of tuples of a batch.
pub fn ops_to_json(batch: &[Op]) -> Json {
    Json::array(batch.iter().map(Op::to_json))
}

impl Serialize for Op {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_json().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Op, D::Error> {
        Op::from_json(&deserialize_envelope(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl Serialize for Segment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Segment::Key(key) => serializer.serialize_str(key),
            Segment::Index(index) => serializer.serialize_u64(*index as u64),
        }
    }
}

impl<'de> Deserialize<'de> for Segment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Segment, D::Error> {
        segment_from_json(&Json::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
