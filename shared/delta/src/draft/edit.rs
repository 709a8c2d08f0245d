//! The edits: check, change the content, remember.

use std::ops::Range;
use std::sync::Arc;

use super::error::{DraftError, DraftErrorKind, operation_kind, refused};
use super::overlay::{Content, NodeId, Overlay, Place, Slot};
use super::pieces::Origin;
use crate::apply::{apply_inside, edit};
use crate::json::{Json, JsonRef};
use crate::op::{Op, Path, Segment, is_permutation};

impl Overlay {
    pub(super) fn set(&mut self, node: NodeId, value: &Json) -> Result<(), DraftError> {
        let node = self.settle(node);
        let Place { path, .. } = self.place(node)?;
        if let Some(index) = self.check_slot(&path)? {
            return self.append_item(node, &path, index, value);
        }
        let existed = self.current.at(&path).is_some();
        let op = if path.is_empty() { Op::Replace(value.clone()) } else { Op::Set(path.clone(), value.clone()) };
        self.change(&path, &op)?;
        let added = match &self.node(node).content {
            _ if !existed => Some(self.next_added()),
            Content::Written { added } => *added,
            _ => None,
        };
        self.write(node, added);
        Ok(())
    }

    pub(super) fn remove(&mut self, node: NodeId) -> Result<(), DraftError> {
        let node = self.settle(node);
        let Place { path, .. } = self.place(node)?;
        let in_array = match path.split_last() {
            None => return Err(DraftError::new(DraftErrorKind::NotRemovable, &path, "the root cannot be removed; set it")),
            Some((last, parent)) => {
                matches!(last, Segment::Index(_)) && self.current.at(parent).is_some_and(|parent| parent.as_array().is_some())
            }
        };
        if in_array {
            return Err(DraftError::new(DraftErrorKind::NotRemovable, &path, "an array item is removed by splice or retain"));
        }
        self.check_slot(&path)?;
        if self.current.at(&path).is_none() {
            return Ok(());
        }
        self.change(&path, &Op::Delete(path.clone()))?;
        self.write(node, None);
        Ok(())
    }

    pub(super) fn push(&mut self, node: NodeId, value: Json) -> Result<(), DraftError> {
        let node = self.settle(node);
        let (path, len) = self.array_at(node)?;
        self.splice_at(node, path, len, (len, 0), vec![value])
    }

    pub(super) fn splice(&mut self, node: NodeId, index: usize, remove: usize, items: Vec<Json>) -> Result<(), DraftError> {
        let node = self.settle(node);
        let (path, len) = self.array_at(node)?;
        if index > len || remove > len - index {
            let detail = format!("{remove} items from {index} on are not inside the {len} items of the array");
            return Err(DraftError::new(DraftErrorKind::IndexOutOfRange, &path, detail));
        }
        self.splice_at(node, path, len, (index, remove), items)
    }

    /// The array at `node`, for [`Overlay::retain`].
    pub(super) fn array(&mut self, node: NodeId) -> Result<Json, DraftError> {
        let node = self.settle(node);
        let (path, _) = self.array_at(node)?;
        Ok(self.current.at(&path).cloned().unwrap_or_default())
    }

    /// Removes the items of `array`, as [`Overlay::array`] gave it, whose flag is not set.
    pub(super) fn retain(&mut self, node: NodeId, array: &Json, keep: &[bool]) -> Result<(), DraftError> {
        let node = self.settle(node);
        let (path, len) = self.array_at(node)?;
        if !self.current.at(&path).is_some_and(|current| current.same_revision(array)) {
            let detail = "the array changed while its items were looked at; retain again";
            return Err(DraftError::new(DraftErrorKind::Changed, &path, detail));
        }
        if keep.iter().all(|&keep| keep) {
            return Ok(());
        }
        let kept: Json =
            array.as_array().into_iter().flatten().zip(keep).filter(|(_, keep)| **keep).map(|(item, _)| item.clone()).collect();
        let op = if path.is_empty() { Op::Replace(kept) } else { Op::Set(path.clone(), kept) };
        self.change(&path, &op)?;
        let removed = self.array_state(node, len).pieces.retain(keep);
        self.end_items(node, &removed);
        self.mark_dirty(node);
        Ok(())
    }

    pub(super) fn reorder(&mut self, node: NodeId, order: &[usize]) -> Result<(), DraftError> {
        let node = self.settle(node);
        let (path, len) = self.array_at(node)?;
        if order.len() != len || !is_permutation(order) {
            let detail = format!("the order is no permutation of the {len} items");
            return Err(DraftError::new(DraftErrorKind::NotAPermutation, &path, detail));
        }
        self.change(&path, &Op::Move(path.clone(), order.to_vec()))?;
        self.array_state(node, len).pieces.permute(order);
        self.mark_dirty(node);
        Ok(())
    }

    pub(super) fn append(&mut self, node: NodeId, text: &str) -> Result<(), DraftError> {
        let node = self.settle(node);
        let Place { path, covered } = self.text_at(node)?;
        if text.is_empty() {
            return Ok(());
        }
        self.change(&path, &Op::Append(path.clone(), Arc::from(text)))?;
        if !covered {
            let (_, appended) = self.text_state(node);
            appended.push_str(text);
        }
        self.mark_dirty(node);
        Ok(())
    }

    pub(super) fn trim_utf16(&mut self, node: NodeId, count: usize) -> Result<(), DraftError> {
        let node = self.settle(node);
        let Place { path, covered } = self.text_at(node)?;
        if count == 0 {
            return Ok(());
        }
        let before = self.utf16_len(&path);
        self.change(&path, &Op::TrimUtf16(path.clone(), count))?;
        if !covered {
            let (trimmed, appended) = self.text_state(node);
            let of_base = count.min(before - appended.encode_utf16().count());
            *trimmed += of_base;
            drop_units(appended, count - of_base);
        }
        self.mark_dirty(node);
        Ok(())
    }

    pub(super) fn apply_relative(&mut self, node: NodeId, ops: &[Op]) -> Result<(), DraftError> {
        let node = self.settle(node);
        let Place { path, .. } = self.place(node)?;
        if ops.is_empty() {
            return Ok(());
        }
        let above = u32::try_from(path.len()).unwrap_or(u32::MAX);
        // A rehearsal on a copy finds every error but those of the place itself, which the first step reports.
        if let Err(error) = apply_inside(self.current.at(&path), ops, above) {
            let kind = operation_kind(error.kind());
            return Err(DraftError::new(kind, &path, error.detail()));
        }
        ops.iter().try_for_each(|op| self.apply_op(node, op))
    }

    fn apply_op(&mut self, node: NodeId, op: &Op) -> Result<(), DraftError> {
        let target = op.path().map_or(node, |path| self.descend(node, path));
        match op {
            Op::Replace(value) | Op::Set(_, value) => self.set(target, value),
            Op::Append(_, text) => self.append(target, text),
            Op::TrimUtf16(_, count) => self.trim_utf16(target, *count),
            Op::Move(_, order) => self.reorder(target, order),
            Op::Splice { index, remove, items, .. } => {
                let (_, len) = self.array_at(target)?;
                let index = *index.min(&len);
                self.splice(target, index, *remove.min(&(len - index)), items.clone())
            }
            Op::Delete(path) => match path.split_last() {
                Some((&Segment::Index(index), parent)) => {
                    let parent = self.descend(node, parent);
                    match self.array_at(parent) {
                        Ok(_) => self.splice(parent, index, 1, Vec::new()),
                        Err(_) => self.remove(target),
                    }
                }
                _ => self.remove(target),
            },
        }
    }

    /// Checks that a value can stand at `path`. Gives the index when that would be a new item of an array.
    fn check_slot(&self, path: &Path) -> Result<Option<usize>, DraftError> {
        let Some((last, parent)) = path.split_last() else { return Ok(None) };
        let (kind, detail) = match (self.current.at(parent).map(Json::as_ref), last) {
            (Some(JsonRef::Object(_)), _) => return Ok(None),
            (Some(JsonRef::Array(array)), &Segment::Index(index)) if index < array.len() => return Ok(None),
            (Some(JsonRef::Array(array)), &Segment::Index(index)) if index == array.len() => return Ok(Some(index)),
            (Some(JsonRef::Array(_)), Segment::Index(_)) => (DraftErrorKind::IndexOutOfRange, "the index is past the end of the array"),
            (Some(JsonRef::Array(_)), Segment::Key(_)) => (DraftErrorKind::KeyOnArray, "an array has no keys; use an index"),
            (Some(_), _) => (DraftErrorKind::NotAContainer, "the parent is a scalar; set a container there first"),
            (None, _) => (DraftErrorKind::MissingParent, "the parent does not exist; set it first"),
        };
        Err(DraftError::new(kind, path, detail))
    }

    /// Path and length of the array at `node`.
    fn array_at(&mut self, node: NodeId) -> Result<(Path, usize), DraftError> {
        let node = self.settle(node);
        let Place { path, .. } = self.place(node)?;
        match self.current.at(&path).and_then(Json::as_array) {
            Some(array) => Ok((path, array.len())),
            None => Err(DraftError::new(DraftErrorKind::NotAnArray, &path, "there is no array; set one first")),
        }
    }

    fn text_at(&self, node: NodeId) -> Result<Place, DraftError> {
        let place = self.place(node)?;
        match self.current.at(&place.path).and_then(Json::as_text) {
            Some(_) => Ok(place),
            None => Err(DraftError::new(DraftErrorKind::NotAString, &place.path, "there is no string; set one first")),
        }
    }

    fn utf16_len(&self, path: &Path) -> usize {
        self.current.at(path).and_then(Json::as_text).map_or(0, |text| text.utf16_len())
    }

    /// A set at the position after the last item: from then on it is an item with an identity.
    fn append_item(&mut self, node: NodeId, path: &Path, index: usize, value: &Json) -> Result<(), DraftError> {
        let parent_path = path[..path.len() - 1].to_vec();
        let parent = self.node(node).parent;
        self.splice_at(parent, parent_path, index, (index, 0), vec![value.clone()])
    }

    fn splice_at(
        &mut self,
        node: NodeId,
        path: Path,
        len: usize,
        (index, remove): (usize, usize),
        items: Vec<Json>,
    ) -> Result<(), DraftError> {
        let insert = items.len();
        if remove == 0 && insert == 0 {
            return Ok(());
        }
        let op = Op::Splice { path, index, remove, items };
        let path = op.path().cloned().unwrap_or_default();
        self.change(&path, &op)?;
        let removed = self.array_state(node, len).pieces.splice(index, remove, insert);
        self.end_items(node, &removed);
        self.mark_dirty(node);
        Ok(())
    }

    /// Changes the content. Nothing changes on an error.
    fn change(&mut self, path: &Path, op: &Op) -> Result<(), DraftError> {
        edit(&mut self.current, op, 0).map_err(|error| refused(path, &error))
    }

    fn write(&mut self, node: NodeId, added: Option<u64>) {
        self.end_items_below(node);
        self.node_mut(node).content = Content::Written { added };
        self.mark_dirty(node);
    }

    /// Ends the drafts of removed items.
    fn end_items(&mut self, array: NodeId, removed: &[Range<Origin>]) {
        for run in removed {
            let Some(state) = self.node_mut(array).array.as_deref_mut() else { return };
            let gone: Vec<(Origin, NodeId)> = state.items.range(run.clone()).map(|(&origin, &node)| (origin, node)).collect();
            for (origin, _) in &gone {
                state.items.remove(origin);
            }
            for (_, node) in gone {
                self.node_mut(node).slot = Slot::Gone;
            }
        }
    }

    fn text_state(&mut self, node: NodeId) -> (&mut usize, &mut String) {
        let content = &mut self.node_mut(node).content;
        if !matches!(content, Content::Text { .. }) {
            *content = Content::Text { trimmed: 0, appended: String::new() };
        }
        match content {
            Content::Text { trimmed, appended } => (trimmed, appended),
            Content::Kept | Content::Written { .. } => unreachable!("the content was made a text edit above"),
        }
    }
}

/// Drops UTF-16 units from the front; the applied trim has refused a count inside a pair.
fn drop_units(text: &mut String, count: usize) {
    let mut left = count;
    let cut = text
        .char_indices()
        .find(|(_, c)| {
            let done = left == 0;
            left = left.saturating_sub(c.len_utf16());
            done
        })
        .map_or(text.len(), |(at, _)| at);
    text.drain(..cut);
}
