//! Tool schemas in the strict subset that providers sample by.

use picofleet_delta::{Json, ObjectRef};
use picofleet_session::message::ToolDeclaration;

use crate::js;

/// What strict sampling cannot express.
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

/// What an API refuses beyond [`UNSUPPORTED`]: the reason, for a member of a node.
pub(crate) type Refuses = fn(&str, &Json) -> Option<String>;

/// For an API that refuses no more.
pub(crate) fn refuses_nothing(_: &str, _: &Json) -> Option<String> {
    None
}

/// How much a tool wants to be sampled by its schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    Prefer,
    Require,
}

/// What a tool says about that, if anything.
pub(crate) fn wish(tool: &ToolDeclaration) -> Option<Wish> {
    let sampling = tool.constrained_sampling.as_ref()?;
    let is = |member: &str, word: &str| sampling.get(member).and_then(Json::as_str).as_deref() == Some(word);
    is("type", "json_schema").then(|| if is("strict", "require") { Wish::Require } else { Wish::Prefer })
}

/// A tool must be sampled by its schema and cannot be.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("Tool \"{tool}\" requires JSON-schema constrained sampling, but {problem}.")]
pub(crate) struct UnmetWish {
    pub(crate) tool: String,
    pub(crate) problem: String,
}

/// The schema to sample a tool strictly by, when it wants that and can have it: the server takes strict tools, and the
/// schema has a strict form that the API does not refuse.
///
/// # Errors
///
/// The tool requires it and cannot have it.
pub(crate) fn strict_parameters(tool: &ToolDeclaration, supported: bool, refuses: Refuses) -> Result<Option<Json>, UnmetWish> {
    let Some(wish) = wish(tool) else { return Ok(None) };
    let strict = if supported { strict_schema(&tool.parameters, refuses) } else { Err("strict tools are unsupported".to_owned()) };
    match (strict, wish) {
        (Ok(schema), _) => Ok(Some(schema)),
        (Err(_), Wish::Prefer) => Ok(None),
        (Err(problem), Wish::Require) => Err(UnmetWish { tool: tool.name.clone(), problem }),
    }
}

/// The schema with every property required, optional ones nullable, and no others allowed.
///
/// # Errors
///
/// What of it strict sampling cannot express, or what the API refuses.
pub(crate) fn strict_schema(schema: &Json, refuses: Refuses) -> Result<Json, String> {
    let root = || "root schema must have type object".to_owned();
    schema.as_object().ok_or_else(root)?;
    let strict = strict_node(schema, refuses)?;
    if is_object_type(schema) { Ok(strict) } else { Err(root()) }
}

/// Recurses as deep as the value nests, which is bounded by [`picofleet_delta::DEPTH_MAX`].
fn strict_node(schema: &Json, refuses: Refuses) -> Result<Json, String> {
    let Some(node) = schema.as_object() else { return Err("boolean schemas are unsupported".to_owned()) };
    if let Some(key) = UNSUPPORTED.iter().find(|key| node.contains_key(key)) {
        return Err(format!("{key} schemas are unsupported"));
    }
    if let Some(reason) = node.iter().find_map(|(key, value)| refuses(key, value)) {
        return Err(reason);
    }
    if !["type", "anyOf", "enum"].iter().any(|key| node.contains_key(key)) {
        return Err("schemas without a type are unsupported".to_owned());
    }
    let mut changed: Vec<(&str, Json)> = Vec::new();
    if let Some(any_of) = node.get("anyOf") {
        changed.push(("anyOf", strict_variants(any_of, refuses)?));
    }
    if let Some(items) = node.get("items") {
        if items.as_array().is_some() {
            return Err("tuple schemas are unsupported".to_owned());
        }
        changed.push(("items", strict_node(items, refuses)?));
    }
    if is_object_type(schema) {
        let (properties, names) = strict_properties(node, refuses)?;
        if node.contains_key("properties") {
            changed.push(("properties", properties));
        }
        changed.push(("required", names));
        changed.push(("additionalProperties", Json::from(false)));
    } else if node.contains_key("properties") {
        return Err("properties require type object".to_owned());
    }
    // A repeated key keeps its first place and its last value.
    let kept = node.iter().map(|(key, value)| (key, value.clone()));
    Ok(Json::object(kept.chain(changed)))
}

fn strict_variants(any_of: &Json, refuses: Refuses) -> Result<Json, String> {
    let variants = any_of.as_array().filter(|variants| !variants.is_empty());
    let variants = variants.ok_or_else(|| "anyOf must contain at least one schema".to_owned())?;
    let strict = variants.iter().map(|variant| {
        if is_structured(variant) { Err("object and array unions are unsupported".to_owned()) } else { strict_node(variant, refuses) }
    });
    strict.collect::<Result<Vec<_>, _>>().map(Json::array)
}

/// The properties, and their names in JavaScript's order.
fn strict_properties(node: ObjectRef<'_>, refuses: Refuses) -> Result<(Json, Json), String> {
    if node.get("additionalProperties").is_some_and(|additional| additional.as_bool() != Some(false)) {
        return Err("schema-valued or true additionalProperties is unsupported".to_owned());
    }
    let properties = match node.get("properties") {
        None => Vec::new(),
        Some(properties) => js::entries(properties.as_object().ok_or_else(|| "object properties must be a schema map".to_owned())?),
    };
    let required = required_names(node)?;
    if required.iter().any(|name| !properties.iter().any(|(own, _)| own == name)) {
        return Err("required contains an unknown property".to_owned());
    }
    let mut strict = Vec::with_capacity(properties.len());
    for (name, property) in &properties {
        let value = strict_node(property, refuses)?;
        let wrapped = if required.iter().any(|required| required == name) || allows_null(property) {
            value
        } else {
            Json::object([("anyOf", Json::array([value, Json::object([("type", "null")])]))])
        };
        strict.push((*name, wrapped));
    }
    Ok((Json::object(strict), Json::array(properties.iter().map(|(name, _)| *name))))
}

fn required_names(node: ObjectRef<'_>) -> Result<Vec<String>, String> {
    let Some(required) = node.get("required") else { return Ok(Vec::new()) };
    let names = required.as_array().and_then(|names| names.iter().map(|name| name.as_str().map(Into::into)).collect());
    names.ok_or_else(|| "object required must be a string array".to_owned())
}

fn is_object_type(schema: &Json) -> bool {
    schema.get("type").and_then(Json::as_str).as_deref() == Some("object")
}

/// True when a schema names the type, alone or in its list.
fn names_type(schema: &Json, name: &str) -> bool {
    let is = |value: &Json| value.as_str().as_deref() == Some(name);
    schema.get("type").is_some_and(|own| is(own) || own.as_array().is_some_and(|list| list.iter().any(is)))
}

fn is_structured(schema: &Json) -> bool {
    schema.as_object().is_some()
        && (names_type(schema, "object")
            || names_type(schema, "array")
            || schema.get("properties").is_some()
            || schema.get("items").is_some())
}

fn allows_null(schema: &Json) -> bool {
    let member = |name: &str| schema.get(name);
    names_type(schema, "null")
        || member("const").is_some_and(Json::is_null)
        || member("enum").and_then(Json::as_array).is_some_and(|list| list.iter().any(Json::is_null))
        || member("anyOf").and_then(Json::as_array).is_some_and(|list| list.iter().any(allows_null))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        text.parse().unwrap()
    }

    #[test]
    fn a_wish_is_met_or_told_when_it_must_be() {
        let tool = |sampling: &str, parameters: &str| -> ToolDeclaration {
            json(&format!(r#"{{"name":"t","description":"","parameters":{parameters}{sampling}}}"#)).to().unwrap()
        };
        let sampling = |strict: &str| format!(r#","constrainedSampling":{{"type":"json_schema","strict":"{strict}"}}"#);
        let (prefer, require) = (sampling("prefer"), sampling("require"));
        let grammar = r#","constrainedSampling":{"type":"grammar","strict":"require"}"#;
        let (good, bad) = (r#"{"type":"object"}"#, "true");
        let strict = Some(json(r#"{"type":"object","required":[],"additionalProperties":false}"#));
        let asked = |sampling: &str, parameters, supported| strict_parameters(&tool(sampling, parameters), supported, refuses_nothing);
        for none in ["", r#","constrainedSampling":false"#, grammar] {
            assert_eq!(asked(none, good, true), Ok(None), "{none}");
        }
        assert_eq!((asked(&prefer, good, true), asked(&require, good, true)), (Ok(strict.clone()), Ok(strict)));
        assert_eq!((asked(&prefer, bad, true), asked(&prefer, good, false)), (Ok(None), Ok(None)));
        let told = |parameters, supported| asked(&require, parameters, supported).unwrap_err().to_string();
        let text = "Tool \"t\" requires JSON-schema constrained sampling, but ";
        assert_eq!(told(bad, true), format!("{text}root schema must have type object."));
        assert_eq!(told(good, false), format!("{text}strict tools are unsupported."));
    }

    #[test]
    fn every_property_becomes_required() {
        let schema = r#"{"type":"object","properties":{
            "a":{"type":"string"},
            "b":{"type":"object","properties":{"c":{"type":["integer","null"]}},"required":[]},
            "1":{"enum":["x",null]},
            "l":{"type":"array","items":{"type":"object","properties":{"d":{"type":"number"}}}}},
            "required":["a"]}"#;
        let expected = r#"{"type":"object","properties":{
            "1":{"enum":["x",null]},
            "a":{"type":"string"},
            "b":{"anyOf":[{"type":"object","properties":{"c":{"type":["integer","null"]}},"required":["c"],
                "additionalProperties":false},{"type":"null"}]},
            "l":{"anyOf":[{"type":"array","items":{"type":"object",
                "properties":{"d":{"anyOf":[{"type":"number"},{"type":"null"}]}},"required":["d"],
                "additionalProperties":false}},{"type":"null"}]}},
            "required":["1","a","b","l"],"additionalProperties":false}"#;
        assert_eq!(strict_schema(&json(schema), refuses_nothing).unwrap(), json(expected));
    }

    #[test]
    fn what_cannot_be_strict_is_refused() {
        for (schema, problem) in [
            ("true", "root schema must have type object"),
            (r#"{"type":"string"}"#, "root schema must have type object"),
            (r#"{"type":"object","oneOf":[]}"#, "oneOf schemas are unsupported"),
            (r#"{"type":"object","properties":{"a":true}}"#, "boolean schemas are unsupported"),
            (r#"{"type":"object","properties":{"a":{}}}"#, "schemas without a type are unsupported"),
            (r##"{"type":"object","properties":{"a":{"$ref":"#"}}}"##, "$ref schemas are unsupported"),
            (r#"{"type":"object","properties":{"a":{"anyOf":[{"type":"array"}]}}}"#, "object and array unions are unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"string","properties":{}}}}"#, "properties require type object"),
            (r#"{"type":"object","additionalProperties":true}"#, "schema-valued or true additionalProperties is unsupported"),
            (r#"{"type":"object","required":"a"}"#, "object required must be a string array"),
            (r#"{"type":"object","properties":{"a":{"anyOf":[]}}}"#, "anyOf must contain at least one schema"),
            (r#"{"type":"object","properties":{"a":{"anyOf":[{"type":["array","null"]}]}}}"#, "object and array unions are unsupported"),
            (r#"{"type":"object","properties":{"a":{"type":"array","items":[]}}}"#, "tuple schemas are unsupported"),
            (r#"{"type":["object"],"properties":{}}"#, "properties require type object"),
            (r#"{"type":"object","additionalProperties":{}}"#, "schema-valued or true additionalProperties is unsupported"),
            (r#"{"type":"object","properties":[]}"#, "object properties must be a schema map"),
            (r#"{"type":"object","required":[1]}"#, "object required must be a string array"),
            (r#"{"type":"object","required":["z"]}"#, "required contains an unknown property"),
        ] {
            assert_eq!(strict_schema(&json(schema), refuses_nothing).unwrap_err(), problem, "{schema}");
        }
    }
}
