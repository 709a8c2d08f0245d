//! What the worker of this process works with: models, tools, prompt.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use picofleet_harness::config::ModelRef;
use picofleet_harness::effects::Services;
use picofleet_harness::registry::Registry;
use picofleet_models::model::Model;
use picofleet_models::provider::Provider;
use picofleet_models::registry::Models;
use picofleet_tools::{Bash, Edit, LocalEnv, LocalOptions, Read, Write};

use crate::config::Config;

/// The configured models as the harness finds them.
struct Configured(Arc<Models>);

impl picofleet_harness::effects::Models for Configured {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        let found = self.0.get_model(&model.provider, &model.model_id)?.clone();
        Some((found, Arc::clone(&self.0) as Arc<dyn Provider>))
    }
}

/// What the binary of this crate registers: `read`, `bash`, `edit`, `write`, and a system prompt for them.
///
/// # Errors
/// That one of the names is taken, which can't be in a registry of its own.
pub fn standard() -> anyhow::Result<Registry> {
    let registry = Registry::new();
    registry.tool(Read::default()).context("register the tools")?;
    registry.tool(Bash::default()).context("register the tools")?;
    registry.tool(Edit::default()).context("register the tools")?;
    registry.tool(Write::default()).context("register the tools")?;
    registry.section("preamble", false, |_| Some(PREAMBLE.to_owned())).context("register the prompt")?;
    Ok(registry)
}

/// The services of an application's registry and a configuration, and the model of new conversations.
///
/// # Errors
/// That the workspace can't be used.
pub(crate) async fn services(registry: Registry, config: &Config, workspace: &Path) -> anyhow::Result<(Services, Option<ModelRef>)> {
    let models = Arc::new(crate::models::models(config));
    let default =
        models.default_model(&config.defaults).map(|model| ModelRef { provider: model.provider.clone(), model_id: model.id.clone() });
    std::fs::create_dir_all(workspace).with_context(|| format!("make the workspace {}", workspace.display()))?;
    // Before a command can run: without it a command reads this process's provider keys from its environment.
    LocalEnv::hide_host().context("hide this process's environment from commands")?;
    // Commands of an earlier process that was killed must not work beside those that are repeated now.
    tokio::task::spawn_blocking(LocalEnv::end_orphans).await.context("end the commands of a killed process")?;
    let spill = std::env::temp_dir().join("picofleet-output");
    let env = LocalEnv::open(LocalOptions::new(workspace, spill)).with_context(|| format!("use the workspace {}", workspace.display()))?;
    let services = Services::new(registry, Arc::new(Configured(models))).with_env(Arc::new(env));
    Ok((services, default))
}

/// What every conversation begins with.
const PREAMBLE: &str = "You are a careful assistant that works in the user's workspace with the tools you are offered. \
                        Say what you did and what you found, in few words.";
