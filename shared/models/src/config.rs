//! The `[providers]` and `[defaults]` parts of the configuration file: what they hold and whether it holds
//! together. The file itself, its overrides and the other parts are the binary's.

mod check;
mod compat;
mod hidden;
mod provider;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::ThinkingLevel;

pub use check::{Problem, check};
pub use provider::{Api, CostConfig, HttpConfig, LevelName, ModelConfig, ProviderConfig, TierConfig};

/// The providers by their ids: the `[providers.ID]` tables.
pub type Providers = BTreeMap<String, ProviderConfig>;

/// What a new conversation gets: the `[defaults]` table.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Defaults {
    /// The model as `PROVIDER/MODEL`; the built-in scripted one without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How much it thinks: the nearest level that the model has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thinking_level: Option<ThinkingLevel>,
}

impl Defaults {
    /// The provider and the model of [`Defaults::model`]: what stands before and after the first slash. Ids of models may
    /// have slashes of their own.
    #[must_use]
    pub fn model_parts(&self) -> Option<(&str, &str)> {
        self.model.as_deref()?.split_once('/')
    }
}

/// Both parts, for programs that configure models alone.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelsConfig {
    /// The providers.
    pub providers: Providers,
    /// What a new conversation gets.
    pub defaults: Defaults,
}

#[cfg(test)]
mod tests;
