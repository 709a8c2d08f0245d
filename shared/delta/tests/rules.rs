//! The rules of trackers, drafts and application that random edits do not pin down.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use picofleet_delta::{
    AdoptErrorKind, Change, DEPTH_MAX, Draft, DraftErrorKind, Json, Op, OpErrorKind, Segment, Tracker, apply, ops_from_json, wire,
};
use proptest::prelude::*;

fn json(text: &str) -> Json {
    text.parse().unwrap()
}

fn track(text: &str) -> Tracker {
    Tracker::new(json(text)).unwrap()
}

/// The batch of one change, as text.
fn ops_of(base: &str, edit: impl FnOnce(Draft<'_>)) -> String {
    let change = track(base).begin();
    edit(change.draft());
    let prepared = change.prepare();
    assert_eq!(prepared.ops.is_empty(), prepared.value.same_revision(&prepared.base));
    Json::from_serde(&prepared.ops).unwrap().to_string()
}

fn nested(depth: u32) -> Json {
    (0..depth).fold(Json::null(), |inner, _| Json::array([inner]))
}

#[test]
fn the_types_may_cross_threads() {
    fn check<T: Send + Sync>() {}
    check::<Json>();
    check::<Op>();
    check::<Tracker>();
    check::<Change>();
    check::<Draft<'_>>();
}

#[test]
fn batches_are_empty_when_nothing_changed() {
    let base = r#"{"text":"abc","n":1,"o":{"k":[1,2]},"xs":[1,2,3],"gone":null}"#;
    assert_eq!(ops_of(base, |_| {}), "[]");
    assert_eq!(ops_of(base, |root| root.key("n").set(1).unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.key("text").append("").unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.key("text").trim_utf16(0).unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.key("xs").splice(1, 0, Vec::new()).unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.key("o").set(json(r#"{"k":[1,2.0]}"#)).unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.key("missing").remove().unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.set(json(base)).unwrap()), "[]");
    assert_eq!(ops_of(base, |root| root.key("xs").retain(|_, _| true).unwrap()), "[]");
    let there_and_back = |root: Draft<'_>| {
        root.key("text").set("other").unwrap();
        root.key("text").set("abc").unwrap();
        root.key("new").set(1).unwrap();
        root.key("new").remove().unwrap();
        root.key("xs").reorder(&[2, 1, 0]).unwrap();
        root.key("xs").reorder(&[2, 1, 0]).unwrap();
        root.key("xs").push(4).unwrap();
        root.key("xs").splice(3, 1, Vec::new()).unwrap();
        root.key("gone").remove().unwrap();
        root.key("gone").set(()).unwrap();
    };
    assert_eq!(ops_of(base, there_and_back), "[]");
    let rolled = |root: Draft<'_>| {
        root.key("text").append("abc").unwrap();
        root.key("text").trim_utf16(3).unwrap();
    };
    assert_eq!(ops_of(base, rolled), "[]");
}

#[test]
fn a_structural_change_to_an_equal_value_stays_a_change() {
    let ops = ops_of(r#"{"xs":[1,2]}"#, |root| root.key("xs").splice(0, 1, vec![Json::from(1)]).unwrap());
    assert_eq!(ops, r#"[["p",["xs"],0,1,[]],["p",["xs"],0,0,[1]]]"#);
}

#[test]
fn edits_are_told_by_leaf() {
    let base = r#"{"log":"line 1\nline 2\n","xs":[{"t":"a"},{"t":"b"},{"t":"c"},{"t":"d"}],"o":{"a":1,"b":2}}"#;
    assert_eq!(ops_of(base, |root| root.key("log").append("line 3\n").unwrap()), r#"[["a",["log"],"line 3\n"]]"#);
    let roll = |root: Draft<'_>| {
        root.key("log").append("line 3\n").unwrap();
        root.key("log").trim_utf16(7).unwrap();
    };
    assert_eq!(ops_of(base, roll), r#"[["t",["log"],7],["a",["log"],"line 3\n"]]"#);
    assert_eq!(ops_of(base, |root| root.key("log").set("line 2\nline 3\n").unwrap()), r#"[["t",["log"],7],["a",["log"],"line 3\n"]]"#);
    assert_eq!(ops_of(base, |root| root.key("log").set("line 1\n").unwrap()), r#"[["s",["log"],"line 1\n"]]"#);
    assert_eq!(
        ops_of(base, |root| root.key("xs").retain(|index, _| index % 2 == 1).unwrap()),
        r#"[["p",["xs"],2,1,[]],["p",["xs"],0,1,[]]]"#
    );
    let all = |root: Draft<'_>| {
        let xs = root.key("xs");
        let c = xs.index(2).key("t");
        xs.reorder(&[3, 2, 1, 0]).unwrap();
        xs.splice(3, 1, Vec::new()).unwrap();
        xs.splice(0, 0, vec![json(r#"{"t":"new"}"#)]).unwrap();
        c.append("!").unwrap();
    };
    assert_eq!(ops_of(base, all), r#"[["p",["xs"],0,1,[]],["m",["xs"],[2,1,0]],["p",["xs"],0,0,[{"t":"new"}]],["a",["xs",2,"t"],"!"]]"#);
    let readd = |root: Draft<'_>| {
        root.key("o").key("a").remove().unwrap();
        root.key("o").key("c").set(3).unwrap();
        root.key("o").key("a").set(4).unwrap();
        root.key("o").key("b").remove().unwrap();
    };
    assert_eq!(ops_of(base, readd), r#"[["d",["o","a"]],["d",["o","b"]],["s",["o","c"],3],["s",["o","a"],4]]"#);
    assert_eq!(ops_of(base, |root| root.key("o").set(json(r#"{"a":1}"#)).unwrap()), r#"[["s",["o"],{"a":1}]]"#);
    assert_eq!(ops_of(base, |root| root.set(1).unwrap()), r#"[["r",1]]"#);
    assert_eq!(ops_of("\"abc\"", |root| root.append("d").unwrap()), r#"[["r","abcd"]]"#);
    assert_eq!(ops_of(r#"{"e":"","f":"x"}"#, |root| root.key("e").append("y").unwrap()), r#"[["a",["e"],"y"]]"#);
    let windows = |root: Draft<'_>| {
        for n in 0..4 {
            root.key("e").append(&format!("{n}😀")).unwrap();
            root.key("e").trim_utf16(1 + n % 2 * 2).unwrap_or_else(|_| root.key("e").trim_utf16(2).unwrap());
        }
    };
    assert_eq!(ops_of(r#"{"e":""}"#, windows), r#"[["a",["e"],"3😀"]]"#);
    assert_eq!(ops_of(r#"{"e":"abcdefghij"}"#, windows), r#"[["t",["e"],8],["a",["e"],"0😀1😀2😀3😀"]]"#);
    assert_eq!(ops_of(r#"{"f":"x"}"#, |root| root.key("f").trim_utf16(9).unwrap()), r#"[["s",["f"],""]]"#);
}

#[test]
fn reserved_keys_fold_into_the_nearest_safe_place() {
    let base = r#"{"a":{"b":{"__proto__":{"x":1}}},"n":1}"#;
    let edit = |root: Draft<'_>| {
        root.key("a").key("b").key("__proto__").key("x").set(2).unwrap();
        root.key("n").set(2).unwrap();
    };
    let ops = ops_of(base, edit);
    assert!(ops.contains(r#"["s",["a","b"],{"__proto__":{"x":2}}]"#) && ops.contains(r#"["s",["n"],2]"#), "{ops}");
    assert_eq!(ops_of(r#"{"k":1}"#, |root| root.key("constructor").set(1).unwrap()), r#"[["r",{"k":1,"constructor":1}]]"#);
    assert_eq!(ops_of(r#"{"constructor":1}"#, |root| root.key("constructor").set(1).unwrap()), "[]");
}

#[test]
fn many_operations_become_one_replacement() {
    let base = Json::object([("xs", Json::array(0..5000))]).to_string();
    let batch = |count: usize| {
        let edit = |root: Draft<'_>| (0..count).for_each(|index| root.key("xs").index(index).set("x").unwrap());
        ops_from_json(&json(&ops_of(&base, edit))).unwrap()
    };
    assert_eq!(batch(4096).len(), 4096);
    assert!(matches!(&batch(4097)[..], [Op::Replace(_)]));
}

#[test]
fn an_encoder_remembers_a_bounded_number_of_paths() {
    let op = |index: usize| Op::Delete(vec![Segment::Index(index)]);
    let (mut encoder, mut decoder) = (wire::Encoder::new(), wire::Decoder::new());
    let first: Vec<Op> = (0..70_000).map(op).collect();
    assert_eq!(decoder.decode(&encoder.encode(&first)).unwrap(), first);
    // The first path is known and gets its number; the last was too many and is written out again.
    for (index, wire) in [(0, r##"[["#",0,[0]],["d",0]]"##), (69_999, r#"[["d",[69999]]]"#)] {
        let encoded = encoder.encode(&[op(index)]);
        assert_eq!(encoded.to_string(), wire);
        assert_eq!(decoder.decode(&encoded).unwrap(), [op(index)]);
    }
}

#[test]
fn a_decoder_takes_a_bounded_number_of_paths() {
    let define = |id: usize| Json::array([Json::from("#"), Json::from(id), Json::array([id])]);
    let mut decoder = wire::Decoder::new();
    let all: Json = (0..65_536).map(define).collect();
    assert_eq!(decoder.decode(&all).unwrap(), []);
    // A number may get another path; one more may not come.
    assert_eq!(decoder.decode(&Json::array([define(7)])).unwrap(), []);
    let error = decoder.decode(&Json::array([define(65_536)])).unwrap_err();
    assert_eq!(error.kind(), OpErrorKind::Path);
    assert!(error.to_string().contains("more than 65536 paths"), "{error}");
    // A replacement of the whole value begins anew.
    assert_eq!(decoder.decode(&Json::array([json(r#"["r",1]"#), define(65_536)])).unwrap(), [Op::Replace(Json::from(1))]);
}

#[test]
fn refused_edits_change_nothing() {
    use DraftErrorKind::*;
    let base = r#"{"s":"a😀","n":1,"xs":[1,"t"],"o":{}}"#;
    let tracker = track(base);
    let change = tracker.begin();
    let root = change.draft();
    let good = Json::from(1);
    let cases = [
        (root.key("q").key("r").set(1), MissingParent),
        (root.key("q").key("r").remove(), MissingParent),
        (root.key("n").key("r").set(1), NotAContainer),
        (root.key("n").key("r").remove(), NotAContainer),
        (root.key("n").index(0).set(1), NotAContainer),
        (root.key("xs").index(3).set(1), IndexOutOfRange),
        (root.key("xs").key("length").set(1), KeyOnArray),
        (root.key("xs").key("0").remove(), KeyOnArray),
        (root.key("xs").index(0).remove(), NotRemovable),
        (root.key("xs").index(2).remove(), NotRemovable),
        (root.remove(), NotRemovable),
        (root.key("s").splice(0, 0, vec![good.clone()]), NotAnArray),
        (root.key("o").push(1), NotAnArray),
        (root.key("q").retain(|_, _| true), NotAnArray),
        (root.key("xs").splice(3, 0, vec![good.clone()]), IndexOutOfRange),
        (root.key("xs").splice(1, 2, vec![good.clone()]), IndexOutOfRange),
        (root.key("xs").reorder(&[0]), NotAPermutation),
        (root.key("xs").reorder(&[0, 0]), NotAPermutation),
        (root.key("n").append("x"), NotAString),
        (root.key("q").append("x"), NotAString),
        (root.key("xs").index(0).trim_utf16(1), NotAString),
        (root.key("s").trim_utf16(2), SplitPair),
        (root.key("s").set_serde(&f64::NAN), Value),
        (root.key("s").set(nested(DEPTH_MAX)), Depth),
        (root.key("xs").push(nested(DEPTH_MAX - 1)), Depth),
        (root.key("xs").splice(0, 1, vec![good, nested(DEPTH_MAX - 1)]), Depth),
        (root.set(nested(DEPTH_MAX + 1)), Depth),
    ];
    for (at, (result, kind)) in cases.into_iter().enumerate() {
        assert_eq!(result.map_err(|error| error.kind()), Err(kind), "case {at}");
    }
    let changed = root.key("xs").retain(|_, _| root.key("xs").index(0).set(2).is_err());
    assert_eq!(changed.unwrap_err().kind(), Changed);
    root.key("xs").index(0).set(1).unwrap();
    assert_eq!(root.get().unwrap(), json(base));
    assert!(change.prepare().ops.is_empty());
}

#[test]
fn depth_is_judged_by_what_is_there() {
    let mut tracker = Tracker::new(Json::object([("deep", nested(500))])).unwrap();
    let change = tracker.begin();
    let root = change.draft();
    // The bound of the root still remembers 500 levels; what is moved below is shallow.
    root.key("deep").set(1).unwrap();
    let shallow = root.get().unwrap();
    assert_eq!(root.key("inner").set(Json::array([shallow.clone()])), Ok(()));
    root.set((0..100).fold(shallow, |inner, _| Json::array([inner]))).unwrap();
    let prepared = change.prepare();
    tracker.adopt(prepared).unwrap();
    assert_eq!(Tracker::new(nested(DEPTH_MAX + 1)).unwrap_err().kind(), DraftErrorKind::Depth);
    assert_eq!(tracker.prepare_replace(nested(DEPTH_MAX + 1)).unwrap_err().kind(), DraftErrorKind::Depth);
    // Each operation is judged by its result, not by its payload.
    let ops = [Op::Set(vec![Segment::Index(0)], nested(DEPTH_MAX - 1))];
    let deepest = apply(Some(&json("[1]")), &ops).unwrap();
    assert_eq!(deepest.to_string().parse::<Json>().unwrap(), deepest);
    let error = apply(Some(&json("[1]")), &[Op::Set(vec![Segment::Index(0)], nested(DEPTH_MAX))]).unwrap_err();
    assert_eq!((error.kind(), error.index()), (OpErrorKind::Depth, 0));
    // What an operation put deep down counts when the result is placed elsewhere.
    let grown = apply(Some(&json("[[1]]")), &[Op::Set(vec![Segment::Index(0); 2], nested(DEPTH_MAX - 2))]).unwrap();
    assert!(apply(Some(&json("[1]")), &[Op::Set(vec![Segment::Index(0)], grown.clone())]).is_err());
    assert!(Tracker::new(Json::array([grown])).is_err());
    let path = vec![Segment::Index(0); DEPTH_MAX as usize - 1];
    assert!(apply(Some(&deepest), &[Op::Set([&path[..], &[Segment::Index(0)]].concat(), nested(1))]).is_err());
    assert!(apply(Some(&deepest), &[Op::Splice { path, index: 0, remove: 0, items: vec![Json::from(1)] }]).is_ok());
}

#[test]
fn drafts_of_items_end_with_them() {
    let tracker = track(r#"{"xs":[{"a":1},{"a":2},{"a":3}]}"#);
    let change = tracker.begin();
    let xs = change.draft().key("xs");
    let (first, last) = (xs.index(0).key("a"), xs.index(2).key("a"));
    xs.splice(0, 1, Vec::new()).unwrap();
    assert_eq!(first.set(9).unwrap_err().kind(), DraftErrorKind::ItemRemoved);
    assert_eq!(first.get(), None);
    last.set(30).unwrap();
    assert_eq!(xs.get().unwrap(), json(r#"[{"a":2},{"a":30}]"#));
    xs.set(json(r#"[{"a":7},{"a":8},{"a":9}]"#)).unwrap();
    assert_eq!(last.set(1).unwrap_err().kind(), DraftErrorKind::ItemRemoved);
    assert_eq!(xs.index(2).key("a").get(), Some(Json::from(9)));
    assert_eq!(last.set(1).unwrap_err().kind(), DraftErrorKind::ItemRemoved);
    // A key stays a place.
    assert_eq!(xs.index(1).key("a").get(), Some(Json::from(8)));
}

#[test]
fn an_index_without_an_item_is_a_position() {
    let tracker = track(r#"{"xs":[]}"#);
    let change = tracker.begin();
    let xs = change.draft().key("xs");
    let (position, below) = (xs.index(0), xs.index(0).key("a"));
    assert_eq!(below.set(1).unwrap_err().kind(), DraftErrorKind::MissingParent);
    position.set(json("{}")).unwrap();
    below.set(1).unwrap();
    xs.splice(0, 0, vec![json(r#"{"b":2}"#)]).unwrap();
    below.set(3).unwrap();
    assert_eq!(xs.get().unwrap(), json(r#"[{"b":2,"a":3},{"a":1}]"#));
    let new = change.draft().key("new");
    let early = new.index(0).index(0);
    new.set(json("[[]]")).unwrap();
    early.set("x").unwrap();
    assert_eq!(new.get().unwrap(), json(r#"[["x"]]"#));
    // The item that comes to stand at a position is one of the base: its edit is told by leaf.
    let change = track("[[],[\"base\"]]").begin();
    let early = change.draft().index(2).index(1);
    change.draft().splice(0, 0, vec![json("0")]).unwrap();
    early.set("x").unwrap();
    let prepared = change.prepare();
    assert_eq!(Json::from_serde(&prepared.ops).unwrap(), json(r#"[["p",[],0,0,[0]],["p",[2],1,0,["x"]]]"#));
    let change = tracker.begin();
    // In an object an index is a key.
    change.draft().index(7).set(1).unwrap();
    assert_eq!(change.draft().key("7").get(), Some(Json::from(1)));
}

#[test]
fn relative_operations_are_all_or_none() {
    let base = r#"{"slot":{"out":"a","xs":[1,2,3]}}"#;
    let change = track(base).begin();
    let slot = change.draft().key("slot");
    let ops = |text: &str| ops_from_json(&json(text)).unwrap();
    let error = slot.apply_relative(&ops(r#"[["a",["out"],"b"],["a",["xs"],"c"]]"#)).unwrap_err();
    assert_eq!(error.kind(), DraftErrorKind::Operation(OpErrorKind::Path));
    assert_eq!(change.draft().get().unwrap(), json(base));
    slot.apply_relative(&ops(r#"[["a",["out"],"b"],["p",["xs"],7,9,[4]],["d",["xs",0]],["s",["xs",3],5]]"#)).unwrap();
    slot.key("xs").apply_relative(&ops(r#"[["m",[],[3,2,1,0]]]"#)).unwrap();
    assert_eq!(slot.get().unwrap(), json(r#"{"out":"ab","xs":[5,4,3,2]}"#));
    let missing = change.draft().key("no").key("where");
    assert_eq!(missing.apply_relative(&ops(r#"[["r",1]]"#)).unwrap_err().kind(), DraftErrorKind::MissingParent);
    assert_eq!(missing.apply_relative(&ops(r#"[["s",["a"],1]]"#)).unwrap_err().kind(), DraftErrorKind::Operation(OpErrorKind::Path));
    change.draft().key("new").apply_relative(&ops(r#"[["r",{}],["s",["a"],1]]"#)).unwrap();
    let reserved = [Op::Set(vec!["__proto__".into()], Json::from(1))];
    assert_eq!(slot.apply_relative(&reserved).unwrap_err().kind(), DraftErrorKind::Operation(OpErrorKind::UnsafePath));
    let prepared = change.prepare();
    assert_eq!(
        Json::from_serde(&prepared.ops).unwrap().to_string(),
        r#"[["s",["new"],{"a":1}],["p",["slot","xs"],0,1,[]],["m",["slot","xs"],[1,0]],["p",["slot","xs"],0,0,[5,4]],["a",["slot","out"],"b"]]"#
    );
}

#[test]
fn adoption_needs_the_current_revision_of_the_same_tracker() {
    let mut tracker = track(r#"{"n":1}"#);
    let set = |tracker: &Tracker, value: i64| {
        let change = tracker.begin();
        change.draft().key("n").set(value).unwrap();
        change.prepare()
    };
    let (first, second) = (set(&tracker, 2), set(&tracker, 3));
    let other = set(&track(r#"{"n":1}"#), 2);
    assert_eq!(tracker.adopt(other).unwrap_err().kind(), AdoptErrorKind::OtherTracker);
    assert_eq!(tracker.value(), &json(r#"{"n":1}"#));
    let value = first.value.clone();
    tracker.adopt(first).unwrap();
    assert!(tracker.value().same_revision(&value));
    assert_eq!(tracker.revision(), 1);
    assert_eq!(tracker.adopt(second).unwrap_err().kind(), AdoptErrorKind::Stale);
    let mut foreign = set(&tracker, 4);
    foreign.base = json(r#"{"n":2}"#);
    assert_eq!(tracker.adopt(foreign).unwrap_err().kind(), AdoptErrorKind::Stale);
    // An empty batch counts as a revision.
    let empty = tracker.begin().prepare();
    assert!(empty.ops.is_empty());
    let waiting = set(&tracker, 5);
    tracker.adopt(empty).unwrap();
    assert_eq!(tracker.revision(), 2);
    assert_eq!(tracker.adopt(waiting).unwrap_err().kind(), AdoptErrorKind::Stale);
    let same = tracker.prepare_replace(json(r#"{"n":2}"#)).unwrap();
    assert!(same.ops.is_empty() && same.value.same_revision(tracker.value()));
    let replaced = tracker.prepare_replace(json("[]")).unwrap();
    assert_eq!(*replaced.ops, [Op::Replace(json("[]"))]);
    tracker.adopt(replaced).unwrap();
    assert_eq!(tracker.value(), &json("[]"));
}

#[test]
fn placed_values_are_copies_of_the_moment() {
    let change = track(r#"{"a":{"x":1}}"#).begin();
    let root = change.draft();
    let seen = root.key("a").get().unwrap();
    root.key("b").set(&seen).unwrap();
    root.key("a").key("x").set(2).unwrap();
    assert_eq!(seen, json(r#"{"x":1}"#));
    assert_eq!(root.get().unwrap(), json(r#"{"a":{"x":2},"b":{"x":1}}"#));
}

#[test]
fn an_untouched_sibling_is_shared_with_the_base() {
    let base = Json::object([("big", Json::array(0..1000)), ("text", Json::from("x".repeat(5000))), ("n", Json::from(1))]);
    let tracker = Tracker::new(base.clone()).unwrap();
    let change = tracker.begin();
    change.draft().key("n").set(2).unwrap();
    let value = change.prepare().value;
    for key in ["big", "text"] {
        assert!(value.get(key).unwrap().same_revision(base.get(key).unwrap()), "{key}");
    }
    assert!(!value.same_revision(&base));
}

/// Long arrays, objects and texts against plain ones, through operations only.
#[derive(Debug, Clone)]
enum Step {
    Splice(usize, usize, usize),
    SetItem(usize),
    SetKey(u16),
    RemoveKey(u16),
    Append(String),
    Trim(usize),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (any::<usize>(), 0_usize..150, 0_usize..150).prop_map(|(at, remove, insert)| Step::Splice(at, remove, insert)),
        2 => any::<usize>().prop_map(Step::SetItem),
        3 => (0_u16..200).prop_map(Step::SetKey),
        3 => (0_u16..200).prop_map(Step::RemoveKey),
        3 => "[aé日😀\n]{0,40}".prop_map(|text| Step::Append(text.repeat(30))),
        3 => any::<usize>().prop_map(Step::Trim),
    ]
}

/// Plain values that stand for a document with a long array, object and text.
#[derive(Default)]
struct Plain {
    items: Vec<i64>,
    keys: Vec<(String, i64)>,
    text: String,
}

impl Plain {
    /// Does a step, and gives the operation for it and whether it must be refused.
    fn step(&mut self, step: Step, tick: i64) -> (Op, bool) {
        let path = |name: &str| vec![Segment::from(name)];
        let op = match step {
            Step::Splice(at, remove, insert) => {
                let index = at % (self.items.len() + 1);
                let new: Vec<i64> = (0..insert).map(|n| tick * 1000 + i64::try_from(n).unwrap()).collect();
                self.items.splice(index..index + remove.min(self.items.len() - index), new.iter().copied());
                Op::Splice { path: path("xs"), index, remove, items: new.into_iter().map(Json::from).collect() }
            }
            Step::SetItem(at) => {
                let index = at % (self.items.len() + 1);
                if index == self.items.len() {
                    self.items.push(tick)
                } else {
                    self.items[index] = tick
                }
                Op::Set(vec!["xs".into(), Segment::Index(index)], Json::from(tick))
            }
            Step::SetKey(key) => {
                let key = key.to_string();
                match self.keys.iter_mut().find(|(own, _)| *own == key) {
                    Some((_, own)) => *own = tick,
                    None => self.keys.push((key.clone(), tick)),
                }
                Op::Set(vec!["o".into(), key.into()], Json::from(tick))
            }
            Step::RemoveKey(key) => {
                self.keys.retain(|(own, _)| *own != key.to_string());
                Op::Delete(vec!["o".into(), key.to_string().into()])
            }
            Step::Append(more) => {
                self.text.push_str(&more);
                Op::Append(path("t"), Arc::from(more))
            }
            Step::Trim(at) => {
                let units: Vec<u16> = self.text.encode_utf16().collect();
                let count = at % (units.len() + 2);
                let rest = String::from_utf16(&units[count.min(units.len())..]);
                let refused = rest.is_err();
                self.text = rest.unwrap_or_else(|_| std::mem::take(&mut self.text));
                return (Op::TrimUtf16(path("t"), count), refused);
            }
        };
        (op, false)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn long_forms_behave_like_plain_ones(steps in prop::collection::vec(any_step(), 1..60)) {
        let mut value = json(r#"{"xs":[],"o":{},"t":""}"#);
        let mut plain = Plain::default();
        for (tick, step) in (0_i64..).zip(steps) {
            let (op, refused) = plain.step(step, tick);
            let before = value.clone();
            match apply(Some(&value), &[op]) {
                Ok(next) => {
                    prop_assert!(!refused);
                    value = next;
                }
                Err(error) => prop_assert!(refused && error.kind() == OpErrorKind::SplitPair, "{}", error),
            }
            drop(before);
        }
        let Plain { items, keys, text } = plain;
        prop_assert_eq!(value.get("xs").unwrap(), &Json::array(items));
        let own: Vec<(String, i64)> = value.get("o").unwrap().as_object().unwrap().iter().map(|(key, value)| (key.to_owned(), value.as_i64().unwrap())).collect();
        prop_assert_eq!(own, keys);
        prop_assert_eq!(value.get("t").unwrap(), text.as_str());
        prop_assert_eq!(value.get("t").unwrap().as_text().unwrap().utf16_len(), text.encode_utf16().count());
        prop_assert_eq!(&value.to_string().parse::<Json>().unwrap(), &value);
    }
}
