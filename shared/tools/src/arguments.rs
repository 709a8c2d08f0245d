//! Repairs of arguments that models often get wrong, and reading of arguments that fit.

use std::borrow::Cow;
use std::sync::Arc;

use picofleet_harness::tools::ToolError;
use picofleet_session::Json;
use serde::de::DeserializeOwned;

/// Names that other tools have for an argument of these: what a model learned elsewhere.
const PATHS: [&str; 3] = ["file_path", "filePath", "file"];

/// Arguments that were validated against the tool's schema.
pub(crate) fn read<T: DeserializeOwned>(arguments: &Json) -> Result<T, ToolError> {
    arguments.to().map_err(|error| ToolError::new(format!("the arguments can't be read: {error}")))
}

/// Gives a key the value of another name that stands for it, where the key is missing.
pub(crate) fn rename(arguments: Json, key: &str, others: &[&str]) -> Json {
    let Some(object) = arguments.as_object() else { return arguments };
    if object.get(key).is_some() {
        return arguments;
    }
    let Some(other) = others.iter().find(|other| object.get(other).is_some()) else { return arguments };
    let renamed = |(name, value): (&str, &Json)| (Arc::from(if name == *other { key } else { name }), value.clone());
    object.iter().map(renamed).collect()
}

/// The path under its name.
pub(crate) fn with_path(arguments: Json) -> Json {
    rename(arguments, "path", &PATHS)
}

/// A JSON Schema of an object with these properties.
pub(crate) fn schema(properties: Json, required: &[&str]) -> Json {
    Json::build_object()
        .with("type", "object")
        .with("properties", properties)
        .with("required", Json::array(required.iter().copied()))
        .build()
}

/// A property of a type with a description.
pub(crate) fn property(kind: &str, description: &str) -> Json {
    Json::build_object().with("type", kind).with("description", description).build()
}

/// A number with a comma between groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, rest) = digits.split_at(first);
    let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group));
    let all: Vec<Cow<'_, str>> = Some(Cow::Borrowed(head)).filter(|head| !head.is_empty()).into_iter().chain(groups).collect();
    all.join(",")
}

/// `1 line`, `2 lines`.
pub(crate) fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number as u64))
}
