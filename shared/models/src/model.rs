//! A model: what it can do, what it costs, how much it takes and gives.

use std::collections::BTreeMap;

use picofleet_delta::Json;
use picofleet_session::message::{Cost, Usage};
use serde::{Deserialize, Serialize};

/// Least room in tokens that stays free beside the input and the output.
const MARGIN_MIN: f64 = 4096.0;

/// Share of the input that stays free, since the input is an estimate.
const MARGIN_SHARE: f64 = 0.15;

/// Room for output below which the margin shrinks to its minimum.
const ROOM_MIN: f64 = 32_768.0;

mod headers;

pub use headers::Headers;

/// A model of a provider.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// The provider's name of it.
    pub id: String,
    /// Its name for people.
    pub name: String,
    /// The API it is reached by, such as `openai-completions`, `openai-responses` or `anthropic-messages`.
    pub api: String,
    /// The provider.
    pub provider: String,
    /// Where the API is.
    pub base_url: String,
    /// It can think before it answers.
    pub reasoning: bool,
    /// What it takes.
    pub input: Vec<InputKind>,
    /// Limits of the input, as the catalogue has them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub input_limits: Option<Json>,
    /// What it costs.
    pub cost: ModelCost,
    /// Tokens of input and output together; 0 when unknown.
    pub context_window: u64,
    /// Most tokens of output.
    pub max_tokens: u64,
    /// Headers of every request; `null` removes a default one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub headers: Option<Headers>,
    /// What the provider calls the levels; `null` for a level that it has not.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub thinking_level_map: Option<BTreeMap<ThinkingLevel, Option<String>>>,
    /// How long the provider keeps a prompt.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub prompt_cache: Option<PromptCache>,
    /// More members of the request body: a JSON object.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sampling_params: Option<Json>,
    /// The same, by thinking level.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub sampling_params_by_thinking_level: Option<BTreeMap<ThinkingLevel, Json>>,
    /// How its provider departs from the API: a JSON object whose members depend on the API.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub compat: Option<Json>,
}

/// What a model takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InputKind {
    /// Text.
    Text,
    /// Images.
    Image,
}

/// How long a provider keeps a prompt, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct PromptCache {
    /// For the short retention.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub short: Option<u64>,
    /// For the long retention.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub long: Option<u64>,
}

/// Prices in US dollars for a million tokens.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rates {
    /// Input that was not cached.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input from a cache.
    pub cache_read: f64,
    /// Input into a cache.
    pub cache_write: f64,
}

/// What a model costs.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct ModelCost {
    /// The usual prices.
    #[serde(flatten)]
    pub rates: Rates,
    /// Prices of large requests.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub tiers: Option<Vec<CostTier>>,
}

/// The prices of requests above a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CostTier {
    /// They hold for more input tokens than this, cached ones included.
    pub input_tokens_above: u64,
    /// The prices.
    #[serde(flatten)]
    pub rates: Rates,
}

/// How much a model thinks, from least to most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ThinkingLevel {
    /// Not at all.
    Off,
    /// `minimal`
    Minimal,
    /// `low`
    Low,
    /// `medium`
    Medium,
    /// `high`
    High,
    /// `xhigh`: only for models that name it.
    XHigh,
    /// `max`: only for models that name it.
    Max,
}

impl ThinkingLevel {
    /// All levels, from least to most.
    pub const ALL: [Self; 7] = [Self::Off, Self::Minimal, Self::Low, Self::Medium, Self::High, Self::XHigh, Self::Max];

    /// The level as messages and configuration write it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::XHigh => "xhigh",
            Self::Max => "max",
        }
    }
}

impl Model {
    /// True when it takes images.
    #[must_use]
    pub fn takes_images(&self) -> bool {
        self.input.contains(&InputKind::Image)
    }

    /// True when it has the level: a model that cannot think has only `off`, a level that is mapped to `null` is missing,
    /// `xhigh` and `max` need a mapping.
    #[must_use]
    pub fn supports(&self, level: ThinkingLevel) -> bool {
        if !self.reasoning {
            return level == ThinkingLevel::Off;
        }
        match self.thinking_level_map.as_ref().and_then(|map| map.get(&level)) {
            Some(mapped) => mapped.is_some(),
            None => level < ThinkingLevel::XHigh,
        }
    }
}

/// The levels of a model, from least to most.
#[must_use]
pub fn supported_thinking_levels(model: &Model) -> Vec<ThinkingLevel> {
    ThinkingLevel::ALL.into_iter().filter(|level| model.supports(*level)).collect()
}

/// The level itself where the model has it, else the next higher one, else the next lower one, else `off`.
#[must_use]
pub fn clamp_thinking_level(model: &Model, level: ThinkingLevel) -> ThinkingLevel {
    let supported = supported_thinking_levels(model);
    let above = supported.iter().find(|own| **own >= level);
    above.or_else(|| supported.iter().rfind(|own| **own < level)).copied().unwrap_or(ThinkingLevel::Off)
}

/// What a request cost in US dollars. The tokens that stay in a cache for an hour cost twice the input price.
///
/// The prices are those of the tier with the highest bound below the input, cached tokens included, else the usual ones.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
pub fn calculate_cost(cost: &ModelCost, usage: &Usage) -> Cost {
    let tokens = usage.input.saturating_add(usage.cache_read).saturating_add(usage.cache_write);
    let tiers = cost.tiers.iter().flatten().filter(|tier| tier.input_tokens_above < tokens);
    let rates = tiers.max_by_key(|tier| tier.input_tokens_above).map_or(cost.rates, |tier| tier.rates);
    let hour = usage.cache_write_1h.unwrap_or(0);
    let input = rates.input / 1e6 * usage.input as f64;
    let output = rates.output / 1e6 * usage.output as f64;
    let cache_read = rates.cache_read / 1e6 * usage.cache_read as f64;
    let short = usage.cache_write as f64 - hour as f64;
    // The order of the operations decides the last bit, so no fused multiply and add here.
    #[expect(clippy::suboptimal_flops, reason = "the result must be the one of JavaScript")]
    let cache_write = (rates.cache_write * short + rates.input * 2.0 * hour as f64) / 1e6;
    let total = input + output + cache_read + cache_write;
    Cost { input, output, cache_read, cache_write, total, total_from_provider: Some(false) }
}

/// The output limit to ask for, so that input and output fit the model's window: `desired` or less, at least 1.
///
/// `context_tokens` is the estimate of the input (see [`crate::estimate::estimate_context_tokens`]). A part of the window
/// stays free, less of it when the room gets small.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and between 1 and `desired`")]
pub fn clamp_max_tokens_to_context(model: &Model, context_tokens: u64, desired: u64) -> u64 {
    if model.context_window == 0 {
        return desired.max(1);
    }
    let free = model.context_window as f64 - context_tokens as f64;
    let margin = (MARGIN_SHARE * context_tokens as f64).ceil().max(MARGIN_MIN);
    let mut room = free - margin;
    if room < ROOM_MIN {
        room = (free - MARGIN_MIN).min(ROOM_MIN);
    }
    (desired as f64).min(room.max(1.0)) as u64
}
