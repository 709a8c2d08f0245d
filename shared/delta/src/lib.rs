//! JSON values, Chord operations on them, and the trackers and drafts that produce operations.
//!
//! The crate answers one question: given an immutable JSON document, what is the next revision, and which
//! operations lead to it? A revision costs the size of the change, never the size of the document: long strings,
//! arrays and objects are chunked and shared between revisions.
//!
//! | module | what |
//! | --- | --- |
//! | [`Json`], [`JsonRef`] | the value: parse, write, compare, serde at the edges |
//! | [`Op`], [`Path`], [`Segment`] | the seven operations, decoded form |
//! | [`apply`](fn@apply) | one batch on one base gives the next revision |
//! | [`Tracker`], [`Change`], [`Draft`], [`Prepared`] | the specification's mutation ownership (3.4) |
//! | [`wire`] | the path-compressed form of a stream of batches |
//! | [`overlap`] | the search behind string differences |
//!
//! ```
//! use picofleet_delta::{Json, Tracker, apply};
//!
//! let mut tracker = Tracker::new(Json::object([("output", "line 1\n")]))?;
//! let change = tracker.begin();
//! change.draft().key("output").append("line 2\n")?;
//! let prepared = change.prepare();
//! assert_eq!(Json::from_serde(&prepared.ops)?.to_string(), r#"[["a",["output"],"line 2\n"]]"#);
//! assert_eq!(apply(Some(&prepared.base), &prepared.ops)?, prepared.value);
//! tracker.adopt(prepared)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Architecture invariants:
//!
//! - The crate knows JSON and nothing above it: no documents, sessions, storage, clocks, runtimes or logs.
//! - Nothing here walks a whole document except where the caller asks for it: parse, write, compare, convert.
//! - Parse, write, compare and drop use explicit stacks, so no input can overflow the thread's stack.
//! - A value that was handed out never changes.

mod apply;
mod array;
mod draft;
mod handle;
mod height;
mod json;
mod object;
mod op;
mod overlap;
mod text;
mod text_diff;
mod tracker;
pub mod wire;

pub use apply::{ApplyError, apply};
pub use array::{ArrayIter, ArrayRef};
pub use draft::{Draft, DraftError, DraftErrorKind};
pub use json::{Json, JsonError, JsonErrorKind, JsonRef, ObjectBuilder};
pub use object::{ObjectIter, ObjectRef};
pub use op::{Op, OpError, OpErrorKind, Path, Segment, ops_from_json, ops_to_json};
pub use overlap::{DEFAULT_CANDIDATES, DEFAULT_PROBE, DEFAULT_SCAN, overlap};
pub use text::{StrRef, TextChunks};
pub use tracker::{AdoptError, AdoptErrorKind, Change, Prepared, Tracker};

/// Most containers that may stand inside one another. A scalar has depth 0, `[]` has depth 1.
///
/// It is the limit that Chord's own JSON check uses, so both sides accept the same values.
pub const DEPTH_MAX: u32 = 512;

/// Containers that a record may add around a value: a batch of operations, a row, a message. Values are judged by
/// [`DEPTH_MAX`]; [`Json::parse_envelope`] and [`Json::from_serde_envelope`] read and write what carries them.
pub const ENVELOPE_DEPTH: u32 = 32;

/// Largest magnitude that is an [`JsonRef::Int`]: 2^53 - 1, the largest integer that a double holds without doubt.
pub const SAFE_INTEGER_MAX: i64 = (1 << 53) - 1;
