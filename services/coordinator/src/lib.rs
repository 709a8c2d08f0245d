//! The coordinator: holds the lines of sessions, plans what may run, and sends hints.
//!
//! **Architecture invariants.** It runs no effect and knows no model and no tool. A hint carries no state: losing, doubling or delaying one
//! changes nothing, because only a reservation starts work.

pub mod backlog;
mod beats;
mod dispatch;
mod driver;
mod lease;
mod opening;
mod quarantine;
mod rest;
mod routes;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dispatch::Dispatch;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Either};
use picofleet_fleet::LineServer;
use picofleet_harness::line::{ConversationWatch, LineError, LineOptions, SessionLine};
use picofleet_harness::task::LineTasks;
use picofleet_harness::transport::CallError;
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Hint, HostCall, Request, Signal, WorkerId};
use picofleet_session::storage::{StorageError, Store};
use picofleet_session::{Clock, ConversationId, OpenError, SessionId};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many signals wait for their worker; they are repeated until they are obeyed.
const SIGNALS_MAX: usize = 256;

/// How long a close waits for invocations to stop.
const JOIN_MAX: Duration = Duration::from_secs(10);

/// How a coordinator works.
#[derive(Clone)]
pub struct Options {
    /// Tells the time of commits.
    pub clock: Clock,
    /// The line halves of task definitions.
    pub tasks: LineTasks,
    /// How lines work: the tools that new conversations offer, how long a closure holds a line.
    pub line: LineOptions,
    /// How often a session's plan is made again although nothing happened.
    pub sweep: Duration,
    /// Whether an opened session goes on with its work at once; else it stays paused until somebody asks for progress.
    pub resume: bool,
    /// For how long nobody uses a session, and none of its tasks is live, until it rests: its line is given up, and the next use opens it
    /// again.
    pub idle: Duration,
}

impl Options {
    /// The built-in tasks, on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self {
            clock: Clock::system(),
            tasks: LineTasks::built_in(),
            line: LineOptions::default(),
            sweep: Duration::from_secs(10),
            resume: true,
            idle: Duration::from_secs(300),
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

/// Holds sessions. Cheap to clone; all clones are one coordinator.
#[derive(Clone)]
pub struct Coordinator {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    options: Options,
    tasks: std::sync::Mutex<LineTasks>,
    sessions: Mutex<HashMap<SessionId, SessionLine>>,
    /// Sessions that are being opened: who wants one of them waits for that one, and nobody else does.
    opening: std::sync::Mutex<HashMap<SessionId, Arc<Mutex<()>>>>,
    /// Sessions that were open here before, and until when: their invocations run on while the session is opened again.
    known: rest::Known,
    dispatch: Arc<Dispatch>,
    leases: beats::Shared,
    routes: Arc<routes::Routes>,
    ticking: AtomicBool,
    sealed: AtomicBool,
    /// It closes: no session is opened any more.
    closing: AtomicBool,
    drivers: Mutex<JoinSet<()>>,
    signals: mpsc::Sender<(WorkerId, Signal)>,
    stop: CancellationToken,
}

/// What a coordinator sends to workers.
pub struct Outgoing {
    /// Tasks that are ready.
    pub hints: mpsc::Receiver<Hint>,
    /// Invocations that are to stop.
    pub signals: mpsc::Receiver<(WorkerId, Signal)>,
}

/// Why a session could not be served.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Line(#[from] LineError),
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("the coordinator is stopping")]
    Stopping,
    #[error("another owner has it")]
    NotOwner,
    #[error("its opening panicked")]
    Panicked,
    #[error("the coordinator has no definition of the built-in task {0}; begin with LineTasks::built_in()")]
    MissingTask(&'static str),
}

impl Coordinator {
    /// A coordinator over a store, and what it sends to workers. It needs a tokio runtime.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, options: Options) -> (Self, Outgoing) {
        let (hints, hinted) = mpsc::channel(1);
        let (signals, signalled) = mpsc::channel(SIGNALS_MAX);
        let stop = CancellationToken::new();
        let dispatch = Arc::new(Dispatch::default());
        let mut drivers = JoinSet::new();
        drivers.spawn(Arc::clone(&dispatch).run(hints, stop.clone()));
        let inner = Inner {
            store,
            tasks: std::sync::Mutex::new(options.tasks.clone()),
            options,
            sessions: Mutex::default(),
            opening: std::sync::Mutex::default(),
            known: rest::Known::default(),
            dispatch,
            leases: beats::Shared::new(),
            routes: Arc::new(routes::Routes::new()),
            ticking: AtomicBool::new(false),
            sealed: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            drivers: Mutex::new(drivers),
            signals,
            stop,
        };
        (Self { inner: Arc::new(inner) }, Outgoing { hints: hinted, signals: signalled })
    }

    /// Opens a session; whether its work goes on is [`Options::resume`].
    ///
    /// # Errors
    /// [`CallError::Unavailable`].
    pub async fn open(&self, session: SessionId) -> Result<(), CallError> {
        self.line(session).await.map(|_| ()).map_err(|error| unavailable(session, &error))
    }

    /// Opens a session, so that its unfinished work goes on.
    ///
    /// # Errors
    /// [`CallError::Unavailable`], also where it is closing.
    pub async fn resume(&self, session: SessionId) -> Result<(), CallError> {
        let line = self.line(session).await.map_err(|error| unavailable(session, &error))?;
        if line.resume() { Ok(()) } else { Err(unavailable(session, &ServeError::Stopping)) }
    }

    /// Replaces the line halves of task definitions, in all sessions: blocked tasks are considered again, running ones handed over.
    pub async fn set_tasks(&self, tasks: LineTasks) {
        self.inner.tasks.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&tasks);
        for line in self.inner.sessions.lock().await.values() {
            line.set_tasks(tasks.clone());
        }
    }

    /// Opens no session any more: somebody else may own them now. Lines that are open go on until their commits are
    /// refused.
    pub fn seal(&self) {
        self.inner.sealed.store(true, Ordering::Release);
    }

    /// Follows a conversation of a session.
    ///
    /// # Errors
    /// [`CallError::Unavailable`].
    pub async fn watch(&self, session: SessionId, conversation: ConversationId) -> Result<ConversationWatch, CallError> {
        let (line, _visit) = self.visit(session).await.map_err(|error| unavailable(session, &error))?;
        line.watch(conversation).await.map_err(|error| unavailable(session, &ServeError::Line(error)))
    }

    /// Stops planning, lets the workers stop what runs, and closes every session: what was running goes on at the next opening.
    pub async fn close(&self) {
        self.inner.closing.store(true, Ordering::Release);
        // What is being opened comes into the map first; nothing else is opened any more.
        let opening: Vec<Arc<Mutex<()>>> = self.opening().values().cloned().collect();
        for turn in opening {
            drop(turn.lock().await);
        }
        // They stay in the map until they are closed, so that an invocation can say that it has ended. They are sealed before anybody is
        // told to stop, which the end of the hints tells a worker, too.
        let lines: Vec<SessionLine> = self.inner.sessions.lock().await.values().cloned().collect();
        for line in &lines {
            line.begin_close();
        }
        self.inner.stop.cancel();
        let mut drivers = std::mem::take(&mut *self.inner.drivers.lock().await);
        while drivers.join_next().await.is_some() {}
        if tokio::time::timeout(JOIN_MAX, self.join(&lines)).await.is_err() {
            tracing::warn!("invocations did not stop in time; their sessions are closed all the same");
        }
        for line in lines {
            if let Err(error) = line.close().await {
                tracing::warn!(session = %line.session().id(), error = %error, "running tasks were not given back");
            }
        }
        self.inner.sessions.lock().await.clear();
    }

    /// Tells workers to stop what runs until nothing does, or nobody listens any more.
    async fn join(&self, lines: &[SessionLine]) {
        for line in lines {
            let changed = line.changed();
            loop {
                let notified = changed.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if line.joined() || self.inner.signals.is_closed() {
                    break;
                }
                driver::signal(line, &self.inner.signals);
                let _ = tokio::time::timeout(driver::SIGNAL_PAUSE, notified).await;
            }
        }
    }
}

/// Whether a request changes something: it is finished then, whatever becomes of its caller. Reads and waits end with the caller.
fn finishes(request: &Request) -> bool {
    match request {
        Request::Reserve { .. }
        | Request::Say { .. }
        | Request::Progress { .. }
        | Request::Ended { .. }
        | Request::Finish { .. }
        | Request::Release { .. } => true,
        Request::Read(_) | Request::Begin { .. } | Request::Ask { .. } | Request::Watch { .. } | Request::Follow(_) => false,
        Request::Host(call) => !matches!(
            **call,
            HostCall::WaitSubmission { .. }
                | HostCall::WaitTask { .. }
                | HostCall::WaitIdle { .. }
                | HostCall::WaitStopped { .. }
                | HostCall::WaitAborted { .. }
                | HostCall::Inspect
                | HostCall::RetrySession
                | HostCall::Resume
        ),
    }
}

impl LineServer for Coordinator {
    fn handle(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let (line, visit) = match self.visit(session).await {
                Ok(visited) => visited,
                Err(error) if error.quarantined() => return self.quarantined(session, &request).await,
                Err(error) => return Err(unavailable(session, &error)),
            };
            let about = beats::about(session, &request);
            let handled = {
                let inner = Arc::clone(&self.inner);
                let ends = finishes(&request);
                let handling = async move {
                    let _visit = visit;
                    let answer = line.handle(request).await;
                    // A lease begins with the answer, whether or not somebody still waits for it.
                    inner.leases.follow(&line, about, &answer);
                    answer
                };
                if ends { Either::Left(tokio::spawn(handling)) } else { Either::Right(handling.map(Ok)) }
            };
            // A panic of the line's own code ends this request and nothing else.
            let answer = handled.await.map_err(|_| CallError::NoAnswer(session))?;
            Ok(answer)
        })
    }

    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>> {
        Box::pin(async move {
            self.inner.routes.hear(&beat);
            self.inner.dispatch.hear(&beat);
            // Work of a session that is not open here may have been another owner's; who has it now opens it.
            let named: BTreeSet<SessionId> = beat.invocations.iter().map(|invoked| invoked.session).collect();
            for session in named {
                self.inner.known.named(session);
                if let Err(error) = self.line(session).await {
                    tracing::debug!(session = %session, error = %error, "a worker names work of a session that is not to be had here");
                }
            }
            let lines = self.inner.sessions.lock().await.clone();
            Ok(self.inner.leases.beat(&lines, &beat))
        })
    }
}

fn unavailable(session: SessionId, error: &ServeError) -> CallError {
    if error.quarantined() {
        return CallError::Quarantined(session);
    }
    // Nobody else is there to open it.
    if matches!(error, ServeError::Stopping) {
        return CallError::Closed(session);
    }
    let mut why = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        why.push_str(": ");
        why.push_str(&cause.to_string());
        source = cause.source();
    }
    CallError::Unavailable { session, why }
}
