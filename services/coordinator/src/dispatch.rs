//! Sends hints in the order of the backlog, as many as workers can take soon.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_harness::wire::{Beat, Hint, Route, WorkerId};
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
    /// What it takes.
    routes: BTreeSet<Route>,
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

    /// A worker's beat says how many slots it has, and for what; one that drains has none.
    pub(crate) fn hear(&self, beat: &Beat) {
        {
            let mut state = self.state();
            if beat.draining {
                state.slots.remove(&beat.worker);
            } else {
                let routes = beat.routes.iter().cloned().collect();
                let slots = Slots { free: beat.free as usize, used: beat.invocations.len(), routes, heard: Instant::now() };
                state.slots.insert(beat.worker, slots);
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
        let routes: Vec<Route> = state.backlog.routes_in_turn();
        routes.iter().find_map(|route| {
            let (free, used) = state.slots_for(route);
            state.backlog.next(route, outstanding_max(free, 1), free + used)
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The free and the used slots of the workers that take a route. A slot is for every route of its worker.
    fn slots_for(&self, route: &Route) -> (usize, usize) {
        let takers = self.slots.values().filter(|slots| slots.routes.contains(route));
        takers.fold((0, 0), |(free, used), slots| (free + slots.free, used + slots.used))
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
        let route = Route::of("pi.generation", 1);
        dispatch.hear(&beat(gone, 100, &route));
        dispatch.hear(&beat(alive, 10, &route));
        let session = SessionId::random();
        dispatch.sync(session, &tenant("t"), &ready(300, &route));
        assert_eq!(sent(&dispatch).len(), 220, "twice what is free");
        dispatch.resend(session);
        tokio::time::advance(LEASE - Duration::from_secs(1)).await;
        dispatch.hear(&beat(alive, 10, &route));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(sent(&dispatch).len(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn slots_of_workers_that_do_not_take_a_route_are_none_of_it() {
        let dispatch = Dispatch::default();
        let (few, many) = (Route::of("pi.generation", 1), Route::of("other", 1));
        dispatch.hear(&beat(WorkerId(InvocationId::random()), 10, &few));
        dispatch.hear(&beat(WorkerId(InvocationId::random()), 1_000, &many));
        let (big, small) = (SessionId::random(), SessionId::random());
        dispatch.sync(big, &tenant("big"), &ready(300, &few));
        assert_eq!(sent(&dispatch).len(), 20, "twice what is free for it");
        // One tenant has more than its share of the ten slots: the other one comes first.
        let running = (1..=8).map(|task| (TaskId::new(task).unwrap(), few.clone())).collect();
        dispatch.sync(big, &tenant("big"), &SessionTasks { running, ready: ready(300, &few).ready.split_off(8) });
        dispatch.sync(small, &tenant("small"), &ready(2, &few));
        dispatch.resend(big);
        let next: Vec<SessionId> = sent(&dispatch).iter().map(|hint| hint.session).take(2).collect();
        assert_eq!(next, [small, small]);
    }

    fn tenant(name: &str) -> Tenant {
        Tenant(name.to_owned())
    }

    fn ready(count: i64, route: &Route) -> SessionTasks {
        let ready = (1..=count).map(|task| (TaskId::new(task).unwrap(), route.clone())).collect();
        SessionTasks { ready, running: Vec::new() }
    }

    fn beat(worker: WorkerId, free: u32, route: &Route) -> Beat {
        Beat { worker, counter: 1, invocations: Vec::new(), free, draining: false, routes: vec![route.clone()] }
    }

    fn sent(dispatch: &Dispatch) -> Vec<Hint> {
        std::iter::from_fn(|| dispatch.next()).collect()
    }
}
