//! The part of a response that is committed, as changes of a message (section 9.4).

use std::collections::BTreeSet;

use picofleet_session::{Json, Op, Segment};

use super::MessageChange;

/// How deep the message stands in the live document.
const AT: [&str; 2] = ["generation", "message"];

/// What the operations on the live document did to the message that is coming in, which was there before and is there now. `None` where
/// they did not touch it.
pub(super) fn changes(before: &Json, ops: &[Op], after: &Json) -> Option<Vec<MessageChange>> {
    let mut changes = Changes { after, length: length(before), whole: BTreeSet::new(), list: Vec::new(), touched: false };
    for op in ops {
        let whole = match op.path().map(|path| below(path)) {
            // A change of the whole document, or of what the message stands in.
            None | Some(Place::Above) => before != after,
            Some(Place::Elsewhere) => continue,
            Some(Place::Message(rest)) => !changes.apply(op, rest),
        };
        if whole {
            return Some(vec![MessageChange::Message { message: after.clone() }]);
        }
    }
    changes.touched.then_some(changes.list)
}

enum Place<'a> {
    Above,
    Elsewhere,
    /// With the rest of the path.
    Message(&'a [Segment]),
}

fn below(path: &[Segment]) -> Place<'_> {
    let is = |segment: &Segment, key: &str| matches!(segment, Segment::Key(other) if **other == *key);
    if !path.iter().zip(AT).all(|(segment, key)| is(segment, key)) {
        return Place::Elsewhere;
    }
    path.get(AT.len()..).map_or(Place::Above, Place::Message)
}

fn content(message: &Json) -> Option<&Json> {
    message.get("content")
}

fn length(message: &Json) -> usize {
    content(message).and_then(Json::as_array).map_or(0, |content| content.len())
}

struct Changes<'a> {
    after: &'a Json,
    /// How many blocks there are so far.
    length: usize,
    /// Blocks that were sent as they are in the end: nothing more is said of them.
    whole: BTreeSet<usize>,
    list: Vec<MessageChange>,
    touched: bool,
}

impl Changes<'_> {
    /// Follows an operation below the message; `false` where only the whole message tells it.
    fn apply(&mut self, op: &Op, rest: &[Segment]) -> bool {
        self.touched = true;
        match (rest, op) {
            ([Segment::Key(usage), ..], _) if **usage == *"usage" => true,
            ([Segment::Key(key)], Op::Splice { index, remove: 0, items, .. }) if is_content(key) && *index >= self.length => {
                items.iter().all(|block| self.start(block))
            }
            ([Segment::Key(key), Segment::Index(index)], Op::Set(_, block)) if is_content(key) && *index == self.length => {
                self.start(block)
            }
            ([Segment::Key(key), Segment::Index(index)], Op::Set(..)) if is_content(key) => self.block(*index),
            ([Segment::Key(key), Segment::Index(index), inside @ ..], _) if is_content(key) && !inside.is_empty() => {
                self.inside(*index, inside, op)
            }
            _ => false,
        }
    }

    fn start(&mut self, block: &Json) -> bool {
        let (content_index, block) = (self.length, block.clone());
        let change = match kind(&block).as_deref() {
            Some("text") => MessageChange::TextStart { content_index, block },
            Some("thinking") => MessageChange::ThinkingStart { content_index, block },
            Some("toolCall") => MessageChange::ToolcallStart { content_index, block },
            _ => return false,
        };
        self.length += 1;
        self.list.push(change);
        true
    }

    fn inside(&mut self, content_index: usize, inside: &[Segment], op: &Op) -> bool {
        if self.whole.contains(&content_index) {
            return true;
        }
        let Some(block) = self.after_block(content_index) else { return false };
        let (kind, Op::Append(_, text)) = (kind(block), op) else { return self.block(content_index) };
        let delta = text.to_string();
        let change = match (kind.as_deref(), inside) {
            (Some("text"), [Segment::Key(field)]) if **field == *"text" => MessageChange::TextDelta { content_index, delta },
            (Some("thinking"), [Segment::Key(field)]) if **field == *"thinking" => MessageChange::ThinkingDelta { content_index, delta },
            (Some("toolCall"), [Segment::Key(field), path @ ..]) if **field == *"arguments" && !path.is_empty() => {
                MessageChange::ToolcallDelta { content_index, path: path.to_vec(), delta }
            }
            _ => return self.block(content_index),
        };
        self.list.push(change);
        true
    }

    /// The block as it is in the end.
    fn block(&mut self, content_index: usize) -> bool {
        if !self.whole.insert(content_index) {
            return true;
        }
        let Some(block) = self.after_block(content_index).cloned() else { return false };
        self.list.push(MessageChange::Block { content_index, block });
        true
    }

    fn after_block(&self, index: usize) -> Option<&Json> {
        content(self.after).and_then(Json::as_array).and_then(|content| content.get(index))
    }
}

fn is_content(key: &str) -> bool {
    key == "content"
}

fn kind(block: &Json) -> Option<String> {
    block.get("type").and_then(Json::as_str).map(std::borrow::Cow::into_owned)
}
