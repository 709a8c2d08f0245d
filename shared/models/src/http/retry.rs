//! Retries within a request.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, UNIX_EPOCH};

use picofleet_session::Millis;

use super::{HttpError, Request, StatusError};

/// The first delay that nobody asked for, and the longest one.
const DELAY: Duration = Duration::from_millis(500);
const DELAY_MAX: Duration = Duration::from_secs(8);

/// The share of such a delay that chance takes off at most.
const JITTER: f64 = 0.25;

/// How long to wait before the next try, or the error when there is none. `random` is at least 0 and below 1.
///
/// A server that asks for more time than the request allows gets no other try: the caller knows better what to do.
///
/// # Errors
///
/// The error that was given, or the delay that is too long.
pub(super) fn delay(error: HttpError, request: &Request, tries: u32, random: f64) -> Result<Duration, HttpError> {
    if tries >= request.max_retries || !is_transient(&error) {
        return Err(error);
    }
    match error {
        HttpError::Status(StatusError { retry_after_ms: Some(asked), .. }) => {
            let asked = Duration::from_millis(asked);
            match request.max_retry_delay.filter(|max| asked > *max) {
                None => Ok(asked),
                Some(max) => Err(too_long(asked, max, error)),
            }
        }
        _ => {
            let whole = DELAY.saturating_mul(2_u32.saturating_pow(tries)).min(DELAY_MAX);
            Ok(whole.mul_f64(1.0 - random * JITTER))
        }
    }
}

fn too_long(asked: Duration, max: Duration, error: HttpError) -> HttpError {
    match error {
        HttpError::Status(refusal) => HttpError::RetryDelay { asked, max, refusal },
        other => other,
    }
}

fn is_transient(error: &HttpError) -> bool {
    match error {
        HttpError::Connect { .. } | HttpError::NoAnswer => true,
        HttpError::Status(refusal) => refusal.should_retry.unwrap_or(matches!(refusal.status, 408 | 409 | 429) || refusal.status >= 500),
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
        return Some(whole(millis));
    }
    let after = after?;
    number(after).map_or_else(|| until(after, now), |seconds| Some(whole(seconds * 1000.0)))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate, and a time that has passed is none")]
fn whole(millis: f64) -> u64 {
    millis.ceil() as u64
}

/// The time until a date; 0 when it has passed.
fn until(date: &str, now: Millis) -> Option<u64> {
    let at = httpdate::parse_http_date(date.trim()).ok()?.duration_since(UNIX_EPOCH).ok()?;
    let at = i64::try_from(at.as_millis()).ok()?;
    u64::try_from(at.saturating_sub(now.0).max(0)).ok()
}

#[cfg(test)]
mod tests {
    use picofleet_delta::Json;

    use super::*;
    use crate::model::Model;
    use crate::provider::StreamOptions;

    fn request(options: &StreamOptions) -> Request {
        let model = r#"{"id":"m","name":"M","api":"a","provider":"p","baseUrl":"http://h","reasoning":false,"input":[],
            "cost":{"input":0,"output":0,"cacheRead":0,"cacheWrite":0},"contextWindow":0,"maxTokens":0}"#;
        let model: Model = model.parse::<Json>().unwrap().to().unwrap();
        Request::post(&model, "/x", &Json::null()).unwrap().with_options(&model, options).unwrap()
    }

    fn refusal(status: u16, retry_after_ms: Option<u64>, should_retry: Option<bool>) -> HttpError {
        HttpError::Status(StatusError { status, body: "busy".to_owned(), request_id: None, retry_after_ms, should_retry })
    }

    fn delay_ms(error: HttpError, tries: u32, random: f64) -> Option<u128> {
        let request = request(&StreamOptions { max_retries: Some(9), ..StreamOptions::default() });
        delay(error, &request, tries, random).ok().map(|delay| delay.as_millis())
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        for status in [408, 409, 429, 500, 503, 529] {
            assert_eq!(delay_ms(refusal(status, None, None), 0, 0.0), Some(500), "{status}");
            assert_eq!(delay_ms(refusal(status, None, Some(false)), 0, 0.0), None, "{status}");
        }
        assert_eq!(delay_ms(refusal(400, None, None), 0, 0.0), None);
        assert_eq!(delay_ms(refusal(400, None, Some(true)), 0, 0.0), Some(500));
        assert_eq!(delay_ms(HttpError::NoAnswer, 0, 0.0), Some(500));
        assert_eq!(delay_ms(HttpError::Connect { cause: String::new() }, 0, 0.0), Some(500));
        assert_eq!(delay_ms(HttpError::Aborted, 0, 0.0), None);
        assert_eq!(delay_ms(HttpError::NoAnswer, 9, 0.0), None);
    }

    #[test]
    fn delays_double_up_to_a_bound_less_chance() {
        let delays: Vec<_> = (0..8).map(|tries| delay_ms(HttpError::NoAnswer, tries, 0.0).unwrap()).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 8000, 8000, 8000]);
        assert_eq!(delay_ms(HttpError::NoAnswer, 1, 0.5), Some(875));
        assert!((0..100).map(|_| random()).all(|random| (0.0..1.0).contains(&random)));
    }

    #[test]
    fn a_server_may_not_ask_for_too_much() {
        assert_eq!(delay_ms(refusal(429, Some(60_000), None), 0, 0.9), Some(60_000));
        let error =
            delay(refusal(429, Some(60_001), None), &request(&StreamOptions { max_retries: Some(1), ..Default::default() }), 0, 0.0);
        assert_eq!(error.unwrap_err().to_string(), "Server requested 61s retry delay (max: 60s). 429 busy");
        let unbounded = StreamOptions { max_retries: Some(1), max_retry_delay_ms: Some(0), ..StreamOptions::default() };
        assert!(delay(refusal(429, Some(9_000_000), None), &request(&unbounded), 0, 0.0).is_ok());
    }

    #[test]
    fn delays_are_read_in_all_forms() {
        let asked = |millis, after| asked_delay_ms(millis, after, Millis(784_111_777_000));
        assert_eq!(asked(None, None), None);
        assert_eq!(asked(Some("12.5"), Some("9")), Some(13));
        assert_eq!(asked(Some("x"), Some("9")), Some(9000));
        assert_eq!(asked(None, Some(" 0.25 ")), Some(250));
        assert_eq!(asked(None, Some("-1")), Some(0));
        assert_eq!(asked(None, Some("Sun, 06 Nov 1994 08:49:40 GMT")), Some(3000));
        assert_eq!(asked(None, Some("Sun, 06 Nov 1994 08:49:30 GMT")), Some(0));
        assert_eq!(asked(None, Some("soon")), None);
        assert_eq!(asked(None, Some("inf")), None);
    }
}
