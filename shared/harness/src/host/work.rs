//! The work of a session as a host sees it (section 2.2): waits, inspection, scheduling, and commits with closures.

use picofleet_session::{CommitError, TaskId, TaskRecord, TaskState, Tx};
use serde::de::DeserializeOwned;

use super::{Conversation, Harness, HostError, WAIT};
use crate::effects::{HoldError, HostCommit, commit};
use crate::inspection::Inspection;
use crate::kind::Outcome;
use crate::wire::HostCall;

impl Harness {
    /// Waits until a task is terminal, and says how it ended. It enables scheduling; dropping the future stops nothing.
    ///
    /// # Errors
    /// [`HostError::NotFound`]; [`HostError::Answer`] for a result of another type; [`HostError::Unavailable`] where the session closes
    /// meanwhile.
    pub async fn wait_for_task<R: DeserializeOwned>(&self, id: TaskId<R>) -> Result<Outcome<R>, HostError> {
        loop {
            let record: TaskRecord = self.caller.ask(HostCall::WaitTask { task: id.erase(), timeout_ms: WAIT }).await?;
            if let TaskState::Terminal { outcome } = record.state {
                return Outcome::of(outcome).map_err(|error| HostError::Answer(format!("the result of task {id}: {error}")));
            }
        }
    }

    /// Waits until no conversation has foreground work. It enables scheduling.
    ///
    /// # Errors
    /// [`HostError::Unavailable`] where the session closes meanwhile.
    pub async fn wait_for_idle(&self) -> Result<(), HostError> {
        while !self.caller.ask(HostCall::WaitIdle { conversation: None, timeout_ms: WAIT }).await? {}
        Ok(())
    }

    /// The live work at one point on the line. It runs no code and enables no scheduling. Of a quarantined session, which is not opened, it
    /// shows what is stored.
    ///
    /// # Errors
    /// [`HostError::Unavailable`].
    pub async fn inspect(&self) -> Result<Inspection, HostError> {
        self.caller.ask(HostCall::Inspect).await
    }

    /// Lets a quarantined session be opened again; the next call does. `false` where it is not quarantined.
    ///
    /// # Errors
    /// [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn retry_session(&self) -> Result<bool, HostError> {
        let word: String = self.caller.write(HostCall::RetrySession).await?;
        match word.as_str() {
            "retried" => Ok(true),
            "not_quarantined" => Ok(false),
            _ => Err(HostError::Answer(format!("{word:?} to a retry of a session"))),
        }
    }

    /// Enables scheduling; a second time changes nothing.
    ///
    /// # Errors
    /// [`HostError::Unavailable`], also while the session closes.
    pub async fn resume(&self) -> Result<(), HostError> {
        self.caller.ask(HostCall::Resume).await
    }

    /// Lets a task that was lost too often run again. `false` where it is not parked for that.
    ///
    /// # Errors
    /// [`HostError::NotFound`]; [`HostError::Unavailable`], [`HostError::OutcomeUnknown`].
    pub async fn retry_task(&self, id: TaskId) -> Result<bool, HostError> {
        let word: String = self.caller.write(HostCall::RetryTask { task: id }).await?;
        match word.as_str() {
            "retried" => Ok(true),
            "not_parked" => Ok(false),
            _ => Err(HostError::Answer(format!("{word:?} to a retry of a task"))),
        }
    }

    /// Commits what a closure writes. It runs once, while the session's line waits for it: no effects in it.
    ///
    /// # Errors
    /// What the closure says; [`CommitError`] for what a transaction refuses, with nothing written; [`HoldError`].
    pub async fn commit<R, E, F>(&self, options: HostCommit, change: F) -> Result<R, E>
    where
        F: AsyncFnOnce(&Tx) -> Result<R, E>,
        E: From<HoldError> + From<CommitError>,
    {
        commit(self.caller.transport(), self.caller.session(), options, change).await
    }
}

impl Conversation {
    /// Waits until it has no foreground work, also not in what it owns. It enables scheduling.
    ///
    /// # Errors
    /// [`HostError::NotFound`]; [`HostError::Unavailable`] where the session closes meanwhile.
    pub async fn wait_for_idle(&self) -> Result<(), HostError> {
        while !self.harness.caller.ask(HostCall::WaitIdle { conversation: Some(self.id), timeout_ms: WAIT }).await? {}
        Ok(())
    }

    /// [`Harness::commit`] about this conversation: it is the default of what the closure makes.
    ///
    /// # Errors
    /// As [`Harness::commit`].
    pub async fn commit<R, E, F>(&self, change: F) -> Result<R, E>
    where
        F: AsyncFnOnce(&Tx) -> Result<R, E>,
        E: From<HoldError> + From<CommitError>,
    {
        self.harness.commit(HostCommit { conversation: Some(self.id), ..HostCommit::default() }, change).await
    }
}
