//! What a draft refuses.

use crate::op::{OpError, OpErrorKind, Segment, path_to_json};

/// An edit was refused. Nothing changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("edit draft at {path}: {detail}")]
pub struct DraftError {
    kind: DraftErrorKind,
    path: String,
    detail: String,
}

/// The class of a [`DraftError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DraftErrorKind {
    /// The parent is a scalar.
    NotAContainer,
    /// The parent does not exist.
    MissingParent,
    /// An index or range is past the end of the array.
    IndexOutOfRange,
    /// An array item is removed, or the root: use [`crate::Draft::splice`] or [`crate::Draft::set`].
    NotRemovable,
    /// An array is entered by key.
    KeyOnArray,
    /// The place does not hold a string.
    NotAString,
    /// The place does not hold an array.
    NotAnArray,
    /// An order is no permutation of the array's indices.
    NotAPermutation,
    /// The array item of the draft was removed or replaced with its array.
    ItemRemoved,
    /// The result would nest more than [`crate::DEPTH_MAX`] containers.
    Depth,
    /// A trim would split a surrogate pair.
    SplitPair,
    /// A value cannot be converted to JSON.
    Value,
    /// A relative operation does not fit the place.
    Operation(OpErrorKind),
    /// The array changed while [`crate::Draft::retain`] looked at it.
    Changed,
}

impl DraftError {
    pub(crate) fn new(kind: DraftErrorKind, path: &[Segment], detail: impl Into<String>) -> DraftError {
        DraftError { kind, path: path_to_json(path).to_string(), detail: detail.into() }
    }

    pub(crate) fn depth(path: &[Segment]) -> DraftError {
        let detail = format!("nests more than {} containers; flatten the value or split it", crate::DEPTH_MAX);
        DraftError::new(DraftErrorKind::Depth, path, detail)
    }

    /// The class, to decide what to do.
    pub fn kind(&self) -> DraftErrorKind {
        self.kind
    }
}

pub(super) fn operation_kind(kind: OpErrorKind) -> DraftErrorKind {
    match kind {
        OpErrorKind::Depth => DraftErrorKind::Depth,
        OpErrorKind::SplitPair => DraftErrorKind::SplitPair,
        other => DraftErrorKind::Operation(other),
    }
}

/// An operation that was refused although the place was checked: what is left are checks of the payload.
pub(super) fn refused(path: &[Segment], error: &OpError) -> DraftError {
    DraftError::new(operation_kind(error.kind()), path, error.detail())
}
