//! A provider and its models, as the file has them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use super::hidden::{hidden_headers, hidden_members, hidden_members_by_level};
use crate::breaker::BreakerOptions;
use crate::http::{ClientOptions, is_credential};
use crate::limiter::Limits;
use crate::model::{CostTier, Headers, InputKind, Model, ModelCost, PromptCache, Rates, ThinkingLevel};
use crate::{anthropic, openai_responses, scripted};

/// The header that models of a provider without a key remove: it takes none.
const NO_CREDENTIAL: &str = "authorization";

/// The API that a provider speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Api {
    /// OpenAI-compatible chat completions.
    #[serde(rename = "openai-completions")]
    OpenAiCompletions,
    /// OpenAI Responses.
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
    /// Anthropic Messages.
    AnthropicMessages,
    /// A script that is played; it needs no server and no key.
    Scripted,
}

impl Api {
    /// The API as models and messages name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAiCompletions => "openai-completions",
            Self::OpenAiResponses => openai_responses::API,
            Self::AnthropicMessages => anthropic::API,
            Self::Scripted => scripted::API,
        }
    }
}

/// A provider: a `[providers.ID]` table.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProviderConfig {
    /// What it speaks.
    pub api: Api,
    /// Where it is: an `http` or `https` URL. Needed unless it is scripted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The environment variable that has the key. A provider without a key, here, in a file or in a header, is asked without one, as
    /// servers on one's own machine want it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_env: Option<String>,
    /// The file that has the key; white space around it is no part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_key_file: Option<PathBuf>,
    /// A file with certificates of authorities, in PEM form, that are trusted beside those of the system: for a server or a
    /// proxy with a certificate of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Headers of every request. Credentials belong into `api_key_env` or `api_key_file`; a value may be one whatever its name is, so
    /// none is shown.
    #[serde(skip_serializing_if = "Headers::is_empty", serialize_with = "hidden_headers", default)]
    pub headers: Headers<String>,
    /// How the provider departs from the API, for all its models; a table whose members depend on the API.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hidden_members", default)]
    pub compat: Option<Json>,
    /// For a scripted provider: its script, JSON if the name ends so, else TOML. Without it a built-in script is played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub script: Option<PathBuf>,
    /// Its limits.
    #[serde(default)]
    pub limits: Limits,
    /// When it counts as not reachable.
    #[serde(default)]
    pub breaker: BreakerOptions,
    /// How it is connected to.
    #[serde(default)]
    pub http: HttpConfig,
    /// Its models: `[[providers.ID.models]]` tables.
    #[serde(default)]
    pub models: Vec<ModelConfig>,
}

/// How a provider is connected to. What is absent is as [`ClientOptions`] has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Longest time to connect, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_timeout_ms: Option<u64>,
    /// Longest time until an answer begins, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_byte_timeout_ms: Option<u64>,
    /// Longest time without a byte while it comes in, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// Takes proxies from the environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub environment_proxies: Option<bool>,
}

impl HttpConfig {
    /// The options of a client.
    #[must_use]
    pub fn client_options(&self) -> ClientOptions {
        let usual = ClientOptions::default();
        let time = |millis: Option<u64>, usual: Duration| millis.map_or(usual, Duration::from_millis);
        ClientOptions {
            connect_timeout: time(self.connect_timeout_ms, usual.connect_timeout),
            first_byte_timeout: time(self.first_byte_timeout_ms, usual.first_byte_timeout),
            idle_timeout: time(self.idle_timeout_ms, usual.idle_timeout),
            environment_proxies: self.environment_proxies.unwrap_or(usual.environment_proxies),
            ..usual
        }
    }
}

/// A model of a provider.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// The provider's name of it.
    pub id: String,
    /// Its name for people; the id without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Tokens of input and output together.
    pub context_window: u64,
    /// Most tokens of output.
    pub max_tokens: u64,
    /// It can think before it answers.
    #[serde(default)]
    pub reasoning: bool,
    /// What it takes.
    #[serde(default = "text_only")]
    pub input: Vec<InputKind>,
    /// What it costs, in US dollars for a million tokens.
    #[serde(default)]
    pub cost: CostConfig,
    /// What the provider calls the thinking levels; `false` for one that it has not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_levels: Option<BTreeMap<ThinkingLevel, LevelName>>,
    /// How long the provider keeps a prompt, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_cache: Option<PromptCache>,
    /// More members of the request body.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hidden_members", default)]
    pub sampling_params: Option<Json>,
    /// The same, by thinking level.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hidden_members_by_level", default)]
    pub sampling_params_by_thinking_level: Option<BTreeMap<ThinkingLevel, Json>>,
    /// How the provider departs from the API for this model; members count before those of the provider's own table.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "hidden_members", default)]
    pub compat: Option<Json>,
}

fn text_only() -> Vec<InputKind> {
    vec![InputKind::Text]
}

/// The provider's name of a thinking level.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LevelName {
    /// `false`: it has no such level. `true`: it has it under our name.
    Has(bool),
    /// It has it under this name.
    Named(String),
}

/// What a model costs, in US dollars for a million tokens.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostConfig {
    /// Input that was not cached.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input from a cache.
    pub cache_read: f64,
    /// Input into a cache.
    pub cache_write: f64,
    /// Prices of large requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<TierConfig>,
}

/// The prices of requests above a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierConfig {
    /// They hold for more input tokens than this, cached ones included.
    pub input_tokens_above: u64,
    /// Input that was not cached.
    pub input: f64,
    /// Output.
    pub output: f64,
    /// Input from a cache.
    #[serde(default)]
    pub cache_read: f64,
    /// Input into a cache.
    #[serde(default)]
    pub cache_write: f64,
}

impl ProviderConfig {
    /// Its models.
    #[must_use]
    pub fn models(&self, id: &str) -> Vec<Model> {
        self.models.iter().map(|model| self.model(id, model)).collect()
    }

    /// A provider that is configured to have no credential gets none, and is not refused for it.
    fn model_headers(&self) -> Option<Headers> {
        let own = self.headers.iter().map(|(name, value)| (name.clone(), Some(value.clone())));
        let keyed = self.api_key_env.is_some() || self.api_key_file.is_some() || self.headers.iter().any(|(name, _)| is_credential(name));
        let none = (!keyed && self.api != Api::Scripted).then(|| (NO_CREDENTIAL.to_owned(), None));
        let headers: Headers = own.chain(none).collect();
        (!headers.is_empty()).then_some(headers)
    }

    fn model(&self, provider: &str, model: &ModelConfig) -> Model {
        Model {
            id: model.id.clone(),
            name: model.name.clone().unwrap_or_else(|| model.id.clone()),
            api: self.api.as_str().to_owned(),
            provider: provider.to_owned(),
            base_url: self.base_url.clone().unwrap_or_default(),
            reasoning: model.reasoning,
            input: model.input.clone(),
            input_limits: None,
            cost: model.cost.model_cost(),
            context_window: model.context_window,
            max_tokens: model.max_tokens,
            headers: self.model_headers(),
            thinking_level_map: model.thinking_levels.as_ref().map(level_map),
            prompt_cache: model.prompt_cache,
            sampling_params: model.sampling_params.clone(),
            sampling_params_by_thinking_level: model.sampling_params_by_thinking_level.clone(),
            compat: merged(self.compat.as_ref(), model.compat.as_ref()),
        }
    }
}

fn level_map(levels: &BTreeMap<ThinkingLevel, LevelName>) -> BTreeMap<ThinkingLevel, Option<String>> {
    let name = |(level, name): (&ThinkingLevel, &LevelName)| {
        let name = match name {
            LevelName::Has(false) => None,
            LevelName::Has(true) => Some(level.as_str().to_owned()),
            LevelName::Named(name) => Some(name.clone()),
        };
        (*level, name)
    };
    levels.iter().map(name).collect()
}

/// The members of both objects; the second ones count where both have one.
fn merged(first: Option<&Json>, second: Option<&Json>) -> Option<Json> {
    if first.is_none() && second.is_none() {
        return None;
    }
    let members = [first, second].into_iter().flatten().filter_map(Json::as_object).flatten();
    Some(Json::object(members.map(|(key, value)| (key, value.clone()))))
}

impl CostConfig {
    fn model_cost(&self) -> ModelCost {
        let tier = |tier: &TierConfig| CostTier {
            input_tokens_above: tier.input_tokens_above,
            rates: Rates { input: tier.input, output: tier.output, cache_read: tier.cache_read, cache_write: tier.cache_write },
        };
        ModelCost {
            rates: Rates { input: self.input, output: self.output, cache_read: self.cache_read, cache_write: self.cache_write },
            tiers: (!self.tiers.is_empty()).then(|| self.tiers.iter().map(tier).collect()),
        }
    }
}
