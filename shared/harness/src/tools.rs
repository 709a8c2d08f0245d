//! What tools are made of (section 7.3): their declaration, their code, what they may use, what they give.

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_session::Json;
use picofleet_session::message::{Usage, UserBlock};

use crate::effects::OutputLimits;
use crate::live::ToolDiagnostic;
use crate::tool::{Control, Replay};

mod api;
mod env;
mod loose;

pub(crate) use api::{Call, Shown};
pub use api::{DetailsCommitted, ToolApi};
pub use env::{EnvError, ExecutionEnv, FileKind, FileStat, FileSystem, Shell, ShellExit, ShellRequest, Spill, Unsuitable};
pub use loose::LooseCall;

/// What a tool says about itself.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does, for the model.
    pub description: String,
    /// The JSON Schema of its arguments.
    pub parameters: Json,
    /// Whether it may execute again after a crash.
    pub replay: Replay,
    /// It wants to run alone: one such call makes its whole round sequential.
    pub sequential: bool,
    /// What of its output is kept.
    pub output: OutputLimits,
}

impl ToolSpec {
    /// A tool with the defaults: unsafe to repeat, beside others, 50 KiB and 2,000 lines of output from the beginning.
    #[must_use]
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Json) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            replay: Replay::Unsafe,
            sequential: false,
            output: OutputLimits::default(),
        }
    }
}

/// What an execution gives.
#[derive(Clone, Debug, Default)]
pub struct ToolResult {
    /// What the model sees; absent for the output that was kept.
    pub content: Option<Vec<UserBlock>>,
    /// It failed, and says so in its content.
    pub is_error: bool,
    /// What programs see; absent for the last details that were reported.
    pub details: Option<Json>,
    /// Remarks, behind those that were reported.
    pub diagnostics: Vec<ToolDiagnostic>,
    /// What it spent itself.
    pub usage: Option<Usage>,
    /// What it asks of the run.
    pub control: Option<Control>,
}

impl ToolResult {
    /// A text.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self { content: Some(vec![UserBlock::Text(picofleet_session::message::TextContent::new(text))]), ..Self::default() }
    }
}

/// Why a tool threw: the model sees the text as an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// An error with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// A tool. The futures are boxed, so that a registry can hold tools of any kind.
pub trait Tool: Send + Sync + 'static {
    /// What it says about itself.
    fn spec(&self) -> &ToolSpec;

    /// Repairs arguments that models often get wrong, before they are validated. Pure.
    ///
    /// # Errors
    /// A text; the call is answered as invalid arguments.
    fn prepare_arguments(&self, arguments: Json) -> Result<Json, ToolError> {
        Ok(arguments)
    }

    /// Executes a call with validated arguments.
    fn execute<'a>(&'a self, arguments: Json, api: ToolApi) -> BoxFuture<'a, Result<ToolResult, ToolError>>;
}

/// A tool as it is shared.
pub type SharedTool = Arc<dyn Tool>;
