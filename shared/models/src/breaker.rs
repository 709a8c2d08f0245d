//! Stops asking a provider that cannot be reached.
//!
//! After some connection failures in a row the breaker opens: requests fail at once. After a time one request is let through
//! as a probe; its outcome closes the breaker or opens it for twice the time. What counts is whether the provider was
//! reached, so an answer that is an error of the provider is a success here. Time is that of tokio.
//!
//! Two sides use it: who starts a request asks for a [`Pass`], and the HTTP client tells of each [`Trip`] to the provider. The
//! client alone knows: an event may tell of a failure in its own way, or not at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// How many times the first time an opened breaker stays open at most, since it doubles.
const OPEN_FACTOR_MAX: u32 = 32;

/// When a breaker opens and for how long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BreakerOptions {
    /// Connection failures in a row that open it; 0 for never.
    pub failures: u32,
    /// How long it stays open the first time, in milliseconds.
    pub open_ms: u64,
}

impl Default for BreakerOptions {
    fn default() -> Self {
        Self { failures: 5, open_ms: 2_000 }
    }
}

/// A request was not made since the provider could not be reached lately. The text classifies as transient.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "Connection error: provider {provider} was not reached {failures} times in a row, so the request was not made; the next one may go out in {} s",
    .retry_after.as_secs_f64()
)]
pub struct OpenError {
    /// The provider.
    pub provider: String,
    /// How many requests failed.
    pub failures: u32,
    /// When one is let through; 0 when that depends on the one that was.
    pub retry_after: Duration,
}

/// Watches the connections to one provider. Clones share what they saw.
#[derive(Clone)]
pub struct Breaker(Arc<Shared>);

struct Shared {
    provider: String,
    options: BreakerOptions,
    state: Mutex<State>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    phase: Phase,
    /// Failures in a row.
    failures: u32,
    /// Times that it opened since it was closed.
    opened: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Closed,
    Open {
        until: Instant,
    },
    /// A probe is on its way.
    HalfOpen,
}

impl Breaker {
    /// A closed breaker; the name of the provider is for errors.
    #[must_use]
    pub fn new(provider: impl Into<String>, options: BreakerOptions) -> Self {
        let state = State { phase: Phase::Closed, failures: 0, opened: 0 };
        Self(Arc::new(Shared { provider: provider.into(), options, state: Mutex::new(state) }))
    }

    /// Lets a request out, or not. If it is the probe and its pass is dropped before a trip told anything, the next request is
    /// the probe.
    ///
    /// # Errors
    ///
    /// The breaker is open, or a probe is on its way.
    pub fn pass(&self) -> Result<Pass, OpenError> {
        let mut state = self.0.lock();
        let now = Instant::now();
        let probe = match state.phase {
            Phase::Closed => None,
            Phase::Open { until } if now >= until => {
                state.phase = Phase::HalfOpen;
                Some(state.opened)
            }
            Phase::Open { until } => return Err(self.refused(*state, until - now)),
            Phase::HalfOpen => return Err(self.refused(*state, Duration::ZERO)),
        };
        Ok(Pass { shared: Arc::clone(&self.0), probe })
    }

    /// A request goes out now.
    #[must_use]
    pub fn trip(&self) -> Trip {
        Trip { shared: Arc::clone(&self.0), opened: self.0.lock().opened }
    }

    fn refused(&self, state: State, retry_after: Duration) -> OpenError {
        OpenError { provider: self.0.provider.clone(), failures: state.failures, retry_after }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it is held, and each assignment leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, state: &mut State) {
        let factor = 2_u32.saturating_pow(state.opened).min(OPEN_FACTOR_MAX);
        let time = Duration::from_millis(self.options.open_ms).saturating_mul(factor);
        state.opened = state.opened.saturating_add(1);
        state.phase = Phase::Open { until: Instant::now() + time };
    }
}

/// Leave to make a request; hold it until its outcome was told.
pub struct Pass {
    shared: Arc<Shared>,
    /// Of the probe, how often the breaker had opened by then.
    probe: Option<u32>,
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(opened) = self.probe {
            let mut state = self.shared.lock();
            if state.phase == Phase::HalfOpen && state.opened == opened {
                state.phase = Phase::Open { until: Instant::now() };
            }
        }
    }
}

/// A request that is on its way; it tells how that went. One that is dropped says nothing.
pub struct Trip {
    shared: Arc<Shared>,
    /// How often the breaker had opened when it went out.
    opened: u32,
}

impl Trip {
    /// The provider was reached.
    pub fn reached(self) {
        *self.shared.lock() = State { phase: Phase::Closed, failures: 0, opened: 0 };
    }

    /// It was not.
    pub fn not_reached(self) {
        let mut state = self.shared.lock();
        state.failures = state.failures.saturating_add(1);
        let most = self.shared.options.failures;
        let opens = match state.phase {
            Phase::Closed => most > 0 && state.failures >= most,
            // Requests that were on their way when it opened do not make it longer.
            Phase::HalfOpen => state.opened == self.opened,
            Phase::Open { .. } => false,
        };
        if opens {
            self.shared.open(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::tests::is_transient;

    fn breaker() -> Breaker {
        Breaker::new("acme", BreakerOptions { failures: 2, open_ms: 1000 })
    }

    fn refused(breaker: &Breaker) -> Duration {
        breaker.pass().err().expect("it lets requests out").retry_after
    }

    fn fail(breaker: &Breaker) {
        let _pass = breaker.pass().unwrap();
        breaker.trip().not_reached();
    }

    fn reach(breaker: &Breaker) {
        let _pass = breaker.pass().unwrap();
        breaker.trip().reached();
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row() {
        let breaker = breaker();
        fail(&breaker);
        reach(&breaker);
        fail(&breaker);
        fail(&breaker);
        assert_eq!(refused(&breaker), Duration::from_secs(1));
        tokio::time::advance(Duration::from_millis(600)).await;
        assert_eq!(refused(&breaker), Duration::from_millis(400));
    }

    #[tokio::test(start_paused = true)]
    async fn one_probe_decides() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_secs(1)).await;
        let probe = breaker.pass().unwrap();
        assert_eq!(refused(&breaker), Duration::ZERO);
        breaker.trip().not_reached();
        drop(probe);
        assert_eq!(refused(&breaker), Duration::from_secs(2), "twice the time");
        tokio::time::advance(Duration::from_secs(2)).await;
        reach(&breaker);
        fail(&breaker);
        assert!(breaker.pass().is_ok(), "the count began anew");
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_that_says_nothing_is_followed_by_another() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_secs(1)).await;
        drop(breaker.pass().unwrap());
        assert!(breaker.pass().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_on_their_way_do_not_make_it_longer() {
        let breaker = breaker();
        let (late, later, good) = (breaker.trip(), breaker.trip(), breaker.trip());
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_millis(500)).await;
        late.not_reached();
        assert_eq!(refused(&breaker), Duration::from_millis(500));
        tokio::time::advance(Duration::from_millis(500)).await;
        let probe = breaker.pass().unwrap();
        later.not_reached();
        drop(probe);
        drop(breaker.pass().expect("only the probe decides"));
        good.reached();
        assert!(breaker.pass().is_ok(), "the provider is there after all");
    }

    #[tokio::test(start_paused = true)]
    async fn it_stays_open_for_a_bounded_time_and_can_be_off() {
        let breaker = breaker();
        for _ in 0..100 {
            tokio::time::advance(Duration::from_secs(60)).await;
            fail(&breaker);
        }
        assert_eq!(refused(&breaker), Duration::from_secs(32));
        let off = Breaker::new("acme", BreakerOptions { failures: 0, open_ms: 1000 });
        (0..100).for_each(|_| fail(&off));
        assert!(off.pass().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn its_error_is_transient() {
        let breaker = breaker();
        fail(&breaker);
        fail(&breaker);
        let error = breaker.pass().err().unwrap();
        let text = "Connection error: provider acme was not reached 2 times in a row, so the request was not made; the next one may go \
                    out in 1 s";
        assert_eq!(error.to_string(), text);
        assert!(is_transient(text));
    }
}
