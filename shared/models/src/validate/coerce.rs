//! Values made to fit a schema. Every function gives the value itself where nothing changes.

use std::borrow::Cow;
use std::sync::Arc;

use picofleet_delta::{Json, JsonRef};

use super::schema::{Schema, is_of_type, is_schema, item_schemas, list, named, requires, sub, text, types};
use crate::js;

impl Schema<'_> {
    /// All three passes.
    pub(super) fn coerce(&self, value: &Json) -> Json {
        let value = self.without_nulls(self.root, value, 0);
        let value = self.convert(self.root, &value, 0);
        self.convert_leftovers(self.root, &value, 0)
    }

    /// Drops null from optional properties that do not take it; a property that is a reference is left alone.
    fn without_nulls(&self, schema: &Json, value: &Json, depth: u32) -> Json {
        if !self.step(depth) {
            return value.clone();
        }
        match value.as_ref() {
            JsonRef::Object(members) => {
                let Some(properties) = schema.get("properties").and_then(Json::as_object) else { return value.clone() };
                let kept = members.iter().filter_map(|(name, member)| {
                    let Some(own) = properties.get(name).filter(|own| is_schema(own) && own.get("$ref").is_none()) else {
                        return Some((Arc::from(name), member.clone()));
                    };
                    if member.is_null() && !requires(schema, name) && !self.accepts(own, member, depth + 1) {
                        return None;
                    }
                    Some((Arc::from(name), self.without_nulls(own, member, depth + 1)))
                });
                kept.collect()
            }
            JsonRef::Array(items) => {
                let (first, rest) = item_schemas(schema);
                let fit = |(index, item): (usize, &Json)| match first.get(index).copied().or(rest) {
                    Some(own) => self.without_nulls(own, item, depth + 1),
                    None => item.clone(),
                };
                items.iter().enumerate().map(fit).collect()
            }
            _ => value.clone(),
        }
    }

    /// Converts to what the first of `$ref`, `const`, `enum`, `anyOf`, `oneOf`, `allOf` or the type says.
    fn convert(&self, schema: &Json, value: &Json, depth: u32) -> Json {
        if !self.step(depth) {
            return value.clone();
        }
        if let Some(reference) = text(schema, "$ref") {
            return self.resolve(&reference).map_or_else(|| value.clone(), |target| self.convert(target, value, depth + 1));
        }
        if let Some(constant) = schema.get("const") {
            return if is_conversion(value, constant) { constant.clone() } else { value.clone() };
        }
        if let Some(members) = list(schema, "enum") {
            return self.convert_to_member(schema, &members, value, depth);
        }
        let converted = if let Some(branches) = list(schema, "anyOf").or_else(|| list(schema, "oneOf")) {
            self.convert_union(schema, &branches, value, depth)
        } else if let Some(parts) = list(schema, "allOf") {
            parts.into_iter().fold(value.clone(), |value, part| self.convert(part, &value, depth + 1))
        } else {
            return self.convert_to_type(schema, value, depth);
        };
        if has_members(schema) || kind(schema).as_deref() == Some("object") {
            self.convert_members(schema, &converted, depth)
        } else {
            converted
        }
    }

    /// The value if it is a member, else the first member that it converts to and that the whole schema accepts.
    fn convert_to_member(&self, schema: &Json, members: &[&Json], value: &Json, depth: u32) -> Json {
        if members.contains(&value) {
            return value.clone();
        }
        let fits = |member: &&&Json| is_conversion(value, member) && self.accepts(schema, member, depth + 1);
        members.iter().find(fits).map_or_else(|| value.clone(), |member| (*member).clone())
    }

    /// Keeps a value that a branch accepts; else the first conversion that the whole schema accepts.
    fn convert_union(&self, schema: &Json, branches: &[&Json], value: &Json, depth: u32) -> Json {
        if branches.iter().any(|branch| self.accepts(branch, value, depth + 1)) {
            return value.clone();
        }
        let mut converted = branches.iter().map(|branch| self.convert(branch, value, depth + 1));
        converted.find(|converted| self.accepts(schema, converted, depth + 1)).unwrap_or_else(|| value.clone())
    }

    fn convert_to_type(&self, schema: &Json, value: &Json, depth: u32) -> Json {
        match kind(schema).as_deref() {
            Some("string") => to_text(value),
            Some("number") => to_number(value),
            Some("integer") => to_integer(value),
            Some("boolean") => to_boolean(value),
            Some("null") => to_null(value),
            Some("object") => Some(self.convert_members(schema, value, depth)),
            Some("array") => Some(self.convert_items(schema, value, depth)),
            _ => None,
        }
        .unwrap_or_else(|| value.clone())
    }

    fn convert_members(&self, schema: &Json, value: &Json, depth: u32) -> Json {
        let Some(members) = value.as_object() else { return value.clone() };
        let rest = sub(schema, "additionalProperties").filter(|_| schema.get("type").is_some() || has_members(schema));
        let convert = |(name, member): (&str, &Json)| {
            let schemas = self.member_schemas(schema, name, rest);
            (Arc::from(name), schemas.into_iter().fold(member.clone(), |member, own| self.convert(own, &member, depth + 1)))
        };
        members.iter().map(convert).collect()
    }

    /// Converts the items; a value that is no array becomes the one item of one, unless places have schemas of their own.
    fn convert_items(&self, schema: &Json, value: &Json, depth: u32) -> Json {
        let (first, rest) = converting_items(schema);
        if value.as_array().is_none() && first.is_some() {
            return value.clone();
        }
        let own = |index| item_schema(first.as_deref(), rest, index);
        let convert = |(index, item): (usize, &Json)| own(index).map_or_else(|| item.clone(), |own| self.convert(own, item, depth + 1));
        match value.as_array() {
            Some(items) => items.iter().enumerate().map(convert).collect(),
            None => Json::array([convert((0, value))]),
        }
    }

    /// Converts what still does not fit its type or list of types. Follows no references.
    fn convert_leftovers(&self, schema: &Json, value: &Json, depth: u32) -> Json {
        if !self.step(depth) {
            return value.clone();
        }
        let mut value = value.clone();
        for part in list(schema, "allOf").unwrap_or_default() {
            value = self.convert_leftovers(part, &value, depth + 1);
        }
        for union in ["anyOf", "oneOf"] {
            let branches = list(schema, union).unwrap_or_default();
            if branches.iter().any(|branch| self.accepts(branch, &value, depth + 1)) {
                continue;
            }
            let mut converted = branches.into_iter().map(|branch| (branch, self.convert_leftovers(branch, &value, depth + 1)));
            if let Some((_, fits)) = converted.find(|(branch, converted)| self.accepts(branch, converted, depth + 1)) {
                value = fits;
            }
        }
        let types = types(schema).unwrap_or_default();
        let fits = types.len() > 1 && types.iter().any(|name| is_of_type(&value, name));
        if !fits && let Some(converted) = types.iter().find_map(|name| leftover_to(&value, name)) {
            value = converted;
        }
        if types.iter().any(|name| name == "object") {
            value = self.leftover_members(schema, value, depth);
        }
        if types.iter().any(|name| name == "array") {
            value = self.leftover_items(schema, value, depth);
        }
        value
    }

    fn leftover_members(&self, schema: &Json, value: Json, depth: u32) -> Json {
        let Some(members) = value.as_object() else { return value };
        let convert = |(name, member): (&str, &Json)| {
            let schemas = self.member_schemas(schema, name, sub(schema, "additionalProperties"));
            (Arc::from(name), schemas.into_iter().fold(member.clone(), |member, own| self.convert_leftovers(own, &member, depth + 1)))
        };
        members.iter().map(convert).collect()
    }

    /// The schemas of a member: its own and those of the patterns that its name matches, else the one for the rest.
    fn member_schemas<'s>(&self, schema: &'s Json, name: &str, rest: Option<&'s Json>) -> Vec<&'s Json> {
        let own = schema.get("properties").and_then(|properties| properties.get(name));
        let patterns = named(schema, "patternProperties").into_iter().filter(|(pattern, _)| self.matches(pattern, name) == Ok(true));
        let schemas: Vec<&Json> = own.into_iter().chain(patterns.map(|(_, schema)| schema)).collect();
        if schemas.is_empty() { rest.into_iter().collect() } else { schemas }
    }

    fn leftover_items(&self, schema: &Json, value: Json, depth: u32) -> Json {
        let Some(items) = value.as_array() else { return value };
        let (first, rest) = converting_items(schema);
        let own = |index| item_schema(first.as_deref(), rest, index);
        let convert =
            |(index, item): (usize, &Json)| own(index).map_or_else(|| item.clone(), |own| self.convert_leftovers(own, item, depth + 1));
        items.iter().enumerate().map(convert).collect()
    }
}

/// The schemas that convert items: those of the first places, and that of the rest, which is never `additionalItems`.
fn converting_items(schema: &Json) -> (Option<Vec<&Json>>, Option<&Json>) {
    (list(schema, "prefixItems").or_else(|| list(schema, "items")), sub(schema, "items"))
}

fn item_schema<'s>(first: Option<&[&'s Json]>, rest: Option<&'s Json>, index: usize) -> Option<&'s Json> {
    first.and_then(|first| first.get(index).copied()).or(rest)
}

/// The one type of a schema: as named, or what its members or items tell. A list of types is none.
fn kind(schema: &Json) -> Option<Cow<'_, str>> {
    if schema.get("type").is_some() {
        return text(schema, "type");
    }
    if has_members(schema) {
        return Some(Cow::Borrowed("object"));
    }
    (schema.get("items").is_some() || schema.get("prefixItems").is_some()).then_some(Cow::Borrowed("array"))
}

fn has_members(schema: &Json) -> bool {
    schema.get("properties").is_some() || schema.get("patternProperties").is_some()
}

/// True when a value, converted to the type of a text, number or boolean, is exactly that one.
fn is_conversion(value: &Json, member: &Json) -> bool {
    let converted = match member.as_ref() {
        JsonRef::String(_) => to_text(value),
        JsonRef::Int(_) | JsonRef::Float(_) => to_number(value),
        JsonRef::Bool(_) => to_boolean(value),
        _ => None,
    };
    converted.is_some_and(|converted| converted == *member)
}

fn to_text(value: &Json) -> Option<Json> {
    js::scalar_text(value).map(Json::from)
}

fn to_number(value: &Json) -> Option<Json> {
    match value.as_ref() {
        JsonRef::Null => Some(Json::from(0)),
        JsonRef::Bool(flag) => Some(Json::from(i64::from(flag))),
        JsonRef::Int(_) | JsonRef::Float(_) => Some(value.clone()),
        JsonRef::String(text) => {
            let text = text.to_cow();
            match js::number(&text) {
                Some(number) => Json::try_from(number).ok(),
                None if text.eq_ignore_ascii_case("true") => Some(Json::from(1)),
                None if text.eq_ignore_ascii_case("false") => Some(Json::from(0)),
                None => None,
            }
        }
        JsonRef::Array(_) | JsonRef::Object(_) => None,
    }
}

fn to_integer(value: &Json) -> Option<Json> {
    Json::try_from(to_number(value)?.as_f64()?.trunc()).ok()
}

fn to_boolean(value: &Json) -> Option<Json> {
    let flag = match value.as_ref() {
        JsonRef::Null | JsonRef::Int(0) => false,
        JsonRef::Int(1) => true,
        JsonRef::Bool(flag) => flag,
        JsonRef::String(text) => {
            let text = text.to_cow();
            match &*text {
                "1" => true,
                "0" => false,
                text if text.eq_ignore_ascii_case("true") => true,
                text if text.eq_ignore_ascii_case("false") => false,
                _ => return None,
            }
        }
        _ => return None,
    };
    Some(Json::from(flag))
}

fn to_null(value: &Json) -> Option<Json> {
    let empty = match value.as_ref() {
        JsonRef::Null | JsonRef::Bool(false) | JsonRef::Int(0) => true,
        JsonRef::String(text) => {
            let text = text.to_cow();
            text.is_empty() || text == "0" || text.eq_ignore_ascii_case("null") || text.eq_ignore_ascii_case("undefined")
        }
        _ => false,
    };
    empty.then(Json::null)
}

/// What the last pass makes of a value for a type; nothing when the value stays.
fn leftover_to(value: &Json, name: &str) -> Option<Json> {
    match (name, value.as_ref()) {
        ("number" | "integer", JsonRef::Null) => Some(Json::from(0)),
        ("number" | "integer", JsonRef::Bool(flag)) => Some(Json::from(i64::from(flag))),
        ("number" | "integer", JsonRef::String(text)) => {
            let text = text.to_cow();
            let number = Some(js::trim(&text)).filter(|text| !text.is_empty()).and_then(js::number)?;
            (name == "number" || number.fract() == 0.0).then(|| Json::try_from(number).ok()).flatten()
        }
        ("boolean", JsonRef::Null | JsonRef::Int(0)) => Some(Json::from(false)),
        ("boolean", JsonRef::Int(1)) => Some(Json::from(true)),
        ("boolean", JsonRef::String(text)) => match &*text.to_cow() {
            "true" => Some(Json::from(true)),
            "false" => Some(Json::from(false)),
            _ => None,
        },
        ("string", JsonRef::Null) => Some(Json::from("")),
        ("string", JsonRef::Bool(_) | JsonRef::Int(_) | JsonRef::Float(_)) => to_text(value),
        ("null", JsonRef::Bool(false) | JsonRef::Int(0)) => Some(Json::null()),
        ("null", JsonRef::String(text)) if text.is_empty() => Some(Json::null()),
        _ => None,
    }
}
