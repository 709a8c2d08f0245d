//! Leases of invocations, as a pure state machine: time is given in, and no two machines' clocks are compared.

use std::collections::BTreeMap;
use std::time::Duration;

use picofleet_harness::wire::Invoked;

/// How much audible time an invocation has from one naming to the next.
pub(crate) const LEASE: Duration = Duration::from_secs(20);
/// A longer time between two ticks is one in which this process may have heard nothing.
const GAP: Duration = Duration::from_secs(1);

/// The leases that a coordinator has given.
pub(crate) struct Leases {
    /// By invocation: the audible time at which it was named last.
    named: BTreeMap<Invoked, Duration>,
    /// Time in which a worker would have been heard.
    audible: Duration,
    /// When any worker was heard last, in audible time.
    heard: Option<Duration>,
    ticked: Duration,
    /// Audible time stands still until then.
    still: Duration,
}

impl Leases {
    /// Leases from now on. After a takeover time stands still for one full lease.
    pub(crate) fn new(now: Duration) -> Self {
        Self { named: BTreeMap::new(), audible: Duration::ZERO, heard: None, ticked: now, still: now + LEASE }
    }

    /// An invocation got its task, or was named by its worker.
    pub(crate) fn grant(&mut self, invoked: Invoked) {
        self.named.insert(invoked, self.audible);
    }

    /// A worker was heard.
    pub(crate) fn hear(&mut self) {
        self.heard = Some(self.audible);
    }

    /// An invocation is over.
    pub(crate) fn end(&mut self, invoked: &Invoked) {
        self.named.remove(invoked);
    }

    /// Time has passed. `connected` says whether beats could have come in.
    pub(crate) fn tick(&mut self, now: Duration, connected: bool) {
        let passed = now.saturating_sub(self.ticked);
        self.ticked = self.ticked.max(now);
        if passed > GAP || !connected {
            self.still = self.still.max(now + LEASE);
        } else if now > self.still {
            self.audible += passed.min(now - self.still);
        }
    }

    /// Takes the invocations whose lease is over. Where no worker was heard for a lease, nothing says that it is their fault: only those
    /// that somebody waits for (`joins`) end.
    pub(crate) fn expired(&mut self, joins: impl Fn(&Invoked) -> bool) -> Vec<Invoked> {
        let over = |since: Duration| self.audible.saturating_sub(since) >= LEASE;
        let silence = self.heard.is_none_or(over);
        let ended = self.named.iter().filter(|(invoked, named)| over(**named) && (!silence || joins(invoked)));
        let ended: Vec<Invoked> = ended.map(|(invoked, _)| *invoked).collect();
        for invoked in &ended {
            self.named.remove(invoked);
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use picofleet_session::{InvocationId, SessionId, TaskId};
    use proptest::prelude::*;

    use super::*;

    const TICK: Duration = Duration::from_millis(500);

    fn invoked(task: i64) -> Invoked {
        Invoked { session: SessionId::random(), task: TaskId::new(task).unwrap(), invocation: InvocationId::random() }
    }

    /// Leases with the time that drives them.
    struct Driven(Leases, Duration);

    impl Driven {
        fn new() -> Self {
            Self(Leases::new(Duration::ZERO), Duration::ZERO)
        }

        /// Behind the standstill of the opening.
        fn settled() -> Self {
            let mut driven = Self::new();
            driven.pass(LEASE);
            driven
        }

        fn pass(&mut self, time: Duration) {
            let end = self.1 + time;
            while self.1 < end {
                self.1 = end.min(self.1 + TICK);
                self.0.tick(self.1, true);
            }
        }

        fn jump(&mut self, time: Duration) {
            self.1 += time;
            self.0.tick(self.1, true);
        }

        fn expired(&mut self) -> Vec<Invoked> {
            self.0.expired(|_| false)
        }
    }

    #[test]
    fn an_unnamed_invocation_ends_after_a_lease_while_another_worker_is_heard() {
        let (mut driven, one) = (Driven::settled(), invoked(1));
        driven.0.grant(one);
        driven.pass(LEASE - TICK);
        driven.0.hear();
        assert_eq!(driven.expired(), []);
        driven.pass(TICK);
        assert_eq!(driven.expired(), [one]);
        assert_eq!(driven.expired(), [], "it is told once");
    }

    #[test]
    fn a_takeover_grants_one_full_lease_more() {
        let (mut driven, one) = (Driven::new(), invoked(1));
        driven.0.grant(one);
        driven.pass(LEASE + LEASE - TICK);
        driven.0.hear();
        assert_eq!(driven.expired(), []);
        driven.pass(TICK);
        assert_eq!(driven.expired(), [one]);
    }

    #[test]
    fn a_gap_stops_the_time_for_a_lease() {
        let (mut driven, one) = (Driven::settled(), invoked(1));
        driven.0.grant(one);
        driven.pass(LEASE - TICK);
        driven.jump(Duration::from_secs(3_600));
        driven.pass(LEASE);
        driven.0.hear();
        assert_eq!(driven.expired(), []);
        driven.pass(TICK);
        assert_eq!(driven.expired(), [one]);
    }

    #[test]
    fn a_lost_connection_stops_the_time() {
        let (mut driven, one) = (Driven::settled(), invoked(1));
        driven.0.grant(one);
        for _ in 0..1_000 {
            driven.1 += TICK;
            driven.0.tick(driven.1, false);
        }
        driven.0.hear();
        assert_eq!(driven.expired(), []);
    }

    #[test]
    fn nothing_ends_while_nobody_is_heard_except_what_somebody_waits_for() {
        let (mut driven, one, marked) = (Driven::settled(), invoked(1), invoked(2));
        driven.0.grant(one);
        driven.0.grant(marked);
        driven.pass(10 * LEASE);
        assert_eq!(driven.0.expired(|other| *other == marked), [marked]);
        driven.0.hear();
        assert_eq!(driven.expired(), [one]);
    }

    proptest! {
        /// Whatever gaps there are: what is named often enough never ends, and never before a full lease of its own time.
        #[test]
        fn what_is_named_in_time_never_ends(steps in prop::collection::vec((1_u64..40_000, any::<bool>()), 1..200)) {
            let (mut driven, named, silent) = (Driven::new(), invoked(1), invoked(2));
            driven.0.grant(named);
            driven.0.grant(silent);
            let mut over = false;
            for (ms, jumps) in steps {
                let time = Duration::from_millis(if jumps { ms } else { ms.min(19_000) });
                if jumps { driven.jump(time) } else { driven.pass(time) }
                driven.0.hear();
                let ended = driven.expired();
                prop_assert!(!ended.contains(&named));
                over |= ended.contains(&silent);
                prop_assert!(!over || driven.1 >= LEASE + LEASE);
                driven.0.grant(named);
            }
        }
    }
}
