//! Which routes live workers take (`design.md` 7): what their beats say, for who looks at tasks that wait.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use picofleet_harness::line::Workers;
use picofleet_harness::wire::{Beat, Route, WorkerId};
use tokio::time::Instant;

use crate::lease::LEASE;

/// For how long a worker counts as alive behind a beat, and for how long nobody is missed behind the start.
const ALIVE: Duration = LEASE;

/// The routes of the workers that were heard lately.
pub(crate) struct Routes {
    started: Instant,
    workers: Mutex<BTreeMap<WorkerId, (Instant, Vec<Route>)>>,
}

impl Routes {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), workers: Mutex::default() }
    }

    /// A worker was heard. One that drains takes no more tasks.
    pub(crate) fn hear(&self, beat: &Beat) {
        let mut workers = self.workers();
        workers.retain(|_, (heard, _)| heard.elapsed() < ALIVE);
        if beat.draining {
            workers.remove(&beat.worker);
        } else {
            workers.insert(beat.worker, (Instant::now(), beat.routes.clone()));
        }
    }

    fn workers(&self) -> MutexGuard<'_, BTreeMap<WorkerId, (Instant, Vec<Route>)>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Workers for Routes {
    fn take(&self, route: &Route) -> bool {
        let workers = self.workers();
        // Behind the start nobody may have been heard yet.
        if workers.is_empty() && self.started.elapsed() < ALIVE {
            return true;
        }
        workers.values().any(|(heard, routes)| heard.elapsed() < ALIVE && routes.contains(route))
    }
}

#[cfg(test)]
mod tests {
    use picofleet_session::InvocationId;

    use super::*;

    fn beat(worker: WorkerId, draining: bool) -> Beat {
        Beat { worker, counter: 1, invocations: Vec::new(), free: 1, draining, routes: vec![Route("generation".to_owned())] }
    }

    #[tokio::test(start_paused = true)]
    async fn a_route_has_a_worker_while_one_that_takes_it_is_heard() {
        let (routes, worker) = (Routes::new(), WorkerId(InvocationId::random()));
        let (known, other) = (Route("generation".to_owned()), Route("custom.x.v1".to_owned()));
        assert!(routes.take(&other), "nobody can have been heard yet");
        routes.hear(&beat(worker, false));
        assert!(routes.take(&known));
        assert!(!routes.take(&other));
        tokio::time::advance(ALIVE).await;
        assert!(!routes.take(&known), "it was not heard for a lease");
        routes.hear(&beat(worker, false));
        assert!(routes.take(&known));
        routes.hear(&beat(worker, true));
        assert!(!routes.take(&known), "it drains");
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_hears_nobody_says_so_behind_a_lease() {
        let (routes, known) = (Routes::new(), Route("generation".to_owned()));
        tokio::time::advance(ALIVE - Duration::from_millis(1)).await;
        assert!(routes.take(&known));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!routes.take(&known));
    }
}
