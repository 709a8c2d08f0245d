//! The part of JSON Schema that strict sampling takes.
//!
//! A schema is made strict by a copy in which every property of every object is required; those that were optional may be
//! `null`. What cannot be said in that form is refused.

use picofleet_delta::Json;

/// A schema cannot be sampled strictly.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct StrictError(String);

impl StrictError {
    /// The server takes no strict tools at all.
    pub(super) fn unsupported() -> Self {
        Self("strict tools are unsupported".to_owned())
    }
}

/// What no node may have.
const UNSUPPORTED: [&str; 16] = [
    "$ref",
    "$defs",
    "definitions",
    "allOf",
    "oneOf",
    "patternProperties",
    "dependentSchemas",
    "dependencies",
    "unevaluatedProperties",
    "propertyNames",
    "contains",
    "prefixItems",
    "not",
    "if",
    "then",
    "else",
];

/// What the API refuses beyond that.
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

/// The strict form of a tool's schema. Depth is bounded by that of a [`Json`].
///
/// # Errors
///
/// The schema says what the strict form cannot.
pub(super) fn strict_schema(schema: &Json) -> Result<Json, StrictError> {
    let root = || refuse("root schema must have type object");
    if schema.as_object().is_none() {
        return Err(root());
    }
    let strict = strict_node(schema)?;
    if is_object_type(&strict) { Ok(strict) } else { Err(root()) }
}

fn refuse(reason: impl Into<String>) -> StrictError {
    StrictError(reason.into())
}

fn is_object_type(schema: &Json) -> bool {
    schema.get("type").is_some_and(|kind| *kind == "object")
}

fn strict_node(schema: &Json) -> Result<Json, StrictError> {
    let Some(node) = schema.as_object() else { return Err(refuse("boolean schemas are unsupported")) };
    if let Some(key) = UNSUPPORTED.into_iter().find(|key| node.get(key).is_some()) {
        return Err(refuse(format!("{key} schemas are unsupported")));
    }
    if let Some((key, value)) = node.iter().find(|(key, value)| is_refused(key, value)) {
        return Err(refuse(format!("{key}: {} is unsupported", crate::js::stringify(value))));
    }
    if !["type", "anyOf", "enum"].into_iter().any(|key| node.get(key).is_some()) {
        return Err(refuse("schemas without a type are unsupported"));
    }
    let mut changed = Vec::new();
    if let Some(variants) = node.get("anyOf") {
        changed.push(("anyOf", strict_variants(variants)?));
    }
    if let Some(items) = node.get("items") {
        if items.as_array().is_some() {
            return Err(refuse("tuple schemas are unsupported"));
        }
        changed.push(("items", strict_node(items)?));
    }
    if is_object_type(schema) {
        changed.extend(strict_object(schema)?);
    } else if node.get("properties").is_some() {
        return Err(refuse("properties require type object"));
    }
    // A key that comes again keeps its place and takes the later value.
    Ok(Json::object(node.iter().map(|(key, value)| (key, value.clone())).chain(changed)))
}

fn strict_variants(variants: &Json) -> Result<Json, StrictError> {
    let Some(variants) = variants.as_array().filter(|variants| !variants.is_empty()) else {
        return Err(refuse("anyOf must contain at least one schema"));
    };
    let strict = variants
        .iter()
        .map(|variant| if is_structured(variant) { Err(refuse("object and array unions are unsupported")) } else { strict_node(variant) });
    strict.collect()
}

/// The members of a strict object that differ from the schema's own.
fn strict_object(schema: &Json) -> Result<Vec<(&'static str, Json)>, StrictError> {
    if schema.get("additionalProperties").is_some_and(|value| value.as_bool() != Some(false)) {
        return Err(refuse("schema-valued or true additionalProperties is unsupported"));
    }
    let nothing = Json::build_object().build();
    let Some(properties) = schema.get("properties").unwrap_or(&nothing).as_object() else {
        return Err(refuse("object properties must be a schema map"));
    };
    let required = required_names(schema)?;
    if required.iter().any(|name| properties.get(name).is_none()) {
        return Err(refuse("required contains an unknown property"));
    }
    let mut strict = Vec::new();
    let properties = crate::js::entries(properties);
    let names = Json::array(properties.iter().map(|(name, _)| *name));
    for (name, property) in properties {
        let mut property = strict_node(property)?;
        if !required.iter().any(|own| own == name) && !allows_null(&property) {
            let null = Json::build_object().with("type", "null").build();
            property = Json::build_object().with("anyOf", [property, null]).build();
        }
        strict.push((name, property));
    }
    let mut members = vec![("required", names), ("additionalProperties", Json::from(false))];
    if schema.get("properties").is_some() {
        members.push(("properties", Json::object(strict)));
    }
    Ok(members)
}

fn required_names(schema: &Json) -> Result<Vec<String>, StrictError> {
    let Some(required) = schema.get("required") else { return Ok(Vec::new()) };
    let names = required.as_array().and_then(|names| names.iter().map(|name| name.as_str().map(String::from)).collect());
    names.ok_or_else(|| refuse("object required must be a string array"))
}

fn is_refused(key: &str, value: &Json) -> bool {
    match key {
        "minItems" => !matches!(value.as_i64(), Some(0 | 1)),
        "format" => !value.as_str().is_some_and(|format| FORMATS.contains(&&*format)),
        _ => REFUSED.contains(&key),
    }
}

fn types(schema: &Json) -> Vec<String> {
    let Some(kind) = schema.get("type") else { return Vec::new() };
    let text = |kind: &Json| kind.as_str().map(String::from);
    match kind.as_array() {
        Some(kinds) => kinds.iter().filter_map(text).collect(),
        None => text(kind).into_iter().collect(),
    }
}

fn is_structured(schema: &Json) -> bool {
    let structured = types(schema).iter().any(|kind| kind == "object" || kind == "array");
    structured || schema.get("properties").is_some() || schema.get("items").is_some()
}

fn allows_null(schema: &Json) -> bool {
    let listed = |key: &str, test: fn(&Json) -> bool| schema.get(key).and_then(Json::as_array).is_some_and(|list| list.iter().any(test));
    types(schema).iter().any(|kind| kind == "null")
        || schema.get("const").is_some_and(Json::is_null)
        || listed("enum", Json::is_null)
        || listed("anyOf", allows_null)
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
            assert_eq!(strict_schema(&json(schema)).unwrap_err().to_string(), reason, "{schema}");
        }
    }
}
