//! What a running tool may use.

use std::sync::{Arc, Mutex, PoisonError};

use picofleet_session::{ConversationId, Json, TaskId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{EnvError, ExecutionEnv, ToolError};
use crate::effects::{OutputBuffer, OutputLimits};
use crate::live::ToolDiagnostic;

/// What a running tool may use. A plain clone; a wrapper hands on [`ToolApi::with_env`].
#[derive(Clone)]
pub struct ToolApi {
    shown: Arc<Shown>,
    env: Option<Arc<dyn ExecutionEnv>>,
    cancel: CancellationToken,
    call: Arc<Call>,
}

/// Which call it is.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) task: TaskId,
    pub(crate) conversation: ConversationId,
    pub(crate) id: String,
}

/// What the tool reported so far, and that something of it is new.
pub(crate) struct Shown {
    state: Mutex<ShownState>,
    pub(crate) changed: Notify,
}

pub(crate) struct ShownState {
    pub(crate) output: OutputBuffer,
    pub(crate) details: Option<Json>,
    pub(crate) diagnostics: Vec<ToolDiagnostic>,
    ended: bool,
}

impl Shown {
    pub(crate) fn new(limits: OutputLimits) -> Arc<Self> {
        let state = ShownState { output: OutputBuffer::new(limits), details: None, diagnostics: Vec::new(), ended: false };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// Looks at what was reported.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut ShownState) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn end(&self) {
        self.with(|state| state.ended = true);
    }

    fn report(&self, change: impl FnOnce(&mut ShownState)) -> Result<(), ToolError> {
        self.with(|state| {
            if state.ended {
                return Err(ToolError::new("the call is over"));
            }
            change(state);
            Ok(())
        })?;
        self.changed.notify_one();
        Ok(())
    }
}

impl ToolApi {
    pub(crate) fn new(shown: Arc<Shown>, env: Option<Arc<dyn ExecutionEnv>>, cancel: CancellationToken, call: Call) -> Self {
        Self { shown, env, cancel, call: Arc::new(call) }
    }

    /// Appends running output. It is bounded: what the limits drop is counted.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over.
    pub fn output(&self, chunk: &[u8]) -> Result<(), ToolError> {
        self.shown.report(|state| state.output.push(chunk))
    }

    /// Replaces the running details.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over.
    pub fn details(&self, details: impl Into<Json>) -> Result<(), ToolError> {
        let details = details.into();
        self.shown.report(|state| state.details = Some(details))
    }

    /// Adds a remark that the model sees.
    ///
    /// # Errors
    /// [`ToolError`] once the call is over.
    pub fn diagnostic(&self, diagnostic: ToolDiagnostic) -> Result<(), ToolError> {
        self.shown.report(|state| state.diagnostics.push(diagnostic))
    }

    /// The environment.
    ///
    /// # Errors
    /// [`ToolError`] where the call has none.
    pub fn env(&self) -> Result<&Arc<dyn ExecutionEnv>, ToolError> {
        self.env.as_ref().ok_or_else(|| ToolError::new("this tool needs an execution environment and has none"))
    }

    /// The same call with another environment.
    #[must_use]
    pub fn with_env(&self, env: Arc<dyn ExecutionEnv>) -> Self {
        Self { env: Some(env), ..self.clone() }
    }

    /// Fires when the call is to stop.
    #[must_use]
    pub const fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// The task of the call; stays the same over a restart.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.call.task
    }

    /// The conversation.
    #[must_use]
    pub fn conversation_id(&self) -> ConversationId {
        self.call.conversation
    }

    /// The provider's name of the call. It is not unique in a session.
    #[must_use]
    pub fn call_id(&self) -> &str {
        &self.call.id
    }
}

impl From<EnvError> for ToolError {
    fn from(error: EnvError) -> Self {
        Self(error.to_string())
    }
}
