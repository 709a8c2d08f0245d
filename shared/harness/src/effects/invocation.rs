//! One invocation of a task: what it says to the line, one at a time, and the loop over its phases.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use picofleet_session::{
    CommitError, ContextView, ConversationId, EntryId, InvocationId, Json, Millis, SessionId, SubmissionId, SubmissionRecord, TaskError,
    TaskId, TaskRecord, Transcript, TxError,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::phase::PhaseRun;
use super::pulse::{Pulse, REQUEST};
use super::slot::Slot;
use super::{Code, Services, compaction, generation, tool};
use crate::kinds::{COMPACTION, GENERATION, TOOL};
use crate::registry::Snapshot;
use crate::step::Mode;
use crate::transport::{CallError, Transport};
use crate::wire::{Answer, HostCall, HostFailure, Next, Read, Refusal, Request, Reservation, Said};

/// How often a message without an answer is sent again, and the first pause between; it doubles. Together about 6 seconds beside the calls themselves, below a lease.
const CALL_ATTEMPTS: u32 = 8;
const CALL_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between the messages of an invocation that goes on through an outage.
const OUTAGE_PAUSE: Duration = Duration::from_secs(2);

/// How long one message of a wait waits, in milliseconds; then it is asked again.
const WAIT_MS: u64 = 30_000;

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

impl From<CommitError> for Fault {
    fn from(error: CommitError) -> Self {
        Self::failed(&error)
    }
}

impl From<TxError> for Fault {
    fn from(error: TxError) -> Self {
        Self::failed(&error)
    }
}

impl Fault {
    /// The phase failed with an error.
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
    /// The number of the last progress.
    progress: AtomicU32,
    cancel: CancellationToken,
    /// Fires when nothing of the invocation counts any more.
    over: CancellationToken,
    services: Services,
    slot: Slot,
    phase: SyncMutex<Phase>,
    pulse: Option<Arc<Pulse>>,
    code: Option<Code>,
    /// What runs beside its phases; it ends with the invocation.
    beside: SyncMutex<JoinSet<()>>,
    settles: Arc<AtomicBool>,
}

/// What belongs to the phase that runs.
#[derive(Default)]
struct Phase {
    /// What was registered when it began.
    registry: Option<Arc<Snapshot>>,
    /// How the invocation goes on, where the phase's last saying decided it.
    next: Option<Next>,
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
        slot: Slot,
    ) -> Self {
        let (over, phase) = (CancellationToken::new(), SyncMutex::default());
        Self {
            transport,
            session,
            task,
            id,
            number: Mutex::new(0),
            progress: AtomicU32::new(0),
            cancel,
            over,
            services,
            slot,
            phase,
            pulse: None,
            code: None,
            beside: SyncMutex::default(),
            settles: Arc::default(),
        }
    }

    /// Its effects start only while the worker's beats are answered.
    #[must_use]
    pub fn with_pulse(mut self, pulse: Arc<Pulse>) -> Self {
        self.pulse = Some(pulse);
        self
    }

    /// Set once its effect is over and only what came of it is left to be said: nothing of it has to stop where no beat is answered, because
    /// the lease alone decides who commits (`protocol.md` 4).
    #[must_use]
    pub fn settles(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.settles)
    }

    /// The effect is over; what came of it is said until it is answered.
    pub(super) fn settle(&self) {
        self.settles.store(true, Ordering::Release);
    }

    /// It runs this code in all its phases.
    #[must_use]
    pub fn with_code(mut self, code: Code) -> Self {
        self.code = Some(code);
        self
    }

    /// Nothing of an invocation works once it is over, also what needs no message.
    pub(crate) fn live(&self) -> Result<(), Fault> {
        if self.over.is_cancelled() { Err(Fault::Ended) } else { Ok(()) }
    }

    /// Waits until an effect may start (`protocol.md` 4).
    pub(crate) async fn effect(&self) -> Result<(), Fault> {
        let Some(pulse) = &self.pulse else { return Ok(()) };
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Fault::Ended),
            () = pulse.fresh(self.id) => Ok(()),
        }
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

    pub(super) const fn id(&self) -> InvocationId {
        self.id
    }

    pub(super) const fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    pub(crate) const fn cancel(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Fires when nothing of the invocation counts any more.
    pub(super) const fn over(&self) -> &CancellationToken {
        &self.over
    }

    /// What was registered when the phase began.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(self.phase().registry.get_or_insert_with(|| self.services.registry.snapshot()))
    }

    /// Keeps how the invocation goes on, for the end of the phase.
    pub(crate) fn keep_next(&self, next: Next) {
        self.phase().next = Some(next);
    }

    /// The phase handler returned: what its last saying decided, else what the line says now.
    pub(crate) async fn phase_returned(&self) -> Result<Next, Fault> {
        let kept = self.phase().next.take();
        match kept {
            Some(next) => Ok(next),
            // It returned because it was told to, not because it was done: a worker that stops faults no task.
            None if self.cancel.is_cancelled() => Err(Fault::Ended),
            None => self.phase_end(None).await,
        }
    }

    fn phase(&self) -> std::sync::MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands a decision to the line.
    pub(crate) async fn decide(&self, version: u32, decision: &impl Serialize) -> Result<Json, Fault> {
        let decision = encode(decision)?;
        self.say(Said::Decide { version, decision, last: false }).await.map(|(answer, _)| answer)
    }

    /// Hands over the phase's last decision: the answer holds how it goes on.
    pub(crate) async fn decide_last(&self, version: u32, decision: &impl Serialize) -> Result<Next, Fault> {
        let decision = encode(decision)?;
        let (_, next) = self.say(Said::Decide { version, decision, last: true }).await?;
        Ok(next.unwrap_or(Next::Stop))
    }

    /// Hands over progress, one at a time; `whole` stands on nothing. `false` asks for the whole.
    pub(super) async fn progress(&self, decision: &impl Serialize, whole: bool) -> Result<bool, Fault> {
        let number = self.progress.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let request = Request::Progress { task: self.task, invocation: self.id, number, whole, decision: encode(decision)? };
        match self.call(request).await? {
            Answer::Done => Ok(true),
            Answer::Refused(Refusal::Resync) => Ok(false),
            other => Err(unexpected(other)),
        }
    }

    async fn phase_end(&self, error: Option<TaskError>) -> Result<Next, Fault> {
        let (_, next) = self.say(Said::PhaseEnd(error)).await?;
        Ok(next.unwrap_or(Next::Stop))
    }

    async fn say(&self, said: Said) -> Result<(Json, Option<Next>), Fault> {
        let mut number = self.next_number().await;
        self.say_as(&mut number, said).await
    }

    /// The number of the last saying. Nothing else is said while it is held.
    pub(super) async fn next_number(&self) -> MutexGuard<'_, u32> {
        self.number.lock().await
    }

    pub(super) async fn say_as(&self, number: &mut u32, said: Said) -> Result<(Json, Option<Next>), Fault> {
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
            other => Err(unread(other)),
        }
    }

    /// Calls the session as a host does.
    pub(crate) async fn host<T: DeserializeOwned>(&self, call: HostCall) -> Result<T, Fault> {
        match self.call(Request::Host(Box::new(call))).await? {
            Answer::Value(value) => value.to().map_err(|error| Fault::failed(&error)),
            Answer::Done => Json::null().to().map_err(|error| Fault::failed(&error)),
            other => Err(unread(other)),
        }
    }

    /// Keeps a value under a name; the first writer wins.
    pub(crate) async fn memo<T: Serialize + DeserializeOwned>(&self, name: &str, candidate: &T) -> Result<T, Fault> {
        let (kept, _) = self.say(Said::Memo { name: name.to_owned(), candidate: encode(candidate)? }).await?;
        kept.to().map_err(|error| Fault::failed(&error))
    }

    /// What is kept under a name.
    pub(crate) async fn memoized<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Fault> {
        let record: Option<TaskRecord> = self.read(Read::Task(self.task)).await?;
        let kept = record.and_then(|record| record.memos).and_then(|memos| memos.get(name).cloned());
        kept.map(|kept| kept.to()).transpose().map_err(|error| Fault::failed(&error))
    }

    /// The transcript of a conversation and what a model sees of it.
    pub(crate) async fn context(&self, conversation: ConversationId, at: Option<EntryId>) -> Result<ContextView, Fault> {
        Ok(self.transcript(conversation, at).await?.view())
    }

    /// What a context is derived from.
    pub(crate) async fn transcript(&self, conversation: ConversationId, at: Option<EntryId>) -> Result<Transcript, Fault> {
        match self.call(Request::Read(Read::Context { conversation, at })).await? {
            Answer::Transcript(transcript) => Ok(*transcript),
            other => Err(unread(other)),
        }
    }

    /// Waits until a task is terminal, without a slot.
    pub(crate) async fn wait_for_task(&self, task: TaskId) -> Result<TaskRecord, Fault> {
        self.idle(async {
            loop {
                let record: TaskRecord = self.host(HostCall::WaitTask { task, timeout_ms: WAIT_MS }).await?;
                if record.terminal() {
                    return Ok(record);
                }
            }
        })
        .await
    }

    /// Waits until a submission is settled, without a slot.
    pub(crate) async fn wait_for_submission(&self, submission: SubmissionId) -> Result<SubmissionRecord, Fault> {
        self.idle(async {
            loop {
                let record: SubmissionRecord = self.host(HostCall::WaitSubmission { submission, timeout_ms: WAIT_MS }).await?;
                if record.settled() {
                    return Ok(record);
                }
            }
        })
        .await
    }

    /// Waits until a conversation is idle, without a slot.
    pub(crate) async fn wait_for_idle(&self, conversation: ConversationId) -> Result<(), Fault> {
        self.idle(async {
            while !self.host::<bool>(HostCall::WaitIdle { conversation: Some(conversation), timeout_ms: WAIT_MS }).await? {}
            Ok(())
        })
        .await
    }

    /// Aborts a conversation's foreground work and waits until it is over, without a slot: what stops may need one. Unlike the other waits
    /// it goes on while the invocation itself is told to stop.
    pub(crate) async fn abort(&self, conversation: ConversationId) -> Result<(), Fault> {
        let abort = async {
            let marked: Option<Vec<TaskId>> = self.host(HostCall::Abort { conversation, background: false }).await?;
            let Some(tasks) = marked else { return Ok(()) };
            let wait = HostCall::WaitAborted { conversation, tasks, timeout_ms: WAIT_MS };
            while !self.host::<bool>(wait.clone()).await? {}
            Ok(())
        };
        self.slot.idle(abort).await
    }

    /// Sleeps until a time, without a slot.
    pub(crate) async fn sleep(&self, until: Millis) -> Result<(), Fault> {
        /// A manual clock is looked at again now and then; the system's clock may have been set.
        const LOOK: Duration = Duration::from_millis(100);
        self.idle(async {
            loop {
                let left = until.0.saturating_sub(self.services.clock.now().0);
                let Ok(left @ 1..) = u64::try_from(left) else { return Ok(()) };
                tokio::time::sleep(Duration::from_millis(left).min(LOOK)).await;
            }
        })
        .await
    }

    /// Awaits without a slot, and not longer than the invocation is wanted.
    async fn idle<T>(&self, wait: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let wait = self.slot.idle(wait);
        tokio::select! {
            biased;
            () = self.over.cancelled() => Err(Fault::Ended),
            () = self.cancel.cancelled() => Err(Fault::Ended),
            result = wait => result,
        }
    }

    /// Sends a message until it is answered; sayings have numbers, so that a repetition is safe. An outage ends no invocation: who may run
    /// on for how long without an answered beat is the worker's to say, by the cancellation (`protocol.md` 4).
    pub(super) async fn call(&self, request: Request) -> Result<Answer, Fault> {
        let answer = tokio::select! {
            biased;
            () = self.over.cancelled() => return Err(Fault::Ended),
            answer = self.sent(request) => answer,
        };
        match answer {
            Ok(Answer::Refused(Refusal::AskAgain))
            | Err(CallError::NoAnswer(_) | CallError::Unavailable { .. } | CallError::Closed(_) | CallError::Quarantined(_)) => {
                Err(Fault::Ended)
            }
            Ok(answer) => Ok(answer),
            Err(error) => Err(Fault::failed(&error)),
        }
    }

    /// Sends a message until it is answered or the outage has lasted too long; what came of it last.
    pub(super) async fn sent(&self, request: Request) -> Result<Answer, CallError> {
        lasting(&*self.transport, self.session, request, &self.cancel).await
    }

    /// Runs something beside the phases, until it is over or the invocation is.
    pub(super) fn spawn_beside(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut beside = self.beside();
        while beside.try_join_next().is_some() {}
        beside.spawn(work);
    }

    fn beside(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.beside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it for everything that still holds it, and says so.
    async fn ended(&self) {
        self.over.cancel();
        self.cancel.cancel();
        let mut beside = std::mem::take(&mut *self.beside());
        beside.shutdown().await;
        // Best effort: an invocation that is not reported ends with its lease.
        let _ = self.transport.call(self.session, Request::Ended { task: self.task, invocation: self.id }).await;
    }
}

/// Sends a message until it is answered, the outage has lasted too long, or nobody wants to wait for its end; what came of it last.
pub(crate) async fn lasting(
    transport: &dyn Transport,
    session: SessionId,
    request: Request,
    cancel: &CancellationToken,
) -> Result<Answer, CallError> {
    let started = Instant::now();
    loop {
        match repeated(transport, session, request.clone()).await {
            Ok(Answer::Refused(Refusal::AskAgain) | Answer::Failed(HostFailure::Unavailable(_)))
            | Err(CallError::NoAnswer(_) | CallError::Unavailable { .. })
                if !cancel.is_cancelled() && started.elapsed() < REQUEST => {}
            answer => return answer,
        }
        tokio::time::sleep(OUTAGE_PAUSE).await;
    }
}

/// Sends a message until it is answered, or was sent often enough. Only for messages that may be repeated.
pub(super) async fn repeated(transport: &dyn Transport, session: SessionId, request: Request) -> Result<Answer, CallError> {
    let mut pause = CALL_PAUSE;
    for _ in 1..CALL_ATTEMPTS {
        match transport.call(session, request.clone()).await {
            Ok(Answer::Refused(Refusal::AskAgain) | Answer::Failed(HostFailure::Unavailable(_)))
            | Err(CallError::NoAnswer(_) | CallError::Unavailable { .. }) => {}
            answer => return answer,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    transport.call(session, request).await
}

fn encode(value: &impl Serialize) -> Result<Json, Fault> {
    Json::from_serde(value).map_err(|error| Fault::failed(&error))
}

pub(super) fn unexpected(answer: Answer) -> Fault {
    match answer {
        Answer::Refused(Refusal::Stale) => Fault::Stale,
        // The line has faulted the task already where it refused the commit.
        Answer::Refused(_) => Fault::Ended,
        Answer::Failed(failure) => Fault::failed(&failure),
        other => Fault::Failed(TaskError { message: format!("the line gave an answer of another kind: {other:?}"), detail: None }),
    }
}

/// The same of a read or a call that belongs to no decision. The line has faulted nothing because of it: without a fault the phase would
/// run again, and meet the same, for ever.
fn unread(answer: Answer) -> Fault {
    match answer {
        Answer::Refused(Refusal::Rejected(message)) => Fault::Failed(TaskError { message, detail: None }),
        other => unexpected(other),
    }
}

/// How often in a row a phase runs again because its decision was stale.
const STALE_MAX: u32 = 32;

/// Ends what runs beside an invocation, however its own run ends.
struct Beside<'a>(&'a Invocation);

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        self.0.over.cancel();
        self.0.beside().abort_all();
    }
}

/// Runs a reserved task until its invocation is over, and says so.
pub async fn run(invocation: Arc<Invocation>, reservation: Reservation) {
    let _beside = Beside(&invocation);
    let Reservation { mut record, mode } = reservation;
    let mut stale = 0;
    loop {
        *invocation.phase() = Phase::default();
        // A panic of a handler is an error that nobody caught.
        let handler = std::panic::AssertUnwindSafe(phase(&invocation, &record, mode)).catch_unwind().await;
        let panicked = || Fault::Failed(TaskError { message: format!("a handler of {} panicked", record.kind), detail: None });
        let next = match handler.unwrap_or_else(|_| Err(panicked())) {
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
    let run = &PhaseRun::new(Arc::clone(invocation), record.conversation_id);
    match (record.kind.as_str(), mode) {
        (GENERATION, Mode::Run) => generation::run(run, record).await,
        (GENERATION, Mode::Abort) => generation::abort(run, record).await,
        (TOOL, Mode::Run) => tool::run(run, record).await,
        (COMPACTION, Mode::Run) => compaction::run(run, record).await,
        (COMPACTION, Mode::Abort) => compaction::abort(run).await,
        (kind, _) => match invocation.code.as_ref().and_then(|code| code.task.as_ref()) {
            Some(task) => task.run(invocation, record, mode).await,
            None => Err(Fault::Failed(TaskError { message: format!("this worker has no code for {kind}"), detail: None })),
        },
    }
}
