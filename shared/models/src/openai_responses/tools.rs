//! Tools as the API takes them.

use picofleet_delta::Json;
use picofleet_session::message::ToolDeclaration;

use super::BuildError;
use super::compat::Compat;
use crate::strict::{refuses_nothing, strict_parameters};

/// The declarations, in order. Those that come as the result of a tool search say so.
pub(super) fn tools(declarations: &[ToolDeclaration], compat: Compat, searched: bool) -> Result<Json, BuildError> {
    declarations.iter().map(|tool| function(tool, compat, searched)).collect::<Result<Vec<_>, _>>().map(Json::array)
}

fn function(tool: &ToolDeclaration, compat: Compat, searched: bool) -> Result<Json, BuildError> {
    let strict = strict_parameters(tool, compat.strict_mode, refuses_nothing)?;
    let is_strict = strict.is_some();
    Ok(Json::build_object()
        .with("type", "function")
        .with("name", &tool.name)
        .with("description", &tool.description)
        .with("parameters", strict.unwrap_or_else(|| tool.parameters.clone()))
        .with_some("defer_loading", searched.then_some(true))
        .with_some("strict", compat.strict_mode.then_some(is_strict))
        .build())
}
