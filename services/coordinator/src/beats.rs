//! Beats of workers and the leases that follow from them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use picofleet_harness::line::SessionLine;
use picofleet_harness::wire::{Answer, Beat, BeatAnswer, Invoked, Refusal, Request};
use picofleet_session::{InvocationId, SessionId, TaskId};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Inner;
use crate::lease::Leases;

/// How often leases are looked at; well below the gap that stops their time.
const TICK: Duration = Duration::from_millis(500);

/// The leases of a coordinator, on its monotonic clock.
pub(crate) struct Shared {
    started: Instant,
    leases: Mutex<Leases>,
}

/// What a request means for a lease.
pub(crate) enum About {
    /// It begins where the answer is a reservation.
    Reserves(Invoked),
    /// It goes on where the invocation is not over: a saying names it as a beat does.
    Names(Invoked),
    /// It is over.
    Ends(Invoked),
    Nothing,
}

/// What a request means for a lease.
pub(crate) fn about(session: SessionId, request: &Request) -> About {
    match request {
        Request::Reserve { task, invocation, .. } => About::Reserves(Invoked { session, task: *task, invocation: *invocation }),
        Request::Say { task, invocation, .. } | Request::Progress { task, invocation, .. } => {
            About::Names(Invoked { session, task: *task, invocation: *invocation })
        }
        Request::Ended { task, invocation } => About::Ends(Invoked { session, task: *task, invocation: *invocation }),
        Request::Begin { begin, .. } => match begin.by {
            Some((task, invocation)) => About::Names(Invoked { session, task, invocation }),
            None => About::Nothing,
        },
        Request::Watch { by: (task, invocation), .. } => About::Names(Invoked { session, task: *task, invocation: *invocation }),
        Request::Read(_)
        | Request::Host(_)
        | Request::Ask { .. }
        | Request::Finish { .. }
        | Request::Release { .. }
        | Request::Follow(_) => About::Nothing,
    }
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), leases: Mutex::new(Leases::new(Duration::ZERO)) }
    }

    fn leases(&self) -> MutexGuard<'_, Leases> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An invocation of an earlier owner: it has one full lease from now on.
    pub(crate) fn adopt(&self, invoked: Invoked) {
        self.leases().grant(invoked);
    }

    /// Follows an answer of a line.
    pub(crate) fn follow(&self, line: &SessionLine, about: About, answer: &Answer) {
        match (about, answer) {
            (About::Reserves(invoked), Answer::Reserved(_)) => self.leases().grant(invoked),
            // What is refused behind a mark may still run: its lease ends with its end, which may never be said.
            (About::Names(invoked), Answer::Refused(Refusal::Gone)) if line.holds(invoked.task, invoked.invocation) => {}
            (About::Names(invoked) | About::Ends(invoked), Answer::Refused(Refusal::Gone)) => self.leases().end(&invoked),
            (About::Names(invoked), _) => {
                let mut leases = self.leases();
                leases.hear();
                leases.grant(invoked);
            }
            (About::Ends(invoked), _) => self.leases().end(&invoked),
            (About::Reserves(_) | About::Nothing, _) => {}
        }
    }

    /// Answers a beat. Sessions that are not open here have no invocations here.
    pub(crate) fn beat(&self, lines: &HashMap<SessionId, SessionLine>, beat: &Beat) -> BeatAnswer {
        let mut sessions: BTreeMap<SessionId, Vec<(TaskId, InvocationId)>> = BTreeMap::new();
        for invoked in &beat.invocations {
            sessions.entry(invoked.session).or_default().push((invoked.task, invoked.invocation));
        }
        let mut answer = BeatAnswer { counter: beat.counter, ..BeatAnswer::default() };
        for (session, named) in sessions {
            let Some(line) = lines.get(&session) else {
                // Nothing is known of it here, so that nothing is said of it either.
                continue;
            };
            let (cancels, gone) = line.beat(beat.worker, &named, beat.draining);
            answer.cancels.extend(cancels);
            answer.gone.extend(gone);
        }
        let mut leases = self.leases();
        leases.hear();
        for invoked in &beat.invocations {
            if answer.gone.contains(&invoked.invocation) {
                leases.end(invoked);
            } else {
                leases.grant(*invoked);
            }
        }
        answer
    }
}

/// Lets time pass for the leases until the coordinator stops.
pub(crate) async fn tick(inner: Weak<Inner>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(TICK) => {}
        }
        let Some(inner) = inner.upgrade() else { return };
        let lines = inner.sessions.lock().await.clone();
        inner.known.prune(|session| lines.contains_key(session));
        let joins = |invoked: &Invoked| lines.get(&invoked.session).is_some_and(|line| line.joins(invoked.task, invoked.invocation));
        let expired = {
            let mut leases = inner.leases.leases();
            // In one process every beat comes in.
            leases.tick(inner.leases.started.elapsed(), true);
            leases.expired(joins)
        };
        for invoked in expired {
            tracing::warn!(session = %invoked.session, task = %invoked.task, "the lease of an invocation is over");
            if let Some(line) = lines.get(&invoked.session) {
                line.expire(invoked.task, invoked.invocation);
            }
        }
    }
}
