//! Cache markers of Anthropic, which some gateways take in this API.

use picofleet_delta::Json;

use super::compat::Compat;
use crate::provider::{CacheRetention, StreamOptions};

/// Marks what the server may keep.
pub(super) struct Marker(Json);

impl Marker {
    /// The marker of a request, if its server takes any and may keep the prompt.
    pub(super) fn of(compat: &Compat, options: &StreamOptions) -> Option<Self> {
        let retention = options.cache_retention.unwrap_or_default();
        if !compat.cache_control || retention == CacheRetention::None {
            return None;
        }
        let hour = retention == CacheRetention::Long && compat.long_cache_retention;
        let marker = Json::build_object().with("type", "ephemeral").with_some("ttl", hour.then_some("1h"));
        Some(Self(marker.build()))
    }

    /// Marks the first system message, the last tool and the last message that has text.
    pub(super) fn mark(&self, messages: &mut [Json], tools: &mut [Json]) {
        if let Some(system) = messages.iter_mut().find(|message| is_role(message, &["system", "developer"])) {
            self.mark_text(system);
        }
        if let Some(tool) = tools.last_mut() {
            *tool = with_member(tool, "cache_control", self.0.clone());
        }
        for message in messages.iter_mut().rev().filter(|message| is_role(message, &["user", "assistant", "tool"])) {
            if self.mark_text(message) {
                break;
            }
        }
    }

    /// Marks the last text of a message; false when it has none.
    fn mark_text(&self, message: &mut Json) -> bool {
        let Some(content) = message.get("content") else { return false };
        let marked = if let Some(text) = content.as_str().filter(|text| !text.is_empty()) {
            let block = Json::build_object().with("type", "text").with("text", &*text).with("cache_control", self.0.clone());
            Json::array([block.build()])
        } else if let Some(parts) = content.as_array() {
            let mut parts: Vec<Json> = parts.iter().cloned().collect();
            let is_text = |part: &&mut Json| part.get("type").is_some_and(|kind| *kind == "text");
            let Some(text) = parts.iter_mut().rev().find(is_text) else { return false };
            *text = with_member(text, "cache_control", self.0.clone());
            Json::array(parts)
        } else {
            return false;
        };
        *message = with_member(message, "content", marked);
        true
    }
}

fn is_role(message: &Json, roles: &[&str]) -> bool {
    message.get("role").and_then(Json::as_str).is_some_and(|role| roles.contains(&&*role))
}

/// The object with a member more, or with another value for it.
fn with_member(object: &Json, key: &str, value: Json) -> Json {
    let members = object.as_object().into_iter().flat_map(|object| object.iter().map(|(key, value)| (key, value.clone())));
    Json::object(members.chain([(key, value)]))
}
