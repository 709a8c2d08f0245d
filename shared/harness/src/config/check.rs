//! Reading fields with the path of the one that is wrong.

use std::borrow::Cow;

use picofleet_session::Json;
use serde::de::DeserializeOwned;

use super::InvalidConfig;

/// The path of a field of an object.
fn join(at: &str, key: &str) -> String {
    if at.is_empty() { key.to_owned() } else { format!("{at}.{key}") }
}

pub(super) fn object<'a>(value: &'a Json, path: &str) -> Result<picofleet_delta::ObjectRef<'a>, InvalidConfig> {
    value.as_object().ok_or_else(|| InvalidConfig::new(path, "is no object"))
}

/// An object whose fields are all among these.
pub(super) fn known(value: &Json, path: &str, fields: &[&str]) -> Result<(), InvalidConfig> {
    let unknown = object(value, path)?.iter().map(|(key, _)| key.to_owned()).find(|key| !fields.contains(&key.as_str()));
    match unknown {
        Some(key) => Err(InvalidConfig::new(join(path, &key), format!("is not known; there are: {}", fields.join(", ")))),
        None => Ok(()),
    }
}

/// A field that must be there, with its path.
pub(super) fn field<'a>(value: &'a Json, path: &str, key: &str) -> Result<(&'a Json, String), InvalidConfig> {
    let path = join(path, key);
    match value.get(key) {
        Some(value) => Ok((value, path)),
        None => Err(InvalidConfig::new(path, "is missing")),
    }
}

pub(super) fn text<'a>(value: &'a Json, path: &str) -> Result<Cow<'a, str>, InvalidConfig> {
    value.as_str().ok_or_else(|| InvalidConfig::new(path, "is no text"))
}

pub(super) fn boolean(value: &Json, path: &str) -> Result<bool, InvalidConfig> {
    value.as_bool().ok_or_else(|| InvalidConfig::new(path, "is neither true nor false"))
}

/// A whole number that is not negative.
pub(super) fn count(value: &Json, path: &str) -> Result<i64, InvalidConfig> {
    value.as_i64().filter(|number| *number >= 0).ok_or_else(|| InvalidConfig::new(path, "is no whole number from 0"))
}

/// A finite number that is not negative.
pub(super) fn milliseconds(value: &Json, path: &str) -> Result<f64, InvalidConfig> {
    let number = value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| InvalidConfig::new(path, "is no number of milliseconds from 0"))
}

/// A word of an enumeration.
pub(super) fn word<T: DeserializeOwned>(value: &Json, path: &str, words: &str) -> Result<T, InvalidConfig> {
    let found = text(value, path)?;
    value.to().map_err(|_| InvalidConfig::new(path, format!("{found:?} is none of {words}")))
}
