//! What is ready and waits for a worker, per route: round robin over tenants, round robin over a tenant's sessions, first
//! in first out within a session. One tenant's million tasks delay another's by one round.
//!
//! A pure structure: no clock, no lock, no channel. Every task costs the same, so that deficit round robin is round robin.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use picofleet_harness::wire::{Hint, Route};
use picofleet_session::storage::Tenant;
use picofleet_session::{SessionId, TaskId};

/// How much of a route's slots one tenant may have while others wait, in percent.
pub const MAX_SHARE_PERCENT: usize = 80;

/// The fewest hints of a route that are outstanding at once.
pub const OUTSTANDING_MIN: usize = 16;

/// How many hints of a route may be outstanding: sent, and not answered by a reservation.
#[must_use]
pub fn outstanding_max(free_slots: usize, coordinators: usize) -> usize {
    OUTSTANDING_MIN.max(2 * free_slots / coordinators.max(1))
}

/// The ready tasks of all sessions that this coordinator holds.
#[derive(Debug, Default)]
pub struct Backlog {
    routes: BTreeMap<Route, Waiting>,
    /// Where each task is that waits, was sent or runs.
    known: HashMap<SessionId, HashMap<TaskId, Known>>,
    turn: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Known {
    route: Route,
    tenant: Tenant,
    state: State,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum State {
    /// It stands in its session's queue.
    Waits,
    /// Its hint was sent and no reservation has answered it.
    Sent,
    /// An invocation has it.
    Running,
}

/// The tasks of one route.
#[derive(Debug, Default)]
struct Waiting {
    /// Tenants with waiting tasks, the next one first.
    ring: VecDeque<Tenant>,
    tenants: HashMap<Tenant, TenantQueue>,
    /// How many tasks wait, and how many hints are out.
    count: usize,
    sent: usize,
    /// Hints that were sent and invocations that run, by tenant.
    used: HashMap<Tenant, usize>,
}

#[derive(Debug, Default)]
struct TenantQueue {
    /// Sessions with waiting tasks, the next one first.
    ring: VecDeque<SessionId>,
    sessions: HashMap<SessionId, VecDeque<TaskId>>,
}

/// What a session has on a route now.
#[derive(Clone, Debug, Default)]
pub struct SessionTasks {
    /// Tasks that may be reserved, in the order in which they became ready.
    pub ready: Vec<(TaskId, Route)>,
    /// Tasks that an invocation has.
    pub running: Vec<(TaskId, Route)>,
}

impl Backlog {
    /// Takes over what a session has now. A task that was sent and is still ready stays sent; [`Backlog::resend`] lets it wait again.
    pub fn sync(&mut self, session: SessionId, tenant: &Tenant, tasks: &SessionTasks) {
        let mut current: HashSet<TaskId> = HashSet::with_capacity(tasks.ready.len() + tasks.running.len());
        for (task, route) in &tasks.running {
            current.insert(*task);
            self.set(session, *task, tenant, route, State::Running);
        }
        for (task, route) in &tasks.ready {
            current.insert(*task);
            let stays = self.known(session, *task).is_some_and(|known| known.route == *route && known.state != State::Running);
            if !stays {
                self.set(session, *task, tenant, route, State::Waits);
            }
        }
        let known = self.known.get(&session).into_iter().flat_map(HashMap::keys);
        let gone: Vec<TaskId> = known.filter(|task| !current.contains(task)).copied().collect();
        for task in gone {
            self.remove(session, task);
        }
    }

    /// Forgets a session: somebody else has it, or it rests.
    pub fn forget(&mut self, session: SessionId) {
        self.sync(session, &Tenant::default(), &SessionTasks::default());
    }

    /// Lets the tasks of a session whose hints were sent wait again: their hints may be lost.
    pub fn resend(&mut self, session: SessionId) {
        let known = self.known.get(&session).into_iter().flatten().filter(|(_, known)| known.state == State::Sent);
        let mut sent: Vec<_> = known.map(|(task, known)| (*task, known.tenant.clone(), known.route.clone())).collect();
        sent.sort_by_key(|(task, ..)| *task);
        for (task, tenant, route) in sent {
            self.set(session, task, &tenant, &route, State::Waits);
        }
    }

    /// The next hint of a route, if fewer than `outstanding` are out. `slots` are those of all live workers that take the route,
    /// of which one tenant gets at most [`MAX_SHARE_PERCENT`] while others wait; 0 for unknown.
    pub fn next(&mut self, route: &Route, outstanding: usize, slots: usize) -> Option<Hint> {
        let waiting = self.routes.get_mut(route)?;
        if waiting.sent >= outstanding {
            return None;
        }
        let share = (slots * MAX_SHARE_PERCENT / 100).max(1);
        // Each tenant is looked at once; those above their share keep their turn for the next time.
        for _ in 0..waiting.ring.len() {
            let tenant = waiting.ring.pop_front()?;
            let above = slots > 0 && !waiting.ring.is_empty() && waiting.used.get(&tenant).is_some_and(|used| *used >= share);
            if above {
                waiting.ring.push_back(tenant);
                continue;
            }
            let Some((session, task, more)) = waiting.tenants.get_mut(&tenant).and_then(TenantQueue::pop) else {
                waiting.tenants.remove(&tenant);
                continue;
            };
            if more {
                waiting.ring.push_back(tenant);
            } else {
                waiting.tenants.remove(&tenant);
            }
            waiting.count -= 1;
            if let Some(known) = self.known.get_mut(&session).and_then(|tasks| tasks.get_mut(&task)) {
                known.state = State::Sent;
                waiting.sent += 1;
                *waiting.used.entry(known.tenant.clone()).or_default() += 1;
            }
            return Some(Hint { session, task, route: route.clone() });
        }
        None
    }

    /// How many tasks of a route wait.
    #[must_use]
    pub fn waiting(&self, route: &Route) -> usize {
        self.routes.get(route).map_or(0, |waiting| waiting.count)
    }

    /// The routes on which tasks wait, the one that comes next first; each call begins behind the one before.
    pub fn routes_in_turn(&mut self) -> Vec<Route> {
        let mut routes: Vec<Route> = self.routes.iter().filter(|(_, waiting)| waiting.count > 0).map(|(route, _)| route.clone()).collect();
        if !routes.is_empty() {
            self.turn = self.turn.wrapping_add(1);
            let first = self.turn % routes.len();
            routes.rotate_left(first);
        }
        routes
    }

    fn set(&mut self, session: SessionId, task: TaskId, tenant: &Tenant, route: &Route, state: State) {
        let known = Known { route: route.clone(), tenant: tenant.clone(), state };
        if self.known(session, task) == Some(&known) {
            return;
        }
        self.remove(session, task);
        let waiting = self.routes.entry(route.clone()).or_default();
        match state {
            State::Waits => waiting.push(session, task, tenant),
            State::Sent => waiting.sent += 1,
            State::Running => {}
        }
        if state != State::Waits {
            *waiting.used.entry(tenant.clone()).or_default() += 1;
        }
        self.known.entry(session).or_default().insert(task, known);
    }

    fn known(&self, session: SessionId, task: TaskId) -> Option<&Known> {
        self.known.get(&session)?.get(&task)
    }

    fn remove(&mut self, session: SessionId, task: TaskId) {
        let Some(tasks) = self.known.get_mut(&session) else { return };
        let Some(Known { route, tenant, state }) = tasks.remove(&task) else { return };
        if tasks.is_empty() {
            self.known.remove(&session);
        }
        let Some(waiting) = self.routes.get_mut(&route) else { return };
        match state {
            State::Waits => waiting.drop_task(session, task, &tenant),
            State::Sent => waiting.sent -= 1,
            State::Running => {}
        }
        if state != State::Waits
            && let Some(used) = waiting.used.get_mut(&tenant)
        {
            *used -= 1;
            if *used == 0 {
                waiting.used.remove(&tenant);
            }
        }
    }
}

impl Waiting {
    fn push(&mut self, session: SessionId, task: TaskId, tenant: &Tenant) {
        if !self.tenants.contains_key(tenant) {
            self.ring.push_back(tenant.clone());
        }
        let queue = self.tenants.entry(tenant.clone()).or_default();
        if !queue.sessions.contains_key(&session) {
            queue.ring.push_back(session);
        }
        queue.sessions.entry(session).or_default().push_back(task);
        self.count += 1;
    }

    fn drop_task(&mut self, session: SessionId, task: TaskId, tenant: &Tenant) {
        let Some(queue) = self.tenants.get_mut(tenant) else { return };
        let Some(tasks) = queue.sessions.get_mut(&session) else { return };
        let before = tasks.len();
        tasks.retain(|other| *other != task);
        self.count -= before - tasks.len();
        if tasks.is_empty() {
            queue.sessions.remove(&session);
            queue.ring.retain(|other| *other != session);
        }
        if queue.sessions.is_empty() {
            self.tenants.remove(tenant);
            self.ring.retain(|other| other != tenant);
        }
    }
}

impl TenantQueue {
    /// The next task, and whether more wait behind it.
    fn pop(&mut self) -> Option<(SessionId, TaskId, bool)> {
        let session = self.ring.pop_front()?;
        let tasks = self.sessions.get_mut(&session)?;
        let task = tasks.pop_front()?;
        if tasks.is_empty() {
            self.sessions.remove(&session);
        } else {
            self.ring.push_back(session);
        }
        Some((session, task, !self.ring.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn task(n: i64) -> TaskId {
        TaskId::new(n).unwrap()
    }

    fn tenant(name: &str) -> Tenant {
        Tenant(name.to_owned())
    }

    fn route() -> Route {
        Route("tool.default".into())
    }

    fn ready(tasks: impl IntoIterator<Item = i64>) -> SessionTasks {
        SessionTasks { ready: tasks.into_iter().map(|n| (task(n), route())).collect(), running: Vec::new() }
    }

    fn pull(backlog: &mut Backlog, count: usize) -> Vec<(SessionId, i64)> {
        let hints = std::iter::from_fn(|| backlog.next(&route(), usize::MAX, 0)).take(count);
        hints.map(|hint| (hint.session, hint.task.get())).collect()
    }

    #[test]
    fn a_tenants_many_tasks_delay_anothers_by_one_round() {
        let (big, small, other) = (SessionId::random(), SessionId::random(), SessionId::random());
        let mut backlog = Backlog::default();
        backlog.sync(big, &tenant("big"), &ready(1..=100_000));
        backlog.sync(small, &tenant("small"), &ready([7]));
        assert_eq!(pull(&mut backlog, 2), [(big, 1), (small, 7)]);
        // And within a tenant, one session's many delay another's by one.
        backlog.sync(other, &tenant("big"), &ready([9]));
        assert_eq!(pull(&mut backlog, 3), [(big, 2), (other, 9), (big, 3)]);
    }

    #[test]
    fn a_sent_hint_is_not_sent_again_until_it_is_asked_for() {
        let session = SessionId::random();
        let mut backlog = Backlog::default();
        backlog.sync(session, &tenant("t"), &ready([1, 2]));
        assert_eq!(pull(&mut backlog, 10), [(session, 1), (session, 2)]);
        backlog.sync(session, &tenant("t"), &ready([1, 2]));
        assert_eq!(pull(&mut backlog, 10), []);
        backlog.resend(session);
        assert_eq!(pull(&mut backlog, 10).into_iter().map(|(_, task)| task).collect::<BTreeSet<_>>(), BTreeSet::from([1, 2]));
        // What was reserved and became ready again waits again.
        backlog.sync(session, &tenant("t"), &SessionTasks { ready: Vec::new(), running: vec![(task(1), route())] });
        backlog.sync(session, &tenant("t"), &ready([1]));
        assert_eq!(pull(&mut backlog, 10), [(session, 1)]);
    }

    #[test]
    fn outstanding_hints_are_bounded_and_a_reservation_frees_one() {
        let session = SessionId::random();
        let mut backlog = Backlog::default();
        backlog.sync(session, &tenant("t"), &ready(1..=100));
        let sent = std::iter::from_fn(|| backlog.next(&route(), outstanding_max(0, 1), 0)).count();
        assert_eq!(sent, OUTSTANDING_MIN);
        let running = SessionTasks { ready: (2..=100).map(|n| (task(n), route())).collect(), running: vec![(task(1), route())] };
        backlog.sync(session, &tenant("t"), &running);
        assert!(backlog.next(&route(), OUTSTANDING_MIN, 0).is_some());
        assert!(backlog.next(&route(), OUTSTANDING_MIN, 0).is_none());
        assert_eq!(outstanding_max(100, 2), 100);
    }

    #[test]
    fn a_tenant_gets_at_most_its_share_while_others_wait() {
        let (a, b) = (SessionId::random(), SessionId::random());
        let mut backlog = Backlog::default();
        backlog.sync(a, &tenant("a"), &ready(1..=100));
        let alone = std::iter::from_fn(|| backlog.next(&route(), usize::MAX, 10)).count();
        // Nobody else waits: it may have everything.
        assert_eq!(alone, 100);
        let mut backlog = Backlog::default();
        backlog.sync(a, &tenant("a"), &ready(1..=100));
        let first: Vec<_> = std::iter::from_fn(|| backlog.next(&route(), usize::MAX, 10)).take(8).collect();
        assert_eq!(first.len(), 8);
        backlog.sync(b, &tenant("b"), &ready(200..=220));
        let next: Vec<_> = std::iter::from_fn(|| backlog.next(&route(), usize::MAX, 10)).take(2).collect();
        assert!(next.iter().all(|hint| hint.session == b), "{next:?}");
    }

    proptest::proptest! {
        /// Whatever is synced, each ready task comes out once, nothing else does, and the counts come back to nothing.
        #[test]
        fn what_is_ready_comes_out_once(steps in proptest::collection::vec((0_usize..4, proptest::collection::btree_set(1_i64..20, 0..8), 0_usize..6), 1..40)) {
            let sessions: Vec<_> = (0..4).map(|_| SessionId::random()).collect();
            let mut backlog = Backlog::default();
            let mut model: HashMap<SessionId, (BTreeSet<i64>, BTreeSet<i64>)> = HashMap::new();
            for (which, tasks, pulls) in steps {
                let session = sessions[which];
                let tenant = tenant(if which < 2 { "a" } else { "b" });
                backlog.sync(session, &tenant, &ready(tasks.iter().copied()));
                let (waits, sent) = model.entry(session).or_default();
                sent.retain(|task| tasks.contains(task));
                *waits = tasks.difference(sent).copied().collect();
                for (session, task) in pull(&mut backlog, pulls) {
                    let (waits, sent) = model.get_mut(&session).unwrap();
                    proptest::prop_assert!(waits.remove(&task), "{task} did not wait");
                    sent.insert(task);
                }
                let waiting: usize = model.values().map(|(waits, _)| waits.len()).sum();
                proptest::prop_assert_eq!(backlog.waiting(&route()), waiting);
            }
            for session in sessions {
                backlog.forget(session);
            }
            proptest::prop_assert!(backlog.known.is_empty());
            let waiting = backlog.routes.values().all(|route| route.sent == 0 && route.used.is_empty() && route.tenants.is_empty() && route.ring.is_empty());
            proptest::prop_assert!(waiting);
        }
    }
}
