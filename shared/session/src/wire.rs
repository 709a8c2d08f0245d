//! Small serde helpers that records share.

use picofleet_delta::Json;
use serde::{Deserialize, Deserializer};

/// Reads an optional Json field that is present: `null` is then a value and not the absence of one.
pub(crate) fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}
