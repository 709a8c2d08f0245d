//! Tool arguments against the JSON Schema of their tool.
//!
//! Models send arguments of nearly the right type. Three passes make them fit before they are checked: nulls of optional
//! properties go, values convert to the type that the schema names, and what still does not fit is converted once more in
//! the ways that type lists allow. A caller gets the converted value, or every problem with its place.
//!
//! Two limits keep a hostile schema from holding the thread: [`DEPTH_MAX`] and [`STEPS_MAX`]. Patterns have limits of their
//! own. What cannot be checked is a problem of the arguments, also where the schema must not match; it is never silently
//! accepted.

mod check;
mod coerce;
mod evaluated;
mod format;
mod pattern;
mod schema;
mod union;

use std::fmt;

use picofleet_delta::Json;
use picofleet_session::message::{ToolCall, ToolDeclaration};

use crate::js;
use schema::Schema;

/// Most schemas inside one another that are followed, references included.
pub const DEPTH_MAX: u32 = 96;

/// Most steps of one call: far above what real tools need. A pair of a schema and a value is one, and a pattern takes more the
/// larger it and its text are. The schema that costs most keeps a thread for seconds, not for minutes.
pub const STEPS_MAX: u32 = 1_000_000;

/// The arguments of a call do not fit its tool. The text is written for the model, which reads it in the tool's result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ToolArgumentsError {
    /// The argument text was no JSON object.
    #[error("Invalid arguments for tool \"{tool}\": {detail}")]
    Malformed {
        /// The tool.
        tool: String,
        /// The `argumentsError` of the call.
        detail: String,
    },
    /// They do not match the schema.
    #[error("Validation failed for tool \"{tool}\":\n{}\n\nReceived arguments:\n{received}", Lines(.problems))]
    Mismatch {
        /// The tool.
        tool: String,
        /// What does not match, at least one.
        problems: Vec<Problem>,
        /// The arguments as they came, as indented JSON.
        received: String,
    },
}

/// One thing that does not match.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where: keys and indices with dots between, `root` for the arguments themselves.
    pub path: String,
    /// What was expected there.
    pub message: String,
}

struct Lines<'a>(&'a [Problem]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "  - {}: {}", problem.path, problem.message)?;
        }
        Ok(())
    }
}

/// The arguments of a call as the tool wants them. Unknown members stay unless the schema forbids them; defaults are not
/// filled in.
///
/// # Errors
///
/// The argument text was malformed, or the arguments do not match the schema.
pub fn validate_tool_arguments(tool: &ToolDeclaration, call: &ToolCall) -> Result<Json, ToolArgumentsError> {
    if let Some(detail) = &call.arguments_error {
        return Err(ToolArgumentsError::Malformed { tool: call.name.clone(), detail: detail.clone() });
    }
    let schema = Schema::new(&tool.parameters);
    let value = schema.coerce(&call.arguments);
    let problems = schema.check(&value);
    if problems.is_empty() {
        return Ok(value);
    }
    let received = js::stringify_pretty(&call.arguments);
    Err(ToolArgumentsError::Mismatch { tool: call.name.clone(), problems, received })
}
