//! Stops asking a provider that cannot be reached.
//!
//! After some connection failures in a row the breaker opens: requests fail at once. After a time one request is let through
//! as a probe; its outcome closes the breaker or opens it for twice the time. What counts is whether the provider was
//! reached, so an answer that is an error of the provider is a success here. Time is that of tokio.

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

    /// Lets a request out, or not. A pass that is dropped without a report says nothing; if it was the probe, the next
    /// request is.
    ///
    /// # Errors
    ///
    /// The breaker is open, or a probe is on its way.
    pub fn pass(&self) -> Result<Pass, OpenError> {
        let mut state = self.0.lock();
        let now = Instant::now();
        let probe = match state.phase {
            Phase::Closed => false,
            Phase::Open { until } if now >= until => {
                state.phase = Phase::HalfOpen;
                true
            }
            Phase::Open { until } => return Err(self.refused(*state, until - now)),
            Phase::HalfOpen => return Err(self.refused(*state, Duration::ZERO)),
        };
        Ok(Pass { shared: Arc::clone(&self.0), probe })
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

/// A request that may go out; it tells how that went.
pub struct Pass {
    shared: Arc<Shared>,
    probe: bool,
}

impl Pass {
    /// The provider was reached.
    pub fn reached(mut self) {
        *self.shared.lock() = State { phase: Phase::Closed, failures: 0, opened: 0 };
        self.probe = false;
    }

    /// It was not.
    pub fn not_reached(mut self) {
        let probe = std::mem::take(&mut self.probe);
        let mut state = self.shared.lock();
        state.failures = state.failures.saturating_add(1);
        let options = self.shared.options;
        let full = options.failures > 0 && state.failures >= options.failures;
        // Requests that were on their way when it opened do not make it longer.
        if probe || (full && state.phase == Phase::Closed) {
            self.shared.open(&mut state);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.probe {
            let mut state = self.shared.lock();
            if state.phase == Phase::HalfOpen {
                state.phase = Phase::Open { until: Instant::now() };
            }
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
        breaker.pass().unwrap().not_reached();
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_failures_in_a_row() {
        let breaker = breaker();
        fail(&breaker);
        breaker.pass().unwrap().reached();
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
        probe.not_reached();
        assert_eq!(refused(&breaker), Duration::from_secs(2), "twice the time");
        tokio::time::advance(Duration::from_secs(2)).await;
        breaker.pass().unwrap().reached();
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
        let (late, good) = (breaker.pass().unwrap(), breaker.pass().unwrap());
        fail(&breaker);
        fail(&breaker);
        tokio::time::advance(Duration::from_millis(500)).await;
        late.not_reached();
        assert_eq!(refused(&breaker), Duration::from_millis(500));
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
