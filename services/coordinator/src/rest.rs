//! Sessions that nobody uses rest, and what is remembered of sessions that are not open is bounded.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use picofleet_harness::inspection::Scheduling;
use picofleet_harness::line::SessionLine;
use picofleet_session::{SessionId, Standing};
use tokio::time::Instant;

use crate::Coordinator;

/// For how long a session is known behind its end: longer than an invocation of it can live without an answered beat (5 minutes for a
/// model request, and a lease).
const KNOWN: Duration = Duration::from_secs(600);

/// The sessions whose invocations may live on.
#[derive(Default)]
pub(crate) struct Known {
    /// When each was last seen open, or named by a worker.
    sessions: Mutex<HashMap<SessionId, Instant>>,
}

impl Known {
    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionId, Instant>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether invocations of an earlier opening may live on.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.sessions().contains_key(&session)
    }

    /// A session is open.
    pub(crate) fn open(&self, session: SessionId) {
        self.sessions().insert(session, Instant::now());
    }

    /// A worker has work of a session; one that is not known stays unknown.
    pub(crate) fn named(&self, session: SessionId) {
        self.sessions().entry(session).and_modify(|seen| *seen = Instant::now());
    }

    /// A session ended in order, without an invocation.
    fn forget(&self, session: SessionId) {
        self.sessions().remove(&session);
    }

    /// Forgets what has been over for long.
    pub(crate) fn prune(&self, open: impl Fn(&SessionId) -> bool) {
        let now = Instant::now();
        self.sessions().retain(|session, seen| {
            if open(session) {
                *seen = now;
            }
            now.duration_since(*seen) < KNOWN
        });
    }
}

/// For how long nobody has used a line.
pub(crate) struct Quiet {
    since: Instant,
    visited: u64,
}

impl Quiet {
    pub(crate) fn new() -> Self {
        Self { since: Instant::now(), visited: 0 }
    }

    /// How long it still takes until the session may rest; `idle` at most.
    pub(crate) fn look(&mut self, line: &SessionLine, idle: Duration) -> Duration {
        let visited = line.visited();
        if visited != self.visited || !line.quiet() {
            *self = Self { since: Instant::now(), visited };
        }
        idle.saturating_sub(self.since.elapsed())
    }
}

impl Coordinator {
    /// Lets a session rest where nobody uses it; whether it does.
    pub(crate) async fn rest(&self, line: &SessionLine) -> bool {
        // The next opening would lose whether somebody has asked for progress.
        if (line.scheduling() == Scheduling::Running) != self.inner.options.resume {
            return false;
        }
        let id = line.session().id();
        self.in_turn(id, async {
            match line.rest().await {
                Ok(false) => false,
                Ok(true) => {
                    self.inner.known.forget(id);
                    self.leave(line).await;
                    true
                }
                Err(error) => {
                    tracing::debug!(session = %id, error = %error, "a session could not rest");
                    false
                }
            }
        })
        .await
    }

    /// Forgets a line that is over, where it is still the session's. One that another owner has stays: opening it again would only take it
    /// back.
    pub(crate) async fn leave(&self, line: &SessionLine) {
        let id = line.session().id();
        let mut sessions = self.inner.sessions.lock().await;
        if sessions.get(&id).is_some_and(|present| present.is(line)) {
            // While nobody can open it again: what is driven anew is not forgotten.
            self.inner.dispatch.forget(id);
            if line.rests() || line.session().standing() == Standing::Failed {
                sessions.remove(&id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_not_open_and_not_named_is_forgotten_in_time() {
        let (known, [open, named, gone]) = (Known::default(), std::array::from_fn(|_| SessionId::random()));
        for session in [open, named, gone] {
            known.open(session);
        }
        for _ in 0..3 {
            tokio::time::advance(KNOWN / 2).await;
            known.named(named);
            known.prune(|session| *session == open);
        }
        assert_eq!([open, named, gone].map(|session| known.has(session)), [true, true, false]);
        known.named(gone);
        assert!(!known.has(gone));
    }
}
