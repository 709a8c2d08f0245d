//! Operations on values.

use crate::DEPTH_MAX;
use crate::height;
use crate::json::{Json, Repr};
use crate::op::{Op, OpError, OpErrorKind, Segment, is_permutation, path_to_json};
use crate::text::Text;

/// A batch does not fit its base. Whoever follows a stream of batches discards the value and waits for a base.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("apply operation {index} of the batch: {detail}; recover from a later base")]
pub struct ApplyError {
    kind: OpErrorKind,
    index: usize,
    detail: String,
}

impl ApplyError {
    /// The class, to decide what to do.
    pub fn kind(&self) -> OpErrorKind {
        self.kind
    }

    pub(crate) fn detail(&self) -> String {
        format!("operation {}: {}", self.index, self.detail)
    }

    /// Which operation of the batch failed, from 0.
    pub fn index(&self) -> usize {
        self.index
    }
}

/// The revision that `ops` make of `base`. The base does not change, also when the batch fails in the middle.
///
/// Costs the change: containers on the way to it are copied (the long ones in part), everything else is shared with
/// the base and with the payloads. A missing base takes only a batch that starts with [`Op::Replace`].
///
/// # Errors
///
/// The classes of [`OpErrorKind`], which are Chord's, plus `Depth` and `SplitPair`.
pub fn apply(base: Option<&Json>, ops: &[Op]) -> Result<Json, ApplyError> {
    apply_inside(base, ops, 0)
}

/// [`apply`] for a base that stands inside `above` containers.
pub(crate) fn apply_inside(base: Option<&Json>, ops: &[Op], above: u32) -> Result<Json, ApplyError> {
    let mut value = base.cloned();
    for (index, op) in ops.iter().enumerate() {
        apply_one(&mut value, op, above).map_err(|error| ApplyError { kind: error.kind(), index, detail: error.detail().to_owned() })?;
    }
    value.ok_or_else(|| ApplyError { kind: OpErrorKind::Path, index: 0, detail: "there is no base and the batch is empty".to_owned() })
}

fn apply_one(value: &mut Option<Json>, op: &Op, above: u32) -> Result<(), OpError> {
    op.validate()?;
    match (value, op) {
        (value, Op::Replace(whole)) => {
            check_depth(whole, above)?;
            *value = Some(whole.clone());
            Ok(())
        }
        (Some(value), op) => edit(value, op, above),
        (None, _) => Err(OpError::new(OpErrorKind::Path, "there is no base; start with \"r\"")),
    }
}

/// Performs one operation on a value that stands inside `above` containers. Reserved segments are not refused.
///
/// Shared containers on the way are copied, others change in place. The content does not change on an error.
pub(crate) fn edit(root: &mut Json, op: &Op, above: u32) -> Result<(), OpError> {
    match op {
        Op::Replace(value) => {
            check_depth(value, above)?;
            *root = value.clone();
            Ok(())
        }
        Op::Set(path, value) => set(root, path, value, above),
        Op::Delete(path) => delete(root, path),
        Op::Append(path, text) => {
            text_mut(root, path)?.append(text);
            Ok(())
        }
        Op::TrimUtf16(path, count) => text_mut(root, path)?.trim_utf16(*count).map_err(|_| {
            let detail = format!("a trim of {count} units splits a character at {}", path_to_json(path));
            OpError::new(OpErrorKind::SplitPair, detail)
        }),
        Op::Splice { path, index, remove, items } => splice(root, path, (*index, *remove), items, above),
        Op::Move(path, order) => reorder(root, path, order),
    }
}

fn check_depth(value: &Json, above: u32) -> Result<(), OpError> {
    if height::fits(value, above) {
        return Ok(());
    }
    let detail = format!("the result nests more than {DEPTH_MAX} containers; flatten the value or split it");
    Err(OpError::new(OpErrorKind::Depth, detail))
}

/// The length of a path as containers. Longer ones than the limit cannot resolve.
fn levels(path: &[Segment]) -> u32 {
    u32::try_from(path.len()).unwrap_or(u32::MAX)
}

fn path_error(path: &[Segment], what: &str) -> OpError {
    OpError::new(OpErrorKind::Path, format!("{what} at {}", path_to_json(path)))
}

fn unsafe_path(path: &[Segment], what: &str) -> OpError {
    OpError::new(OpErrorKind::UnsafePath, format!("{what} at {}", path_to_json(path)))
}

/// The value at `path`, ready for a change. `below` is the depth of what the change puts there; every container on
/// the way learns it.
fn enter<'a>(root: &'a mut Json, path: &[Segment], below: u32) -> Result<&'a mut Json, OpError> {
    let mut value = root;
    for (at, segment) in path.iter().enumerate() {
        let bound = below.saturating_add(levels(&path[at..]));
        value = match (&mut value.0, segment) {
            (Repr::Array(_), Segment::Key(_)) => return Err(unsafe_path(path, "an array is entered by key")),
            (Repr::Array(array), Segment::Index(index)) => {
                let body = array.edit();
                body.raise(bound);
                body.get_mut(*index).ok_or_else(|| path_error(path, "an item is missing"))?
            }
            (Repr::Object(object), segment) => {
                let body = object.edit();
                body.raise(bound);
                body.get_mut(&segment.as_key()).ok_or_else(|| path_error(path, "a key is missing"))?
            }
            _ => return Err(path_error(path, "a scalar is entered")),
        };
    }
    Ok(value)
}

/// Splits a path that was checked to be non-empty.
fn split(path: &[Segment]) -> Result<(&[Segment], &Segment), OpError> {
    match path.split_last() {
        Some((last, parent)) => Ok((parent, last)),
        None => Err(OpError::shape("the path is empty; name a key or an item, or use \"r\"")),
    }
}

fn set(root: &mut Json, path: &[Segment], value: &Json, above: u32) -> Result<(), OpError> {
    let (parent, last) = split(path)?;
    check_depth(value, above.saturating_add(levels(path)))?;
    let bound = height::bound(value).saturating_add(1);
    match (&mut enter(root, parent, bound)?.0, last) {
        (Repr::Array(array), &Segment::Index(index)) if index <= array.len() => {
            let body = array.edit();
            body.raise(bound);
            match body.get_mut(index) {
                Some(slot) => *slot = value.clone(),
                None => body.push(value.clone()),
            }
            Ok(())
        }
        (Repr::Array(_), Segment::Index(_)) => Err(unsafe_path(path, "an index is past the end of the array")),
        (Repr::Array(_), Segment::Key(_)) => Err(unsafe_path(path, "an array is entered by key")),
        (Repr::Object(object), last) => {
            object.edit().set(last.to_key(), value.clone());
            Ok(())
        }
        _ => Err(path_error(path, "a scalar is entered")),
    }
}

fn delete(root: &mut Json, path: &[Segment]) -> Result<(), OpError> {
    let (parent, last) = split(path)?;
    match (&mut enter(root, parent, 0)?.0, last) {
        (Repr::Array(array), &Segment::Index(index)) if index < array.len() => {
            array.edit().splice(index, 1, Vec::new());
            Ok(())
        }
        (Repr::Array(array), &Segment::Index(index)) if index == array.len() => Err(path_error(path, "an item is missing")),
        (Repr::Array(_), Segment::Index(_)) => Err(unsafe_path(path, "an index is past the end of the array")),
        (Repr::Array(_), Segment::Key(_)) => Err(unsafe_path(path, "an array is entered by key")),
        (Repr::Object(object), last) => {
            object.edit().remove(&last.as_key());
            Ok(())
        }
        _ => Err(path_error(path, "a scalar is entered")),
    }
}

fn text_mut<'a>(root: &'a mut Json, path: &[Segment]) -> Result<&'a mut Text, OpError> {
    let slot = match path.split_last() {
        Some((last, parent)) => {
            let parent = enter(root, parent, 0)?;
            if let (Repr::Array(array), &Segment::Index(index)) = (&parent.0, last)
                && index > array.len()
            {
                return Err(unsafe_path(path, "an index is past the end of the array"));
            }
            enter(parent, std::slice::from_ref(last), 0)?
        }
        None => root,
    };
    match &mut slot.0 {
        Repr::Text(text) => Ok(text),
        _ => Err(path_error(path, "there is no string")),
    }
}

fn splice(root: &mut Json, path: &[Segment], (index, remove): (usize, usize), items: &[Json], above: u32) -> Result<(), OpError> {
    let above = above.saturating_add(levels(path)).saturating_add(1);
    items.iter().try_for_each(|item| check_depth(item, above))?;
    let below = items.iter().map(height::bound).max().unwrap_or(0);
    match &mut enter(root, path, below.saturating_add(1))?.0 {
        Repr::Array(array) => {
            let index = index.min(array.len());
            let remove = remove.min(array.len() - index);
            let body = array.edit();
            body.raise(below.saturating_add(1));
            body.splice(index, remove, items.to_vec());
            Ok(())
        }
        _ => Err(path_error(path, "there is no array")),
    }
}

fn reorder(root: &mut Json, path: &[Segment], order: &[usize]) -> Result<(), OpError> {
    match &mut enter(root, path, 0)?.0 {
        Repr::Array(array) if array.len() == order.len() && is_permutation(order) => {
            array.edit().permute(order);
            Ok(())
        }
        Repr::Array(array) => {
            let detail = format!("the order is no permutation of the {} items", array.len());
            Err(path_error(path, &detail))
        }
        _ => Err(path_error(path, "there is no array")),
    }
}
