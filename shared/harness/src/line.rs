//! The line of one session (`design.md` 1): reserves tasks, applies what invocations say, reconciles, admits submissions. It decides;
//! workers run the effects.

mod host;
mod outcome;
mod reconcile;
mod recover;
mod reserve;
mod say;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_session::{CommitError, InvocationId, Json, Millis, Publication, ReadError, Session, Subscription, TaskId, TaskState};
use tokio::sync::Notify;

use crate::ownership::{Lineage, Plan, Tree};
use crate::step::Mode;
use crate::task::LineTasks;
use crate::wire::{Answer, Refusal, Request, Signal, WorkerId};

pub use watch::{ConversationWatch, Followed};

/// The line of one session. Cheap to clone; all clones are one line.
#[derive(Clone)]
pub struct SessionLine {
    inner: Arc<Inner>,
}

struct Inner {
    session: Session,
    tasks: LineTasks,
    state: Arc<Mutex<State>>,
    /// A commit landed: whoever waits looks again.
    changed: Arc<Notify>,
    _subscription: Subscription,
    /// Whoever waits looks again when the session ends.
    _closing: Subscription,
}

/// What the line keeps in memory. All of it can be made again from storage.
#[derive(Default)]
struct State {
    tree: Tree,
    held: BTreeMap<TaskId, Held>,
}

/// An invocation that holds a task.
#[derive(Clone)]
struct Held {
    invocation: InvocationId,
    worker: WorkerId,
    mode: Mode,
    /// The checkpoint that its phase began with.
    began_at: Json,
    /// Its last saying, with the digest and the answer, for a repetition.
    number: u32,
    last: Option<(String, Answer)>,
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
    /// The line over an open session. Tasks that an earlier process left running become `pending` again (section 5.1): embedded, an
    /// invocation belongs to its process.
    ///
    /// # Errors
    /// [`LineError`] where the session can't be read or the recovery not be stored.
    pub async fn open(session: Session, tasks: LineTasks) -> Result<Self, LineError> {
        let state = Arc::new(Mutex::new(State::default()));
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
        let inner = Inner { session, tasks, state, changed, _subscription: subscription, _closing: closing };
        let line = Self { inner: Arc::new(inner) };
        line.recover().await?;
        Ok(line)
    }

    /// The session.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.inner.session
    }

    /// Wakes when a commit landed. Take it before looking at what is waited for.
    #[must_use]
    pub fn changed(&self) -> Arc<Notify> {
        Arc::clone(&self.inner.changed)
    }

    /// Answers a message. A session that is closing or belongs to somebody else answers [`Refusal::AskAgain`].
    pub async fn handle(&self, request: Request) -> Answer {
        let answer = match request {
            Request::Reserve { task, invocation, worker } => self.reserve(task, invocation, worker).await,
            Request::Say { task, invocation, number, said } => self.say(task, invocation, number, said).await,
            Request::Progress { task, invocation, decision } => self.progress(task, invocation, decision).await,
            Request::Ended { task, invocation } => {
                self.ended(task, invocation);
                Ok(Answer::Done)
            }
            Request::Read(read) => self.read(read).await,
            Request::Host(call) => self.host(*call).await,
        };
        answer.unwrap_or_else(|error| refused(&error))
    }

    /// What may be reserved now, after everything that the scheduler itself decides is stored (section 5.4).
    ///
    /// # Errors
    /// [`LineError`].
    pub async fn plan(&self) -> Result<Plan, LineError> {
        self.reconcile().await
    }

    /// The kind of a live task.
    #[must_use]
    pub fn kind(&self, task: TaskId) -> Option<String> {
        self.state().tree.live.get(&task).map(|record| record.kind.clone())
    }

    /// Invocations that run a task which somebody asked to stop: their workers have to be told (section 5.4).
    #[must_use]
    pub fn cancellations(&self) -> Vec<(WorkerId, Signal)> {
        let session = self.inner.session.id();
        let state = self.state();
        let marked = |task: &TaskId| state.tree.live.get(task).is_some_and(|record| record.abort_requested);
        let held = state.held.iter().filter(|(task, held)| held.mode == Mode::Run && marked(task));
        held.map(|(task, held)| (held.worker, Signal::Cancel { session, task: *task, invocation: held.invocation })).collect()
    }

    fn ended(&self, task: TaskId, invocation: InvocationId) {
        let mut state = self.state();
        if state.held.get(&task).is_some_and(|held| held.invocation == invocation) {
            state.held.remove(&task);
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
        for conversation in &publication.conversations {
            self.tree.conversation_owners.insert(conversation.id, conversation.owner.map(|owner| owner.task_id));
        }
        for task in &publication.tasks {
            self.tree.lineage.insert(task.id, Lineage::of(task));
            if let TaskState::Terminal { outcome } = &task.state {
                self.tree.live.remove(&task.id);
                self.held.remove(&task.id);
                if self.tree.live.values().any(|other| waits_for(&other.state, task.id)) {
                    self.tree.outcomes.insert(task.id, outcome.clone());
                }
            } else {
                self.tree.live.insert(task.id, picofleet_session::TaskRecord::clone(task));
            }
        }
        self.forget();
    }

    /// Drops what no live task needs any more, so that memory follows the live work and not the history.
    fn forget(&mut self) {
        const KEPT: usize = 1_024;
        let tree = &mut self.tree;
        let live = &tree.live;
        tree.outcomes.retain(|task, _| live.values().any(|other| waits_for(&other.state, *task)));
        if tree.lineage.len() > KEPT + 4 * live.len() {
            tree.lineage.retain(|task, _| live.contains_key(task));
            tree.conversation_owners.clear();
        }
    }
}

fn waits_for(state: &TaskState, task: TaskId) -> bool {
    matches!(state, TaskState::Waiting { on, .. } if on.contains(&task))
}
