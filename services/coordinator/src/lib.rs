//! The coordinator: holds the lines of sessions, plans what may run, and sends hints.
//!
//! **Architecture invariants.** It runs no effect and knows no model and no tool. A hint carries no state: losing, doubling or delaying one
//! changes nothing, because only a reservation starts work.

mod driver;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_fleet::LineServer;
use picofleet_harness::line::{ConversationWatch, LineError, LineOptions, SessionLine};
use picofleet_harness::task::LineTasks;
use picofleet_harness::transport::CallError;
use picofleet_harness::wire::{Answer, Hint, Request, Signal, WorkerId};
use picofleet_session::storage::Store;
use picofleet_session::{Clock, ConversationId, OpenError, Session, SessionId, SessionOptions};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How many hints wait for a free worker; a session's driver waits with the rest.
const HINTS_MAX: usize = 256;

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
}

impl Options {
    /// The built-in tasks, on the system's clock.
    #[must_use]
    pub fn new() -> Self {
        Self { clock: Clock::system(), tasks: LineTasks::built_in(), line: LineOptions::default(), sweep: Duration::from_secs(10) }
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
    sessions: Mutex<HashMap<SessionId, SessionLine>>,
    drivers: Mutex<JoinSet<()>>,
    hints: mpsc::Sender<Hint>,
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
    #[error("the coordinator is stopping")]
    Stopping,
}

impl Coordinator {
    /// A coordinator over a store, and what it sends to workers.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, options: Options) -> (Self, Outgoing) {
        let (hints, hinted) = mpsc::channel(HINTS_MAX);
        let (signals, signalled) = mpsc::channel(HINTS_MAX);
        let inner = Inner {
            store,
            options,
            sessions: Mutex::default(),
            drivers: Mutex::new(JoinSet::new()),
            hints,
            signals,
            stop: CancellationToken::new(),
        };
        (Self { inner: Arc::new(inner) }, Outgoing { hints: hinted, signals: signalled })
    }

    /// Opens a session, so that its unfinished work goes on.
    ///
    /// # Errors
    /// [`CallError::Unavailable`].
    pub async fn resume(&self, session: SessionId) -> Result<(), CallError> {
        self.line(session).await.map(|_| ()).map_err(|error| unavailable(session, &error))
    }

    /// Follows a conversation of a session.
    ///
    /// # Errors
    /// [`CallError::Unavailable`].
    pub async fn watch(&self, session: SessionId, conversation: ConversationId) -> Result<ConversationWatch, CallError> {
        let line = self.line(session).await.map_err(|error| unavailable(session, &error))?;
        line.watch(conversation).await.map_err(|error| unavailable(session, &ServeError::Line(error)))
    }

    /// Stops planning, closes every session, and waits for both.
    pub async fn close(&self) {
        self.inner.stop.cancel();
        let mut drivers = std::mem::take(&mut *self.inner.drivers.lock().await);
        while drivers.join_next().await.is_some() {}
        let lines: Vec<SessionLine> = self.inner.sessions.lock().await.drain().map(|(_, line)| line).collect();
        for line in lines {
            if let Err(error) = line.session().close().await {
                tracing::warn!(session = %line.session().id(), error = %error, "a session was not closed in order");
            }
        }
    }

    /// The line of a session. The first call opens it; others wait for that.
    async fn line(&self, id: SessionId) -> Result<SessionLine, ServeError> {
        let mut sessions = self.inner.sessions.lock().await;
        if self.inner.stop.is_cancelled() {
            return Err(ServeError::Stopping);
        }
        if let Some(line) = sessions.get(&id) {
            return Ok(line.clone());
        }
        let Options { clock, tasks, line, .. } = self.inner.options.clone();
        let options = line.session(SessionOptions { clock, ..SessionOptions::default() });
        let session = Session::open(&*self.inner.store, id, options).await?;
        let line = SessionLine::open_with(session, tasks, line).await?;
        sessions.insert(id, line.clone());
        let driver = driver::Driver {
            line: line.clone(),
            hints: self.inner.hints.clone(),
            signals: self.inner.signals.clone(),
            stop: self.inner.stop.clone(),
            sweep: self.inner.options.sweep,
            clock: self.inner.options.clock.clone(),
        };
        self.inner.drivers.lock().await.spawn(driver.run());
        Ok(line)
    }
}

impl LineServer for Coordinator {
    fn handle(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>> {
        Box::pin(async move {
            let line = self.line(session).await.map_err(|error| unavailable(session, &error))?;
            Ok(line.handle(request).await)
        })
    }
}

fn unavailable(session: SessionId, error: &ServeError) -> CallError {
    let mut why = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        why.push_str(": ");
        why.push_str(&cause.to_string());
        source = cause.source();
    }
    CallError::Unavailable { session, why }
}
