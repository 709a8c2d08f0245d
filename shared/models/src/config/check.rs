//! Whether a configuration holds together.

mod text;

use std::collections::HashSet;

use picofleet_delta::Json;

use super::compat::compat_problems;
use super::{Api, Defaults, ModelConfig, ProviderConfig, Providers};
use crate::model::ThinkingLevel;
use crate::registry::{SCRIPTED_MODEL, SCRIPTED_PROVIDER};
use text::{control_problem, header_problems, variable_problem};

/// Something that a configuration must not have. Its text says where it is and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Problem {
    /// Where: keys and indices, joined by dots, as in `providers.openai.models.0.id`.
    pub path: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// All problems of a configuration, in the order of its keys. It reads neither files nor the environment, and asks no server:
/// [`crate::registry::Models::problems`] tells what is missing.
#[must_use]
pub fn check(providers: &Providers, defaults: &Defaults) -> Vec<Problem> {
    let mut problems = Problems::default();
    for (id, provider) in providers {
        let path = format!("providers.{id}");
        if id.is_empty() || id.contains('/') {
            problems.add(&path, "the id of a provider is not empty and has no slash; rename it");
        }
        control_problem(&path, id, &mut problems);
        provider_problems(&path, provider, &mut problems);
    }
    default_problems(providers, defaults, &mut problems);
    problems.into_vec()
}

#[derive(Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, path: &str, problem: impl Into<String>) {
        self.0.push(Problem { path: path.to_owned(), problem: problem.into() });
    }

    pub(super) fn into_vec(self) -> Vec<Problem> {
        self.0
    }
}

fn provider_problems(path: &str, provider: &ProviderConfig, problems: &mut Problems) {
    let scripted = provider.api == Api::Scripted;
    match &provider.base_url {
        Some(url) => url_problems(&format!("{path}.base_url"), url, problems),
        None if !scripted => problems.add(path, "base_url is missing; set the URL of the API, without its last part"),
        None => {}
    }
    if provider.api_key_env.is_some() && provider.api_key_file.is_some() {
        problems.add(path, "api_key_env and api_key_file are both set; keep one");
    }
    if provider.script.is_some() && !scripted {
        problems.add(&format!("{path}.script"), "only a provider with api = \"scripted\" plays a script; remove it");
    }
    if let Some(name) = &provider.api_key_env {
        variable_problem(&format!("{path}.api_key_env"), name, problems);
    }
    file_problems(path, provider, problems);
    header_problems(&format!("{path}.headers"), &provider.headers, problems);
    compat_problems(&format!("{path}.compat"), provider.api, provider.compat.as_ref(), problems);
    zero_problems(path, provider, problems);
    let mut ids = HashSet::new();
    for (index, model) in provider.models.iter().enumerate() {
        let path = format!("{path}.models.{index}");
        if !ids.insert(&model.id) {
            problems.add(&format!("{path}.id"), format!("{:?} is there twice; keep one of the models", model.id));
        }
        model_problems(&path, provider.api, model, problems);
    }
}

fn file_problems(path: &str, provider: &ProviderConfig, problems: &mut Problems) {
    let secure = provider.base_url.as_deref().is_some_and(|url| url.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("https://")));
    let files = [("api_key_file", &provider.api_key_file), ("ca_file", &provider.ca_file), ("script", &provider.script)];
    for (name, file) in files {
        let Some(file) = file else { continue };
        let path = format!("{path}.{name}");
        if file.as_os_str().is_empty() {
            problems.add(&path, "it names no file; set its path or remove it");
        } else if name == "ca_file" && !secure {
            problems.add(&path, "only an https base_url has certificates to check; remove it or correct base_url");
        }
        control_problem(&path, &file.to_string_lossy(), problems);
    }
}

/// Limits and times that would let nothing through.
fn zero_problems(path: &str, provider: &ProviderConfig, problems: &mut Problems) {
    let limits = &provider.limits;
    let zero = [("concurrency", limits.concurrency.map(u64::from)), ("requests_per_minute", limits.requests_per_minute.map(u64::from))];
    for (name, limit) in zero.into_iter().chain([("tokens_per_minute", limits.tokens_per_minute)]) {
        if limit == Some(0) {
            problems.add(&format!("{path}.limits.{name}"), "0 lets nothing through; remove it for no limit");
        }
    }
    let http = &provider.http;
    for (name, time) in [
        ("connect_timeout_ms", http.connect_timeout_ms),
        ("first_byte_timeout_ms", http.first_byte_timeout_ms),
        ("idle_timeout_ms", http.idle_timeout_ms),
    ] {
        if time == Some(0) {
            problems.add(&format!("{path}.http.{name}"), "0 gives no request the time to be answered; remove it for the usual time");
        }
    }
}

fn url_problems(path: &str, url: &str, problems: &mut Problems) {
    match reqwest::Url::parse(url) {
        Ok(parsed) if !matches!(parsed.scheme(), "http" | "https") => problems.add(path, "it is no http or https URL; correct it"),
        // The text is not repeated, since it may have a password in it.
        Ok(parsed) if !parsed.username().is_empty() || parsed.password().is_some() => {
            problems.add(path, "it has a user or a password in it; use api_key_env or api_key_file");
        }
        Ok(parsed) if parsed.query().is_some() || parsed.fragment().is_some() => {
            problems.add(path, "it has a query or a fragment, after which no path can follow; remove it");
        }
        Ok(parsed) if parsed.port() == Some(0) => problems.add(path, "no server has the port 0; correct it"),
        Ok(_) => {}
        Err(error) => problems.add(path, format!("it is no URL ({error}); correct it")),
    }
}

fn model_problems(path: &str, api: Api, model: &ModelConfig, problems: &mut Problems) {
    if model.id.is_empty() {
        problems.add(&format!("{path}.id"), "it is empty; set the provider's name of the model");
    }
    control_problem(&format!("{path}.id"), &model.id, problems);
    control_problem(&format!("{path}.name"), model.name.as_deref().unwrap_or_default(), problems);
    for (name, tokens) in [("context_window", model.context_window), ("max_tokens", model.max_tokens)] {
        if tokens == 0 {
            problems.add(&format!("{path}.{name}"), "it is 0; set the number of tokens that the provider documents");
        }
    }
    if model.max_tokens > model.context_window && model.context_window > 0 {
        let problem = format!("no output is larger than the context_window of {}; correct one of them", model.context_window);
        problems.add(&format!("{path}.max_tokens"), problem);
    }
    let cost = &model.cost;
    let tiers = cost.tiers.iter().flat_map(|tier| [tier.input, tier.output, tier.cache_read, tier.cache_write]);
    let prices = [cost.input, cost.output, cost.cache_read, cost.cache_write].into_iter().chain(tiers);
    if prices.into_iter().any(|price| !price.is_finite() || price < 0.0) {
        problems.add(&format!("{path}.cost"), "a price is negative or no number; set US dollars for a million tokens");
    }
    if model.thinking_levels.is_some() && !model.reasoning {
        problems.add(&format!("{path}.thinking_levels"), "the model does not think; set reasoning = true or remove it");
    }
    compat_problems(&format!("{path}.compat"), api, model.compat.as_ref(), problems);
    object_problem(&format!("{path}.sampling_params"), model.sampling_params.as_ref(), problems);
    for (level, params) in model.sampling_params_by_thinking_level.iter().flatten() {
        object_problem(&format!("{path}.sampling_params_by_thinking_level.{}", level.as_str()), Some(params), problems);
    }
}

fn object_problem(path: &str, value: Option<&Json>, problems: &mut Problems) {
    if value.is_some_and(|value| value.as_object().is_none()) {
        problems.add(path, "it is no table; write it as one");
    }
}

fn default_problems(providers: &Providers, defaults: &Defaults, problems: &mut Problems) {
    let path = "defaults.model";
    let Some(model) = &defaults.model else { return };
    let Some((provider_id, model_id)) = defaults.model_parts() else {
        problems.add(path, format!("{model:?} is no PROVIDER/MODEL; write both"));
        return;
    };
    match providers.get(provider_id) {
        None if (provider_id, model_id) == (SCRIPTED_PROVIDER, SCRIPTED_MODEL) => {}
        None => {
            let known: Vec<&str> = providers.keys().map(String::as_str).chain([SCRIPTED_PROVIDER]).collect();
            problems.add(path, format!("there is no provider {provider_id:?}; configure it or name one of {}", known.join(", ")));
        }
        Some(provider) => match provider.models.iter().find(|model| model.id == model_id) {
            None => problems.add(path, format!("the provider {provider_id:?} has no model {model_id:?}; add it to its models")),
            Some(model) if !model.reasoning && defaults.thinking_level.is_some_and(|level| level != ThinkingLevel::Off) => {
                let problem = "the default model does not think; set reasoning = true for it, or write \"off\" or remove it";
                problems.add("defaults.thinking_level", problem);
            }
            Some(_) => {}
        },
    }
}
