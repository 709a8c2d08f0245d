//! Plans one session: after each commit, when a sleeper is due, and now and then anyway.

use std::sync::{Arc, Weak};
use std::time::Duration;

use picofleet_harness::line::SessionLine;
use picofleet_harness::ownership::Plan;
use picofleet_harness::wire::{Route, Signal, WorkerId};
use picofleet_session::storage::Tenant;
use picofleet_session::{Clock, Standing};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backlog::SessionTasks;
use crate::dispatch::Dispatch;
use crate::rest::Quiet;
use crate::{Coordinator, Inner};

/// How often a worker is told to stop an invocation until it says that it ended.
pub(crate) const SIGNAL_PAUSE: Duration = Duration::from_millis(300);

/// An opening that has lived for so long was not the one that kills its owner.
const SURVIVED: Duration = Duration::from_secs(10);

pub(crate) struct Driver {
    pub(crate) coordinator: Weak<Inner>,
    pub(crate) line: SessionLine,
    pub(crate) tenant: Tenant,
    pub(crate) dispatch: Arc<Dispatch>,
    pub(crate) signals: mpsc::Sender<(WorkerId, Signal)>,
    pub(crate) stop: CancellationToken,
    pub(crate) sweep: Duration,
    pub(crate) idle: Duration,
    pub(crate) clock: Clock,
}

impl Driver {
    pub(crate) async fn run(self) {
        let changed = self.line.changed();
        let session = self.line.session().id();
        let mut resend = Instant::now() + self.sweep;
        let mut survived = Some(Instant::now() + SURVIVED);
        let mut quiet = Quiet::new();
        loop {
            if survived.is_some_and(|at| Instant::now() >= at) {
                survived = None;
                if let Err(error) = self.line.session().survived().await {
                    tracing::debug!(session = %session, error = %error, "the count of opens was not cleared");
                }
            }
            // A hint may be lost: what is still ready is hinted again, however busy the session is.
            if Instant::now() >= resend {
                self.dispatch.resend(session);
                resend = Instant::now() + self.sweep;
            }
            let notified = changed.notified();
            tokio::pin!(notified);
            // Registered before the plan, so that a commit meanwhile is not missed.
            notified.as_mut().enable();
            let pause = match self.line.plan().await {
                Ok(plan) => {
                    self.dispatch.sync(session, &self.tenant, &self.tasks(&plan));
                    if signal(&self.line, &self.signals) { SIGNAL_PAUSE } else { self.pause(&plan) }
                }
                Err(error) => {
                    if self.stop.is_cancelled() {
                        return;
                    }
                    // One that is over has said why.
                    if self.line.session().standing() == Standing::Open {
                        let why = picofleet_harness::line::chain(&error);
                        tracing::warn!(session = %session, error = why, "a session could not be planned; it is tried again");
                    }
                    self.sweep
                }
            };
            if self.line.session().standing() != Standing::Open {
                // Nothing is decided here any more; who opens the session again drives it anew.
                self.leave().await;
                return;
            }
            let idle = quiet.look(&self.line, self.idle);
            if idle.is_zero() {
                if self.rest().await {
                    return;
                }
                quiet = Quiet::new();
            }
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                () = notified => {}
                () = tokio::time::sleep(pause.min(idle.max(SIGNAL_PAUSE))) => {}
                () = tokio::time::sleep_until(resend) => {}
            }
        }
    }

    /// Forgets the line where it is still the session's.
    async fn leave(&self) {
        if let Some(inner) = self.coordinator.upgrade() {
            Coordinator { inner }.leave(&self.line).await;
        }
    }

    /// Lets the session rest; whether it does.
    async fn rest(&self) -> bool {
        let Some(inner) = self.coordinator.upgrade() else { return false };
        Coordinator { inner }.rest(&self.line).await
    }

    /// What is ready and what runs, with the routes.
    fn tasks(&self, plan: &Plan) -> SessionTasks {
        let ready = plan.runs.iter().chain(&plan.aborts);
        SessionTasks {
            ready: ready.filter_map(|task| Some((*task, self.line.route(*task)?))).collect(),
            running: self.line.invocations().into_iter().map(|(task, _, kind, version)| (task, Route::of(&kind, version))).collect(),
        }
    }

    /// Until the next sleeper is due, and not longer than the sweep.
    fn pause(&self, plan: &Plan) -> Duration {
        let due = plan.next_due.map(|due| u64::try_from(due.0.saturating_sub(self.clock.now().0)).unwrap_or(0));
        due.map_or(self.sweep, |due| Duration::from_millis(due).min(self.sweep))
    }
}

/// Tells workers what to stop; whether there was anything. It is repeated until they say that it ended, so that a signal which finds the
/// queue full is only late.
pub(crate) fn signal(line: &SessionLine, signals: &mpsc::Sender<(WorkerId, Signal)>) -> bool {
    let cancellations = line.cancellations();
    let any = !cancellations.is_empty();
    for cancellation in cancellations {
        if signals.try_send(cancellation).is_err() {
            tracing::debug!(session = %line.session().id(), "a signal waits");
        }
    }
    any
}
