//! A configuration as it is shown: without what may be a credential.

use std::collections::BTreeMap;

use picofleet_delta::Json;
use serde::{Serialize as _, Serializer};

use super::compat::is_known;
use crate::http::is_credential;
use crate::model::{Headers, ThinkingLevel};

/// What stands in the place of a value.
const HIDDEN: &str = "[hidden]";

/// Names of headers alone tell too little: no value is shown.
pub(super) fn hidden_headers<S: Serializer>(headers: &Headers<String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(headers.keys().map(|name| (name, HIDDEN)))
}

/// A table without the texts of members whose names sound like credentials.
pub(super) fn hidden_members<S: Serializer>(table: &Option<Json>, serializer: S) -> Result<S::Ok, S::Error> {
    table.as_ref().map(|table| hidden(table, false)).serialize(serializer)
}

/// The same for the tables of thinking levels.
pub(super) fn hidden_members_by_level<S: Serializer>(
    tables: &Option<BTreeMap<ThinkingLevel, Json>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let shown = |tables: &BTreeMap<ThinkingLevel, Json>| {
        tables.iter().map(|(level, table)| (*level, hidden(table, false))).collect::<BTreeMap<_, _>>()
    };
    tables.as_ref().map(shown).serialize(serializer)
}

/// A value; `inside` when it belongs to a member whose name sounds like a credential. Numbers and flags are none, and the members of
/// `compat` that an adapter reads are checked to hold none.
fn hidden(value: &Json, inside: bool) -> Json {
    if let Some(own) = value.as_object() {
        let shown = |(name, value): (&str, &Json)| (name.to_owned(), hidden(value, inside || is_credential(name) && !is_known(name)));
        Json::object(own.into_iter().map(shown))
    } else if let Some(items) = value.as_array() {
        Json::array(items.iter().map(|item| hidden(item, inside)))
    } else if inside && value.as_str().is_some() {
        Json::from(HIDDEN)
    } else {
        value.clone()
    }
}
