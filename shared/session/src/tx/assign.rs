//! Brings a draft to a whole new value by what differs.

use picofleet_delta::{Draft, DraftError, Json};

/// Writes the differences between the draft's value and `new`: keys one by one, texts as appended or trimmed where they are, and arrays
/// so that kept elements are not written again.
pub(super) fn assign(root: Draft<'_>, new: Json) -> Result<(), DraftError> {
    // A stack and no recursion: values nest 512 deep.
    let mut open = vec![(root, root.get(), new)];
    while let Some((place, old, new)) = open.pop() {
        let Some(old) = old else {
            place.set(new)?;
            continue;
        };
        if old.same_revision(&new) {
            continue;
        }
        if let (Some(before), Some(after)) = (old.as_object(), new.as_object()) {
            for (key, _) in before.iter().filter(|(key, _)| after.get(key).is_none()) {
                place.key(key).remove()?;
            }
            open.extend(after.iter().map(|(key, value)| (place.key(key), before.get(key).cloned(), value.clone())));
        } else if old.as_array().is_some() && new.as_array().is_some() {
            open.extend(assign_array(place, &old, &new)?);
        } else if old != new {
            place.set(new)?;
        }
    }
    Ok(())
}

type Place<'t> = (Draft<'t>, Option<Json>, Json);

/// Writes what differs between two arrays; elements at the same place are left to the caller.
fn assign_array<'t>(place: Draft<'t>, old: &Json, new: &Json) -> Result<Vec<Place<'t>>, DraftError> {
    let items = |json: &Json| -> Vec<Json> { json.as_array().into_iter().flat_map(|array| array.iter().cloned()).collect() };
    let (old, new) = (items(old), items(new));
    let prefix = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let suffix = old[prefix..].iter().rev().zip(new[prefix..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (before, after) = (&old[prefix..old.len() - suffix], &new[prefix..new.len() - suffix]);
    if before.len() == after.len() {
        let places = before.iter().zip(after).enumerate();
        return Ok(places.map(|(i, (a, b))| (place.index(prefix + i), Some(a.clone()), b.clone())).collect());
    }
    match kept(before, after) {
        Some(kept) => place.retain(|index, _| index < prefix || index >= prefix + kept.len() || kept[index - prefix])?,
        None => place.splice(prefix, before.len(), after.to_vec())?,
    }
    Ok(Vec::new())
}

/// Which elements stay, where `after` is `before` without some of them.
fn kept(before: &[Json], after: &[Json]) -> Option<Vec<bool>> {
    let mut wanted = after.iter().peekable();
    let kept = before.iter().map(|item| wanted.next_if(|next| *next == item).is_some()).collect();
    wanted.peek().is_none().then_some(kept)
}

#[cfg(test)]
mod tests {
    use picofleet_delta::{Op, Tracker, apply};

    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text.as_bytes()).unwrap()
    }

    /// The operations of an assignment, checked to lead to the value.
    fn ops(old: &str, new: &str) -> Vec<Op> {
        let tracker = Tracker::new(json(old)).unwrap();
        let change = tracker.begin();
        assign(change.draft(), json(new)).unwrap();
        let prepared = change.prepare();
        assert_eq!(apply(Some(&json(old)), &prepared.ops).unwrap(), json(new));
        prepared.ops.to_vec()
    }

    #[test]
    fn only_what_differs_is_written() {
        assert_eq!(ops(r#"{"a":{"b":1,"c":[1,2]},"d":"x"}"#, r#"{"d":"x","a":{"c":[1,2],"b":1}}"#), []);
        assert_eq!(
            picofleet_delta::ops_to_json(&ops(r#"{"a":"long text"}"#, r#"{"a":"long text, longer"}"#)).to_string(),
            r#"[["a",["a"],", longer"]]"#
        );
        assert_eq!(ops(r#"{"a":1,"b":2}"#, r#"{"b":3,"c":{}}"#).len(), 3);
    }

    #[test]
    fn scattered_removals_do_not_write_kept_elements_again() {
        let ops = ops(r#"{"items":["a","b","c","d","e","f"]}"#, r#"{"items":["a","c","e","f"]}"#);
        assert!(ops.iter().all(|op| matches!(op, Op::Splice { items, .. } if items.is_empty())), "{ops:?}");
    }

    #[test]
    fn arrays_grow_shrink_and_change_in_place() {
        assert_eq!(ops(r#"{"i":[1,2]}"#, r#"{"i":[1,2,3]}"#).len(), 1);
        assert_eq!(ops(r#"{"i":[{"x":1},{"x":2}]}"#, r#"{"i":[{"x":1},{"x":3}]}"#).len(), 1);
        ops(r#"{"i":[1,2,3]}"#, r#"{"i":[3,9,1,2]}"#);
        ops(r#"{"i":[1,2,3]}"#, r#"{"i":[]}"#);
        ops(r#"{"i":[1]}"#, r#"{"i":{"0":1}}"#);
    }
}
