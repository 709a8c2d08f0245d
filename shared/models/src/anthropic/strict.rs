//! What the API refuses of a schema for strict sampling, beyond what [`crate::strict`] does.

use picofleet_delta::Json;

use crate::js;

/// Members that no node may have.
const REFUSED: [&str; 11] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "maxItems",
    "uniqueItems",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
];

/// The formats of texts that the API takes.
const FORMATS: [&str; 10] = ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// Why the API refuses a member of a node, if it does.
pub(super) fn refuses(key: &str, value: &Json) -> Option<String> {
    let is_refused = match key {
        "minItems" => !matches!(value.as_i64(), Some(0 | 1)),
        "format" => !value.as_str().is_some_and(|format| FORMATS.contains(&&*format)),
        _ => REFUSED.contains(&key),
    };
    is_refused.then(|| format!("{key}: {} is unsupported", js::stringify(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strict::strict_schema;

    fn json(text: &str) -> Json {
        text.parse().unwrap()
    }

    #[test]
    fn what_the_api_does_not_take_is_refused_wherever_it_stands() {
        for (property, reason) in [
            (r#"{"type":"integer","minimum":1}"#, "minimum: 1 is unsupported"),
            (r#"{"type":"string","format":"regex"}"#, "format: \"regex\" is unsupported"),
            (r#"{"type":"array","minItems":2}"#, "minItems: 2 is unsupported"),
            (r#"{"type":"array","items":{"type":"array","uniqueItems":true}}"#, "uniqueItems: true is unsupported"),
        ] {
            let schema = json(&format!(r#"{{"type":"object","properties":{{"a":{property}}}}}"#));
            assert_eq!(strict_schema(&schema, refuses).unwrap_err(), reason, "{schema}");
        }
    }

    #[test]
    fn what_the_api_takes_stays() {
        let schema = r#"{"type":"object","properties":{"a":{"type":"array","minItems":1,"items":{"type":"string","format":"uuid"}}},
            "required":["a"],"additionalProperties":false}"#;
        assert_eq!(strict_schema(&json(schema), refuses).unwrap(), json(schema));
    }
}
