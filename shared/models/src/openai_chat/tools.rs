//! Tools as the API takes them.

use picofleet_delta::Json;
use picofleet_session::message::ToolDeclaration;

use super::BuildError;
use super::compat::Compat;
use crate::strict::{refuses_nothing, strict_parameters};

/// The tools of a request.
///
/// # Errors
///
/// A tool demands strict sampling that its schema or server does not allow.
pub(super) fn tools(tools: &[ToolDeclaration], compat: &Compat) -> Result<Vec<Json>, BuildError> {
    tools.iter().map(|tool| convert(tool, compat)).collect()
}

fn convert(tool: &ToolDeclaration, compat: &Compat) -> Result<Json, BuildError> {
    let strict = strict_parameters(tool, compat.strict_mode, refuses_nothing)?;
    let is_strict = strict.is_some();
    let function = Json::build_object()
        .with("name", &tool.name)
        .with("description", &tool.description)
        .with("parameters", strict.unwrap_or_else(|| tool.parameters.clone()))
        .with_some("strict", compat.strict_mode.then_some(is_strict));
    Ok(Json::build_object().with("type", "function").with("function", function).build())
}
