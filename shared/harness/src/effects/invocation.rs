//! One invocation of a task: what it says to the line, one at a time, and the loop over its phases.

use std::sync::Arc;
use std::time::Duration;

use picofleet_session::{InvocationId, Json, SessionId, TaskError, TaskId, TaskRecord};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::phase::Phase;
use super::{Services, generation, tool};
use crate::kinds::{GENERATION, TOOL};
use crate::step::Mode;
use crate::transport::{CallError, Transport};
use crate::wire::{Answer, Next, Read, Refusal, Request, Reservation, Said};

/// How often a message without an answer is sent again, and the first pause between; it doubles. Together about 12 seconds, below a lease.
const CALL_ATTEMPTS: u32 = 8;
const CALL_PAUSE: Duration = Duration::from_millis(50);

/// Why a phase stopped.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The invocation is over: whatever the phase still does counts for nothing. Never a fault of the task.
    #[error("the invocation is over")]
    Ended,
    /// What a decision was computed from has changed: the phase runs again.
    #[error("the decision is stale")]
    Stale,
    /// The phase failed: the task faults.
    #[error("{}", .0.message)]
    Failed(TaskError),
}

impl Fault {
    pub(crate) fn failed(error: &dyn std::error::Error) -> Self {
        Self::Failed(TaskError { message: crate::line::chain(error), detail: None })
    }
}

/// One invocation of a task.
pub struct Invocation {
    transport: Arc<dyn Transport>,
    session: SessionId,
    task: TaskId,
    id: InvocationId,
    /// The number of the last saying; held while one is under way, so that they go one at a time.
    number: Mutex<u32>,
    cancel: CancellationToken,
    services: Services,
}

impl Invocation {
    /// An invocation that has reserved its task.
    #[must_use]
    pub fn new(
        transport: Arc<dyn Transport>,
        session: SessionId,
        task: TaskId,
        id: InvocationId,
        cancel: CancellationToken,
        services: Services,
    ) -> Self {
        Self { transport, session, task, id, number: Mutex::new(0), cancel, services }
    }

    pub(crate) const fn services(&self) -> &Services {
        &self.services
    }

    pub(crate) const fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) const fn task(&self) -> TaskId {
        self.task
    }

    pub(crate) const fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Hands a decision to the line.
    pub(super) async fn decide(&self, version: u32, decision: &impl Serialize) -> Result<Json, Fault> {
        let decision = encode(decision)?;
        self.say(Said::Decide { version, decision, last: false }).await.map(|(answer, _)| answer)
    }

    /// Hands over the phase's last decision: the answer holds how it goes on.
    pub(super) async fn decide_last(&self, version: u32, decision: &impl Serialize) -> Result<Next, Fault> {
        let decision = encode(decision)?;
        let (_, next) = self.say(Said::Decide { version, decision, last: true }).await?;
        Ok(next.unwrap_or(Next::Stop))
    }

    /// Hands over progress. `false` asks for the whole.
    pub(super) async fn progress(&self, decision: &impl Serialize) -> Result<bool, Fault> {
        let request = Request::Progress { task: self.task, invocation: self.id, decision: encode(decision)? };
        match self.call(request).await? {
            Answer::Done => Ok(true),
            Answer::Refused(Refusal::Resync) => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    /// Keeps a value under a name; the answer is the one that was kept first.
    pub(crate) async fn memo(&self, name: &str, candidate: Json) -> Result<Json, Fault> {
        self.say(Said::Memo { name: name.to_owned(), candidate }).await.map(|(answer, _)| answer)
    }

    async fn phase_end(&self, error: Option<TaskError>) -> Result<Next, Fault> {
        let (_, next) = self.say(Said::PhaseEnd(error)).await?;
        Ok(next.unwrap_or(Next::Stop))
    }

    async fn say(&self, said: Said) -> Result<(Json, Option<Next>), Fault> {
        let mut number = self.number.lock().await;
        let next = number.saturating_add(1);
        let request = Request::Say { task: self.task, invocation: self.id, number: next, said };
        match self.call(request).await? {
            Answer::Said { answer, next: then } => {
                *number = next;
                Ok((answer, then))
            }
            other => Err(unexpected(other)),
        }
    }

    /// Reads committed state.
    pub(crate) async fn read<T: DeserializeOwned>(&self, read: Read) -> Result<T, Fault> {
        match self.call(Request::Read(read)).await? {
            Answer::Value(value) => value.to().map_err(|error| Fault::failed(&error)),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a message until it is answered; sayings have numbers, so that a repetition is safe.
    async fn call(&self, request: Request) -> Result<Answer, Fault> {
        let mut pause = CALL_PAUSE;
        for _ in 1..CALL_ATTEMPTS {
            match self.transport.call(self.session, request.clone()).await {
                Ok(Answer::Refused(Refusal::AskAgain)) | Err(CallError::NoAnswer(_) | CallError::Unavailable { .. }) => {}
                Ok(answer) => return Ok(answer),
                Err(error) => return Err(Fault::failed(&error)),
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        match self.transport.call(self.session, request).await {
            Ok(Answer::Refused(Refusal::AskAgain)) | Err(_) => Err(Fault::Ended),
            Ok(answer) => Ok(answer),
        }
    }

    async fn ended(&self) {
        // Best effort: an invocation that is not reported ends with its lease.
        let _ = self.transport.call(self.session, Request::Ended { task: self.task, invocation: self.id }).await;
    }
}

fn encode(value: &impl Serialize) -> Result<Json, Fault> {
    Json::from_serde(value).map_err(|error| Fault::failed(&error))
}

fn unexpected(answer: Answer) -> Fault {
    match answer {
        Answer::Refused(Refusal::Stale) => Fault::Stale,
        // The line has faulted the task already where it refused the commit.
        Answer::Refused(_) => Fault::Ended,
        Answer::Failed(failure) => Fault::failed(&failure),
        other => Fault::Failed(TaskError { message: format!("the line gave an answer of another kind: {other:?}"), detail: None }),
    }
}

/// How often in a row a phase runs again because its decision was stale.
const STALE_MAX: u32 = 32;

/// Runs a reserved task until its invocation is over, and says so.
pub async fn run(invocation: Invocation, reservation: Reservation) {
    let Reservation { mut record, mode } = reservation;
    let invocation = Arc::new(invocation);
    let mut stale = 0;
    loop {
        let next = match phase(&invocation, &record, mode).await {
            Ok(next) => Ok(next),
            Err(Fault::Stale) if stale < STALE_MAX => {
                stale += 1;
                continue;
            }
            Err(Fault::Stale) => invocation.phase_end(Some(TaskError { message: "decisions stayed stale".to_owned(), detail: None })).await,
            Err(Fault::Failed(error)) if !invocation.cancel.is_cancelled() => invocation.phase_end(Some(error)).await,
            Err(Fault::Failed(_) | Fault::Ended) => break,
        };
        stale = 0;
        match next {
            Ok(Next::Continue(next)) => record = *next,
            Ok(Next::Stop) | Err(_) => break,
        }
    }
    invocation.ended().await;
}

async fn phase(invocation: &Arc<Invocation>, record: &TaskRecord, mode: Mode) -> Result<Next, Fault> {
    let phase = &Phase::new(invocation, record);
    match (record.kind.as_str(), mode) {
        (GENERATION, Mode::Run) => generation::run(phase).await,
        (GENERATION, Mode::Abort) => generation::abort(phase).await,
        (TOOL, Mode::Run) => tool::run(phase).await,
        (kind, _) => Err(Fault::Failed(TaskError { message: format!("this worker has no code for {kind}"), detail: None })),
    }
}
