//! Commits with closures over the transport (`design.md` 1). The closure runs here, once, over the same [`Tx`] as embedded: the state below
//! it is read through a hold of the session's line, and what it wrote is sent to the line, which commits it.

mod store;

use std::sync::Arc;
use std::time::Duration;

use picofleet_session::storage::SessionStore;
use picofleet_session::{
    Bound, Clock, CommitError, ConversationCreated, ConversationId, DocumentAddress, Session, SessionId, SessionOptions, Setups,
    TaskRecord, Tx,
};

use self::store::RemoteStore;
use super::invocation::{Fault, Invocation, unexpected};
use crate::task::NextState;
use crate::transport::{CallError, Transport};
use crate::wire::{Answer, Begin, Begun, Finish, HoldId, Next, Refusal, Request, Said, Written};

tokio::task_local! {
    /// The session whose line the running closure holds.
    static HOLDING: SessionId;
}

/// How a closure commits.
#[derive(Clone, Debug, Default)]
pub struct CommitOptions {
    /// Documents that it will open; their values come with the begin, so that opening them costs no message.
    pub documents: Vec<DocumentAddress>,
    /// It ends the phase: the step runs in the same commit.
    pub last: bool,
}

impl Invocation {
    /// Commits what a closure writes and what it decides about the task. The closure runs once, while the session's line waits for it, at
    /// most for the line's bound: no effects in it.
    ///
    /// # Errors
    /// What the closure says; [`CommitError`] for what a transaction refuses; [`Fault::Ended`] where the invocation is over, also because
    /// the closure took too long. Nothing is written then.
    pub async fn commit<R, E, F>(&self, change: F) -> Result<R, E>
    where
        F: AsyncFnOnce(&Tx, &TaskRecord) -> Result<(R, NextState), E>,
        E: From<Fault> + From<CommitError>,
    {
        self.commit_with(CommitOptions::default(), change).await.map(|(result, _)| result)
    }

    /// [`Invocation::commit`] that ends the phase: the answer holds how it goes on.
    ///
    /// # Errors
    /// As [`Invocation::commit`].
    pub async fn commit_last<R, E, F>(&self, change: F) -> Result<(R, Next), E>
    where
        F: AsyncFnOnce(&Tx, &TaskRecord) -> Result<(R, NextState), E>,
        E: From<Fault> + From<CommitError>,
    {
        let options = CommitOptions { last: true, ..CommitOptions::default() };
        self.commit_with(options, change).await.map(|(result, next)| (result, next.unwrap_or(Next::Stop)))
    }

    /// [`Invocation::commit`] with options.
    ///
    /// # Errors
    /// As [`Invocation::commit`].
    pub async fn commit_with<R, E, F>(&self, options: CommitOptions, change: F) -> Result<(R, Option<Next>), E>
    where
        F: AsyncFnOnce(&Tx, &TaskRecord) -> Result<(R, NextState), E>,
        E: From<Fault> + From<CommitError>,
    {
        nothing_held(self.session())?;
        // Held from the begin on: a saying that came between would wait for the line, and the closure's end for the saying.
        let mut number = self.next_number().await;
        let begin = Begin { by: Some((self.task(), self.id())), documents: options.documents, ..Begin::default() };
        let hold = HoldId::random();
        let mut guard = Guard::new(self.transport(), self.session(), hold);
        let begun = match self.call(Request::Begin { hold, begin: Box::new(begin.clone()) }).await? {
            Answer::Begun(begun) => *begun,
            other => {
                guard.disarm();
                return Err(unexpected(other).into());
            }
        };
        let Some(record) = begun.task.clone() else { return Err(Fault::Ended.into()) };
        let bound = Bound { conversation: Some(record.conversation_id), task: Some(record.id) };
        let built_in: Arc<dyn ConversationCreated> = Arc::new(self.services().registry.clone());
        let held = Held::new(self.transport(), self.session(), hold, begun, begin.documents);
        let run = held.run(bound, Arc::from([built_in]), async |tx| change(tx, &record).await);
        let ((result, next), writes) = run.await.map_err(|error| {
            // The line may learn only in a moment that the invocation is lost: nothing that the code makes of it may be said.
            if matches!(error, Ended::Gone) {
                self.cancel().cancel();
            }
            error.or(&mut guard, Fault::Ended)
        })?;
        if next == NextState::Stale {
            return Err(Fault::Stale.into());
        }
        let finish = Finish { hold, writes, next, last: options.last };
        let (_, then) = self.say_as(&mut number, Said::Finish(Box::new(finish))).await?;
        guard.disarm();
        Ok((result, then))
    }
}

/// Why a host's closure was not committed, besides what it says itself.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldError {
    /// The line did not wait any longer, or the session has another owner. Nothing was written.
    #[error("the session's line did not wait for the commit; make it again, and keep effects and waits out of it")]
    Gone,
    /// The line refused what was written.
    #[error("{0}")]
    Refused(Refusal),
    /// No answer came. Where this is the answer to the end of the closure, whether it was written can't be told.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The line gave an answer of another kind.
    #[error("the line gave an answer of another kind")]
    Answer,
}

/// How a host commits with a closure.
#[derive(Clone, Default)]
pub struct HostCommit {
    /// The conversation that the commit is about: the default of what it makes.
    pub conversation: Option<ConversationId>,
    /// Documents that it will open; their values come with the begin.
    pub documents: Vec<DocumentAddress>,
    /// Setups of the conversations that it makes. Without any, the line's built-in one.
    pub setups: Setups,
}

/// Commits with a closure as a host, over a transport. See [`Invocation::commit`] for its rules. A closure that writes nothing commits
/// nothing.
///
/// # Errors
/// What the closure says; [`CommitError`] for what a transaction refuses; [`HoldError`].
pub async fn commit<R, E, F>(transport: &Arc<dyn Transport>, session: SessionId, options: HostCommit, change: F) -> Result<R, E>
where
    F: AsyncFnOnce(&Tx) -> Result<R, E>,
    E: From<HoldError> + From<CommitError>,
{
    nothing_held(session)?;
    let HostCommit { conversation, documents, setups } = options;
    let begin = Begin { conversation, documents: documents.clone(), ..Begin::default() };
    let hold = HoldId::random();
    let mut guard = Guard::new(transport, session, hold);
    let call = |request| super::invocation::repeated(&**transport, session, request);
    let begun = match call(Request::Begin { hold, begin: Box::new(begin) }).await.map_err(HoldError::from)? {
        Answer::Begun(begun) => *begun,
        other => {
            guard.disarm();
            return Err(refused(other).into());
        }
    };
    let held = Held::new(transport, session, hold, begun, documents);
    let run = held.run(Bound { conversation, task: None }, setups, change);
    let (result, writes) = run.await.map_err(|error| error.or(&mut guard, HoldError::Gone))?;
    if writes.writes.is_empty() {
        // The guard gives the line back.
        return Ok(result);
    }
    match call(Request::Finish { hold, writes: Box::new(writes) }).await.map_err(HoldError::from)? {
        Answer::Done => {
            guard.disarm();
            Ok(result)
        }
        other => Err(refused(other).into()),
    }
}

fn refused(answer: Answer) -> HoldError {
    match answer {
        Answer::Refused(Refusal::Gone) => HoldError::Gone,
        Answer::Refused(refusal) => HoldError::Refused(refusal),
        _ => HoldError::Answer,
    }
}

/// Refuses a commit inside of a closure on the same session: it would wait for the line that the closure holds.
pub(crate) fn nothing_held(session: SessionId) -> Result<(), CommitError> {
    let held = HOLDING.try_with(|held| *held == session).unwrap_or(false);
    if held { Err(CommitError::Nested) } else { Ok(()) }
}

/// What ended a closure.
pub(crate) enum Ended<E> {
    /// It said so itself, or its transaction did.
    Said(E),
    /// The line does not wait any more.
    Gone,
}

impl<E> Ended<E> {
    pub(crate) fn or<G>(self, guard: &mut Guard, gone: G) -> E
    where
        E: From<G>,
    {
        match self {
            Self::Said(error) => error,
            Self::Gone => {
                // Not given back but run out, so that the line counts the invocation as lost.
                guard.disarm();
                gone.into()
            }
        }
    }
}

/// A held line.
pub(crate) struct Held {
    session: SessionId,
    store: Arc<RemoteStore>,
    begun: Begun,
}

impl Held {
    pub(crate) fn new(transport: &Arc<dyn Transport>, session: SessionId, hold: HoldId, begun: Begun, named: Vec<DocumentAddress>) -> Self {
        let store = Arc::new(RemoteStore::new(Arc::clone(transport), session, hold, &begun, named));
        Self { session, store, begun }
    }

    /// Runs the closure in a session of its own, over the state that the hold shows. Gives what it wrote instead of storing it.
    pub(crate) async fn run<R, E, F>(self, bound: Bound, on_create: Setups, change: F) -> Result<(R, Written), Ended<E>>
    where
        F: AsyncFnOnce(&Tx) -> Result<R, E>,
        E: From<CommitError>,
    {
        let Self { session, store, begun } = self;
        let options = SessionOptions { clock: Clock::manual(begun.now), epoch: begun.head.epoch, on_create, ..SessionOptions::default() };
        let ephemeral = Session::over(Arc::clone(&store) as Arc<dyn SessionStore>, options);
        let run = HOLDING.scope(session, Box::pin(ephemeral.commit_bound(bound, change)));
        // The line does not wait longer either.
        let result = tokio::time::timeout(Duration::from_millis(begun.bound_ms), run).await;
        match result {
            Err(_) => Err(Ended::Gone),
            Ok(_) if store.lost() => Err(Ended::Gone),
            Ok(Err(error)) => Err(Ended::Said(error)),
            Ok(Ok(result)) => Ok((result, store.written(begun.head.next_id))),
        }
    }
}

/// Gives a hold back when its closure ends without a finish: on an error, and when its future is dropped.
pub(crate) struct Guard {
    transport: Arc<dyn Transport>,
    session: SessionId,
    hold: Option<HoldId>,
}

impl Guard {
    pub(crate) fn new(transport: &Arc<dyn Transport>, session: SessionId, hold: HoldId) -> Self {
        Self { transport: Arc::clone(transport), session, hold: Some(hold) }
    }

    /// The hold is over already.
    pub(crate) const fn disarm(&mut self) {
        self.hold = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let (Some(hold), Ok(runtime)) = (self.hold, tokio::runtime::Handle::try_current()) else { return };
        let (transport, session) = (Arc::clone(&self.transport), self.session);
        // Best effort: a hold that is not given back runs out.
        runtime.spawn(async move { transport.call(session, Request::Release { hold }).await });
    }
}
