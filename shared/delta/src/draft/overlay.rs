//! What a change touched: a tree of places over the current content.
//!
//! The content is edited at once, in a copy that shares everything untouched with the base. The overlay only
//! remembers where something changed and how, so that the operations can be told without a comparison of documents.
//!
//! A place is *written* when its value was set or removed as a whole: then its new value is told whole and nothing
//! recorded below it counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::{DraftError, DraftErrorKind};
use super::pieces::{Origin, Pieces};
use crate::json::{Json, JsonError, JsonRef};
use crate::op::{Path, Segment};

/// A node of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeId(usize);

impl NodeId {
    pub(super) const ROOT: NodeId = NodeId(0);
}

/// How a place hangs on its parent.
#[derive(Clone, Debug)]
pub(super) enum Slot {
    Root,
    Key(Arc<str>),
    /// An item of an array, wherever it stands.
    Item(Origin),
    /// A position of an array that had no such item when the draft was made.
    Position(usize),
    /// An item that was removed, or whose array was replaced.
    Gone,
}

/// What was done to a place itself.
#[derive(Debug, Default)]
pub(super) enum Content {
    #[default]
    Kept,
    /// The base's string lost units in front and got text at the end.
    Text { trimmed: usize, appended: String },
    /// Set or removed as a whole. `added` orders keys that became new, for the key order of the result.
    Written { added: Option<u64> },
}

#[derive(Debug)]
pub(super) struct ArrayState {
    pub(super) pieces: Pieces,
    pub(super) items: BTreeMap<Origin, NodeId>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) parent: NodeId,
    pub(super) slot: Slot,
    /// Something changed here or below. Invariant: then it is set in every ancestor, too.
    pub(super) dirty: bool,
    /// The node, or one above, is a [`Slot::Position`]. Such nodes record nothing; see [`Overlay::settle`].
    positional: bool,
    pub(super) content: Content,
    pub(super) keys: BTreeMap<Arc<str>, NodeId>,
    positions: BTreeMap<usize, NodeId>,
    /// Present once an item was looked at or the structure changed.
    pub(super) array: Option<Box<ArrayState>>,
}

/// Where a place is now.
pub(super) struct Place {
    pub(super) path: Path,
    /// The place is told as a part of something above it.
    pub(super) covered: bool,
}

#[derive(Debug)]
pub(crate) struct Overlay {
    pub(super) base: Json,
    pub(super) current: Json,
    nodes: Vec<Node>,
    added: u64,
}

impl Overlay {
    pub(crate) fn new(base: Json) -> Overlay {
        let root = Node::new(NodeId::ROOT, Slot::Root, false);
        Overlay { current: base.clone(), base, nodes: vec![root], added: 0 }
    }

    pub(crate) fn base(&self) -> &Json {
        &self.base
    }

    pub(super) fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0]
    }

    pub(super) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0]
    }

    /// A number for a key that becomes new, larger than all before.
    pub(super) fn next_added(&mut self) -> u64 {
        self.added += 1;
        self.added
    }

    fn push_node(&mut self, parent: NodeId, slot: Slot) -> NodeId {
        let positional = self.node(parent).positional || matches!(slot, Slot::Position(_));
        self.nodes.push(Node::new(parent, slot, positional));
        NodeId(self.nodes.len() - 1)
    }

    pub(super) fn key(&mut self, parent: NodeId, name: &str) -> NodeId {
        let parent = self.settle(parent);
        self.key_below(parent, name)
    }

    pub(super) fn index(&mut self, parent: NodeId, index: usize) -> NodeId {
        let parent = self.settle(parent);
        self.index_below(parent, index)
    }

    pub(super) fn descend(&mut self, from: NodeId, path: &[Segment]) -> NodeId {
        path.iter().fold(from, |node, segment| match segment {
            Segment::Key(key) => self.key(node, key),
            Segment::Index(index) => self.index(node, *index),
        })
    }

    fn key_below(&mut self, parent: NodeId, name: &str) -> NodeId {
        if let Some(&known) = self.node(parent).keys.get(name) {
            return known;
        }
        let key: Arc<str> = Arc::from(name);
        let node = self.push_node(parent, Slot::Key(Arc::clone(&key)));
        self.node_mut(parent).keys.insert(key, node);
        node
    }

    fn index_below(&mut self, parent: NodeId, index: usize) -> NodeId {
        let len = match self.look(parent).map(Json::as_ref) {
            Some(JsonRef::Object(_)) => return self.key_below(parent, &index.to_string()),
            Some(JsonRef::Array(array)) if !self.node(parent).positional => array.len(),
            _ => 0,
        };
        let state = (index < len).then(|| self.array_state(parent, len));
        if let Some(state) = state
            && let Some(origin) = state.pieces.origin_at(index)
        {
            if let Some(&known) = state.items.get(&origin) {
                return known;
            }
            let node = self.push_node(parent, Slot::Item(origin));
            self.array_state(parent, len).items.insert(origin, node);
            return node;
        }
        if let Some(&known) = self.node(parent).positions.get(&index) {
            return known;
        }
        let node = self.push_node(parent, Slot::Position(index));
        self.node_mut(parent).positions.insert(index, node);
        node
    }

    /// The node that stands for a position now, when something came to exist there; else the node itself.
    ///
    /// A positional node is looked up again at each use, so it never holds anything that would have to move with an
    /// item.
    pub(super) fn settle(&mut self, node: NodeId) -> NodeId {
        let mut chain = Vec::new();
        let mut at = node;
        while self.node(at).positional {
            chain.push(at);
            at = self.node(at).parent;
        }
        while let Some(next) = chain.pop() {
            at = match self.node(next).slot.clone() {
                Slot::Position(index) => self.index_below(at, index),
                Slot::Key(key) => self.key_below(at, &key),
                Slot::Root | Slot::Item(_) | Slot::Gone => next,
            };
            if self.node(at).positional && !chain.is_empty() {
                return node;
            }
        }
        at
    }

    /// The state of the array at `node`, which has `len` items.
    pub(super) fn array_state(&mut self, node: NodeId, len: usize) -> &mut ArrayState {
        let fresh = || Box::new(ArrayState { pieces: Pieces::new(len), items: BTreeMap::new() });
        self.node_mut(node).array.get_or_insert_with(fresh)
    }

    /// Where `node` is now, or which item on the way is gone.
    pub(super) fn place(&self, node: NodeId) -> Result<Place, DraftError> {
        let mut path = Vec::new();
        let mut covered = false;
        let mut at = node;
        loop {
            let own = self.node(at);
            covered |= matches!(own.content, Content::Written { .. });
            match &own.slot {
                Slot::Root => break,
                Slot::Key(key) => path.push(Segment::Key(Arc::clone(key))),
                Slot::Position(index) => path.push(Segment::Index(*index)),
                Slot::Item(origin) => {
                    let state = self.node(own.parent).array.as_deref();
                    covered |= state.is_none_or(|state| *origin >= state.pieces.base_len());
                    let index = state.and_then(|state| state.pieces.index_of(*origin));
                    path.push(Segment::Index(index.ok_or_else(|| item_removed(&path))?));
                }
                Slot::Gone => return Err(item_removed(&path)),
            }
            at = own.parent;
        }
        path.reverse();
        Ok(Place { path, covered })
    }

    fn look(&self, node: NodeId) -> Option<&Json> {
        self.current.at(&self.place(node).ok()?.path)
    }

    pub(super) fn get(&mut self, node: NodeId) -> Option<Json> {
        let node = self.settle(node);
        self.look(node).cloned()
    }

    pub(super) fn value_error(&mut self, node: NodeId, error: &JsonError) -> DraftError {
        let path = self.place(node).map(|place| place.path).unwrap_or_default();
        DraftError::new(DraftErrorKind::Value, &path, error.to_string())
    }

    pub(super) fn mark_dirty(&mut self, node: NodeId) {
        let mut at = node;
        while !self.node(at).dirty {
            self.node_mut(at).dirty = true;
            at = self.node(at).parent;
        }
    }

    /// Ends the drafts of items below `node`, because its value is replaced. Drafts of keys stay. What else was
    /// recorded below does not count any more, so it may stay, too.
    pub(super) fn end_items_below(&mut self, node: NodeId) {
        let mut pending = vec![node];
        while let Some(at) = pending.pop() {
            let own = self.node_mut(at);
            let items = own.array.take().map(|array| array.items).unwrap_or_default();
            pending.extend(own.keys.values());
            for item in items.into_values() {
                self.node_mut(item).slot = Slot::Gone;
            }
        }
    }
}

/// The part of the path below the removed item is known, from its end.
fn item_removed(below: &[Segment]) -> DraftError {
    let path: Path = below.iter().rev().cloned().collect();
    let detail = "the array item above this place was removed; take a new draft of an item";
    DraftError::new(DraftErrorKind::ItemRemoved, &path, detail)
}

impl Node {
    fn new(parent: NodeId, slot: Slot, positional: bool) -> Node {
        Node {
            parent,
            slot,
            dirty: false,
            positional,
            content: Content::Kept,
            keys: BTreeMap::new(),
            positions: BTreeMap::new(),
            array: None,
        }
    }
}
