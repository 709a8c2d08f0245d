//! Plans one session: after each commit, when a sleeper is due, and now and then anyway.

use std::collections::BTreeSet;
use std::time::Duration;

use picofleet_harness::line::SessionLine;
use picofleet_harness::ownership::Plan;
use picofleet_harness::wire::{Hint, Route, Signal, WorkerId};
use picofleet_session::{Clock, TaskId};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How often a worker is told to stop an invocation until it says that it ended (`protocol.md` 4).
pub(crate) const SIGNAL_PAUSE: Duration = Duration::from_millis(300);

pub(crate) struct Driver {
    pub(crate) line: SessionLine,
    pub(crate) hints: mpsc::Sender<Hint>,
    pub(crate) signals: mpsc::Sender<(WorkerId, Signal)>,
    pub(crate) stop: CancellationToken,
    pub(crate) sweep: Duration,
    pub(crate) clock: Clock,
}

impl Driver {
    pub(crate) async fn run(self) {
        let changed = self.line.changed();
        let mut hinted = BTreeSet::new();
        loop {
            let notified = changed.notified();
            tokio::pin!(notified);
            // Registered before the plan, so that a commit meanwhile is not missed.
            notified.as_mut().enable();
            let pause = match self.line.plan().await {
                Ok(plan) => {
                    if self.hint(&plan, &mut hinted).await.is_err() {
                        return;
                    }
                    if signal(&self.line, &self.signals) { SIGNAL_PAUSE } else { self.pause(&plan) }
                }
                Err(error) => {
                    if self.stop.is_cancelled() {
                        return;
                    }
                    tracing::warn!(session = %self.line.session().id(), error = %error, "a session could not be planned");
                    self.sweep
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = notified => {}
                () = tokio::time::sleep(pause) => hinted.clear(),
            }
        }
    }

    /// Sends a hint for every task that became ready. What was hinted already is hinted again by the sweep only.
    async fn hint(&self, plan: &Plan, hinted: &mut BTreeSet<TaskId>) -> Result<(), ()> {
        let ready: BTreeSet<TaskId> = plan.runs.iter().chain(&plan.aborts).copied().collect();
        hinted.retain(|task| ready.contains(task));
        for task in ready {
            if !hinted.insert(task) {
                continue;
            }
            let Some(kind) = self.line.kind(task) else { continue };
            let hint = Hint { session: self.line.session().id(), task, route: Route(kind) };
            tokio::select! {
                () = self.stop.cancelled() => return Err(()),
                sent = self.hints.send(hint) => sent.map_err(|_| ())?,
            }
        }
        Ok(())
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
