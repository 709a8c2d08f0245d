//! What the API refuses of a schema for strict sampling, beyond what [`crate::strict`] does.

use picofleet_delta::Json;

use crate::js;
use crate::strict::strict_schema_for;

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

/// The strict form of a tool's schema.
///
/// # Errors
///
/// The schema says what the strict form cannot; the text is the reason.
pub(super) fn strict_schema(schema: &Json) -> Result<Json, String> {
    strict_schema_for(schema, refused)
}

fn refused(key: &str, value: &Json) -> Option<String> {
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

    fn json(text: &str) -> Json {
        text.parse().unwrap()
    }

    #[test]
    fn every_property_becomes_required_and_optional_ones_nullable() {
        let schema = json(
            r#"{"type":"object","properties":{"a":{"type":"string"},"b":{"type":["integer","null"]},
            "c":{"type":"array","items":{"type":"object","properties":{"d":{"enum":[1,2]}}}}},"required":["a"]}"#,
        );
        let expected = json(
            r#"{"type":"object","properties":{"a":{"type":"string"},"b":{"type":["integer","null"]},
            "c":{"anyOf":[{"type":"array","items":{"type":"object","properties":{"d":{"anyOf":[{"enum":[1,2]},{"type":"null"}]}},
            "required":["d"],"additionalProperties":false}},{"type":"null"}]}},"required":["a","b","c"],"additionalProperties":false}"#,
        );
        assert_eq!(strict_schema(&schema).unwrap(), expected);
    }

    #[test]
    fn what_has_no_strict_form_is_refused() {
        for (schema, reason) in [
            (r#"{"type":"string"}"#, "root schema must have type object"),
            ("true", "root schema must have type object"),
            (r#"{"type":"object","properties":{"a":true}}"#, "boolean schemas are unsupported"),
            (r##"{"type":"object","properties":{"a":{"$ref":"#"}}}"##, "$ref schemas are unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"integer","minimum":1}}}"#, "minimum: 1 is unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"string","format":"regex"}}}"#, "format: \"regex\" is unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"array","minItems":2}}}"#, "minItems: 2 is unsupported"),
            (r#"{"type":"object","properties":{"a":{}}}"#, "schemas without a type are unsupported"),
            (r#"{"type":"object","properties":{"a":{"anyOf":[]}}}"#, "anyOf must contain at least one schema"),
            (r#"{"type":"object","properties":{"a":{"anyOf":[{"type":"array"}]}}}"#, "object and array unions are unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"array","items":[]}}}"#, "tuple schemas are unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"string","properties":{}}}}"#, "properties require type object"),
            (r#"{"type":"object","additionalProperties":true}"#, "schema-valued or true additionalProperties is unsupported"),
            (r#"{"type":"object","properties":[]}"#, "object properties must be a schema map"),
            (r#"{"type":"object","required":"a"}"#, "object required must be a string array"),
            (r#"{"type":"object","required":["a"]}"#, "required contains an unknown property"),
        ] {
            assert_eq!(strict_schema(&json(schema)).unwrap_err(), reason, "{schema}");
        }
    }
}
