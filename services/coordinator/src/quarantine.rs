//! Sessions that may not be opened because opening them failed too often (`protocol.md` 4): what is answered about them all the same.

use picofleet_harness::line::inspect_quarantined;
use picofleet_harness::transport::CallError;
use picofleet_harness::wire::{Answer, HostCall, Request};
use picofleet_session::storage::StorageError;
use picofleet_session::{Json, OpenError, SessionId};

use crate::{Coordinator, ServeError, unavailable};

impl ServeError {
    /// Whether the session is quarantined.
    pub(crate) const fn quarantined(&self) -> bool {
        matches!(self, Self::Open(OpenError::Storage(StorageError::Quarantined { .. })))
    }
}

impl Coordinator {
    /// Answers what needs no line; everything else waits for somebody who retries the session.
    pub(crate) async fn quarantined(&self, session: SessionId, request: &Request) -> Result<Answer, CallError> {
        let Request::Host(call) = request else { return Err(CallError::Quarantined(session)) };
        let answer = match **call {
            HostCall::Inspect => self.stored_work(session).await,
            HostCall::RetrySession => self.inner.store.set_quarantined(session, false).await.map(|()| Json::from("retried")),
            _ => return Err(CallError::Quarantined(session)),
        };
        answer.map(Answer::Value).map_err(|error| unavailable(session, &ServeError::Storage(error)))
    }

    async fn stored_work(&self, session: SessionId) -> Result<Json, StorageError> {
        let reader = self.inner.store.reader(session).await?;
        let inspection = inspect_quarantined(&*reader, &self.inner.options.line).await?;
        // Records are JSON by construction.
        Ok(Json::from_serde(&inspection).unwrap_or(Json::null()))
    }
}
