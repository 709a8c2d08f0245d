//! Canonical numbers.

use crate::SAFE_INTEGER_MAX;

/// Invariant: `Int` is at most 2^53 - 1 in magnitude; `Float` is finite and no value that `Int` can hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    /// `None` for NaN and the infinities.
    pub(crate) fn from_f64(value: f64) -> Option<Number> {
        if !value.is_finite() {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "the limit is a power of two less one, exact as a double")]
        let limit = SAFE_INTEGER_MAX as f64;
        if value.trunc() == value && value.abs() <= limit {
            #[expect(clippy::cast_possible_truncation, reason = "integral and within the limit")]
            return Some(Number::Int(value as i64));
        }
        Some(Number::Float(value))
    }

    /// Beyond 2^53 - 1 it becomes the nearest double, as the same digits in a JSON text do.
    pub(crate) fn from_i64(value: i64) -> Number {
        if value.unsigned_abs() <= SAFE_INTEGER_MAX.unsigned_abs() {
            return Number::Int(value);
        }
        #[expect(clippy::cast_precision_loss, reason = "the documented rounding")]
        Number::Float(value as f64)
    }

    /// Like [`Number::from_i64`].
    pub(crate) fn from_u64(value: u64) -> Number {
        Number::from_i128(i128::from(value))
    }

    /// Like [`Number::from_i64`].
    pub(crate) fn from_i128(value: i128) -> Number {
        match i64::try_from(value) {
            Ok(value) => Number::from_i64(value),
            #[expect(clippy::cast_precision_loss, reason = "the documented rounding")]
            Err(_) => Number::Float(value as f64),
        }
    }

    /// Like [`Number::from_i64`].
    pub(crate) fn from_u128(value: u128) -> Number {
        match i128::try_from(value) {
            Ok(value) => Number::from_i128(value),
            #[expect(clippy::cast_precision_loss, reason = "the documented rounding")]
            Err(_) => Number::Float(value as f64),
        }
    }

    /// `None` when the text, which has the form of a JSON number, overflows a double.
    pub(crate) fn from_text(text: &str) -> Option<Number> {
        /// Digits that surely stay within 2^53 - 1, plus a sign.
        const SHORT: usize = 15;
        if text.len() <= SHORT && !text.contains(['.', 'e', 'E']) {
            return text.parse().ok().map(Number::Int);
        }
        text.parse().ok().and_then(Number::from_f64)
    }

    pub(crate) fn to_f64(self) -> f64 {
        match self {
            #[expect(clippy::cast_precision_loss, reason = "at most 2^53 - 1, exact as a double")]
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }
}
