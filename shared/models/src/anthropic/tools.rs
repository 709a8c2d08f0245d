//! Tools as the API takes them.

use std::cell::Cell;

use picofleet_delta::Json;
use picofleet_session::message::ToolDeclaration;

use super::compat::Compat;
use super::messages::with_member;
use super::strict::refuses;
use crate::strict::{Wish, strict_parameters, wish};

/// Keeps the hidden text that the server adds for tool changes in the cached prefix from the first request on.
const PLACEHOLDER_NAME: &str = "__pi_deferred_placeholder__";
const PLACEHOLDER_DESCRIPTION: &str = "Reserved placeholder. Never available. Never call this.";

/// Members of a tool's schema that are sent; the server refuses others at its root.
const OPTIONAL_SCHEMA_MEMBERS: [&str; 3] = ["additionalProperties", "$defs", "definitions"];

/// Turns declarations into definitions.
pub(super) struct Tools<'a> {
    compat: &'a Compat,
    /// Send tools that only prefer strict sampling without it.
    relaxed: bool,
    /// Whether a tool that only prefers it was sent strict.
    preferred_strict: Cell<bool>,
}

impl<'a> Tools<'a> {
    pub(super) fn new(compat: &'a Compat, relaxed: bool) -> Self {
        Self { compat, relaxed, preferred_strict: Cell::new(false) }
    }

    /// True when a request could be made again with less: a tool that only prefers strict sampling was sent with it.
    pub(super) fn may_relax(&self) -> bool {
        self.preferred_strict.get()
    }

    /// The definitions, in order. The last one is marked with `cache_control`.
    ///
    /// # Errors
    ///
    /// A tool requires strict sampling and cannot have it; the text names the tool and the reason.
    pub(super) fn convert(&self, tools: &[ToolDeclaration], cache_control: Option<&Json>) -> Result<Vec<Json>, String> {
        let mut definitions: Vec<Json> = tools.iter().map(|tool| self.definition(tool)).collect::<Result<_, _>>()?;
        if let (Some(cache_control), Some(last)) = (cache_control, definitions.last_mut()) {
            *last = with_member(last, "cache_control", cache_control);
        }
        Ok(definitions)
    }

    fn definition(&self, tool: &ToolDeclaration) -> Result<Json, String> {
        let strict = self.strict(tool)?;
        let schema = strict.as_ref().unwrap_or(&tool.parameters);
        Ok(Json::build_object()
            .with("name", &tool.name)
            .with("description", &tool.description)
            .with_some("eager_input_streaming", self.compat.eager_tool_input.then_some(true))
            .with_some("strict", strict.is_some().then_some(true))
            .with("input_schema", input_schema(schema, strict.is_some()))
            .build())
    }

    /// The strict form of a tool's schema, when the tool asks for it and can have it.
    fn strict(&self, tool: &ToolDeclaration) -> Result<Option<Json>, String> {
        let prefers = wish(tool) == Some(Wish::Prefer);
        if prefers && self.relaxed {
            return Ok(None);
        }
        let schema = strict_parameters(tool, self.compat.strict_tools, refuses).map_err(|unmet| unmet.to_string())?;
        self.preferred_strict.set(self.preferred_strict.get() || prefers && schema.is_some());
        Ok(schema)
    }
}

/// A tool that stands after the first ones when tools change in place.
pub(super) fn placeholder() -> Json {
    let nothing: [Json; 0] = [];
    let schema =
        Json::build_object().with("type", "object").with("properties", Json::build_object()).with("required", Json::array(nothing));
    Json::build_object()
        .with("name", PLACEHOLDER_NAME)
        .with("description", PLACEHOLDER_DESCRIPTION)
        .with("input_schema", schema)
        .with("defer_loading", true)
        .build()
}

fn input_schema(schema: &Json, strict: bool) -> Json {
    let present = |member: &str| schema.get(member).filter(|value| !value.is_null());
    let nothing: [Json; 0] = [];
    let properties = present("properties").cloned().unwrap_or_else(|| Json::build_object().build());
    let required = present("required").cloned().unwrap_or_else(|| Json::array(nothing));
    let sent = Json::build_object().with("type", "object").with("properties", properties).with("required", required);
    let sent = OPTIONAL_SCHEMA_MEMBERS.into_iter().fold(sent, |sent, member| sent.with_some(member, schema.get(member))).build();
    if !strict {
        return sent;
    }
    let members = |json| Json::as_object(json).into_iter().flat_map(|object| object.iter());
    Json::object(members(schema).chain(members(&sent)))
}
