//! Values: parse, write, compare and convert against `serde_json`, and against the rules that differ from it.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use picofleet_delta::{DEPTH_MAX, ENVELOPE_DEPTH, Json, JsonErrorKind, JsonRef, Op};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use common::{any_value, from_value, to_value};

fn parse(text: &str) -> Json {
    text.parse().unwrap()
}

proptest! {
    #[test]
    fn parse_and_write_agree_with_serde_json(value in any_value()) {
        let text = serde_json::to_string(&value).unwrap();
        let json = parse(&text);
        prop_assert_eq!(&to_value(&json), &value);
        // A double beyond 2^53 is written without an exponent, so `serde_json` reads it as an integer.
        prop_assert_eq!(&from_value(&serde_json::from_slice(&json.to_vec()).unwrap()), &json);
        prop_assert_eq!(&parse(&json.to_string()), &json);
        prop_assert_eq!(Json::from_serde(&value).unwrap().to_string(), json.to_string());
        prop_assert_eq!(&json.to::<Value>().unwrap(), &value);
        prop_assert_eq!(&serde_json::from_str::<Json>(&text).unwrap(), &json);
        prop_assert_eq!(&serde_json::to_value(&json).unwrap(), &value);
    }

    #[test]
    fn broken_texts_are_refused_when_serde_json_refuses_them(
        value in any_value(),
        at in any::<prop::sample::Index>(),
        byte in prop::sample::select(&b"{}[],:\"\\0-+.eEtfn u\x00\xff\xc3\xed"[..]),
        insert in any::<bool>(),
    ) {
        let mut text = serde_json::to_vec(&value).unwrap();
        let at = at.index(text.len());
        if insert { text.insert(at, byte) } else { text[at] = byte }
        let ours = Json::parse(&text);
        let theirs = serde_json::from_slice::<Value>(&text);
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?}: {:?} / {:?}", String::from_utf8_lossy(&text), ours, theirs);
        if let (Ok(ours), Ok(theirs)) = (ours, theirs) {
            prop_assert_eq!(ours, from_value(&theirs));
        }
    }

    #[test]
    fn equality_ignores_key_order(value in any_value()) {
        fn reversed(value: &Value) -> Json {
            match value {
                Value::Array(items) => items.iter().map(reversed).collect(),
                Value::Object(entries) => Json::object(entries.iter().rev().map(|(key, value)| (key.as_str(), reversed(value)))),
                other => from_value(other),
            }
        }
        prop_assert_eq!(reversed(&value), from_value(&value));
    }

    #[test]
    fn equality_sees_every_difference(a in any_value(), b in any_value()) {
        prop_assert_eq!(from_value(&a) == from_value(&b), a == b);
    }

    #[test]
    fn floats_are_written_so_that_they_come_back(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        match Json::try_from(value) {
            Ok(json) => prop_assert_eq!(parse(&json.to_string()).as_f64(), Some(value)),
            Err(error) => prop_assert!(!value.is_finite() && error.kind() == JsonErrorKind::Number),
        }
    }
}

#[test]
fn texts_that_must_be_refused() {
    for text in [
        "",
        " ",
        "nul",
        "nulls",
        "+1",
        "01",
        "-",
        "1.",
        ".5",
        "1e",
        "1e+",
        "0x1",
        "NaN",
        "Infinity",
        "'a'",
        "\"a",
        "\"\t\"",
        "\"\\x41\"",
        "\"\\u12\"",
        "\"\\ud800\"",
        "\"\\udc00\"",
        "\"\\ud800\\u0041\"",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\":1,}",
        "{\"a\"}",
        "{a:1}",
        "{1:1}",
        "{\"a\":1 \"b\":2}",
        "[1}",
        "{]",
        "[",
        "{",
        "1 2",
        "[] []",
        "// c\n1",
        "\u{feff}1",
        "\u{a0}1",
    ] {
        assert_eq!(Json::parse(text.as_bytes()).map_err(|error| error.kind()), Err(JsonErrorKind::Syntax), "{text:?}");
    }
    for bytes in [&b"\"\xff\""[..], b"\"\xc0\x80\"", b"\"\xed\xa0\x80\"", b"\"\xf4\x90\x80\x80\"", b"\xff", b"\"\xe2\x82\""] {
        assert_eq!(Json::parse(bytes).unwrap_err().kind(), JsonErrorKind::Syntax, "{bytes:?}");
    }
    let error = Json::parse(b"[1, 1e400]").unwrap_err();
    assert_eq!((error.kind(), error.offset()), (JsonErrorKind::Number, Some(4)));
    assert_eq!(Json::parse(b"[1, nope]").unwrap_err().offset(), Some(4));
}

#[test]
fn numbers_are_canonical() {
    for (text, written) in [
        ("1.0", "1"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("1e3", "1000"),
        ("9007199254740991", "9007199254740991"),
        ("9007199254740991.0", "9007199254740991"),
        ("9007199254740992", "9007199254740992"),
        ("9007199254740993", "9007199254740992"),
        ("123456789012345678901", "123456789012345680000"),
        ("1e21", "1e+21"),
        ("1e-7", "1e-7"),
        ("0.000001", "0.000001"),
        ("1e-400", "0"),
    ] {
        assert_eq!(parse(text).to_string(), written, "{text}");
    }
    assert!(matches!(parse("9007199254740991").as_ref(), JsonRef::Int(_)));
    assert!(matches!(parse("9007199254740992").as_ref(), JsonRef::Float(_)));
    assert_eq!(Json::from(u64::MAX).to_string(), "18446744073709552000");
    assert_eq!(Json::from(i64::MIN).to::<i64>().unwrap(), i64::MIN);
    assert_eq!(Json::from(1_u64 << 60).to::<u64>().unwrap(), 1 << 60);
    assert_eq!(Json::from_serde(&0.1_f32).unwrap().to_string(), "0.1");
    assert_eq!(Json::try_from(1.5).unwrap(), parse("1.5"));
    assert_ne!(parse("1"), parse("1.5"));
}

#[test]
fn escapes_are_those_of_ecmascript() {
    let text = "\u{0}\u{8}\t\n\u{b}\u{c}\r\u{1f}\"\\/\u{7f}\u{2028}😀";
    let written = Json::from(text).to_string();
    assert_eq!(written, "\"\\u0000\\b\\t\\n\\u000b\\f\\r\\u001f\\\"\\\\/\u{7f}\u{2028}😀\"");
    assert_eq!(parse(&written), text);
    assert_eq!(parse("\"\\ud83d\\ude00\\u00e9\\/\""), "😀é/");
}

#[test]
fn a_repeated_key_keeps_its_first_place_and_its_last_value() {
    assert_eq!(parse(r#"{"a":1,"b":2,"a":3}"#).to_string(), r#"{"a":3,"b":2}"#);
    let many: String = (0..100).map(|n| format!("\"k{n}\":{n},")).collect();
    let json = parse(&format!("{{{many}\"k5\":true}}"));
    assert_eq!(json.as_object().unwrap().keys().position(|key| key == "k5"), Some(5));
    assert_eq!(json.get("k5"), Some(&Json::from(true)));
}

#[test]
fn key_order_is_insertion_order_in_both_forms() {
    for count in [3, 32, 33, 1000] {
        let keys: Vec<String> = (0..count).map(|n| format!("{}", (n * 7919) % 100_003)).collect();
        let json = Json::object(keys.iter().map(|key| (key.as_str(), 1)));
        assert!(json.as_object().unwrap().keys().eq(keys.iter().map(String::as_str)));
    }
}

fn nested(depth: u32) -> Json {
    (0..depth).fold(Json::null(), |inner, level| if level % 2 == 0 { Json::array([inner]) } else { Json::object([("k", inner)]) })
}

#[test]
fn depth_is_limited_on_the_way_in() {
    let fits = nested(DEPTH_MAX);
    let text = fits.to_string();
    assert_eq!(parse(&text), fits);
    assert_eq!(Json::from_serde(&fits).unwrap(), fits);
    assert_eq!(Json::from_serde(&[nested(DEPTH_MAX - 1)]).unwrap(), Json::array([nested(DEPTH_MAX - 1)]));
    assert_eq!(Json::parse(format!("[{text}]").as_bytes()).unwrap_err().kind(), JsonErrorKind::Depth);
    assert_eq!(Json::from_serde(&[fits]).unwrap_err().kind(), JsonErrorKind::Depth);

    // A record around a value at the limit can be written and read, as an operation that holds one can.
    let record = [[nested(DEPTH_MAX)]];
    let envelope = Json::from_serde_envelope(&record).unwrap();
    assert_eq!(Json::parse_envelope(&envelope.to_vec()).unwrap(), envelope);
    assert_eq!(Json::from_serde_envelope(&nested(DEPTH_MAX + ENVELOPE_DEPTH + 1)).unwrap_err().kind(), JsonErrorKind::Depth);
    assert!(Json::parse_envelope(&nested(DEPTH_MAX + ENVELOPE_DEPTH + 1).to_vec()).is_err());
    let replace = Op::Replace(nested(DEPTH_MAX));
    assert_eq!(Op::from_json(&Json::parse_envelope(&replace.to_json().to_vec()).unwrap()).unwrap(), replace);
    let mut deserializer = serde_json::Deserializer::from_str(&text);
    deserializer.disable_recursion_limit();
    assert!(Json::deserialize(&mut deserializer).is_ok());

    #[derive(Serialize)]
    struct Link(Vec<Link>);
    let chain = |length| (1..length).fold(Link(Vec::new()), |inner, _| Link(vec![inner]));
    assert!(Json::from_serde(&chain(DEPTH_MAX)).is_ok());
    assert_eq!(Json::from_serde(&chain(DEPTH_MAX + 1)).unwrap_err().kind(), JsonErrorKind::Depth);
}

#[test]
fn deep_and_wide_values_need_little_stack() {
    let work = || {
        // Far deeper than the limit: constructors do not check it, so drop, write and compare must hold.
        let deep = nested(100_000);
        let again = nested(100_000);
        assert!(deep == again);
        assert_eq!(deep.to_vec().len(), again.to_string().len());
        assert!(Json::parse(&deep.to_vec()).is_err());
        let limit = nested(DEPTH_MAX);
        assert_eq!(Json::parse(&limit.to_vec()).unwrap(), limit);
        assert_eq!(limit.to::<Json>().unwrap(), limit);
        drop((deep, again));
        let wide = Json::array((0..200_000).map(|n| Json::array([Json::object([("n", n)])])));
        assert_eq!(Json::parse(&wide.to_vec()).unwrap(), wide);
    };
    std::thread::Builder::new().stack_size(96 * 1024).spawn(work).unwrap().join().unwrap();
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Holder {
    name: String,
    payload: Json,
    more: Vec<Json>,
    maybe: Option<Json>,
}

#[test]
fn a_json_field_is_handed_over_and_not_copied() {
    let payload = parse(r#"{"b":[1,2.5,{"c":null}],"a":"x"}"#);
    let holder = Holder { name: "n".into(), payload: payload.clone(), more: vec![payload.clone()], maybe: None };
    let json = Json::from_serde(&holder).unwrap();
    assert!(json.get("payload").unwrap().same_revision(&payload));
    assert!(json.get("more").unwrap().as_array().unwrap().get(0).unwrap().same_revision(&payload));
    let back: Holder = json.to().unwrap();
    assert!(back.payload.same_revision(&payload));
    assert_eq!(back, holder);
    // Other formats see plain JSON.
    let text = serde_json::to_string(&holder).unwrap();
    assert_eq!(text, json.to_string());
    assert_eq!(serde_json::from_str::<Holder>(&text).unwrap(), holder);
    // `null` in an optional field is the absence, as everywhere in serde.
    assert_eq!(parse(r#"{"name":"n","payload":null,"more":[],"maybe":null}"#).to::<Holder>().unwrap().maybe, None);
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
#[serde(tag = "type", rename_all = "camelCase")]
enum Tagged {
    Call { arguments: Json },
    Flat(Flat),
}

#[derive(Serialize, Deserialize, PartialEq, Debug)]
struct Flat {
    id: u32,
    #[serde(flatten)]
    rest: BTreeMap<String, Json>,
}

#[test]
fn buffering_serde_shapes_keep_the_value() {
    let arguments = parse(r#"{"z":1,"a":[1e21,0.5,9007199254740993],"n":null}"#);
    let call = Tagged::Call { arguments: arguments.clone() };
    let json = Json::from_serde(&call).unwrap();
    assert_eq!(json.to_string(), format!(r#"{{"type":"call","arguments":{arguments}}}"#));
    let Tagged::Call { arguments: back } = json.to().unwrap() else { panic!("{json}") };
    assert_eq!(back.to_string(), arguments.to_string());
    let flat = parse(r#"{"type":"flat","id":7,"x":{"y":[1]}}"#);
    let value: Tagged = flat.to().unwrap();
    assert_eq!(Json::from_serde(&value).unwrap(), flat);

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Deep {
        Json(#[expect(dead_code, reason = "only its depth matters")] Json),
    }
    assert!(Json::array([nested(600)]).to::<Deep>().is_err());
}

#[test]
fn shapes_map_as_in_serde_json() {
    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    enum Shape {
        Unit,
        One(i64),
        Two(i64, String),
        Named { a: Option<bool>, b: (u8, char) },
    }
    let shapes = vec![Shape::Unit, Shape::One(-5), Shape::Two(1, "x".into()), Shape::Named { a: None, b: (1, 'é') }];
    let json = Json::from_serde(&shapes).unwrap();
    assert_eq!(to_value(&json), serde_json::to_value(&shapes).unwrap());
    assert_eq!(json.to::<Vec<Shape>>().unwrap(), shapes);

    let keyed = BTreeMap::from([(-3_i32, 1.5_f64), (20, 2.0)]);
    let json = Json::from_serde(&keyed).unwrap();
    assert_eq!(json.to_string(), r#"{"-3":1.5,"20":2}"#);
    assert_eq!(json.to::<BTreeMap<i32, f64>>().unwrap(), keyed);
    let flags = BTreeMap::from([(true, 1)]);
    assert_eq!(Json::from_serde(&flags).unwrap().to::<BTreeMap<bool, i32>>().unwrap(), flags);
    assert_eq!(Json::from_serde(&BTreeMap::from([(vec![1], 1)])).unwrap_err().kind(), JsonErrorKind::Key);
    assert_eq!(Json::from_serde(&f64::NAN).unwrap_err().kind(), JsonErrorKind::Number);
    assert_eq!(Json::from_serde(&[f32::INFINITY]).unwrap_err().kind(), JsonErrorKind::Number);
    assert_eq!(parse("[1,2,3]").to::<(u8, u8)>().unwrap_err().kind(), JsonErrorKind::Data);
    assert_eq!(parse("1.5").to::<u8>().unwrap_err().kind(), JsonErrorKind::Data);
}

#[test]
fn long_texts_read_like_short_ones() {
    let text = "aé日😀\n".repeat(1000);
    let json = Json::from(text.as_str());
    assert!(json.as_text().unwrap().as_contiguous().is_none());
    assert_eq!(json, text.as_str());
    assert_eq!(json.as_str().unwrap(), text);
    assert_eq!(json.as_text().unwrap().utf16_len(), text.encode_utf16().count());
    assert_eq!(json.to::<String>().unwrap(), text);
    assert_eq!(parse(&json.to_string()), json);
    assert_eq!(serde_json::to_string(&json).unwrap(), json.to_string());
    assert_ne!(json, Json::from(format!("{text}x")));
}
