//! What can be wrong with a value on its way in or out.

use std::fmt;

/// A value could not be parsed or converted.
#[derive(Debug, Clone, thiserror::Error)]
pub struct JsonError {
    kind: JsonErrorKind,
    offset: Option<usize>,
    detail: String,
}

/// The class of a [`JsonError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum JsonErrorKind {
    /// The text is not JSON of RFC 8259 in UTF-8, or holds a lone surrogate escape.
    Syntax,
    /// The value nests more than [`crate::DEPTH_MAX`] containers.
    Depth,
    /// A number is NaN, infinite, or too large for a double.
    Number,
    /// A map key that is converted is no string and has no text form.
    Key,
    /// The Rust type and the JSON value do not fit each other.
    Data,
}

impl JsonError {
    pub(crate) fn new(kind: JsonErrorKind, detail: impl Into<String>) -> JsonError {
        JsonError { kind, offset: None, detail: detail.into() }
    }

    pub(crate) fn at(kind: JsonErrorKind, offset: usize, detail: impl Into<String>) -> JsonError {
        JsonError { kind, offset: Some(offset), detail: detail.into() }
    }

    pub(crate) fn depth(offset: Option<usize>, limit: u32) -> JsonError {
        let detail = format!("nests more than {limit} containers; flatten the value or split it");
        JsonError { kind: JsonErrorKind::Depth, offset, detail }
    }

    pub(crate) fn number(offset: Option<usize>, text: &str) -> JsonError {
        let detail = format!("number {text} is not a finite double; send it as a string or leave it out");
        JsonError { kind: JsonErrorKind::Number, offset, detail }
    }

    /// The class, to decide what to do.
    pub fn kind(&self) -> JsonErrorKind {
        self.kind
    }

    /// Where in a parsed text the error was found, in bytes from the start.
    pub fn offset(&self) -> Option<usize> {
        self.offset
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.kind, self.offset) {
            (JsonErrorKind::Data, _) => write!(f, "convert JSON value: {}", self.detail),
            (_, Some(offset)) => write!(f, "parse JSON at byte {offset}: {}", self.detail),
            (_, None) => write!(f, "convert to JSON: {}", self.detail),
        }
    }
}

impl serde::ser::Error for JsonError {
    fn custom<T: fmt::Display>(detail: T) -> JsonError {
        JsonError::new(JsonErrorKind::Data, detail.to_string())
    }
}

impl serde::de::Error for JsonError {
    fn custom<T: fmt::Display>(detail: T) -> JsonError {
        JsonError::new(JsonErrorKind::Data, detail.to_string())
    }
}
