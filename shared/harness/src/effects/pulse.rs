//! What a worker knows of its own life: the last beat that was answered (`protocol.md` 4).

use std::collections::HashSet;
use std::time::Duration;

use picofleet_session::InvocationId;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// How often a worker says that it is alive.
pub const BEAT: Duration = Duration::from_secs(3);
/// An effect starts, and a tool runs on, only while the last answered beat is younger. It is below a lease.
const FRESH: Duration = Duration::from_secs(15);
/// How long a model request runs on without an answered beat: only the lease decides who commits.
pub(super) const REQUEST: Duration = Duration::from_secs(300);

/// The last answered beat of a worker.
#[derive(Debug)]
pub struct Pulse {
    last: watch::Sender<Option<Last>>,
    kick: Notify,
}

#[derive(Clone, Debug)]
struct Last {
    sent: Instant,
    named: HashSet<InvocationId>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self { last: watch::Sender::new(None), kick: Notify::new() }
    }
}

impl Pulse {
    /// A beat was answered. Its time is the one of its sending.
    pub fn answered(&self, sent: Instant, named: HashSet<InvocationId>) {
        self.last.send_replace(Some(Last { sent, named }));
    }

    /// Asks for a beat now.
    pub fn kick(&self) {
        self.kick.notify_one();
    }

    /// Waits for [`Pulse::kick`].
    pub async fn kicked(&self) {
        self.kick.notified().await;
    }

    /// Waits until a beat that names the invocation was answered lately: before an effect starts, its worker was heard naming it.
    pub async fn fresh(&self, invocation: InvocationId) {
        self.kick();
        let fresh = |last: &Option<Last>| last.as_ref().is_some_and(|last| last.named.contains(&invocation) && last.sent.elapsed() < FRESH);
        // The sender lives as long as this.
        let _ = self.last.subscribe().wait_for(fresh).await;
    }

    /// Whether what runs has to stop: after 15 seconds without an answer, a model request after 5 minutes.
    #[must_use]
    pub fn stops(&self, request: bool, since: Instant) -> bool {
        let last = self.last.borrow().as_ref().map_or(since, |last| last.sent.max(since));
        last.elapsed() >= if request { REQUEST } else { FRESH }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_effect_waits_for_a_fresh_beat_that_names_it() {
        let (pulse, invocation) = (Pulse::default(), InvocationId::random());
        let waits = async || tokio::time::timeout(Duration::from_millis(1), pulse.fresh(invocation)).await.is_err();
        assert!(waits().await);
        pulse.answered(Instant::now(), HashSet::new());
        assert!(waits().await, "a beat that does not name it");
        pulse.answered(Instant::now(), HashSet::from([invocation]));
        assert!(!waits().await);
        tokio::time::advance(FRESH).await;
        assert!(waits().await, "the beat is old");
    }

    #[tokio::test(start_paused = true)]
    async fn tools_stop_after_15_seconds_and_requests_after_5_minutes() {
        let (pulse, begun) = (Pulse::default(), Instant::now());
        tokio::time::advance(FRESH - Duration::from_millis(1)).await;
        assert!(!pulse.stops(false, begun));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(pulse.stops(false, begun));
        assert!(!pulse.stops(true, begun));
        tokio::time::advance(REQUEST).await;
        assert!(pulse.stops(true, begun));
        pulse.answered(Instant::now(), HashSet::new());
        assert!(!pulse.stops(false, begun));
    }
}
