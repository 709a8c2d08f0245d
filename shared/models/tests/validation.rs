//! Schemas that cannot be checked to the end, or only with much work: the outcome is a problem in words, never an acceptance.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use picofleet_delta::Json;
use picofleet_models::validate::{ToolArgumentsError, validate_tool_arguments};
use picofleet_session::message::{ToolCall, ToolDeclaration};

/// What is said of the arguments, if anything.
fn problems(schema: &str, arguments: Json) -> Vec<String> {
    let tool: Json = format!(r#"{{"name":"t","description":"","parameters":{schema}}}"#).parse().unwrap();
    let tool: ToolDeclaration = tool.to().unwrap();
    let call = ToolCall { id: "c".into(), name: "t".into(), arguments, thought_signature: None, namespace: None, arguments_error: None };
    match validate_tool_arguments(&tool, &call) {
        Ok(_) => Vec::new(),
        Err(ToolArgumentsError::Mismatch { problems, .. }) => {
            problems.into_iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
        }
        Err(error) => panic!("{error}"),
    }
}

fn checked(schema: &str, arguments: &str) -> Vec<String> {
    problems(schema, arguments.parse().unwrap())
}

#[test]
fn patterns_that_look_around_are_checked() {
    let schema = r#"{"properties":{"a":{"pattern":"^(?!.*\\.\\.)[a-z.]+$"}}}"#;
    assert_eq!(checked(schema, r#"{"a":"a.b"}"#), [""; 0]);
    assert_eq!(checked(schema, r#"{"a":"a..b"}"#), [r"a: expected to match ^(?!.*\.\.)[a-z.]+$"]);
    let schema = r#"{"properties":{"a":{"pattern":"^(['`])[a-z]+\\1$"}}}"#;
    assert_eq!(checked(schema, r#"{"a":"'a'"}"#), [""; 0]);
    assert_eq!(checked(schema, r#"{"a":"'a`"}"#), [r"a: expected to match ^(['`])[a-z]+\1$"]);

    let schema = r#"{"patternProperties":{"^(?!x_)":{"type":"number"}},"additionalProperties":false}"#;
    assert_eq!(checked(schema, r#"{"a":1}"#), [""; 0]);
    assert_eq!(checked(schema, r#"{"x_a":1}"#), ["x_a: unknown field"]);
    // The schema of the pattern converts, too.
    assert_eq!(checked(schema, r#"{"a":"1"}"#), [""; 0]);
    assert_eq!(checked(schema, r#"{"a":"b"}"#), ["a: expected number, got string"]);
}

const UNKNOWN: &str = "cannot be checked against the pattern (: it is no regular expression that can be checked";

#[test]
fn a_pattern_that_no_engine_knows_is_a_problem() {
    assert_eq!(checked(r#"{"properties":{"a":{"pattern":"("}}}"#, r#"{"a":"x"}"#), [format!("a: {UNKNOWN}")]);
    // Where nothing is to be matched, there is no problem.
    assert_eq!(checked(r#"{"properties":{"a":{"pattern":"("}}}"#, r#"{"a":1}"#), [""; 0]);
    let by_name = r#"{"patternProperties":{"(":{"type":"number"}},"additionalProperties":false}"#;
    assert_eq!(checked(by_name, r#"{"a":true}"#), [format!("a: {UNKNOWN}")]);
    assert_eq!(checked(by_name, "{}"), [""; 0]);
    assert_eq!(checked(r#"{"propertyNames":{"pattern":"("}}"#, r#"{"a":1}"#), [format!("a: {UNKNOWN}")]);
}

/// Where a schema must not match, or chooses another one, "cannot be checked" must not turn into "does not match".
#[test]
fn what_cannot_be_checked_is_accepted_nowhere() {
    for (schema, path) in [
        (r#"{"not":{"pattern":"("}}"#, "a"),
        (r#"{"not":{"not":{"pattern":"("}}}"#, "a"),
        (r#"{"not":{"anyOf":[{"pattern":"("},{"type":"number"}]}}"#, "a"),
        (r#"{"not":{"allOf":[{"pattern":"("},{"type":"string"}]}}"#, "a"),
        (r#"{"if":{"pattern":"("},"then":false}"#, "a"),
        (r#"{"if":{"pattern":"("},"else":false}"#, "a"),
        (r#"{"oneOf":[{"pattern":"("},{"type":"string"}]}"#, "a"),
        (r#"{"anyOf":[{"pattern":"("},{"type":"number"}]}"#, "a"),
        (r##"{"not":{"$ref":"#/properties/a"}}"##, "a"),
    ] {
        let found = checked(&format!(r#"{{"properties":{{"a":{schema}}}}}"#), r#"{"a":"x"}"#);
        assert_eq!(found.len(), 1, "{schema}: {found:?}");
        assert!(found[0].starts_with(&format!("{path}: cannot be checked")) || found[0].contains("nests too deeply"), "{found:?}");
    }
    for schema in [
        r#"{"properties":{"a":{"not":{"contains":{"pattern":"("}}}}}"#,
        r#"{"properties":{"a":{"contains":{"pattern":"("},"maxContains":1}}}"#,
        r#"{"properties":{"a":{"not":{"prefixItems":[{"pattern":"("}]}}}}"#,
        r#"{"properties":{"a":{"prefixItems":[{}],"unevaluatedItems":{"pattern":"("}}}}"#,
        r#"{"not":{"patternProperties":{"(":true}}}"#,
        r#"{"not":{"propertyNames":{"pattern":"("}}}"#,
        r#"{"not":{"unevaluatedProperties":false,"anyOf":[{"properties":{"a":{"contains":{"pattern":"("}}}}]}}"#,
    ] {
        let found = checked(schema, r#"{"a":["x","y"]}"#);
        assert!(!found.is_empty() && found.iter().all(|problem| problem.ends_with(UNKNOWN)), "{schema}: {found:?}");
    }
    // What is decided without it stays so.
    for schema in [
        r#"{"properties":{"a":{"not":{"pattern":"(","type":"number"}}}}"#,
        r#"{"properties":{"a":{"not":{"pattern":"(","maxLength":0}}}}"#,
        r#"{"properties":{"a":{"anyOf":[{"pattern":"("},{"const":"x"}]}}}"#,
        r#"{"properties":{"a":{"if":{"pattern":"(","maxLength":0},"then":false}}}"#,
    ] {
        assert_eq!(checked(schema, r#"{"a":"x"}"#), [""; 0], "{schema}");
    }
    let enough = r#"{"properties":{"a":{"contains":{"anyOf":[{"pattern":"("},{"const":1}]},"maxContains":3}}}"#;
    assert_eq!(checked(enough, r#"{"a":["x","y",1]}"#), [""; 0]);
    let too_many = r#"{"properties":{"a":{"contains":{"anyOf":[{"pattern":"("},{"const":1}]},"maxContains":1}}}"#;
    assert_eq!(checked(too_many, r#"{"a":["x",1,1]}"#), ["a: expected between 1 and 1 matching items"]);
}

/// A place beyond the limits is no match of `not` either.
#[test]
fn limits_accept_nothing() {
    let deep = format!(r#"{{"not":{}{{"type":"string"}}{}}}"#, r#"{"allOf":["#.repeat(60), "]}".repeat(60));
    assert_eq!(checked(&deep, "{}"), [""; 0]);
    let deeper = format!(r#"{{"not":{}{{"type":"string"}}{}}}"#, r#"{"allOf":["#.repeat(100), "]}".repeat(100));
    assert_eq!(checked(&deeper, "{}"), ["root: nests too deeply or is too large to be checked"]);
}

#[test]
fn hostile_patterns_end() {
    let many = |count: usize, pattern: &str, text: &str| {
        let schema = Json::build_object().with("items", Json::build_object().with("pattern", pattern)).build();
        let schema = Json::build_object().with("properties", Json::build_object().with("a", schema)).build();
        let texts: Vec<Json> = (0..count).map(|_| Json::from(text)).collect();
        problems(&schema.to_string(), Json::build_object().with("a", Json::array(texts)).build())
    };
    // Each text alone is below the limits, all of them are not.
    let found = many(260, "(?=b)c", &"a".repeat(2_000));
    assert_eq!(found.last().unwrap(), "a.259: nests too deeply or is too large to be checked");
    assert_eq!(found[0], "a.0: expected to match (?=b)c");
    // One that goes back too often does so once.
    let found = many(9, r"(.*)\1x", &"a".repeat(8_000));
    assert!(found.iter().all(|problem| problem.ends_with("it tries too many ways to match this text")), "{:?}", found[0]);
    let found = many(9, "(?=b)", &"a".repeat(8_193));
    assert!(found.iter().all(|problem| problem.contains("for which a text of more than 8192 bytes is too long")), "{:?}", found[0]);
    // The usual engine pays for long texts, too. This pattern matches each of them.
    let found = many(12, "^a", &"a".repeat(100_000));
    assert_eq!(found.last().unwrap(), "a.11: nests too deeply or is too large to be checked");
    // The price is that of the slowest way to match, so a large pattern takes little text.
    let found = many(1, "(?:[ab]?){3000}c", &"ab".repeat(4_000));
    assert_eq!(found, ["a.0: nests too deeply or is too large to be checked"]);
}
