//! Sends hints in the order of the backlog, as many as workers can take soon.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_harness::wire::{Hint, Route, WorkerId};
use picofleet_session::SessionId;
use picofleet_session::storage::Tenant;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backlog::{Backlog, SessionTasks, outstanding_max};
use crate::lease::LEASE;

/// The backlog of a coordinator with what it knows of the workers' slots.
#[derive(Default)]
pub(crate) struct Dispatch {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    backlog: Backlog,
    slots: BTreeMap<WorkerId, Slots>,
}

/// What a worker's last beat said.
struct Slots {
    free: usize,
    used: usize,
    heard: Instant,
}

impl Dispatch {
    /// Takes over what a session has now.
    pub(crate) fn sync(&self, session: SessionId, tenant: &Tenant, tasks: &SessionTasks) {
        self.state().backlog.sync(session, tenant, tasks);
        self.changed.notify_one();
    }

    /// Sends the hints of a session again that no reservation has answered.
    pub(crate) fn resend(&self, session: SessionId) {
        self.state().backlog.resend(session);
        self.changed.notify_one();
    }

    /// Forgets a session that is driven elsewhere, or anew.
    pub(crate) fn forget(&self, session: SessionId) {
        self.state().backlog.forget(session);
    }

    /// A worker's beat says how many slots it has; one that drains has none.
    pub(crate) fn slots(&self, worker: WorkerId, free: usize, used: usize, draining: bool) {
        {
            let mut state = self.state();
            if draining {
                state.slots.remove(&worker);
            } else {
                state.slots.insert(worker, Slots { free, used, heard: Instant::now() });
            }
        }
        self.changed.notify_one();
    }

    /// Sends hints until the coordinator stops or nobody takes them any more.
    pub(crate) async fn run(self: Arc<Self>, hints: mpsc::Sender<Hint>, stop: CancellationToken) {
        loop {
            let next = self.next();
            let Some(hint) = next else {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = self.changed.notified() => continue,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                sent = hints.send(hint) => if sent.is_err() { return },
            }
        }
    }

    /// The next hint, the routes in turn.
    fn next(&self) -> Option<Hint> {
        let mut state = self.state();
        // One that was not heard for a lease is gone, and its slots with it.
        state.slots.retain(|_, slots| slots.heard.elapsed() < LEASE);
        let (free, used) = state.slots.values().fold((0, 0), |(free, used), slots| (free + slots.free, used + slots.used));
        let routes: Vec<Route> = state.backlog.routes_in_turn();
        routes.iter().find_map(|route| state.backlog.next(route, outstanding_max(free, 1), free + used))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use picofleet_session::{InvocationId, TaskId};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_slots_of_a_worker_that_is_gone_are_forgotten() {
        let dispatch = Dispatch::default();
        let (gone, alive) = (WorkerId(InvocationId::random()), WorkerId(InvocationId::random()));
        dispatch.slots(gone, 100, 0, false);
        dispatch.slots(alive, 10, 0, false);
        let ready = (1..=300).map(|task| (TaskId::new(task).unwrap(), Route::of("pi.generation", 1))).collect();
        let sent = |dispatch: &Dispatch| std::iter::from_fn(|| dispatch.next()).count();
        let session = SessionId::random();
        dispatch.sync(session, &Tenant("t".to_owned()), &SessionTasks { ready, running: Vec::new() });
        assert_eq!(sent(&dispatch), 220, "twice what is free");
        dispatch.resend(session);
        tokio::time::advance(LEASE - Duration::from_secs(1)).await;
        dispatch.slots(alive, 10, 0, false);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sent(&dispatch), 20);
    }
}
