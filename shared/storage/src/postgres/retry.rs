//! The pauses between attempts, and their end. The only user of the `backoff` crate, and of its arithmetic alone.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;
use tokio::time::Instant;

/// How long a store tries to reach its database before it gives an answer (`protocol.md` 2).
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Attempts with growing pauses until a deadline.
pub(super) struct Attempts {
    pauses: ExponentialBackoff,
    until: Instant,
}

impl Attempts {
    pub(super) fn within(patience: Duration) -> Self {
        let pauses = ExponentialBackoff {
            initial_interval: Duration::from_millis(20),
            current_interval: Duration::from_millis(20),
            max_interval: Duration::from_secs(1),
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        Self { pauses, until: Instant::now() + patience }
    }

    /// Waits until the next attempt; `false` where the time is over.
    pub(super) async fn again(&mut self) -> bool {
        let Some(pause) = self.pauses.next_backoff() else { return false };
        if Instant::now() + pause > self.until {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}
