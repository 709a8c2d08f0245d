//! Tools as the API takes them.

use picofleet_delta::Json;
use picofleet_session::message::ToolDeclaration;

use super::BuildError;
use super::compat::Compat;
use crate::strict::{NO_STRICT_TOOLS, strict_schema};

/// The tools of a request.
///
/// # Errors
///
/// A tool demands strict sampling that its schema or server does not allow.
pub(super) fn tools(tools: &[ToolDeclaration], compat: &Compat) -> Result<Vec<Json>, BuildError> {
    tools.iter().map(|tool| convert(tool, compat)).collect()
}

fn convert(tool: &ToolDeclaration, compat: &Compat) -> Result<Json, BuildError> {
    let strict = strict_parameters(tool, compat.strict_mode)?;
    let is_strict = strict.is_some();
    let function = Json::build_object()
        .with("name", &tool.name)
        .with("description", &tool.description)
        .with("parameters", strict.unwrap_or_else(|| tool.parameters.clone()))
        .with_some("strict", compat.strict_mode.then_some(is_strict));
    Ok(Json::build_object().with("type", "function").with("function", function).build())
}

/// The schema to sample strictly by, for a tool that asks for it and can have it.
fn strict_parameters(tool: &ToolDeclaration, supported: bool) -> Result<Option<Json>, BuildError> {
    let Some(sampling) = tool.constrained_sampling.as_ref() else { return Ok(None) };
    let word = |name: &str| sampling.get(name).and_then(Json::as_str);
    if word("type").as_deref() != Some("json_schema") {
        return Ok(None);
    }
    let strict = if supported { strict_schema(&tool.parameters) } else { Err(NO_STRICT_TOOLS.to_owned()) };
    match strict {
        Ok(schema) => Ok(Some(schema)),
        Err(problem) if word("strict").as_deref() == Some("require") => Err(BuildError::Strict { tool: tool.name.clone(), problem }),
        Err(_) => Ok(None),
    }
}
