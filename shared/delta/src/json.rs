//! The JSON value.

mod build;
mod compare;
mod de;
mod error;
mod handoff;
mod number;
mod parse;
mod ser;
mod write;

use std::borrow::Cow;
use std::fmt;

use crate::array::{Array, ArrayRef};
use crate::object::{Object, ObjectRef};
use crate::op::Segment;
use crate::text::{StrRef, Text};

pub use build::ObjectBuilder;
pub(crate) use de::deserialize_envelope;
pub use error::{JsonError, JsonErrorKind};
pub(crate) use number::Number;

/// An immutable JSON value with O(1) clone.
///
/// Numbers are canonical: [`JsonRef::Int`] when integral and at most 2^53 - 1 in magnitude, else a finite
/// [`JsonRef::Float`]. `1.0` is `1`, `-0` is `0`. Key order is kept and written, but is no part of equality.
///
/// A parsed or converted value nests at most [`crate::DEPTH_MAX`] containers. The constructors do not check this;
/// drafts, trackers and [`crate::apply`](fn@crate::apply) check what they are given.
#[derive(Clone)]
pub struct Json(pub(crate) Repr);

#[derive(Clone)]
pub(crate) enum Repr {
    Null,
    Bool(bool),
    Number(Number),
    Text(Text),
    Array(Array),
    Object(Object),
}

/// A look at a [`Json`].
#[derive(Clone, Copy)]
pub enum JsonRef<'a> {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// An integral number of at most 2^53 - 1 in magnitude.
    Int(i64),
    /// Any other number: finite, and fractional or beyond 2^53 - 1.
    Float(f64),
    /// A string.
    String(StrRef<'a>),
    /// An array.
    Array(ArrayRef<'a>),
    /// An object.
    Object(ObjectRef<'a>),
}

impl Json {
    /// `null`
    pub const fn null() -> Json {
        Json(Repr::Null)
    }

    /// What the value is, for a `match`.
    pub fn as_ref(&self) -> JsonRef<'_> {
        match &self.0 {
            Repr::Null => JsonRef::Null,
            Repr::Bool(value) => JsonRef::Bool(*value),
            Repr::Number(Number::Int(value)) => JsonRef::Int(*value),
            Repr::Number(Number::Float(value)) => JsonRef::Float(*value),
            Repr::Text(text) => JsonRef::String(text.as_ref()),
            Repr::Array(array) => JsonRef::Array(array.as_ref()),
            Repr::Object(object) => JsonRef::Object(object.as_ref()),
        }
    }

    /// The name of the JSON type, for messages.
    pub(crate) fn kind_name(&self) -> &'static str {
        match self.0 {
            Repr::Null => "null",
            Repr::Bool(_) => "a boolean",
            Repr::Number(_) => "a number",
            Repr::Text(_) => "a string",
            Repr::Array(_) => "an array",
            Repr::Object(_) => "an object",
        }
    }

    /// True for `null`.
    pub fn is_null(&self) -> bool {
        matches!(self.0, Repr::Null)
    }

    /// True for an array or an object.
    pub fn is_container(&self) -> bool {
        matches!(self.0, Repr::Array(_) | Repr::Object(_))
    }

    /// The boolean, if it is one.
    pub fn as_bool(&self) -> Option<bool> {
        match self.0 {
            Repr::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The integer, if it is an [`JsonRef::Int`].
    pub fn as_i64(&self) -> Option<i64> {
        match self.0 {
            Repr::Number(Number::Int(value)) => Some(value),
            _ => None,
        }
    }

    /// The integer, if it is an [`JsonRef::Int`] that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        self.as_i64().and_then(|value| u64::try_from(value).ok())
    }

    /// The number, if it is one; exact for both forms.
    pub fn as_f64(&self) -> Option<f64> {
        match self.0 {
            Repr::Number(number) => Some(number.to_f64()),
            _ => None,
        }
    }

    /// The text, if it is a string; copies a text above 1 KiB. See [`Json::as_text`] for one that does not.
    pub fn as_str(&self) -> Option<Cow<'_, str>> {
        self.as_text().map(StrRef::to_cow)
    }

    /// The text, if it is a string, without a copy.
    pub fn as_text(&self) -> Option<StrRef<'_>> {
        match &self.0 {
            Repr::Text(text) => Some(text.as_ref()),
            _ => None,
        }
    }

    /// The items, if it is an array.
    pub fn as_array(&self) -> Option<ArrayRef<'_>> {
        match &self.0 {
            Repr::Array(array) => Some(array.as_ref()),
            _ => None,
        }
    }

    /// The entries, if it is an object.
    pub fn as_object(&self) -> Option<ObjectRef<'_>> {
        match &self.0 {
            Repr::Object(object) => Some(object.as_ref()),
            _ => None,
        }
    }

    /// The value of a key, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Json> {
        self.as_object()?.get(key)
    }

    /// The value at `path`; the value itself for the empty path.
    ///
    /// An array is entered by index only. An object takes an index as the decimal text of a key, as operations do.
    pub fn at(&self, path: &[Segment]) -> Option<&Json> {
        path.iter().try_fold(self, Json::child)
    }

    pub(crate) fn child(&self, segment: &Segment) -> Option<&Json> {
        match (&self.0, segment) {
            (Repr::Array(array), Segment::Index(index)) => array.get(*index),
            (Repr::Object(object), segment) => object.get(&segment.as_key()),
            _ => None,
        }
    }

    /// True when both are the same shared string, array or object, found by pointer in O(1). Other values, of which
    /// there are no revisions, are the same when they are equal.
    ///
    /// Equal values may be different revisions; the same revision is always equal.
    pub fn same_revision(&self, other: &Json) -> bool {
        match (&self.0, &other.0) {
            (Repr::Null, Repr::Null) => true,
            (Repr::Bool(a), Repr::Bool(b)) => a == b,
            (Repr::Number(a), Repr::Number(b)) => a == b,
            (Repr::Text(a), Repr::Text(b)) => a.same_revision(b),
            (Repr::Array(a), Repr::Array(b)) => a.same_revision(b),
            (Repr::Object(a), Repr::Object(b)) => a.same_revision(b),
            _ => false,
        }
    }
}

impl Default for Json {
    fn default() -> Json {
        Json::null()
    }
}

/// Compact JSON text.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write::write(self, f)
    }
}

/// Compact JSON text.
impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write::write(self, f)
    }
}
