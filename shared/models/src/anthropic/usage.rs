//! Tokens and prices that the server reports.

use picofleet_delta::Json;
use picofleet_session::message::Usage;

use super::compat::is_open_router;
use crate::model::{Model, ModelCost, calculate_cost};

/// Keeps the usage of an answer.
pub(super) struct Meter {
    cost: ModelCost,
    /// The share of the price that is paid.
    share: f64,
    /// The server reports prices.
    priced: bool,
}

impl Meter {
    /// Prices of the model, of which `share` is paid.
    pub(super) fn new(model: &Model, share: f64) -> Self {
        Self { cost: model.cost.clone(), share, priced: is_open_router(model) }
    }

    /// The usage at the start of an answer: what is missing is 0.
    pub(super) fn start(&self, reported: &Json, usage: &mut Usage) {
        let reasoning = usage.reasoning;
        *usage = Usage { cache_write_1h: Some(0), ..Usage::default() };
        take(reported, usage);
        usage.reasoning = reasoning;
        self.total(usage);
    }

    /// The usage later on: what is missing or `null` stays as it is.
    pub(super) fn update(&self, reported: Option<&Json>, usage: &mut Usage) {
        if let Some(reported) = reported {
            take(reported, usage);
        }
        self.total(usage);
        if let Some(total) = reported.filter(|_| self.priced).and_then(reported_price) {
            usage.cost.total = total;
            usage.cost.total_from_provider = Some(true);
        }
    }

    fn total(&self, usage: &mut Usage) {
        let parts = [usage.output, usage.cache_read, usage.cache_write];
        usage.total_tokens = parts.into_iter().fold(usage.input, u64::saturating_add);
        usage.cost = calculate_cost(&self.cost, usage);
        let cost = &mut usage.cost;
        for part in [&mut cost.input, &mut cost.output, &mut cost.cache_read, &mut cost.cache_write, &mut cost.total] {
            *part *= self.share;
        }
    }
}

fn take(reported: &Json, usage: &mut Usage) {
    let set = |own: &mut u64, member: Option<&Json>| {
        if let Some(tokens) = member.and_then(tokens) {
            *own = tokens;
        }
    };
    set(&mut usage.input, reported.get("input_tokens"));
    set(&mut usage.output, reported.get("output_tokens"));
    set(&mut usage.cache_read, reported.get("cache_read_input_tokens"));
    set(&mut usage.cache_write, reported.get("cache_creation_input_tokens"));
    let hour = reported.get("cache_creation").and_then(|creation| creation.get("ephemeral_1h_input_tokens"));
    usage.cache_write_1h = hour.and_then(tokens).or(usage.cache_write_1h);
    let thinking = reported.get("output_tokens_details").and_then(|details| details.get("thinking_tokens"));
    usage.reasoning = thinking.and_then(tokens).or(usage.reasoning);
}

/// A count, if it is one: whole and not negative. Others are as good as missing.
fn tokens(value: &Json) -> Option<u64> {
    value.as_u64()
}

/// The price that OpenRouter reports: its own, and with it that of the provider behind it where the caller pays that one.
fn reported_price(reported: &Json) -> Option<f64> {
    let price = |object: &Json, member: &str| object.get(member).and_then(Json::as_f64).filter(|price| price.is_finite() && *price >= 0.0);
    let own = price(reported, "cost")?;
    if !reported.get("is_byok")?.as_bool()? {
        return Some(own);
    }
    let details = reported.get("cost_details")?;
    let upstream = if details.get("upstream_inference_cost")?.is_null() {
        price(details, "upstream_inference_prompt_cost")? + price(details, "upstream_inference_completions_cost")?
    } else {
        price(details, "upstream_inference_cost")?
    };
    Some(own + upstream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reported_price_holds_when_it_is_complete() {
        for (reported, expected) in [
            (r#"{"cost":0.5,"is_byok":false}"#, Some(0.5)),
            (r#"{"cost":0.5}"#, None),
            (r#"{"cost":-1,"is_byok":false}"#, None),
            (r#"{"cost":0.5,"is_byok":true}"#, None),
            (r#"{"cost":0.5,"is_byok":true,"cost_details":{"upstream_inference_cost":1}}"#, Some(1.5)),
            (r#"{"cost":0.5,"is_byok":true,"cost_details":{"upstream_inference_cost":null}}"#, None),
            (
                r#"{"cost":0.5,"is_byok":true,"cost_details":{"upstream_inference_cost":null,
                "upstream_inference_prompt_cost":1,"upstream_inference_completions_cost":2}}"#,
                Some(3.5),
            ),
        ] {
            assert_eq!(reported_price(&reported.parse().unwrap()), expected, "{reported}");
        }
    }
}
