//! The models that a program knows, and one door to all their providers.
//!
//! There is always the provider [`SCRIPTED_PROVIDER`] with the model [`SCRIPTED_MODEL`], which needs neither a key nor a
//! network; a provider that is configured under this name takes its place.

mod file;
mod guarded;
mod secret;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use picofleet_session::Clock;
use picofleet_session::message::DeferredHandle;
use secrecy::SecretString;
use tokio_util::sync::CancellationToken;

use crate::anthropic::Anthropic;
use crate::breaker::Breaker;
use crate::config::{Api, Defaults, ProviderConfig, Providers};
use crate::http::{Client, ClientError, ClientOptions};
use crate::limiter::Limiter;
use crate::model::{InputKind, Model, ModelCost};
use crate::openai_chat::OpenAiChat;
use crate::openai_responses::OpenAiResponses;
use crate::provider::{CancelDeferredError, Context, Provider, StreamEvent, StreamOptions, failed};
use crate::scripted::{Script, ScriptError, Scripted};
use guarded::Guarded;

pub use file::read_file;
pub use secret::{Secret, SecretError};

/// The provider that is always there.
pub const SCRIPTED_PROVIDER: &str = "scripted";

/// Its model.
pub const SCRIPTED_MODEL: &str = "demo";

/// What the built-in scripted provider says.
const DEMO: &str = include_str!("registry/demo.toml");

/// The window and the output limit of its model, which nothing depends on.
const DEMO_CONTEXT_WINDOW: u64 = 200_000;
const DEMO_MAX_TOKENS: u64 = 8192;

/// Most bytes of a file with certificates or a script. Certificates of whole systems have a few hundred KiB.
const FILE_MAX: u64 = 16 << 20;

/// A provider cannot be used. Requests to it fail with this text; all others are not touched.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Its key cannot be had.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// Its HTTP client cannot be made.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The file with its authorities cannot be read.
    #[error("read the certificates in {path}; check that it is there and readable, or change ca_file", path = .path.display())]
    CaFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its script cannot be read.
    #[error("read the script {path}; check that it is there and readable", path = .path.display())]
    ScriptFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its script is none.
    #[error(transparent)]
    Script(#[from] ScriptError),
}

impl SetupError {
    /// The error and what is behind it, in one text.
    #[must_use]
    pub fn with_causes(&self) -> String {
        let error: &dyn std::error::Error = self;
        let texts = std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string);
        texts.collect::<Vec<_>>().join(": ")
    }
}

/// The providers and models of a configuration.
pub struct Models {
    entries: BTreeMap<String, Entry>,
    clock: Clock,
}

struct Entry {
    models: Vec<Model>,
    provider: Result<Arc<dyn Provider>, SetupError>,
}

impl Models {
    /// The providers of a configuration that [`crate::config::check`] found good. Keys and scripts are read here, once:
    /// `environment` gives the values of variables. What goes wrong for a provider is told by [`Models::problems`] and by
    /// requests to it.
    ///
    /// It blocks while it reads files, so it is for the start of a program and not for a task that others wait for.
    #[must_use]
    pub fn new(providers: &Providers, clock: Clock, environment: impl Fn(&str) -> Option<OsString>) -> Self {
        let script = Script::from_toml(DEMO).map_err(SetupError::Script);
        let mut entries = BTreeMap::from([(SCRIPTED_PROVIDER.to_owned(), scripted(script, &clock))]);
        for (id, config) in providers {
            let provider = build(id, config, &clock, &environment);
            entries.insert(id.clone(), Entry { models: config.models(id), provider });
        }
        Self { entries, clock }
    }

    /// The scripted model alone, which plays this script: for examples and tests.
    #[must_use]
    pub fn scripted(script: Script, clock: Clock) -> Self {
        let entries = BTreeMap::from([(SCRIPTED_PROVIDER.to_owned(), scripted(Ok(script), &clock))]);
        Self { entries, clock }
    }

    /// The same with another provider, or another in its place: for applications and tests that bring their own.
    #[must_use]
    pub fn with_provider(mut self, id: impl Into<String>, models: Vec<Model>, provider: Arc<dyn Provider>) -> Self {
        self.entries.insert(id.into(), Entry { models, provider: Ok(provider) });
        self
    }

    /// All models, by provider and in the order of the configuration.
    pub fn models(&self) -> impl Iterator<Item = &Model> {
        self.entries.values().flat_map(|entry| &entry.models)
    }

    /// A model of a provider.
    #[must_use]
    pub fn get_model(&self, provider: &str, id: &str) -> Option<&Model> {
        self.entries.get(provider)?.models.iter().find(|model| model.id == id)
    }

    /// The model of a new conversation: the default one, or the scripted one where none is set. `None` when the default
    /// names a model that is not there.
    #[must_use]
    pub fn default_model(&self, defaults: &Defaults) -> Option<&Model> {
        let (provider, id) = match defaults.model {
            Some(_) => defaults.model_parts()?,
            None => (SCRIPTED_PROVIDER, SCRIPTED_MODEL),
        };
        self.get_model(provider, id)
    }

    /// The providers that cannot be used, and why.
    pub fn problems(&self) -> impl Iterator<Item = (&str, &SetupError)> {
        self.entries.iter().filter_map(|(id, entry)| Some((id.as_str(), entry.provider.as_ref().err()?)))
    }

    fn provider(&self, id: &str) -> Result<&Arc<dyn Provider>, String> {
        let entry = self.entries.get(id).ok_or_else(|| format!("Unknown provider: {id}"))?;
        entry.provider.as_ref().map_err(SetupError::with_causes)
    }

    fn refuse(&self, model: &Model, text: String) -> BoxStream<'static, StreamEvent> {
        failed(model, self.clock.now(), text)
    }
}

/// Asks the provider of the model; one that is unknown or cannot be used is an error event.
impl Provider for Models {
    fn stream(
        &self,
        model: &Model,
        context: &Context,
        options: &StreamOptions,
        cancel: CancellationToken,
    ) -> BoxStream<'static, StreamEvent> {
        match self.provider(&model.provider) {
            Ok(provider) => provider.stream(model, context, options, cancel),
            Err(text) => self.refuse(model, text),
        }
    }

    fn fetch_deferred(&self, model: &Model, handle: &DeferredHandle, cancel: CancellationToken) -> BoxStream<'static, StreamEvent> {
        match self.provider(&model.provider) {
            Ok(provider) => provider.fetch_deferred(model, handle, cancel),
            Err(text) => self.refuse(model, text),
        }
    }

    fn cancel_deferred(&self, model: &Model, handle: &DeferredHandle) -> BoxFuture<'static, Result<(), CancelDeferredError>> {
        match self.provider(&model.provider) {
            Ok(provider) => provider.cancel_deferred(model, handle),
            Err(text) => async move { Err(CancelDeferredError::Refused(text)) }.boxed(),
        }
    }
}

fn scripted(script: Result<Script, SetupError>, clock: &Clock) -> Entry {
    let model = Model {
        id: SCRIPTED_MODEL.to_owned(),
        name: "Scripted demo".to_owned(),
        api: Api::Scripted.as_str().to_owned(),
        provider: SCRIPTED_PROVIDER.to_owned(),
        base_url: String::new(),
        reasoning: true,
        input: vec![InputKind::Text, InputKind::Image],
        input_limits: None,
        cost: ModelCost::default(),
        context_window: DEMO_CONTEXT_WINDOW,
        max_tokens: DEMO_MAX_TOKENS,
        headers: None,
        thinking_level_map: None,
        prompt_cache: None,
        sampling_params: None,
        sampling_params_by_thinking_level: None,
        compat: None,
    };
    let provider = script.map(|script| Arc::new(Scripted::new(script, clock.clone())) as Arc<dyn Provider>);
    Entry { models: vec![model], provider }
}

fn build(
    id: &str,
    config: &ProviderConfig,
    clock: &Clock,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Arc<dyn Provider>, SetupError> {
    let (limiter, breaker) = (Limiter::new(id, config.limits), Breaker::new(id, config.breaker));
    let client = || {
        Ok::<_, SetupError>(
            Client::new(client_options(config)?, clock.clone())?.with_limiter(limiter.clone()).with_breaker(breaker.clone()),
        )
    };
    let connect = || Ok::<_, SetupError>((client()?, key(config, environment)?));
    let inner: Arc<dyn Provider> = match config.api {
        Api::OpenAiCompletions => connect().map(|(client, key)| Arc::new(OpenAiChat::new(client, key)))?,
        Api::OpenAiResponses => connect().map(|(client, key)| Arc::new(OpenAiResponses::new(client, key)))?,
        Api::AnthropicMessages => connect().map(|(client, key)| Arc::new(Anthropic::new(client, key)))?,
        Api::Scripted => {
            let script = config.script.as_deref().map_or_else(|| Ok(Script::from_toml(DEMO)?), read_script)?;
            Arc::new(Scripted::new(script, clock.clone()))
        }
    };
    Ok(Arc::new(Guarded { inner, limiter, breaker, clock: clock.clone() }))
}

fn client_options(config: &ProviderConfig) -> Result<ClientOptions, SetupError> {
    let mut options = config.http.client_options();
    if let Some(path) = &config.ca_file {
        let mut bytes = read_file(path, FILE_MAX).map_err(|source| SetupError::CaFile { path: path.clone(), source })?;
        // An empty file is a mistake, too, and not the same as no file.
        bytes.push(b'\n');
        options.authorities = bytes.into();
    }
    Ok(options)
}

fn key(config: &ProviderConfig, environment: impl Fn(&str) -> Option<OsString>) -> Result<Option<SecretString>, SecretError> {
    let key = match (&config.api_key_env, &config.api_key_file) {
        (Some(name), _) => Some(Secret::from_variable(name, environment)?),
        (None, Some(path)) => Some(Secret::from_file(path)?),
        (None, None) => None,
    };
    Ok(key.map(Secret::into_inner))
}

fn read_script(path: &Path) -> Result<Script, SetupError> {
    let text = read_file(path, FILE_MAX).and_then(|bytes| String::from_utf8(bytes).map_err(std::io::Error::other));
    let text = text.map_err(|source| SetupError::ScriptFile { path: path.to_owned(), source })?;
    let json = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    Ok(if json { Script::from_json(&text)? } else { Script::from_toml(&text)? })
}

#[cfg(test)]
mod tests;
