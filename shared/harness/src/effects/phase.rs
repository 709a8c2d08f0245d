//! One run of a phase handler: its invocation, the registry as it was when the phase began, and the hooks that it asks.

use std::error::Error;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt as _;
use picofleet_session::ConversationId;

use super::hook_api::HookApi;
use super::invocation::{Fault, Invocation};
use super::owners;
use crate::hooks::{Asks, HookError, HookScope};
use crate::registry::Snapshot;

/// One run of a phase handler.
pub(crate) struct PhaseRun {
    pub(super) invocation: Arc<Invocation>,
    /// The one of the phase: everything that it does uses this one (section 7.1).
    pub(super) registry: Arc<Snapshot>,
    pub(super) api: HookApi,
}

impl PhaseRun {
    pub(crate) fn new(invocation: Arc<Invocation>, conversation: ConversationId) -> Self {
        let registry = invocation.snapshot();
        let api = HookApi::new(Arc::clone(&invocation), conversation);
        Self { invocation, registry, api }
    }

    const fn conversation(&self) -> ConversationId {
        self.api.conversation_id()
    }

    /// Says that something went wrong that the task does not end by.
    pub(crate) fn report(&self, error: &(dyn Error + 'static)) {
        (self.invocation.services().on_report)(error);
    }

    /// The handlers of a task that are asked for this conversation, in the order of the registry.
    pub(crate) async fn handlers<A: Asks>(&self) -> Result<Vec<Arc<A::Hooks>>, Fault> {
        let mut handlers = Vec::new();
        for registered in self.registry.hooks::<A>() {
            if self.in_scope(registered.scope).await? {
                handlers.push(registered.hooks);
            }
        }
        Ok(handlers)
    }

    async fn in_scope(&self, scope: Option<HookScope>) -> Result<bool, Fault> {
        let Some(scope) = scope else { return Ok(true) };
        if scope.session.is_some_and(|session| session != self.invocation.session()) {
            return Ok(false);
        }
        if scope.conversation == self.conversation() {
            return Ok(true);
        }
        Ok(scope.subtree && owners::of(&self.invocation, self.conversation()).await?.contains(&scope.conversation))
    }

    /// Asks one handler; a panic is an ordinary error. `Err` ends the phase: errors propagate once the invocation is over.
    pub(super) async fn ask<T>(&self, asked: impl Future<Output = Result<T, HookError>>) -> Result<Result<T, HookError>, Fault> {
        let answer = AssertUnwindSafe(asked).catch_unwind().await.unwrap_or_else(|panic| Err(HookError::panicked(&*panic)));
        match answer {
            Err(error) if self.over(&error) => Err(Fault::Ended),
            answer => Ok(answer),
        }
    }

    /// Asks one handler of a row whose errors are reported; `None` then.
    pub(crate) async fn ask_or_report<T>(&self, asked: impl Future<Output = Result<T, HookError>>) -> Result<Option<T>, Fault> {
        match self.ask(asked).await? {
            Ok(answer) => Ok(Some(answer)),
            Err(error) => {
                self.report(error.as_error());
                Ok(None)
            }
        }
    }

    fn over(&self, error: &HookError) -> bool {
        self.invocation.cancel().is_cancelled() || matches!(error.as_error().downcast_ref::<Fault>(), Some(Fault::Ended))
    }
}
