//! Random edits through drafts against a naive model: a plain `serde_json` value that is changed in place.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use picofleet_delta::{Draft, Json, Op, Segment, Tracker, apply, ops_from_json, ops_to_json, wire};
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::Value;

use common::{any_key, any_text, any_value, from_value, to_value};

#[derive(Debug, Clone)]
enum Action {
    Set(Value),
    SetKey(String, Value),
    SetItem(usize, Value),
    Remove,
    Push(Value),
    Splice(Index, Index, Vec<Value>),
    SpliceOutside(usize),
    Retain(u64),
    Reorder(u64),
    Append(String),
    Trim(Index),
    /// Edits of a separate change over the same place, brought in as relative operations.
    Relative(Vec<Edit>),
}

#[derive(Debug, Clone)]
struct Edit {
    place: Index,
    action: Action,
}

fn any_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => any_value().prop_map(Action::Set),
        3 => (any_key(), any_value()).prop_map(|(key, value)| Action::SetKey(key, value)),
        2 => (0_usize..4, any_value()).prop_map(|(index, value)| Action::SetItem(index, value)),
        3 => Just(Action::Remove),
        2 => any_value().prop_map(Action::Push),
        4 => (any::<Index>(), any::<Index>(), prop::collection::vec(any_value(), 0..3)).prop_map(|(at, remove, items)| Action::Splice(at, remove, items)),
        1 => (0_usize..200).prop_map(Action::SpliceOutside),
        2 => any::<u64>().prop_map(Action::Retain),
        2 => any::<u64>().prop_map(Action::Reorder),
        4 => any_text().prop_map(Action::Append),
        4 => any::<Index>().prop_map(Action::Trim),
    ]
}

fn any_edits(most: usize) -> impl Strategy<Value = Vec<Edit>> {
    let flat = || (any::<Index>(), any_action()).prop_map(|(place, action)| Edit { place, action });
    let nested = prop::collection::vec(flat(), 1..4);
    let relative = (any::<Index>(), nested).prop_map(|(place, edits)| Edit { place, action: Action::Relative(edits) });
    prop::collection::vec(prop_oneof![8 => flat(), 1 => relative], 0..most)
}

/// Paths of everything in the value, the root included.
fn places(value: &Value) -> Vec<Vec<Segment>> {
    let mut found = vec![Vec::new()];
    let mut at = 0;
    while at < found.len() {
        let path = found[at].clone();
        match look(value, &path) {
            Some(Value::Array(items)) => found.extend((0..items.len()).map(|index| extended(&path, Segment::Index(index)))),
            Some(Value::Object(entries)) => found.extend(entries.keys().map(|key| extended(&path, Segment::from(key.as_str())))),
            _ => {}
        }
        at += 1;
    }
    found
}

fn extended(path: &[Segment], segment: Segment) -> Vec<Segment> {
    path.iter().cloned().chain([segment]).collect()
}

fn look<'a>(value: &'a Value, path: &[Segment]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Key(key) => value.get(&**key),
        Segment::Index(index) => value.get(*index),
    })
}

fn look_mut<'a>(value: &'a mut Value, path: &[Segment]) -> Option<&'a mut Value> {
    path.iter().try_fold(value, |value, segment| match segment {
        Segment::Key(key) => value.get_mut(&**key),
        Segment::Index(index) => value.get_mut(*index),
    })
}

fn shuffled(len: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by_key(|index| (*index as u64 + 1).wrapping_mul(seed | 1) >> 7);
    order
}

fn kept(index: usize, seed: u64) -> bool {
    seed >> (index % 64) & 1 == 1
}

/// The model's edit; `None` when it must be refused.
fn edit_model(model: &mut Value, path: &[Segment], action: &Action) -> Option<()> {
    if let Action::Remove = action {
        let (last, parent) = path.split_last()?;
        let (Value::Object(entries), Segment::Key(key)) = (look_mut(model, parent)?, last) else { return None };
        entries.remove(&**key);
        return Some(());
    }
    match (action, look_mut(model, path)?) {
        (Action::Set(value), slot) => *slot = value.clone(),
        (Action::SetKey(key, value), Value::Object(entries)) => drop(entries.insert(key.clone(), value.clone())),
        (Action::SetItem(index, value), Value::Array(items)) if *index < items.len() => items[*index] = value.clone(),
        (Action::SetItem(index, value), Value::Array(items)) if *index == items.len() => items.push(value.clone()),
        (Action::SetItem(index, value), Value::Object(entries)) => drop(entries.insert(index.to_string(), value.clone())),
        (Action::Push(value), Value::Array(items)) => items.push(value.clone()),
        (Action::Splice(at, remove, insert), Value::Array(items)) => {
            let (at, remove) = range(items.len(), at, remove);
            items.splice(at..at + remove, insert.iter().cloned());
        }
        (Action::Retain(seed), Value::Array(items)) => {
            let mut index = 0..;
            items.retain(|_| kept(index.next().unwrap(), *seed));
        }
        (Action::Reorder(seed), Value::Array(items)) => {
            *items = shuffled(items.len(), *seed).into_iter().map(|from| items[from].clone()).collect()
        }
        (Action::Append(text), Value::String(own)) => own.push_str(text),
        (Action::Trim(units), Value::String(own)) => {
            let all: Vec<u16> = own.encode_utf16().collect();
            *own = String::from_utf16(&all[units.index(all.len() + 1)..]).ok()?;
        }
        (Action::Relative(edits), slot) => {
            for edit in edits {
                let path = pick(slot, edit.place);
                let mut next = slot.clone();
                if edit_model(&mut next, &path, &edit.action).is_some() {
                    *slot = next;
                }
            }
        }
        _ => return None,
    }
    Some(())
}

fn range(len: usize, at: &Index, remove: &Index) -> (usize, usize) {
    let at = at.index(len + 1);
    (at, remove.index(len - at + 1).min(5))
}

fn pick(value: &Value, place: Index) -> Vec<Segment> {
    let places = places(value);
    places[place.index(places.len())].clone()
}

fn edit_draft(model: &Value, place: Draft<'_>, path: &[Segment], action: &Action) -> bool {
    let here = look(model, path).unwrap();
    let len = here.as_array().map_or(0, Vec::len);
    match action {
        Action::Set(value) => place.set(from_value(value)),
        Action::SetKey(key, value) => place.key(key).set(from_value(value)),
        Action::SetItem(index, value) => place.index(*index).set(from_value(value)),
        Action::Remove => place.remove(),
        Action::Push(value) => place.push(from_value(value)),
        Action::Splice(at, remove, items) => {
            let (at, remove) = range(len, at, remove);
            place.splice(at, remove, items.iter().map(from_value).collect())
        }
        Action::SpliceOutside(more) => place.splice(len, 1 + more, Vec::new()),
        Action::Retain(seed) => place.retain(|index, item| {
            assert_eq!(to_value(item), here[index]);
            kept(index, *seed)
        }),
        Action::Reorder(seed) => place.reorder(&shuffled(len, *seed)),
        Action::Append(text) => place.append(text),
        Action::Trim(units) => {
            let all = here.as_str().map_or(0, |text| text.encode_utf16().count());
            place.trim_utf16(units.index(all + 1))
        }
        Action::Relative(edits) => {
            let tracker = Tracker::new(from_value(here)).unwrap();
            let change = tracker.begin();
            let mut inner = here.clone();
            for edit in edits {
                run_edit(&mut inner, change.draft(), edit);
            }
            place.apply_relative(&change.prepare().ops)
        }
    }
    .is_ok()
}

fn run_edit(model: &mut Value, root: Draft<'_>, edit: &Edit) {
    let path = pick(model, edit.place);
    let mut next = model.clone();
    let allowed = edit_model(&mut next, &path, &edit.action).is_some();
    let done = edit_draft(model, root.at(&path), &path, &edit.action);
    assert_eq!(done, allowed, "{:?} at {path:?} of {model}", edit.action);
    if allowed {
        *model = next;
    }
    assert_eq!(root.get().as_ref().map(to_value).as_ref(), Some(&*model), "{:?} at {path:?}", edit.action);
}

/// An edit that the operations of a batch can be checked for, apart from their result.
fn check_ops(base: &Json, ops: &[Op], value: &Json) {
    let stored = ops_from_json(&ops_to_json(ops).to_string().parse().unwrap()).unwrap();
    assert_eq!(stored, ops);
    let replayed = apply(Some(base), &stored).unwrap();
    assert_eq!(&replayed, value);
    assert_eq!(replayed.to_string(), value.to_string());
    assert!(ops.iter().skip(1).all(|op| !matches!(op, Op::Replace(_))), "{ops:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn drafts_do_what_the_model_does(base in any_value(), edits in any_edits(10)) {
        let start = from_value(&base);
        let untouched = start.to_string();
        let mut tracker = Tracker::new(start.clone()).unwrap();
        let change = tracker.begin();
        let mut model = base.clone();
        for edit in &edits {
            run_edit(&mut model, change.draft(), edit);
        }
        let order = change.draft().get().unwrap().to_string();
        let prepared = change.prepare();
        prop_assert_eq!(&to_value(&prepared.value), &model);
        check_ops(&start, &prepared.ops, &prepared.value);
        prop_assert_eq!(start.to_string(), untouched);
        let removes = |edit: &Edit| matches!(edit.action, Action::Remove | Action::Relative(_));
        if !prepared.ops.is_empty() && !edits.iter().any(removes) && !edits.iter().any(|edit| matches!(edit.action, Action::Set(_) | Action::SetKey(..) | Action::SetItem(..))) {
            // A removed key that comes back, and an equal container, keep the old key order; nothing else does.
            prop_assert_eq!(prepared.value.to_string(), order);
        }
        if prepared.ops.is_empty() {
            prop_assert!(prepared.value.same_revision(&start));
        }
        tracker.adopt(prepared).unwrap();
    }

    #[test]
    fn removals_and_moves_send_no_item(base in prop::collection::vec(any_value(), 1..80), seeds in prop::collection::vec(any::<u64>(), 1..4)) {
        let start = Json::array(base.iter().map(from_value));
        let tracker = Tracker::new(start.clone()).unwrap();
        let change = tracker.begin();
        for (at, seed) in seeds.iter().enumerate() {
            let array = change.draft();
            if at % 2 == 0 {
                array.retain(|index, _| kept(index, *seed)).unwrap();
            } else {
                let len = array.get().unwrap().as_array().unwrap().len();
                array.reorder(&shuffled(len, *seed)).unwrap();
            }
        }
        let prepared = change.prepare();
        for op in &*prepared.ops {
            prop_assert!(matches!(op, Op::Splice { items, .. } if items.is_empty()) || matches!(op, Op::Move(..)), "{:?}", op);
        }
        let mut last = usize::MAX;
        for op in &*prepared.ops {
            if let Op::Splice { index, remove, .. } = op {
                prop_assert!(index + remove <= last);
                last = *index;
            }
        }
        check_ops(&start, &prepared.ops, &prepared.value);
    }

    #[test]
    fn streams_survive_the_wire(base in any_value(), changes in prop::collection::vec(any_edits(5), 1..6)) {
        let mut tracker = Tracker::new(from_value(&base)).unwrap();
        let (mut encoder, mut decoder) = (wire::Encoder::new(), wire::Decoder::new());
        let mut model = base;
        let mut follower = tracker.value().clone();
        for edits in changes {
            let change = tracker.begin();
            for edit in &edits {
                run_edit(&mut model, change.draft(), edit);
            }
            let prepared = change.prepare();
            let sent: Json = encoder.encode(&prepared.ops).to_string().parse().unwrap();
            let received = decoder.decode(&sent).unwrap();
            prop_assert_eq!(&*received, &*prepared.ops);
            if !received.is_empty() {
                follower = apply(Some(&follower), &received).unwrap();
            }
            tracker.adopt(prepared).unwrap();
            prop_assert_eq!(&follower, tracker.value());
        }
    }

    #[test]
    fn held_drafts_follow_their_items(
        start in 1_usize..40,
        steps in prop::collection::vec((any::<Index>(), 0_usize..4, 0_usize..3, any::<u64>(), 0_u8..3), 1..12),
    ) {
        let item = |id: usize| Json::build_object().with("id", id).with("log", "").build();
        let tracker = Tracker::new(Json::object([("items", Json::array((0..start).map(item)))])).unwrap();
        let change = tracker.begin();
        let array = change.draft().key("items");
        let mut next = start;
        let mut ids: Vec<usize> = (0..start).collect();
        let mut held: Vec<(usize, Draft<'_>)> = (0..start).map(|index| (index, array.index(index))).collect();
        for (at, remove, insert, seed, kind) in steps {
            match kind {
                0 => {
                    let order = shuffled(ids.len(), seed);
                    array.reorder(&order).unwrap();
                    ids = order.into_iter().map(|from| ids[from]).collect();
                }
                1 => {
                    array.retain(|index, _| index % 5 != 2).unwrap();
                    let mut index = 0..;
                    ids.retain(|_| index.next().unwrap() % 5 != 2);
                }
                _ => {
                    let at = at.index(ids.len() + 1);
                    let remove = remove.min(ids.len() - at);
                    array.splice(at, remove, (next..next + insert).map(item).collect()).unwrap();
                    ids.splice(at..at + remove, next..next + insert);
                    held.extend((0..insert).map(|offset| (next + offset, array.index(at + offset))));
                    next += insert;
                }
            }
            for (id, draft) in &held {
                let alive = ids.contains(id);
                prop_assert_eq!(draft.key("id").get(), alive.then(|| Json::from(*id)));
                prop_assert_eq!(draft.key("log").append(&format!("{id},")).is_ok(), alive);
            }
        }
        let value = change.prepare().value;
        let now: Vec<usize> = value.get("items").unwrap().as_array().unwrap().iter().map(|item| item.get("id").unwrap().to().unwrap()).collect();
        prop_assert_eq!(&now, &ids);
        for item in value.get("items").unwrap().as_array().unwrap() {
            let id = item.get("id").unwrap().to_string();
            prop_assert!(item.get("log").unwrap().as_str().unwrap().split_terminator(',').all(|logged| logged == id), "{item}");
        }
    }
}
