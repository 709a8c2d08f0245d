//! From what was recorded to operations.
//!
//! The operations need not be the shortest. They lead from the base to the current content, key order included, and
//! never carry an array item that stayed.

use std::sync::Arc;

use super::overlay::{ArrayState, Content, Node, NodeId, Overlay};
use super::pieces::Run;
use crate::apply::apply;
use crate::array::ArrayRef;
use crate::json::{Json, JsonRef};
use crate::object::ObjectRef;
use crate::op::{Op, Path, Segment, reserved_key};
use crate::text::StrRef;
use crate::text_diff;

/// Most operations of a batch. A change with more is told as one replacement, as in Chord.
const OPS_MAX: usize = 4096;

/// A place that was not written as a whole, so it exists in the base and now.
struct Visit<'a> {
    node: NodeId,
    path: Path,
    base: &'a Json,
    current: &'a Json,
}

impl Overlay {
    /// The next revision and the operations that lead to it.
    pub(crate) fn finish(self) -> (Json, Vec<Op>) {
        let ops = if self.node(NodeId::ROOT).dirty { self.emit() } else { Vec::new() };
        if ops.is_empty() {
            return (self.base, ops);
        }
        // The revision is what everyone else will compute from the operations, sharing included.
        let applied = apply(Some(&self.base), &ops);
        debug_assert!(applied.is_ok(), "emitted operations do not apply: {applied:?}");
        match applied {
            Ok(value) => (value, ops),
            Err(_) => (self.current.clone(), vec![Op::Replace(self.current)]),
        }
    }

    fn emit(&self) -> Vec<Op> {
        let mut emitter = Emitter { overlay: self, ops: Vec::new(), pending: Vec::new() };
        if matches!(self.node(NodeId::ROOT).content, Content::Written { .. }) {
            emitter.whole(Vec::new(), &self.base, &self.current);
        } else {
            emitter.pending.push(Visit { node: NodeId::ROOT, path: Vec::new(), base: &self.base, current: &self.current });
        }
        while let Some(visit) = emitter.pending.pop() {
            emitter.visit(visit);
            if emitter.ops.len() > OPS_MAX {
                return vec![Op::Replace(self.current.clone())];
            }
        }
        emitter.ops
    }
}

struct Emitter<'a> {
    overlay: &'a Overlay,
    ops: Vec<Op>,
    pending: Vec<Visit<'a>>,
}

impl<'a> Emitter<'a> {
    fn visit(&mut self, visit: Visit<'a>) {
        let node = self.overlay.node(visit.node);
        match (&node.content, visit.base.as_ref(), visit.current.as_ref()) {
            (Content::Text { trimmed, appended }, JsonRef::String(base), JsonRef::String(_)) => {
                self.text(visit.path, (*trimmed, appended), base, visit.current);
            }
            (_, JsonRef::Object(base), JsonRef::Object(current)) => {
                if self.dirty_keys(node).any(|(key, _)| reserved_key(key)) {
                    // No path may name the key, so the object goes whole.
                    self.whole(visit.path, visit.base, visit.current);
                } else {
                    self.object(node, &visit.path, base, current);
                }
            }
            (_, JsonRef::Array(base), JsonRef::Array(current)) => {
                if let Some(state) = &node.array {
                    self.array(state, &visit.path, base, current);
                }
            }
            _ => self.whole(visit.path, visit.base, visit.current),
        }
    }

    /// A place whose value is told whole, unless it is equal or both are strings.
    fn whole(&mut self, path: Path, base: &Json, current: &Json) {
        match (base.as_text(), current.as_text()) {
            (Some(base), Some(current)) if !path.is_empty() => text_diff::diff(&path, base, current, &mut self.ops),
            _ if base == current => {}
            _ if path.is_empty() => self.ops.push(Op::Replace(current.clone())),
            _ => self.ops.push(Op::Set(path, current.clone())),
        }
    }

    fn text(&mut self, path: Path, (trimmed, appended): (usize, &str), base: StrRef<'_>, current: &Json) {
        let units = base.utf16_len();
        // Equal lengths are the only case in which the edits may have cancelled out.
        let cancelled = appended.encode_utf16().count() == trimmed && current.as_text() == Some(base);
        if cancelled {
            return;
        }
        if path.is_empty() {
            self.ops.push(Op::Replace(current.clone()));
        } else if trimmed == units && trimmed > 0 {
            self.ops.push(Op::Set(path, current.clone()));
        } else {
            if trimmed > 0 {
                self.ops.push(Op::TrimUtf16(path.clone(), trimmed));
            }
            if !appended.is_empty() {
                self.ops.push(Op::Append(path, Arc::from(appended)));
            }
        }
    }

    fn dirty_keys(&self, node: &'a Node) -> impl Iterator<Item = (&'a Arc<str>, NodeId)> {
        node.keys.iter().map(|(key, &child)| (key, child)).filter(|&(_, child)| self.overlay.node(child).dirty)
    }

    fn object(&mut self, node: &'a Node, path: &Path, base: ObjectRef<'a>, current: ObjectRef<'a>) {
        let mut added: Vec<(u64, Op)> = Vec::new();
        for (key, child) in self.dirty_keys(node).collect::<Vec<_>>() {
            let own_path = extended(path, Segment::Key(Arc::clone(key)));
            let own = self.overlay.node(child);
            match (base.get(key), current.get(key), &own.content) {
                // A key that was removed and came back with an equal value is no change: it keeps its old place.
                (Some(base), Some(current), Content::Written { added: Some(_) }) if base == current => {}
                (was, Some(value), Content::Written { added: Some(place) }) => {
                    // Without the removal the key would keep its old place.
                    self.ops.extend(was.map(|_| Op::Delete(own_path.clone())));
                    added.push((*place, Op::Set(own_path, value.clone())));
                }
                (Some(base), Some(current), Content::Written { added: None }) => self.whole(own_path, base, current),
                (Some(_), None, _) => self.ops.push(Op::Delete(own_path)),
                (Some(base), Some(current), _) => self.pending.push(Visit { node: child, path: own_path, base, current }),
                (None, ..) => {}
            }
        }
        added.sort_unstable_by_key(|(place, _)| *place);
        self.ops.extend(added.into_iter().map(|(_, op)| op));
    }

    fn array(&mut self, state: &'a ArrayState, path: &Path, base: ArrayRef<'a>, current: ArrayRef<'a>) {
        let structure = state.pieces.structure();
        for (index, remove) in structure.removed {
            self.ops.push(Op::Splice { path: path.clone(), index, remove, items: Vec::new() });
        }
        self.ops.extend(structure.order.map(|order| Op::Move(path.clone(), order)));
        for (index, len) in structure.inserted {
            let items = (index..index + len).filter_map(|at| current.get(at).cloned()).collect();
            self.ops.push(Op::Splice { path: path.clone(), index, remove: 0, items });
        }
        for Run { index, origins } in state.pieces.runs().filter(|run| run.origins.start < state.pieces.base_len()) {
            for (&origin, &child) in state.items.range(origins.clone()) {
                if self.overlay.node(child).dirty {
                    self.item(child, path, (index, origins.start, origin), (base, current));
                }
            }
        }
    }

    /// An item that stayed. `index` is where its run stands now, `first` the origin there.
    fn item(
        &mut self,
        child: NodeId,
        path: &Path,
        (index, first, origin): (usize, u64, u64),
        (base, current): (ArrayRef<'a>, ArrayRef<'a>),
    ) {
        // Origins of items that stayed are indices of the base.
        let (Ok(offset), Ok(was)) = (usize::try_from(origin - first), usize::try_from(origin)) else { return };
        let (Some(base), Some(current)) = (base.get(was), current.get(index + offset)) else { return };
        let path = extended(path, Segment::Index(index + offset));
        match &self.overlay.node(child).content {
            Content::Written { .. } => self.whole(path, base, current),
            _ => self.pending.push(Visit { node: child, path, base, current }),
        }
    }
}

fn extended(path: &Path, segment: Segment) -> Path {
    let mut path = path.clone();
    path.push(segment);
    path
}
