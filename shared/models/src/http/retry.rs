//! Retries within a request (`facts/pi-ai.md` 3).

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, UNIX_EPOCH};

use picofleet_session::Millis;

use super::{HttpError, Request};

/// The first delay that nobody asked for, and the longest one.
const DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(8);

/// The share of such a delay that chance takes off at most.
const JITTER: f64 = 0.25;

/// How long to wait before the next try; `None` for no other. `random` is at least 0 and below 1.
///
/// A server that asks for more time than the request allows gets no other try: the caller knows better what to do.
pub(super) fn delay(error: &HttpError, request: &Request, tries: u32, random: f64) -> Option<Duration> {
    if tries >= request.max_retries || !is_transient(error) {
        return None;
    }
    let asked = match error {
        HttpError::Status(refusal) => refusal.retry_after_ms.map(Duration::from_millis),
        _ => None,
    };
    match asked {
        Some(asked) => request.max_retry_delay.is_none_or(|max| asked <= max).then_some(asked),
        None => {
            let whole = DELAY.saturating_mul(2_u32.saturating_pow(tries)).min(DELAY_MAX);
            Some(whole.mul_f64(1.0 - random * JITTER))
        }
    }
}

fn is_transient(error: &HttpError) -> bool {
    match error {
        HttpError::Connect { .. } | HttpError::NoAnswer => true,
        HttpError::Status(refusal) => {
            refusal.should_retry.unwrap_or_else(|| matches!(refusal.status, 408 | 409 | 429) || refusal.status >= 500)
        }
        _ => false,
    }
}

/// A number from 0 to below 1 that spreads the tries of many clients.
#[expect(clippy::cast_precision_loss, reason = "exact: 32 bits")]
pub(super) fn random() -> f64 {
    let bits = std::hash::RandomState::new().build_hasher().finish() >> 32;
    bits as f64 / 2_f64.powi(32)
}

/// The delay that an answer asks for, in milliseconds: `retry-after-ms`, else `retry-after` in seconds or as a date.
pub(super) fn asked_delay_ms(millis: Option<&str>, after: Option<&str>, now: Millis) -> Option<u64> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    if let Some(millis) = millis.and_then(number) {
        return whole(millis);
    }
    let after = after?;
    number(after).map_or_else(|| until(after, now), |seconds| whole(seconds * 1000.0))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate, and negative ones are no delay")]
fn whole(millis: f64) -> Option<u64> {
    (millis >= 0.0).then(|| millis.ceil() as u64)
}

/// The time until a date; 0 when it has passed.
fn until(date: &str, now: Millis) -> Option<u64> {
    let at = httpdate::parse_http_date(date.trim()).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let at = i64::try_from(at.as_millis()).ok()?;
    u64::try_from(at.saturating_sub(now.0).max(0)).ok()
}
