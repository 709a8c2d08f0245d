//! Tokens and their price.

use picofleet_delta::Json;
use picofleet_session::message::Usage;

use crate::model::{Model, calculate_cost};

/// Reads the usage that a chunk tells.
pub(super) fn usage(told: &Json, model: &Model) -> Usage {
    let prompt_details = told.get("prompt_tokens_details");
    let detail = |name: &str| tokens(prompt_details.and_then(|details| details.get(name)));
    let own = |name: &str| tokens(told.get(name));
    let cache_read = detail("cached_tokens").or_else(|| own("prompt_cache_hit_tokens")).or_else(|| own("cached_tokens")).unwrap_or(0);
    let cache_write = detail("cache_write_tokens").unwrap_or(0);
    let input = own("prompt_tokens").unwrap_or(0).saturating_sub(cache_read).saturating_sub(cache_write);
    let output = own("completion_tokens").unwrap_or(0);
    let completion_details = told.get("completion_tokens_details");
    let thinking = tokens(completion_details.and_then(|details| details.get("reasoning_tokens")));
    let mut usage = Usage {
        input,
        output,
        cache_read,
        cache_write,
        reasoning: Some(thinking.filter(|tokens| *tokens > 0).or_else(|| own("reasoning_tokens")).unwrap_or(0)),
        total_tokens: input.saturating_add(output).saturating_add(cache_read).saturating_add(cache_write),
        ..Usage::default()
    };
    usage.cost = calculate_cost(&model.cost, &usage);
    let openrouter = model.provider == "openrouter" || model.base_url.contains("openrouter.ai");
    if let Some(total) = openrouter.then(|| billed(told)).flatten() {
        usage.cost.total = total;
        usage.cost.total_from_provider = Some(true);
    }
    usage
}

/// A number of tokens; `None` where there is none.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "casts of floats saturate; fewer than no tokens are none")]
fn tokens(value: Option<&Json>) -> Option<u64> {
    value?.as_f64().map(|tokens| tokens as u64)
}

/// What OpenRouter bills, with what the server behind it bills to a key of the user's own. `None` where a part is missing.
fn billed(told: &Json) -> Option<f64> {
    let cost = |value: Option<&Json>| value.and_then(Json::as_f64).filter(|cost| *cost >= 0.0);
    let own = cost(told.get("cost"))?;
    if !told.get("is_byok")?.as_bool()? {
        return Some(own);
    }
    let details = told.get("cost_details")?;
    let upstream = details.get("upstream_inference_cost")?;
    let upstream = if upstream.is_null() {
        cost(details.get("upstream_inference_prompt_cost"))? + cost(details.get("upstream_inference_completions_cost"))?
    } else {
        cost(Some(upstream))?
    };
    Some(own + upstream)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(told: &str) -> Option<f64> {
        billed(&told.parse().unwrap())
    }

    #[test]
    fn a_bill_must_be_whole() {
        assert_eq!(total(r#"{"cost":0.5,"is_byok":false}"#), Some(0.5));
        assert_eq!(total(r#"{"cost":0.5}"#), None);
        assert_eq!(total(r#"{"cost":-1,"is_byok":false}"#), None);
        assert_eq!(total(r#"{"cost":0.5,"is_byok":true}"#), None);
        assert_eq!(total(r#"{"cost":0.5,"is_byok":true,"cost_details":{"upstream_inference_cost":1}}"#), Some(1.5));
        let parts = r#""upstream_inference_prompt_cost":1,"upstream_inference_completions_cost":2"#;
        assert_eq!(
            total(&format!(r#"{{"cost":0.5,"is_byok":true,"cost_details":{{"upstream_inference_cost":null,{parts}}}}}"#)),
            Some(3.5)
        );
        assert_eq!(total(r#"{"cost":0.5,"is_byok":true,"cost_details":{"upstream_inference_cost":null}}"#), None);
    }
}
