//! The line of one session (`design.md` 1): reserves tasks, applies what invocations say, reconciles, admits submissions. It decides;
//! workers run the effects.

mod aside;
mod beat;
mod calls;
mod definitions;
mod documents;
mod follow;
mod hold;
mod host;
mod inspect;
mod options;
mod outcome;
mod owner;
mod park;
mod reconcile;
mod recover;
mod reserve;
mod rest;
mod row;
mod say;
mod schedule;
mod state;
mod stop;
mod wait;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use picofleet_session::storage::StorageError;
use picofleet_session::{CommitError, InvocationId, Json, Millis, ReadError, Session, Standing, Subscription, TaskId, TaskRecord, TxError};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::inspection::Scheduling;
use crate::ownership::{Plan, Tree};
use crate::step::Mode;
use crate::task::{LineTask, LineTasks};
use crate::wire::{Answer, HoldId, Refusal, Request, Route, Signal, WorkerId};

pub use definitions::LineReport;
pub use inspect::inspect_quarantined;
pub use options::{Invocations, LineOptions, Workers};
pub use rest::Visit;
pub use watch::{ConversationWatch, Followed};

/// Takes what a line tells its application: failures that change no outcome.
pub type OnReport = Arc<dyn Fn(&LineReport) + Send + Sync>;

/// How many times in a row an invocation of a task is lost without progress until it is parked (`design.md` 6).
pub const RESTART_LIMIT: u32 = 5;

/// The line of one session. Cheap to clone; all clones are one line.
#[derive(Clone)]
pub struct SessionLine {
    inner: Arc<Inner>,
}

struct Inner {
    session: Session,
    options: LineOptions,
    state: Arc<Mutex<State>>,
    /// A commit landed: whoever waits looks again.
    changed: Arc<Notify>,
    /// The tasks of holds; they end with the line.
    holding: Mutex<JoinSet<()>>,
    /// Calls of answers, for the tools that run them.
    answers: tokio::sync::Mutex<calls::Answers>,
    _subscription: Subscription,
    /// Whoever waits looks again when the session ends.
    _closing: Subscription,
}

/// What the line keeps in memory. All of it can be made again from storage.
#[derive(Default)]
struct State {
    tree: Tree,
    held: BTreeMap<TaskId, Held>,
    /// The last invocation of each live task, of those that this line has seen.
    named: BTreeMap<TaskId, InvocationId>,
    scheduling: Scheduling,
    tasks: Arc<LineTasks>,
    /// Tasks whose last invocation was lost: the next reservation counts a restart. Found again at open.
    lost: BTreeSet<TaskId>,
    /// Migrations that failed: not tried again with the same definition.
    failed: BTreeMap<TaskId, definitions::Failed>,
    /// Tasks about which storage refused a decision: left alone for a while.
    aside: aside::Aside,
    /// Workers that take no more work.
    draining: BTreeSet<WorkerId>,
    /// Closures that hold the line or wait for it.
    holds: BTreeMap<HoldId, Arc<hold::Hold>>,
    /// Documents that invocations watch.
    watches: documents::Watches,
    /// Who uses it.
    visits: rest::Visits,
    /// Conversations that somebody follows.
    follows: follow::Follows,
    /// Submissions as the last commits left them.
    submissions: state::Submissions,
}

/// An invocation that holds a task.
#[derive(Clone)]
struct Held {
    invocation: InvocationId,
    /// Its worker, as far as it is known: an invocation of an earlier owner names its own with its next beat.
    worker: Option<WorkerId>,
    mode: Mode,
    /// The checkpoint that its phase began with.
    began_at: Json,
    /// Its last saying, with the digest and the answer, for a repetition.
    number: u32,
    last: Option<(String, Answer)>,
    /// The number of its last progress; 0 where it is not known, so that the next one has to be whole.
    progress: u32,
    /// The definition that it runs; decisions are applied by this one.
    definition: Arc<dyn LineTask>,
    /// Version and build of the code that its worker runs, as the worker named it.
    code: (u32, String),
    /// The last definition that it could not be handed over to, as it was reported.
    reported: Option<Option<(u32, String)>>,
    /// The running record, while the reservation is in memory only: the first saying stores it (`protocol.md` 3).
    unstored: Option<Box<TaskRecord>>,
    /// Its worker was heard naming it.
    heard: bool,
    /// Its lease is over: the next reservation ends it.
    expired: bool,
}

/// Why the line could not do something. What a caller can do about it is in the answer that it becomes.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// A commit failed.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Storage could not be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A reader of a conversation was refused: the conversation is not there, or there are too many readers.
    #[error(transparent)]
    Unwatched(crate::wire::HostFailure),
}

impl SessionLine {
    /// The line over an open session, paused. Tasks that an earlier process left running become `pending` again (section 5.1): embedded, an
    /// invocation belongs to its process. Held outcomes whose work has drained become terminal. Nothing else is decided before
    /// [`SessionLine::resume`].
    ///
    /// # Errors
    /// [`LineError`] where the session can't be read or the recovery not be stored; the session is closed then.
    pub async fn open(session: Session, tasks: LineTasks, options: LineOptions) -> Result<Self, LineError> {
        let follows = follow::Follows::new(&session.store().opened(), options.before);
        let state = Arc::new(Mutex::new(State { tasks: Arc::new(tasks), follows, ..State::default() }));
        let changed = Arc::new(Notify::new());
        let subscription = {
            let (state, changed) = (Arc::clone(&state), Arc::clone(&changed));
            session.subscribe_commits(move |publication| {
                lock(&state).observe(publication);
                changed.notify_waiters();
            })
        };
        let closing = {
            let changed = Arc::clone(&changed);
            session.subscribe_close(move || changed.notify_waiters())
        };
        let line = Self {
            inner: Arc::new(Inner {
                session,
                options,
                state,
                changed,
                holding: Mutex::default(),
                answers: tokio::sync::Mutex::default(),
                _subscription: subscription,
                _closing: closing,
            }),
        };
        if let Err(error) = line.recover().await {
            if let Err(close) = line.session().close().await {
                tracing::warn!(session = %line.session().id(), error = %close, "a session that could not be opened was not closed either");
            }
            return Err(error);
        }
        Ok(line)
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Whether two are one line.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Wakes when a commit landed. Take it before looking at what is waited for.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.inner.changed)
    }

    /// Answers a message. A session that is closing or belongs to somebody else answers [`Refusal::AskAgain`].
    pub async fn handle(&self, request: Request) -> Answer {
        // Boxed one by one: their sum would be a large future, and more than the compiler can show to be `Send`.
        let answer: BoxFuture<'_, Result<Answer, LineError>> = match request {
            Request::Reserve { task, invocation, worker, definition } => {
                Box::pin(async move { self.reserve(task, invocation, worker, definition).await.map_err(|error| self.end_damaged(error)) })
            }
            Request::Say { task, invocation, number, said } => Box::pin(self.say(task, invocation, number, said)),
            Request::Progress { task, invocation, number, whole, decision } => {
                Box::pin(self.progress(task, invocation, (number, whole), decision))
            }
            Request::Ended { task, invocation } => {
                self.ended(task, invocation);
                Box::pin(std::future::ready(Ok(Answer::Done)))
            }
            Request::Read(read) => Box::pin(self.read(read)),
            Request::Host(call) => Box::pin(self.host(*call)),
            Request::Begin { hold, begin } => Box::pin(async move { Ok(self.begin(hold, *begin).await) }),
            Request::Ask { hold, read } => Box::pin(async move { Ok(self.ask(hold, read).await) }),
            Request::Finish { hold, writes } => Box::pin(self.finish(hold, *writes)),
            Request::Watch { watch, by, call } => Box::pin(self.watch_document(watch, by, *call)),
            Request::Follow(follow) => Box::pin(self.follow(follow)),
            Request::Release { hold } => {
                self.give_up(hold);
                Box::pin(std::future::ready(Ok(Answer::Done)))
            }
        };
        let answer = answer.await.unwrap_or_else(|error| refused(&error));
        self.tell_an_end();
        answer
    }

    /// Where scheduling met damage, nothing would go on: the session is over, and says why.
    fn end_damaged(&self, error: LineError) -> LineError {
        if let Some(damage) = damage(&error) {
            self.session().give_up(damage);
        }
        error
    }

    /// Whoever waits on this line learns that its session is over, also where no close has said so.
    fn tell_an_end(&self) {
        if self.session().standing() != Standing::Open {
            self.inner.changed.notify_waiters();
        }
    }

    /// What may be reserved now, after everything that the scheduler itself decides is stored (section 5.4).
    ///
    /// # Errors
    /// [`LineError`].
    pub async fn plan(&self) -> Result<Plan, LineError> {
        let plan = self.reconcile().await.map_err(|error| self.end_damaged(error));
        self.tell_an_end();
        plan
    }

    /// The route of a live task: what a worker has to have registered to run it.
    #[must_use]
    pub fn route(&self, task: TaskId) -> Option<Route> {
        let state = self.state();
        let record = state.tree.live.get(&task)?;
        // A task that will be migrated is for workers that have the newer definition.
        let version = state.tasks.get(&record.kind).map_or(record.version, |definition| definition.version());
        Some(Route::of(&record.kind, version))
    }

    /// Invocations whose workers have to be told to stop: of tasks that somebody asked to stop (section 5.4), and all of them where the
    /// line closes.
    #[must_use]
    pub fn cancellations(&self) -> Vec<(WorkerId, Signal)> {
        let session = self.inner.session.id();
        let state = self.state();
        let held = state.held.iter().filter(|(task, held)| state.cancelled(**task, held));
        let signal =
            |(task, held): (&TaskId, &Held)| Some((held.worker?, Signal::Cancel { session, task: *task, invocation: held.invocation }));
        held.filter_map(signal).collect()
    }

    /// Whether an invocation holds a task.
    #[must_use]
    pub fn holds(&self, task: TaskId, invocation: InvocationId) -> bool {
        self.state().held.get(&task).is_some_and(|held| held.invocation == invocation)
    }

    /// The invocations that hold tasks, with the kinds and versions of these.
    #[must_use]
    pub fn invocations(&self) -> Vec<(TaskId, InvocationId, String, u32)> {
        let state = self.state();
        let held = state.held.iter().filter_map(|(task, held)| {
            let record = state.tree.live.get(task)?;
            Some((*task, held.invocation, record.kind.clone(), record.version))
        });
        held.collect()
    }

    fn ended(&self, task: TaskId, invocation: InvocationId) {
        let mut state = self.state();
        if state.held.get(&task).is_some_and(|held| held.invocation == invocation) {
            state.held.remove(&task);
            state.forget_watches();
        }
        drop(state);
        self.inner.changed.notify_waiters();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.inner.state)
    }

    fn now(&self) -> Millis {
        self.inner.session.clock().now()
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An error as a refusal: what the other side can act on.
fn refused(error: &LineError) -> Answer {
    match error {
        LineError::Commit(CommitError::Closed | CommitError::NotOwner | CommitError::Failed(_))
        | LineError::Read(ReadError::Closed | ReadError::NotOwner | ReadError::Failed(_))
        | LineError::Storage(StorageError::Closed) => Answer::Refused(Refusal::AskAgain),
        // Nothing was decided, and the next try may find it.
        LineError::Read(ReadError::Storage(StorageError::Failed { .. })) | LineError::Storage(StorageError::Failed { .. }) => {
            tracing::warn!(error = chain(error), "the line could not read");
            Answer::Failed(crate::wire::HostFailure::Unavailable(chain(error)))
        }
        other => {
            tracing::warn!(error = chain(other), "the line refused a request");
            Answer::Refused(Refusal::Rejected(chain(other)))
        }
    }
}

/// What is damaged, where that is what a failure comes from.
fn damage(error: &LineError) -> Option<StorageError> {
    let read = match error {
        LineError::Commit(CommitError::Tx(TxError::Read(error)))
        | LineError::Read(ReadError::Storage(error))
        | LineError::Storage(error) => error,
        _ => return None,
    };
    read.damaged().then(|| read.clone())
}

/// A failed commit as the error of a task.
fn say_error(error: &CommitError) -> picofleet_session::TaskError {
    picofleet_session::TaskError { message: chain(error), detail: None }
}

/// An error with all its causes.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
