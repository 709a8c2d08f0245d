//! What several test binaries share. It is `mod.rs` because cargo takes every file in `tests/` for a test of its own.
#![allow(dead_code, reason = "each test binary uses its part")]

use picofleet_delta::{Json, JsonRef};
use proptest::prelude::*;
use serde_json::{Map, Number, Value};

/// Keys that repeat, so that edits hit, plus some that are special to JavaScript.
pub(crate) fn any_key() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => prop::sample::select(&["a", "b", "c", "items", "text", "0", "10", ""][..]).prop_map(str::to_owned),
        1 => prop::sample::select(&["__proto__", "constructor", "toString", "length", "é", "😀"][..]).prop_map(str::to_owned),
        1 => "[a-z]{1,3}",
    ]
}

pub(crate) fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => "[ab😀é]{0,8}",
        2 => any::<String>(),
        1 => ("[ab😀é\n]{1,6}", 200_usize..600).prop_map(|(text, times)| text.repeat(times)),
    ]
}

fn any_number() -> impl Strategy<Value = Value> {
    let float = any::<f64>().prop_filter_map("finite", canonical_float);
    prop_oneof![
        4 => (-5_i64..5).prop_map(Value::from),
        1 => (-(1_i64 << 53) + 1..1 << 53).prop_map(Value::from),
        1 => float,
    ]
}

fn canonical_float(value: f64) -> Option<Value> {
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        #[expect(clippy::cast_possible_truncation, reason = "integral and in range")]
        return Some(Value::from(value as i64));
    }
    Number::from_f64(value).map(Value::Number)
}

pub(crate) fn any_scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        3 => any_number(),
        3 => any_text().prop_map(Value::from),
    ]
}

/// Small and large containers, so that both forms of each occur.
pub(crate) fn any_value() -> impl Strategy<Value = Value> {
    any_scalar().prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            4 => prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            4 => prop::collection::vec((any_key(), inner.clone()), 0..6)
                .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
            1 => (inner.clone(), 30_i64..90).prop_map(|(first, count)| std::iter::once(first).chain((1..count).map(Value::from)).collect()),
            1 => (inner, 30_i64..90).prop_map(|(first, count)| {
                let rest = (1..count).map(|n| (format!("k{n}"), Value::from(n)));
                Value::Object(std::iter::once(("first".to_owned(), first)).chain(rest).collect())
            }),
        ]
    })
}

/// The conversion written by hand, so that tests do not lean on the code under test.
pub(crate) fn from_value(value: &Value) -> Json {
    match value {
        Value::Null => Json::null(),
        Value::Bool(value) => Json::from(*value),
        Value::Number(number) => match number.as_i64() {
            Some(value) => Json::from(value),
            None => Json::try_from(number.as_f64().unwrap()).unwrap(),
        },
        Value::String(text) => Json::from(text.as_str()),
        Value::Array(items) => items.iter().map(from_value).collect(),
        Value::Object(entries) => Json::object(entries.iter().map(|(key, value)| (key.as_str(), from_value(value)))),
    }
}

pub(crate) fn to_value(json: &Json) -> Value {
    match json.as_ref() {
        JsonRef::Null => Value::Null,
        JsonRef::Bool(value) => Value::from(value),
        JsonRef::Int(value) => Value::from(value),
        JsonRef::Float(value) => Value::from(value),
        JsonRef::String(text) => Value::from(text.to_string()),
        JsonRef::Array(items) => items.iter().map(to_value).collect(),
        JsonRef::Object(entries) => Value::Object(entries.iter().map(|(key, value)| (key.to_owned(), to_value(value))).collect()),
    }
}
