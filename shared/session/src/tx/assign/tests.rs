use picofleet_delta::{Op, Tracker, apply, ops_to_json};
use proptest::prelude::*;

use super::*;

fn json(text: &str) -> Json {
    Json::parse(text.as_bytes()).unwrap()
}

/// The operations of an assignment and its result, which everybody who applies them gets too, key order included.
fn assigned(old: &Json, new: &Json) -> (Vec<Op>, Json) {
    let tracker = Tracker::new(old.clone()).unwrap();
    let change = tracker.begin();
    assign(change.draft(), new.clone()).unwrap();
    let current = change.draft().get().unwrap();
    let prepared = change.prepare();
    assert_eq!(prepared.value, *new);
    assert_eq!(current.to_string(), prepared.value.to_string());
    assert_eq!(apply(Some(old), &prepared.ops).unwrap().to_string(), prepared.value.to_string());
    (prepared.ops.to_vec(), prepared.value)
}

fn ops(old: &str, new: &str) -> Vec<Op> {
    assigned(&json(old), &json(new)).0
}

/// The operations as text; the result has the keys in this order.
fn text(old: &str, new: &str) -> String {
    let (ops, value) = assigned(&json(old), &json(new));
    assert_eq!(value.to_string(), new);
    ops_to_json(&ops).to_string()
}

#[test]
fn only_what_differs_is_written() {
    assert_eq!(ops(r#"{"a":{"b":1,"c":[1,2]},"d":"x"}"#, r#"{"d":"x","a":{"c":[1,2],"b":1}}"#), []);
    assert_eq!(text(r#"{"a":"long text"}"#, r#"{"a":"long text, longer"}"#), r#"[["a",["a"],", longer"]]"#);
    assert_eq!(ops(r#"{"a":1,"b":2}"#, r#"{"b":3,"c":{}}"#).len(), 3);
}

#[test]
fn new_keys_come_in_their_order() {
    assert_eq!(text(r#"{}"#, r#"{"x":1,"y":2,"z":3}"#), r#"[["s",["x"],1],["s",["y"],2],["s",["z"],3]]"#);
    text(r#"{"a":1,"deep":{"k":0}}"#, r#"{"a":1,"deep":{"k":0,"z":{"b":1,"a":2},"m":1},"y":[],"x":"x"}"#);
    text(r#"{"items":[{"a":1},{"b":1}]}"#, r#"{"items":[{"a":1,"z":1,"y":2},{"b":1,"y":2,"x":3,"a":4}]}"#);
    text(r#"{"gone":1,"kept":1}"#, r#"{"kept":2,"z":1,"gone2":1,"a":1}"#);
}

#[test]
fn scattered_removals_do_not_write_kept_elements_again() {
    let ops = ops(r#"{"items":["a","b","c","d","e","f"]}"#, r#"{"items":["a","c","e","f"]}"#);
    assert!(ops.iter().all(|op| matches!(op, Op::Splice { items, .. } if items.is_empty())), "{ops:?}");
}

#[test]
fn arrays_grow_shrink_and_change_in_place() {
    assert_eq!(ops(r#"{"i":[1,2]}"#, r#"{"i":[1,2,3]}"#).len(), 1);
    assert_eq!(text(r#"{"i":[{"x":1},{"x":2}]}"#, r#"{"i":[{"x":1},{"x":3}]}"#), r#"[["s",["i",1,"x"],3]]"#);
    assert_eq!(
        text(r#"{"i":[{"n":"a"},9,{"n":"b"}]}"#, r#"{"i":[{"n":"ax"},9,{"n":"by"}]}"#),
        r#"[["a",["i",2,"n"],"y"],["a",["i",0,"n"],"x"]]"#
    );
    text(r#"{"i":[1,2,3]}"#, r#"{"i":[3,9,1,2]}"#);
    text(r#"{"i":[1,2,3]}"#, r#"{"i":[]}"#);
    text(r#"{"i":[1]}"#, r#"{"i":{"0":1}}"#);
}

#[test]
fn a_rolling_queue_writes_its_ends() {
    assert_eq!(text(r#"{"q":["a","b","c"]}"#, r#"{"q":["b","c","d"]}"#), r#"[["p",["q"],0,1,[]],["p",["q"],2,0,["d"]]]"#);
    assert_eq!(
        text(r#"{"q":[{"id":1},{"id":2},{"id":3}]}"#, r#"{"q":[{"id":2},{"id":3},{"id":4}]}"#),
        r#"[["p",["q"],0,1,[]],["p",["q"],2,0,[{"id":4}]]]"#
    );
    // Whatever its length.
    let queue = |range: std::ops::Range<i64>| Json::object([("q", Json::array(range))]);
    let (ops, _) = assigned(&queue(0..20_000), &queue(3..20_002));
    assert_eq!(ops_to_json(&ops).to_string(), r#"[["p",["q"],0,3,[]],["p",["q"],19997,0,[20000,20001]]]"#);
}

#[test]
fn removals_and_additions_that_meet_leave_the_rest() {
    assert_eq!(text(r#"{"i":["X",2,3]}"#, r#"{"i":[2,"X",3,4]}"#), r#"[["p",["i"],0,1,[]],["p",["i"],1,0,["X"]],["p",["i"],3,0,[4]]]"#);
    assert_eq!(text(r#"{"i":[1,2,1,3]}"#, r#"{"i":[2,1,3,4]}"#), r#"[["p",["i"],0,1,[]],["p",["i"],3,0,[4]]]"#);
    // Between two that stay, as many come as go: they change where they are. Elsewhere the numbers differ.
    assert_eq!(
        text(r#"{"i":[{"n":1},"-",{"n":2},"-",7]}"#, r#"{"i":[{"n":3},"-",8,9,"-",7]}"#),
        r#"[["p",["i"],2,1,[]],["p",["i"],2,0,[8,9]],["s",["i",0,"n"],3]]"#
    );
}

/// S117: an inbox only grows at its end and shrinks anywhere.
#[test]
fn s117_what_stays_in_an_inbox_is_never_written_again() {
    let item = |id: i64| Json::object([("id", Json::from(id)), ("text", Json::from("an input that is long enough to matter"))]);
    let inbox = |ids: &[i64]| Json::object([("items", Json::array(ids.iter().map(|id| item(*id))))]);
    let (enqueued, _) = assigned(&inbox(&[1, 2]), &inbox(&[1, 2, 3]));
    assert!(matches!(&enqueued[..], [Op::Splice { index: 2, remove: 0, items, .. }] if *items == [item(3)]), "{enqueued:?}");
    for rest in [&[][..], &[1], &[2], &[1, 3], &[2, 4, 5], &[1, 2, 3, 4]] {
        let (removed, _) = assigned(&inbox(&[1, 2, 3, 4, 5]), &inbox(rest));
        assert!(removed.iter().all(|op| matches!(op, Op::Splice { items, .. } if items.is_empty())), "{removed:?}");
    }
    // Both at once.
    let (both, _) = assigned(&inbox(&[1, 2, 3]), &inbox(&[2, 3, 4]));
    let sent: Vec<_> =
        both.iter().flat_map(|op| if let Op::Splice { items, .. } = op { items.clone() } else { panic!("{op:?}") }).collect();
    assert_eq!(sent, [item(4)]);
}

#[test]
fn beyond_the_bound_removals_and_additions_alone_are_found() {
    let list = |numbers: &mut dyn Iterator<Item = i64>| Json::object([("i", Json::array(numbers))]);
    let (all, even) = (list(&mut (0..2_000)), list(&mut (0..1_000).map(|n| 2 * n)));
    let (removed, _) = assigned(&all, &even);
    assert!(removed.iter().all(|op| matches!(op, Op::Splice { items, .. } if items.is_empty())));
    let (added, _) = assigned(&even, &all);
    assert!(
        added
            .iter()
            .all(|op| matches!(op, Op::Splice { remove: 0, items, .. } if items.iter().all(|item| item.as_i64().unwrap() % 2 == 1)))
    );
    // Nothing is alike: still the right value.
    assigned(&all, &list(&mut (5_000..6_000)));
    assigned(&all, &list(&mut (5_000..7_000)));
}

/// What a longest common subsequence has, by its definition.
fn longest(before: &[i64], after: &[i64]) -> usize {
    let mut row = vec![0; after.len() + 1];
    for a in before {
        let mut corner = 0;
        for (j, b) in after.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if a == b { corner + 1 } else { above.max(row[j]) };
            corner = above;
        }
    }
    row[after.len()]
}

fn any_json() -> impl Strategy<Value = Json> {
    let key = || prop::sample::select(&["a", "b", "c", "d", "e", "f"][..]);
    let scalar = prop_oneof![
        Just(Json::null()),
        any::<bool>().prop_map(Json::from),
        (0_i64..3).prop_map(Json::from),
        (-1.0_f64..1.0).prop_map(|float| Json::try_from(float).unwrap()),
        "[ab]{0,4}".prop_map(Json::from),
    ];
    scalar.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..7).prop_map(Json::array),
            prop::collection::vec((key(), inner), 0..6).prop_map(Json::object),
        ]
    })
}

fn any_object() -> impl Strategy<Value = Json> {
    let key = prop::sample::select(&["a", "b", "c", "d", "e", "f", "g"][..]);
    prop::collection::vec((key, any_json()), 0..7).prop_map(Json::object)
}

/// Checks the order of keys of every object that stands outside of arrays: what was there before, then what is new.
fn check_order(old: Option<&Json>, new: &Json, result: &Json) {
    let (Some(after), Some(found)) = (new.as_object(), result.as_object()) else { return };
    let before = old.and_then(Json::as_object);
    let stayed: Vec<_> = before.iter().flat_map(|before| before.keys()).filter(|key| after.contains_key(key)).collect();
    let came = after.keys().filter(|key| !stayed.contains(key));
    assert_eq!(found.keys().collect::<Vec<_>>(), stayed.iter().copied().chain(came).collect::<Vec<_>>());
    for (key, value) in after.iter() {
        check_order(before.and_then(|before| before.get(key)), value, found.get(key).unwrap());
    }
}

proptest! {
    #[test]
    fn the_result_is_the_new_value(old in any_object(), new in any_object()) {
        let (_, result) = assigned(&old, &new);
        check_order(Some(&old), &new, &result);
    }

    #[test]
    fn no_kept_element_of_an_array_is_written(
        before in prop::collection::vec(0_i64..6, 0..20),
        after in prop::collection::vec(0_i64..6, 0..20),
    ) {
        let list = |numbers: &[i64]| Json::array(numbers.iter().copied());
        let (old, new): (Vec<_>, Vec<_>) = (before.iter().map(|n| Json::from(*n)).collect(), after.iter().map(|n| Json::from(*n)).collect());
        let Alignment { changed, removed, added } = align(&old, &new);
        let written = changed.len() + added.iter().map(|(start, end)| end - start).sum::<usize>();
        prop_assert_eq!(after.len() - written, longest(&before, &after));
        prop_assert_eq!(before.len() - changed.len() - removed.iter().filter(|removed| **removed).count(), longest(&before, &after));
        assigned(&Json::object([("i", list(&before))]), &Json::object([("i", list(&after))]));
    }
}
