//! A call without a run: for tests of tools, and for programs that use a tool directly.

use std::sync::Arc;

use picofleet_session::{Json, ROOT_CONVERSATION_ID, TaskId};
use tokio_util::sync::CancellationToken;

use super::{Call, ExecutionEnv, Shown, ToolApi};
use crate::effects::OutputLimits;
use crate::live::ToolDiagnostic;

/// A call that belongs to no session. What the tool reports stays here; dropping it ends the call.
pub struct LooseCall {
    shown: Arc<Shown>,
    api: ToolApi,
}

impl LooseCall {
    /// A call with this task id, these bounds of output, this environment and this way to stop it.
    #[must_use]
    pub fn new(task: TaskId, limits: OutputLimits, env: Option<Arc<dyn ExecutionEnv>>, cancel: CancellationToken) -> Self {
        let shown = Shown::new(limits);
        let call = Call { task, conversation: ROOT_CONVERSATION_ID, id: "loose".to_owned() };
        let api = ToolApi::loose(Arc::clone(&shown), env, cancel, call);
        Self { shown, api }
    }

    /// What the tool gets.
    #[must_use]
    pub fn api(&self) -> ToolApi {
        self.api.clone()
    }

    /// The retained output.
    #[must_use]
    pub fn output(&self) -> String {
        self.shown.with(|state| state.output.text())
    }

    /// How many bytes and lines of the output the bounds dropped.
    #[must_use]
    pub fn dropped(&self) -> (u64, u64) {
        self.shown.with(|state| state.output.dropped())
    }

    /// The last reported details.
    #[must_use]
    pub fn details(&self) -> Option<Json> {
        self.shown.with(|state| state.details.clone())
    }

    /// The reported diagnostics.
    #[must_use]
    pub fn diagnostics(&self) -> Vec<ToolDiagnostic> {
        self.shown.with(|state| state.diagnostics.clone())
    }
}

impl Drop for LooseCall {
    fn drop(&mut self) {
        self.shown.end();
    }
}
