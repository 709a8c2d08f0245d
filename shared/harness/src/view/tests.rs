use picofleet_delta::Tracker;
use picofleet_session::{CommitToken, ConversationId, EntryId, Seq, ops_to_json};
use proptest::prelude::*;

use super::*;

/// A frame of random changes, made from a conversation as it is.
#[derive(Clone, Debug)]
enum Step {
    Append,
    /// A marker that keeps so many of the entries there are; more than there are: a raw head write before the active range.
    Head(usize),
    /// A change of a document, which makes it where it is not there.
    Document(usize, u8),
    Migrate(usize),
    Retire(usize),
    /// Something that is not mounted.
    Other,
}

fn steps() -> impl Strategy<Value = Vec<Vec<Step>>> {
    let step = prop_oneof![
        4 => Just(Step::Append),
        1 => (0..5_usize).prop_map(Step::Head),
        4 => (0..4_usize, 0..6_u8).prop_map(|(document, change)| Step::Document(document, change)),
        1 => (0..4_usize).prop_map(Step::Migrate),
        1 => (0..4_usize).prop_map(Step::Retire),
        1 => Just(Step::Other),
    ];
    prop::collection::vec(prop::collection::vec(step, 0..4), 1..24)
}

/// What a conversation has, in the plainest way.
struct Model {
    seq: i64,
    next: i64,
    entries: Vec<EntryRecord>,
    documents: Vec<(String, Json)>,
}

pub(crate) fn record() -> ConversationRecord {
    ConversationRecord { id: ConversationId::new(1).unwrap(), parent: None, owner: None }
}

pub(crate) fn point(seq: i64) -> Point {
    Point(Seq(seq), CommitToken::random())
}

pub(crate) fn frame(at: Point, previous: Option<Point>) -> Frame {
    let (entries, submissions, tasks) = (Vec::new(), Vec::new(), Vec::new());
    Frame { at, previous, entries, submissions, tasks, created: Vec::new(), decided: Vec::new(), documents: Vec::new() }
}

impl Model {
    fn entry(&mut self, head: Option<EntryId>) -> EntryRecord {
        self.next += 1;
        let id = EntryId::new(self.next).unwrap();
        let conversation_id = record().id;
        EntryRecord { id, conversation_id, kind: "note".into(), model: None, data: None, head, edits: None, by_task_id: None }
    }

    fn step(&mut self, step: &Step, frame: &mut Frame) {
        match step {
            Step::Append => {
                let entry = self.entry(None);
                self.entries.push(entry.clone());
                frame.entries.push(Arc::new(entry));
            }
            Step::Head(keep) => {
                let plain: Vec<EntryRecord> = self.entries.iter().filter(|entry| entry.head.is_none()).cloned().collect();
                let target = plain.len().checked_sub(*keep).and_then(|at| plain.get(at)).or_else(|| plain.first()).map(|entry| entry.id);
                let target = if *keep == 0 { None } else { target };
                let next = EntryId::new(self.next + 1).unwrap();
                let marker = self.entry(Some(target.unwrap_or(next)));
                let kept = plain.into_iter().filter(|entry| entry.id >= marker.head.unwrap());
                self.entries = std::iter::once(marker.clone()).chain(kept).collect();
                frame.entries.push(Arc::new(marker));
            }
            Step::Document(document, change) => self.change(mounted()[*document], *change, frame),
            Step::Migrate(document) => {
                let value = Json::object([("migrated", self.next)]);
                self.put(mounted()[*document], value.clone());
                frame.documents.push((mounted()[*document].to_owned(), DocumentFrame::Value(value)));
            }
            Step::Retire(document) => {
                self.documents.retain(|(kind, _)| kind != mounted()[*document]);
                frame.documents.push((mounted()[*document].to_owned(), DocumentFrame::Retired));
            }
            Step::Other => frame.documents.push(("app.other".to_owned(), DocumentFrame::Value(Json::from(1)))),
        }
    }

    fn put(&mut self, kind: &str, value: Json) {
        match self.documents.iter_mut().find(|(other, _)| other == kind) {
            Some((_, old)) => *old = value,
            None => self.documents.push((kind.to_owned(), value)),
        }
    }

    fn change(&mut self, kind: &str, change: u8, frame: &mut Frame) {
        let Some(old) = self.documents.iter().find(|(other, _)| other == kind).map(|(_, value)| value.clone()) else {
            let value = Json::build_object().with("text", "a").with("items", Json::array([1])).build();
            self.put(kind, value.clone());
            return frame.documents.push((kind.to_owned(), DocumentFrame::Value(value)));
        };
        let tracker = Tracker::new(old).unwrap();
        let (text, items) = (tracker.value().get("text").is_some(), tracker.value().get("items").is_some());
        let edit = tracker.begin();
        match change {
            0 if text => edit.draft().key("text").append("bc").unwrap(),
            1 if text => edit.draft().key("text").trim_utf16(1).unwrap(),
            2 if items => edit.draft().key("items").splice(0, 1, vec![Json::from(2), Json::from(3)]).unwrap(),
            3 => edit.draft().key("items").remove().unwrap(),
            4 => edit.draft().set(Json::object([("text", "whole")])).unwrap(),
            _ => edit.draft().key("text").set("text").unwrap(),
        }
        let prepared = edit.prepare();
        self.put(kind, prepared.value.clone());
        if !prepared.ops.is_empty() {
            frame.documents.push((kind.to_owned(), DocumentFrame::Ops(ops_to_json(&prepared.ops))));
        }
    }

    fn mount(&self, at: Point) -> Mount {
        Mount::new(at, record(), &self.entries, self.documents.clone()).unwrap()
    }
}

proptest! {
    /// Whatever happens, the operations of a batch lead from the view before to the view behind it, and that is the one which somebody
    /// gets who comes new.
    #[test]
    fn the_operations_of_a_batch_make_the_next_view(commits in steps()) {
        let mut model = Model { seq: 1, next: 1, entries: Vec::new(), documents: Vec::new() };
        let mut mount = model.mount(point(1));
        for steps in commits {
            model.seq += 1;
            let mut next = frame(point(model.seq), Some(mount.at()));
            steps.iter().for_each(|step| model.step(step, &mut next));
            let before = mount.view();
            let batch = mount.advance(&next).unwrap();
            prop_assert_eq!(&mount, &model.mount(next.at));
            if batch.ops.is_empty() {
                prop_assert!(next.entries.is_empty() && next.documents.iter().all(|(kind, _)| kind == "app.other"));
                prop_assert_eq!(&before, &mount.view());
            } else {
                prop_assert_eq!(apply(Some(&before), &batch.ops).unwrap().to_string(), mount.view().to_string());
            }
        }
    }
}

#[test]
fn a_frame_that_stands_on_a_missing_one_does_not_fit() {
    let mut mount = Mount::new(point(3), record(), &[], []).unwrap();
    let before = mount.clone();
    assert!(mount.advance(&frame(point(6), Some(point(5)))).is_err(), "the frame of commit 5 is missing");
    assert!(mount.advance(&frame(point(3), None)).is_err(), "it has that one already");
    assert!(mount.advance(&frame(point(4), Some(point(3)))).is_err(), "it stands on another commit of that number");
    assert!(mount.clone().advance(&frame(point(4), Some(mount.at()))).is_ok());
    assert_eq!(mount, before, "it stays as it was");
    let mut unread = frame(point(4), None);
    unread.documents.push((LIVE.kind.to_owned(), DocumentFrame::Stored));
    assert!(mount.advance(&unread).is_err(), "the value is not known");
    assert!(mount.advance(&frame(point(6), Some(point(2)))).is_ok());
}

#[test]
fn an_entry_that_nests_as_deep_as_a_value_may_is_shown() {
    let deep = (0..picofleet_delta::DEPTH_MAX).fold(Json::from(1), |inner, _| Json::array([inner]));
    let entry = EntryRecord {
        id: EntryId::new(2).unwrap(),
        conversation_id: record().id,
        kind: "note".into(),
        model: None,
        data: Some(deep.clone()),
        head: None,
        edits: None,
        by_task_id: None,
    };
    let mut mount = Mount::new(point(1), record(), &[], []).unwrap();
    mount.advance(&Frame { entries: vec![Arc::new(entry)], ..frame(point(2), None) }).unwrap();
    assert_eq!(mount.entries().at(&[Segment::from(0), Segment::from("data")]), Some(&deep));
}

/// What is derived of commits is pure: it names neither a session nor storage.
#[test]
fn views_and_events_name_no_session() {
    let sources = [
        include_str!("../view.rs"),
        include_str!("../events.rs"),
        include_str!("../events/derive.rs"),
        include_str!("../events/message.rs"),
        include_str!("../events/tools.rs"),
    ];
    let mut uses = 0;
    for source in sources {
        for item in source.split("\nuse ").skip(1).filter_map(|rest| rest.split(';').next()) {
            uses += 1;
            let mut names = item.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
            let named = names.find(|name| ["Session", "SessionLine", "Tx", "line", "host", "storage", "tokio"].contains(name));
            assert_eq!(named, None, "use {item}");
        }
    }
    assert!(uses > 20, "they are found");
}
