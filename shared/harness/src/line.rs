//! The line of one session (`design.md` 1): reserves tasks, applies what invocations say, reconciles, admits submissions. It decides;
//! workers run the effects.

mod aside;
mod beat;
mod definitions;
mod documents;
mod follow;
mod hold;
mod host;
mod inspect;
mod options;
mod outcome;
mod park;
mod reconcile;
mod recover;
mod reserve;
mod rest;
mod row;
mod say;
mod schedule;
mod stop;
mod wait;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use picofleet_session::{
    CommitError, InvocationId, InvocationRow, Json, Millis, Publication, ReadError, Session, Standing, Subscription, TaskId, TaskState,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::inspection::Scheduling;
use crate::ownership::{Lineage, Plan, Tree};
use crate::step::Mode;
use crate::task::{LineTask, LineTasks};
use crate::wire::{Answer, HoldId, Next, Refusal, Request, Route, Signal, WorkerId};

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
    /// The last definition that it could not be handed over to, as it was reported.
    reported: Option<Option<(u32, String)>>,
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
    Storage(#[from] picofleet_session::storage::StorageError),
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
            Request::Reserve { task, invocation, worker, definition } => Box::pin(async move {
                let answer = self.reserve(task, invocation, worker, definition).await?;
                if matches!(&answer, Answer::Reserved(reservation) if reservation.mode == Mode::Abort) {
                    self.keep_mode(task, invocation).await?;
                }
                Ok(answer)
            }),
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
        let plan = self.reconcile().await;
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
        | LineError::Storage(picofleet_session::storage::StorageError::Closed) => Answer::Refused(Refusal::AskAgain),
        other => {
            tracing::warn!(error = %other, "the line refused a request");
            Answer::Refused(Refusal::Rejected(chain(other)))
        }
    }
}

/// A failed commit as the error of a task.
fn say_error(error: &CommitError) -> picofleet_session::TaskError {
    picofleet_session::TaskError { message: chain(error), detail: None }
}

/// An error with all its causes.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

impl State {
    /// Follows a commit. Runs on the line.
    fn observe(&mut self, publication: &Publication) {
        self.watches.observe(publication);
        self.follows.observe(publication, &self.tree.live);
        for conversation in &publication.conversations {
            self.tree.conversation_owners.insert(conversation.id, conversation.owner.map(|owner| owner.task_id));
        }
        for row in &publication.invocations {
            self.named.insert(row.task_id, row.invocation);
            self.said(row);
        }
        for task in &publication.tasks {
            self.tree.lineage.insert(task.id, Lineage::of(task));
            if let TaskState::Terminal { outcome } = &task.state {
                self.tree.live.remove(&task.id);
                self.held.remove(&task.id);
                self.named.remove(&task.id);
                self.lost.remove(&task.id);
                self.failed.remove(&task.id);
                self.aside.remove(task.id);
                if self.tree.live.values().any(|other| waits_for(&other.state, task.id)) {
                    self.tree.outcomes.insert(task.id, outcome.clone());
                }
            } else {
                // What was refused of the run says nothing of the abort.
                if task.abort_requested && self.tree.live.get(&task.id).is_some_and(|before| !before.abort_requested) {
                    self.aside.remove(task.id);
                }
                self.tree.live.insert(task.id, picofleet_session::TaskRecord::clone(task));
            }
        }
        self.forget();
        self.forget_watches();
    }

    /// Forgets what invocations watched that are over.
    fn forget_watches(&mut self) {
        let held = &self.held;
        self.watches.retain(|task, invocation| held.get(&task).is_some_and(|held| held.invocation == invocation));
    }

    /// Takes over what an invocation said, with the commit of it: a repetition that already waits for the line finds it.
    fn said(&mut self, row: &InvocationRow) {
        let Some(held) = self.held.get_mut(&row.task_id).filter(|held| held.invocation == row.invocation && held.number < row.number)
        else {
            return;
        };
        let (answer, _) = row::kept(row);
        if let Some(Answer::Said { next: Some(Next::Continue(record)), .. }) = &answer {
            held.began_at = crate::task::checkpoint(record).cloned().unwrap_or(Json::null());
        }
        held.number = row.number;
        held.last = row.digest.clone().zip(answer);
    }

    /// Drops what no live task needs any more, so that memory follows the live work and not the history.
    fn forget(&mut self) {
        const KEPT: usize = 1_024;
        let tree = &mut self.tree;
        let live = &tree.live;
        tree.outcomes.retain(|task, _| live.values().any(|other| waits_for(&other.state, *task)));
        if tree.lineage.len() > KEPT + 4 * live.len() {
            let needed = tree.needed();
            tree.lineage.retain(|task, _| needed.contains(task));
            let conversations: BTreeSet<_> = tree.lineage.values().map(|lineage| lineage.conversation).collect();
            tree.conversation_owners.retain(|conversation, _| conversations.contains(conversation));
        }
    }

    /// The tasks that an invocation holds: nobody else may run them.
    fn invoked(&self) -> BTreeSet<TaskId> {
        self.held.iter().filter(|(_, held)| !held.expired).map(|(task, _)| *task).collect()
    }

    /// Whether an invocation has to be told to stop.
    fn cancelled(&self, task: TaskId, held: &Held) -> bool {
        let marked = self.tree.live.get(&task).is_some_and(|record| record.abort_requested);
        self.scheduling == Scheduling::Closing || (held.mode == Mode::Run && marked)
    }

    /// How often the task's invocations were lost in a row, with the one that a reservation now would end. One that no worker was heard
    /// naming counts none (`protocol.md` 3).
    fn restarts(&self, record: &picofleet_session::TaskRecord) -> u32 {
        let lost = self.lost.contains(&record.id) || self.held.get(&record.id).is_some_and(|held| held.expired && held.heard);
        record.restarts.saturating_add(u32::from(lost))
    }
}

fn waits_for(state: &TaskState, task: TaskId) -> bool {
    matches!(state, TaskState::Waiting { on, .. } if on.contains(&task))
}
