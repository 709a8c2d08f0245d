//! When a failed request is made again.

use serde::{Deserialize, Serialize};

/// The longest delay in milliseconds when a policy names none.
pub const DEFAULT_MAX_AGENT_RETRY_DELAY_MS: f64 = 60_000.0;

/// The largest integer that JavaScript holds without doubt, where a delay that is no such integer goes.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// How often and how late a request is made again after a transient error.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryPolicy {
    /// False makes every error final.
    pub enabled: bool,
    /// Requests after the first one.
    pub max_retries: u32,
    /// The delay before the first retry, in milliseconds.
    pub base_delay_ms: f64,
    /// The longest delay in milliseconds; [`DEFAULT_MAX_AGENT_RETRY_DELAY_MS`] when absent.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_agent_delay_ms: Option<f64>,
}

/// The delay before an attempt in milliseconds: the base, doubled for every attempt after the first, up to the longest one.
///
/// It has no jitter. A delay that is no integer up to 2^53 - 1 counts as that number, so a fractional base that stays
/// fractional gives the longest delay.
#[must_use]
pub fn retry_delay_ms(policy: &RetryPolicy, attempt: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far from where it matters the power is infinite or 1 anyway")]
    let delay = policy.base_delay_ms * 2_f64.powf((attempt.saturating_sub(1).max(0)) as f64);
    let safe = delay.fract() == 0.0 && delay.abs() <= MAX_SAFE_INTEGER;
    let delay = if safe { delay } else { MAX_SAFE_INTEGER };
    delay.min(policy.max_agent_delay_ms.unwrap_or(DEFAULT_MAX_AGENT_RETRY_DELAY_MS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_that_is_no_safe_integer_is_the_longest() {
        let policy = |base_delay_ms| RetryPolicy { enabled: true, max_retries: 3, base_delay_ms, max_agent_delay_ms: None };
        assert_eq!(retry_delay_ms(&policy(0.5), 1), DEFAULT_MAX_AGENT_RETRY_DELAY_MS);
        assert_eq!(retry_delay_ms(&policy(0.5), 2), 1.0);
        assert_eq!(retry_delay_ms(&policy(0.0), 1024), 0.0);
        assert_eq!(retry_delay_ms(&policy(0.0), 1025), DEFAULT_MAX_AGENT_RETRY_DELAY_MS);
        assert_eq!(retry_delay_ms(&policy(1000.0), i64::MIN), 1000.0);
    }
}
