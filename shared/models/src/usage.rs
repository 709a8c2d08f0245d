//! Usage that no provider can mean: left out, and told.

use picofleet_delta::{Json, SAFE_INTEGER_MAX};
use picofleet_session::message::{AssistantMessage, Cost, MessageDiagnostic, Usage};

use crate::provider::StreamEvent;

/// The diagnostic of a message whose usage was left out in part.
pub const USAGE_OUT_OF_RANGE: &str = "usage_out_of_range";

/// The largest count that is believed, and that JSON holds exactly.
pub const COUNT_MAX: u64 = SAFE_INTEGER_MAX.unsigned_abs();

/// The usage without what is out of range: a count above [`COUNT_MAX`] and a price that is no number count as 0. With a count goes what
/// was computed from it, the total and the price, except a price that the provider itself reports.
#[must_use]
pub fn bounded(usage: Usage) -> Usage {
    let sound = |count: u64| if count > COUNT_MAX { 0 } else { count };
    let counts = Usage {
        input: sound(usage.input),
        output: sound(usage.output),
        cache_read: sound(usage.cache_read),
        cache_write: sound(usage.cache_write),
        cache_write_1h: usage.cache_write_1h.map(sound),
        reasoning: usage.reasoning.map(sound),
        ..usage
    };
    let total = [counts.output, counts.cache_read, counts.cache_write].into_iter().fold(counts.input, u64::saturating_add);
    let dropped = counts != usage || usage.total_tokens > COUNT_MAX;
    let total_tokens = if dropped { total.min(COUNT_MAX) } else { usage.total_tokens };
    let price = |price: f64| if price.is_finite() { price } else { 0.0 };
    let Cost { total_from_provider, .. } = usage.cost;
    let kept = !dropped || total_from_provider == Some(true);
    let cost = if kept { usage.cost } else { Cost { total_from_provider, ..Cost::default() } };
    let cost = Cost {
        input: price(cost.input),
        output: price(cost.output),
        cache_read: price(cost.cache_read),
        cache_write: price(cost.cache_write),
        total: price(cost.total),
        total_from_provider,
    };
    Usage { total_tokens, cost, ..counts }
}

/// An event whose message has a usage that can be stored and counted; what was left out is a diagnostic of it.
#[must_use]
pub fn bounded_event(event: StreamEvent) -> StreamEvent {
    match event {
        StreamEvent::Start { message } => StreamEvent::Start { message: bounded_message(message) },
        StreamEvent::Done { message } => StreamEvent::Done { message: bounded_message(message) },
        StreamEvent::Error { message } => StreamEvent::Error { message: bounded_message(message) },
        other => other,
    }
}

fn bounded_message(mut message: Box<AssistantMessage>) -> Box<AssistantMessage> {
    let told = message.usage;
    message.usage = bounded(told);
    if message.usage != told {
        let details = Json::object([("reported", Json::from(format!("{told:?}")))]);
        message.diagnostics.get_or_insert_default().push(MessageDiagnostic {
            r#type: USAGE_OUT_OF_RANGE.to_owned(),
            timestamp: message.timestamp,
            error: None,
            details: Some(details),
        });
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_meant_stays_as_it_is() {
        let cost = Cost { input: 0.1, total: -0.5, ..Cost::default() };
        let usage = Usage { input: COUNT_MAX, output: 3, total_tokens: 7, cost, ..Usage::default() };
        assert_eq!(bounded(usage), usage);
    }

    #[test]
    fn what_is_out_of_range_is_left_out_with_what_follows_from_it() {
        let cost = Cost { input: 1e13, total: 1e13, ..Cost::default() };
        let told = Usage { input: u64::MAX, output: 3, cache_read: COUNT_MAX + 1, total_tokens: u64::MAX, cost, ..Usage::default() };
        assert_eq!(bounded(told), Usage { output: 3, total_tokens: 3, ..Usage::default() });
        let billed = Cost { total: 0.5, total_from_provider: Some(true), ..Cost::default() };
        assert_eq!(bounded(Usage { cost: billed, ..told }).cost, billed);
        for price in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let cost = Cost { input: price, output: price, cache_read: price, cache_write: price, total: price, ..Cost::default() };
            assert_eq!(bounded(Usage { cost, ..Usage::default() }), Usage::default());
        }
    }
}
