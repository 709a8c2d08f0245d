//! Batches on bases: `apply` and drafts agree, nothing breaks a base, and every result is a valid value.
//!
//! An input is the JSON text `[base, ops]`, or else bytes that choose small values and operations.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use picofleet_delta::{Json, Op, Path, Segment, Tracker, apply, ops_from_json, ops_to_json};

const KEYS: [&str; 8] = ["a", "b", "xs", "text", "0", "1", "", "__proto__"];

fn value(u: &mut Unstructured<'_>, depth: u32) -> Result<Json> {
    Ok(match u.int_in_range(0..=if depth == 0 { 5 } else { 9 })? {
        0 => Json::null(),
        1 => Json::from(u.arbitrary::<bool>()?),
        2 => Json::from(u.arbitrary::<i16>()?),
        3 => Json::try_from(u.arbitrary::<f64>()?).unwrap_or_default(),
        4 => Json::from(text(u)?.repeat(u.int_in_range(0..=300)?)),
        5 => Json::from(text(u)?),
        6 | 7 => (0..u.int_in_range(0..=4)?).map(|_| value(u, depth - 1)).collect::<Result<Json>>()?,
        8 => (0..u.int_in_range(30..=70)?).map(|n: i32| Ok(Json::from(n))).collect::<Result<Json>>()?,
        _ => {
            let entries: Result<Vec<_>> = (0..u.int_in_range(0..=4)?).map(|_| Ok((*u.choose(&KEYS)?, value(u, depth - 1)?))).collect();
            Json::object(entries?)
        }
    })
}

fn text(u: &mut Unstructured<'_>) -> Result<String> {
    (0..u.int_in_range(0..=5)?).map(|_| u.choose(&['a', 'b', 'é', '日', '😀', '\n']).copied()).collect()
}

/// Mostly a path that exists.
fn path(u: &mut Unstructured<'_>, value: &Json) -> Result<Path> {
    let mut path = Vec::new();
    let mut at = value;
    while u.ratio(3, 4)? {
        let segment = match (at.as_array(), at.as_object()) {
            (Some(array), _) => Segment::Index(u.int_in_range(0..=array.len())?),
            (_, Some(object)) if !object.is_empty() && u.ratio(7, 8)? => {
                let key = u.int_in_range(0..=object.len() - 1)?;
                object.keys().nth(key).unwrap_or_default().into()
            }
            (_, Some(_)) => (*u.choose(&KEYS)?).into(),
            _ => break,
        };
        path.push(segment);
        match value.at(&path) {
            Some(next) => at = next,
            None => break,
        }
    }
    if u.ratio(1, 16)? {
        path.push(if u.arbitrary()? { Segment::Index(u.int_in_range(0..=3)?) } else { (*u.choose(&KEYS)?).into() });
    }
    Ok(path)
}

fn op(u: &mut Unstructured<'_>, current: &Json) -> Result<Op> {
    let path = path(u, current)?;
    let len = current.at(&path).and_then(Json::as_array).map_or(2, |array| array.len());
    Ok(match u.int_in_range(0..=9)? {
        0 => Op::Replace(value(u, 3)?),
        1 | 2 => Op::Set(path, value(u, 2)?),
        3 => Op::Delete(path),
        4 => Op::Append(path, Arc::from(text(u)?)),
        5 => Op::TrimUtf16(path, u.int_in_range(0..=9)?),
        6..=8 => Op::Splice {
            path,
            index: u.int_in_range(0..=len + 1)?,
            remove: u.int_in_range(0..=len + 1)?,
            items: (0..u.int_in_range(0..=3)?).map(|_| value(u, 2)).collect::<Result<_>>()?,
        },
        _ => {
            let mut order: Vec<usize> = (0..len).collect();
            for at in 1..len {
                order.swap(at, u.int_in_range(0..=at)?);
            }
            Op::Move(path, order)
        }
    })
}

fn case(data: &[u8]) -> Option<(Json, Vec<Op>)> {
    if let Ok(json) = Json::parse(data) {
        let pair = json.as_array()?;
        return Some((pair.get(0)?.clone(), ops_from_json(pair.get(1)?).ok()?));
    }
    let mut u = Unstructured::new(data);
    let base = value(&mut u, 4).ok()?;
    let mut current = base.clone();
    let mut ops = Vec::new();
    while !u.is_empty() && ops.len() < 40 {
        let Ok(op) = op(&mut u, &current) else { break };
        // Batches that fail in the middle are worth some of the inputs, not most.
        match apply(Some(&current), std::slice::from_ref(&op)) {
            Ok(next) => current = next,
            Err(_) if u.ratio(9, 10).unwrap_or(true) => continue,
            Err(_) => {}
        }
        ops.push(op);
    }
    Some((base, ops))
}

fuzz_target!(|data: &[u8]| {
    let Some((base, ops)) = case(data) else { return };
    let before = base.to_string();
    let encoded = Json::parse_envelope(&ops_to_json(&ops).to_vec());
    if let Ok(encoded) = encoded {
        // A reserved segment or an empty path is refused while reading.
        if let Ok(read) = ops_from_json(&encoded) {
            assert!(read == ops);
        }
    }
    let applied = apply(Some(&base), &ops);

    let mut tracker = Tracker::new(base.clone()).expect("a parsed base is shallow enough");
    let change = tracker.begin();
    let drafted = change.draft().apply_relative(&ops);
    assert_eq!(drafted.is_ok(), applied.is_ok(), "{drafted:?} {applied:?}");
    if let Ok(value) = &applied {
        let written = value.to_vec();
        assert!(Json::parse(&written).expect("a result can be read back") == *value);
        assert!(change.draft().get().as_ref() == Some(value));
    }
    let prepared = change.prepare();
    if applied.is_err() {
        assert!(prepared.ops.is_empty());
    }
    if let Ok(value) = &applied {
        assert!(&prepared.value == value);
    }
    let followed = apply(Some(&base), &prepared.ops).expect("prepared operations apply");
    assert!(followed == prepared.value);
    assert!(followed.to_string() == prepared.value.to_string());
    tracker.adopt(prepared).expect("nothing was adopted meanwhile");
    assert!(base.to_string() == before);
});
