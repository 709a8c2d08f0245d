//! The view of one conversation (section 9.3): its active transcript and its built-in documents, as a pure function of a snapshot and the
//! frames behind it.
//!
//! **Architecture invariants.** A mount sees no session and no storage. What an observer applies to the view that it had gives the view
//! that the mount has.

use std::collections::BTreeMap;
use std::sync::Arc;

use picofleet_session::{ConversationRecord, EntryRecord, Json, Op, Segment, apply, ops_from_json};
use serde::{Deserialize, Serialize};

use crate::config::CONFIG;
use crate::frame::{DocumentFrame, Frame, FrameError};
use crate::inbox::INBOX;
use crate::live::LIVE;
use crate::usage::USAGE;
use crate::wire::Point;

/// The view as a type; watches give it as JSON, so that it costs what changed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ConversationView {
    /// The conversation.
    pub conversation: ConversationRecord,
    /// The head marker where there is one, then the other entries of the active range, oldest first.
    pub entries: Vec<EntryRecord>,
    /// `pi.conversation.config`, `pi.live`, `pi.inbox` and `pi.usage`, by kind; absent documents are absent.
    pub docs: BTreeMap<String, Json>,
}

/// The kinds that are mounted.
#[must_use]
pub fn mounted() -> [&'static str; 4] {
    [CONFIG.kind, LIVE.kind, INBOX.kind, USAGE.kind]
}

/// One revision of a conversation's view. It is also the snapshot that a subscriber begins with. Cheap to clone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Mount {
    /// The commit that it is complete to.
    at: Point,
    conversation: Arc<ConversationRecord>,
    /// An array of entry records: sharing it costs nothing, however long it is.
    entries: Json,
    /// In the order in which they came.
    docs: Vec<(String, Json)>,
}

/// What one commit did to a view.
#[derive(Clone, PartialEq, Debug)]
pub struct ViewBatch {
    /// The commit.
    pub at: Point,
    /// Operations on the view before; none where the commit touched nothing that is mounted.
    pub ops: Vec<Op>,
}

impl Mount {
    /// A mount of committed state, complete to `at`. Documents that are not mounted are left out.
    ///
    /// # Errors
    /// [`FrameError`] for an entry that can't be written as JSON.
    pub fn new(
        at: Point,
        conversation: ConversationRecord,
        entries: &[EntryRecord],
        documents: impl IntoIterator<Item = (String, Json)>,
    ) -> Result<Self, FrameError> {
        let entries: Vec<Json> = entries.iter().map(entry_json).collect::<Result<_, _>>()?;
        let docs = documents.into_iter().filter(|(kind, _)| mounted().contains(&kind.as_str())).collect();
        Ok(Self { at, conversation: Arc::new(conversation), entries: Json::array(entries), docs })
    }

    /// The commit that it is complete to.
    #[must_use]
    pub const fn at(&self) -> Point {
        self.at
    }

    /// A later commit that changed nothing of the conversation.
    pub const fn complete_to(&mut self, at: Point) {
        self.at = at;
    }

    /// Whether another mount shows the same, whatever commit it is complete to.
    #[must_use]
    pub fn same_state(&self, other: &Self) -> bool {
        self.entries == other.entries && self.docs == other.docs
    }

    /// The value of a mounted document.
    #[must_use]
    pub fn get(&self, kind: &str) -> Option<&Json> {
        self.docs.iter().find(|(other, _)| other == kind).map(|(_, value)| value)
    }

    /// The active entries, as an array of records.
    #[must_use]
    pub const fn entries(&self) -> &Json {
        &self.entries
    }

    /// The view, as [`ConversationView`] is written.
    #[must_use]
    pub fn view(&self) -> Json {
        // A record of ids only.
        let conversation = Json::from_serde(&*self.conversation).unwrap_or(Json::null());
        let docs = Json::object(self.docs.iter().map(|(kind, value)| (kind.as_str(), value.clone())));
        Json::build_object().with("conversation", conversation).with("entries", self.entries.clone()).with("docs", docs).build()
    }

    /// Follows a frame. A mount that it does not fit stays as it was.
    ///
    /// # Errors
    /// [`FrameError`]: a snapshot has to be taken.
    pub fn advance(&mut self, frame: &Frame) -> Result<ViewBatch, FrameError> {
        // The commit of the same number is another one where storage went back: the token tells.
        let missing = |previous: Point| previous.0 > self.at.0 || (previous.0 == self.at.0 && previous != self.at);
        if frame.at.0 <= self.at.0 || frame.previous.is_some_and(missing) {
            let why = format!("it has the commits up to {} and this is {}, behind {:?}", self.at.0, frame.at.0, frame.previous);
            return Err(FrameError { what: "the frame before".to_owned(), why });
        }
        let mut next = self.clone();
        let mut ops = Vec::new();
        for (kind, change) in frame.documents.iter().filter(|(kind, _)| mounted().contains(&kind.as_str())) {
            next.document(kind, change, &mut ops)?;
        }
        for entry in &frame.entries {
            ops.push(next.entry(entry)?);
        }
        next.at = frame.at;
        *self = next;
        Ok(ViewBatch { at: frame.at, ops })
    }

    fn document(&mut self, kind: &str, change: &DocumentFrame, ops: &mut Vec<Op>) -> Result<(), FrameError> {
        let error = |why: String| FrameError { what: format!("document {kind}"), why };
        let place = |rest: &[Segment]| -> Vec<Segment> {
            [Segment::from("docs"), Segment::from(kind)].into_iter().chain(rest.iter().cloned()).collect()
        };
        match change {
            DocumentFrame::Value(value) => {
                ops.push(Op::Set(place(&[]), value.clone()));
                self.set(kind, value.clone());
            }
            DocumentFrame::Retired => {
                ops.push(Op::Delete(place(&[])));
                self.docs.retain(|(other, _)| other != kind);
            }
            DocumentFrame::Stored => return Err(error("its value is in storage only".to_owned())),
            DocumentFrame::Ops(batch) => {
                let batch = ops_from_json(batch).map_err(|e| error(e.to_string()))?;
                let value = apply(self.get(kind), &batch).map_err(|e| error(e.to_string()))?;
                self.set(kind, value);
                ops.extend(batch.into_iter().map(|op| rooted(op, &place)));
            }
        }
        Ok(())
    }

    fn set(&mut self, kind: &str, value: Json) {
        match self.docs.iter_mut().find(|(other, _)| other == kind) {
            Some((_, old)) => *old = value,
            None => self.docs.push((kind.to_owned(), value)),
        }
    }

    /// Takes an entry in: at the end, or as the marker in front of the entries that it keeps.
    fn entry(&mut self, entry: &EntryRecord) -> Result<Op, FrameError> {
        let items = vec![entry_json(entry)?];
        let Some(array) = self.entries.as_array() else {
            return Err(FrameError { what: "the entries".to_owned(), why: "the snapshot has no array of them".to_owned() });
        };
        let (index, remove) = match entry.head {
            None => (array.len(), 0),
            // Ids rise, and at most the first entry is a marker: what is kept is the end of the array.
            Some(head) => {
                let cut = |item: &&Json| item.get("head").is_some() || item.get("id").and_then(Json::as_i64) < Some(head.get());
                (0, array.iter().take_while(cut).count())
            }
        };
        let splice = |path| Op::Splice { path, index, remove, items: items.clone() };
        self.entries = match apply(Some(&self.entries), &[splice(Vec::new())]) {
            Ok(entries) => entries,
            // What nests as deep as a value may is too deep for an operation on an array of records, and is an entry all the same.
            Err(_) => {
                Json::array(array.iter().take(index).chain(&items).chain(array.iter().skip(index + remove)).cloned().collect::<Vec<_>>())
            }
        };
        Ok(splice(vec![Segment::from("entries")]))
    }
}

fn entry_json(entry: &EntryRecord) -> Result<Json, FrameError> {
    Json::from_serde_envelope(entry).map_err(|error| FrameError { what: format!("entry {}", entry.id), why: error.to_string() })
}

/// An operation on a document, as one on the view that has the document at a place.
fn rooted(op: Op, place: &impl Fn(&[Segment]) -> Vec<Segment>) -> Op {
    match op {
        Op::Replace(value) => Op::Set(place(&[]), value),
        Op::Set(path, value) => Op::Set(place(&path), value),
        Op::Delete(path) => Op::Delete(place(&path)),
        Op::Append(path, text) => Op::Append(place(&path), text),
        Op::TrimUtf16(path, count) => Op::TrimUtf16(place(&path), count),
        Op::Splice { path, index, remove, items } => Op::Splice { path: place(&path), index, remove, items },
        Op::Move(path, order) => Op::Move(place(&path), order),
    }
}

#[cfg(test)]
pub(crate) mod tests;
