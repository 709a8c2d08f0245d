//! Parsing against `serde_json`: the same texts are accepted, with the same values, and values survive being written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use picofleet_delta::{Json, JsonErrorKind, JsonRef};
use serde::Deserialize as _;
use serde_json::Value;

fn theirs(text: &[u8]) -> Option<Value> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    deserializer.disable_recursion_limit();
    let value = Value::deserialize(&mut deserializer).ok()?;
    deserializer.end().ok().map(|()| value)
}

fn same(ours: &Json, theirs: &Value) -> bool {
    match (ours.as_ref(), theirs) {
        (JsonRef::Null, Value::Null) => true,
        (JsonRef::Bool(ours), Value::Bool(theirs)) => ours == *theirs,
        (JsonRef::Int(_) | JsonRef::Float(_), Value::Number(theirs)) => ours.as_f64() == theirs.as_f64(),
        (JsonRef::String(ours), Value::String(theirs)) => ours == theirs.as_str(),
        (JsonRef::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        (JsonRef::Object(ours), Value::Object(theirs)) => {
            ours.len() == theirs.len() && ours.iter().all(|(key, ours)| theirs.get(key).is_some_and(|theirs| same(ours, theirs)))
        }
        _ => false,
    }
}

fuzz_target!(|text: &[u8]| {
    let theirs = theirs(text);
    match Json::parse(text) {
        Ok(ours) => {
            let theirs = theirs.expect("accepted what serde_json refuses");
            assert!(same(&ours, &theirs), "{ours} is not {theirs}");
            let written = ours.to_vec();
            let again = Json::parse(&written).expect("refused what was written");
            assert!(again == ours);
            assert!(again.to_vec() == written);
            assert!(Json::from_serde(&theirs).is_ok_and(|converted| converted == ours));
        }
        Err(error) if error.kind() == JsonErrorKind::Depth => {}
        Err(error) => assert!(theirs.is_none(), "{error}"),
    }
});
