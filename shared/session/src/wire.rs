//! Small serde helpers that records share.

use picofleet_delta::Json;
use serde::{Deserialize, Deserializer};

/// Reads an optional Json field that is present: `null` is then a value and not the absence of one.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}

/// Reads a list for which `null` stands when it is empty.
pub(crate) fn null_as_empty<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}
