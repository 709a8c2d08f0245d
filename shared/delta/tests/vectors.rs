//! The golden vectors made with Chord; see `tests/vectors/README.md` of the repository.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use picofleet_delta::{
    Change, DEFAULT_CANDIDATES, DEFAULT_PROBE, Draft, DraftError, Json, JsonErrorKind, Op, OpErrorKind, Path, Segment, Tracker, apply,
    ops_from_json, ops_to_json, overlap, wire,
};

/// Every record of a file; the directory may be replaced by `PICOFLEET_VECTORS`.
fn records(name: &str) -> Vec<Json> {
    let directory = std::env::var_os("PICOFLEET_VECTORS")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors"), PathBuf::from);
    let text = std::fs::read_to_string(directory.join(name)).unwrap();
    let records: Vec<Json> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert!(!records.is_empty(), "{name} is empty");
    records
}

fn field<'a>(record: &'a Json, name: &str) -> &'a Json {
    record.get(name).unwrap_or_else(|| panic!("{name} is missing in {record}"))
}

fn count(record: &Json, name: &str) -> usize {
    usize::try_from(field(record, name).as_u64().unwrap()).unwrap()
}

fn path(path: &Json) -> Path {
    path.to().unwrap()
}

/// Runs a mutation script through drafts, up to its first error.
fn run(change: &Change, script: &Json) -> Result<(), DraftError> {
    let root = change.draft();
    script.as_array().unwrap().iter().try_for_each(|step| {
        let target = step.get("path").map_or(root, |own| root.at(&path(own)));
        match &*field(step, "op").as_str().unwrap() {
            "set" => target.set(field(step, "value")),
            "replace" => root.set(field(step, "value")),
            "delete" => target.remove(),
            "append" => target.append(&field(step, "text").as_str().unwrap()),
            "splice" => splice(target, step),
            "reorder" => target.reorder(&field(step, "order").to::<Vec<usize>>().unwrap()),
            other => panic!("unknown step {other}"),
        }
    })
}

/// JavaScript cuts the range to the array; drafts refuse what is outside.
fn splice(target: Draft<'_>, step: &Json) -> Result<(), DraftError> {
    let len = target.get().and_then(|array| array.as_array().map(|array| array.len())).unwrap_or(0);
    let start = count(step, "start").min(len);
    target.splice(start, count(step, "del").min(len - start), field(step, "items").as_array().unwrap().iter().cloned().collect())
}

#[test]
fn mutations() {
    for record in records("chord-mutations.jsonl") {
        let id = field(&record, "id");
        let base = field(&record, "base");
        let value = field(&record, "value");
        for recorded in ["ops", "trackOps"] {
            if let Some(recorded) = record.get(recorded) {
                assert_eq!(&apply(Some(base), &ops_from_json(recorded).unwrap()).unwrap(), value, "{id} recorded");
            }
        }

        let mut tracker = Tracker::new(base.clone()).unwrap();
        let change = tracker.begin();
        run(&change, field(&record, "mutations")).unwrap_or_else(|error| panic!("{id}: {error}"));
        assert_eq!(change.draft().get().as_ref(), Some(value), "{id} draft");
        let prepared = change.prepare();
        assert_eq!(&prepared.value, value, "{id} value");
        let stored = ops_from_json(&ops_to_json(&prepared.ops).to_string().parse().unwrap()).unwrap();
        assert_eq!(stored, *prepared.ops, "{id} stored");
        let replayed = apply(Some(base), &stored).unwrap();
        assert_eq!(replayed.to_string(), prepared.value.to_string(), "{id} replay, key order included");
        let nothing = field(&record, "ops").as_array().unwrap().is_empty();
        assert!(!nothing || prepared.ops.is_empty(), "{id}: {:?}", prepared.ops);
        if prepared.ops.is_empty() {
            assert!(prepared.value.same_revision(tracker.value()), "{id}");
        }
        tracker.adopt(prepared).unwrap();
        assert_eq!((tracker.revision(), tracker.value()), (1, value), "{id}");
    }
}

#[test]
fn application() {
    for record in records("chord-apply.jsonl") {
        let ops = ops_from_json(field(&record, "ops")).unwrap();
        assert_eq!(&apply(record.get("base"), &ops).unwrap(), field(&record, "value"), "{}", field(&record, "id"));
    }
}

#[test]
fn invalid_batches() {
    for record in records("chord-invalid.jsonl") {
        let id = field(&record, "id");
        let base = record.get("base");
        let before = base.map(Json::to_string);
        // Malformed tuples are found while reading, the rest while applying.
        let kind = match ops_from_json(field(&record, "ops")) {
            Err(error) => error.kind(),
            Ok(ops) => apply(base, &ops).expect_err(&id.to_string()).kind(),
        };
        let name = match kind {
            OpErrorKind::Type => "TypeError",
            OpErrorKind::UnsafePath => "UnsafePathError",
            OpErrorKind::Path => "PathError",
            other => panic!("{id}: {other:?}"),
        };
        let recorded = [field(&record, "applyError"), field(&record, "applyImmutableError")];
        assert!(recorded.contains(&&Json::from(name)), "{id}: {name} is not in {recorded:?}");
        assert_eq!(base.map(Json::to_string), before, "{id}");
    }
}

/// The rule: a text with a lone surrogate cannot be represented, so whatever would make one is an error. The appended
/// part of a record is JSON text with escapes, as it would arrive from JavaScript.
#[test]
fn utf16() {
    for record in records("chord-utf16.jsonl") {
        let id = field(&record, "id");
        let units = |name: &str| field(&record, name).to::<Vec<u16>>().unwrap();
        let base = Json::array([Json::from(String::from_utf16(&units("baseUnits")).unwrap())]);
        let appended: String = units("appendUnits").iter().map(|unit| format!("\\u{unit:04x}")).collect();
        let trim = Op::TrimUtf16(vec![Segment::Index(0)], count(&record, "trim"));
        let parsed = Json::parse(format!("\"{appended}\"").as_bytes());
        let outcome = match &parsed {
            Ok(text) => apply(Some(&base), &[trim, Op::Append(vec![Segment::Index(0)], text.as_text().unwrap().to_arc())]).ok(),
            Err(error) => {
                assert_eq!(error.kind(), JsonErrorKind::Syntax, "{id}");
                None
            }
        };
        // Two halves of a pair may meet in JavaScript; here each half is refused on its own, which no emitter produces.
        let expected = String::from_utf16(&units("valueUnits")).ok().map(|text| Json::array([Json::from(text)]));
        assert_eq!(outcome.is_some(), field(&record, "wellFormed").as_bool().unwrap(), "{id}");
        assert_eq!(outcome, expected, "{id}");
    }
}

#[test]
fn overlaps() {
    for record in records("chord-overlap.jsonl") {
        let text = |name: &str| field(&record, name).as_str().unwrap().into_owned();
        let limit = |name: &str, default: usize| record.get(name).map_or(default, |_| count(&record, name));
        let found = overlap(
            &text("before"),
            &text("after"),
            count(&record, "scan"),
            limit("probe", DEFAULT_PROBE),
            limit("maxCandidates", DEFAULT_CANDIDATES),
        );
        assert_eq!(found, count(&record, "shared"), "{}", field(&record, "id"));
    }
}

#[test]
fn sharing() {
    for record in records("chord-sharing.jsonl") {
        let id = field(&record, "id");
        let base = field(&record, "base");
        let value = apply(Some(base), &ops_from_json(field(&record, "ops")).unwrap()).unwrap();
        assert_eq!(&value, field(&record, "value"), "{id}");
        for pair in field(&record, "shared").as_array().unwrap() {
            let ours = value.at(&path(field(pair, "value"))).unwrap();
            let theirs = base.at(&path(field(pair, "base"))).unwrap();
            assert!(ours.same_revision(theirs), "{id}: {pair}");
        }
    }
}

#[test]
fn wire_streams() {
    for record in records("chord-wire.jsonl") {
        let id = field(&record, "id");
        let (mut encoder, mut decoder, mut back) = (wire::Encoder::new(), wire::Decoder::new(), wire::Decoder::new());
        for batch in field(&record, "batches").as_array().unwrap() {
            let ops = ops_from_json(field(batch, "ops")).unwrap();
            assert_eq!(decoder.decode(field(batch, "wire")).unwrap(), ops, "{id}");
            let encoded = encoder.encode(&ops);
            assert_eq!(&encoded, field(batch, "wire"), "{id}");
            assert_eq!(back.decode(&encoded).unwrap(), ops, "{id}");
        }
    }
}

#[test]
fn invalid_wire_batches() {
    for record in records("chord-wire-invalid.jsonl") {
        let id = field(&record, "id");
        let error = wire::Decoder::new().decode(field(&record, "wire")).expect_err(&id.to_string());
        let name = match error.kind() {
            OpErrorKind::Type => "TypeError",
            OpErrorKind::UnsafePath => "UnsafePathError",
            OpErrorKind::Path => "PathError",
            other => panic!("{id}: {other:?}"),
        };
        assert_eq!(field(&record, "decodeError"), &Json::from(name), "{id}: {error}");
    }
}

#[test]
fn invalid_drafts() {
    for record in records("chord-draft-invalid.jsonl") {
        let id = field(&record, "id");
        let base = field(&record, "base");
        let tracker = Tracker::new(base.clone()).unwrap();
        let change = tracker.begin();
        let error = run(&change, field(&record, "mutations")).expect_err(&id.to_string());
        drop(change);
        assert_eq!(tracker.value(), base, "{id}: {error}");
    }
}
