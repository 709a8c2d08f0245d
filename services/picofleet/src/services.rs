//! What the worker of this process works with: models, tools, prompt.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use picofleet_harness::config::ModelRef;
use picofleet_harness::effects::Services;
use picofleet_harness::registry::Registry;
use picofleet_models::model::{Model, ThinkingLevel};
use picofleet_models::provider::Provider;
use picofleet_models::registry::{Models, SCRIPTED_MODEL, SCRIPTED_PROVIDER};
use picofleet_models::scripted::Script;
use picofleet_session::Clock;
use picofleet_tools::{Bash, Edit, LocalEnv, LocalOptions, Read, Write};

use crate::config::{Config, User};
use crate::failure::Failure;

/// The configured models as the harness finds them.
struct Configured(Arc<Models>);

impl picofleet_harness::effects::Models for Configured {
    fn find(&self, model: &ModelRef) -> Option<(Model, Arc<dyn Provider>)> {
        let found = self.0.get_model(&model.provider, &model.model_id)?.clone();
        Some((found, Arc::clone(&self.0) as Arc<dyn Provider>))
    }
}

/// The model `scripted/demo`, which plays a script and needs no key: for examples and tests of applications.
#[must_use]
pub fn scripted(script: Script) -> Arc<dyn picofleet_harness::effects::Models> {
    Arc::new(Configured(Arc::new(Models::scripted(script, Clock::system()))))
}

/// The name of [`scripted`]'s model.
#[must_use]
pub fn scripted_model() -> ModelRef {
    ModelRef { provider: SCRIPTED_PROVIDER.to_owned(), model_id: SCRIPTED_MODEL.to_owned() }
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

/// What a new conversation gets.
pub(crate) struct Fresh {
    /// The model; `None` when the default one is not there.
    pub(crate) model: Option<ModelRef>,
    /// How much it thinks.
    pub(crate) thinking_level: ThinkingLevel,
    /// The providers that can't be used, and why.
    problems: BTreeMap<String, String>,
}

impl Fresh {
    /// Whether a model's provider can be asked.
    ///
    /// # Errors
    /// What it lacks.
    pub(crate) fn usable(&self, model: &ModelRef) -> anyhow::Result<()> {
        let Some(why) = self.problems.get(&model.provider) else { return Ok(()) };
        let ModelRef { provider, model_id } = model;
        let text =
            format!("the model {provider}/{model_id} can't be asked: {why}; `picofleet models list` shows all models and what they lack");
        Err(Failure::Usage(text).into())
    }
}

/// The services of an application's registry and a configuration, still without what tools reach, and what new conversations get. Nothing
/// is made.
pub(crate) fn services(registry: Registry, config: &Config) -> (Services, Fresh) {
    let models = Arc::new(crate::models::models(config));
    let model = models.default_model(&config.defaults);
    let fresh = Fresh {
        model: model.map(|model| ModelRef { provider: model.provider.clone(), model_id: model.id.clone() }),
        thinking_level: config.defaults.thinking_level.unwrap_or(ThinkingLevel::Off),
        problems: models.problems().map(|(provider, error)| (provider.to_owned(), error.with_causes())).collect(),
    };
    (Services::new(registry, Arc::new(Configured(models))), fresh)
}

/// The same with the workspace, which is made where there is none.
///
/// # Errors
/// That it can't be used.
pub(crate) async fn in_workspace(services: Services, config: &Config, workspace: &Path) -> anyhow::Result<Services> {
    if let Some(user) = config.tools.user {
        may_choose(user, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())?;
    }
    make(workspace, config.tools.user)?;
    // Before a command can run: without it a command reads this process's provider keys from its environment.
    LocalEnv::hide_host().context("hide this process's environment from commands")?;
    // Commands of an earlier process that was killed must not work beside those that are repeated now.
    tokio::task::spawn_blocking(LocalEnv::end_orphans).await.context("end the commands of a killed process")?;
    let spill = std::env::temp_dir().join("picofleet-output");
    let mut options = LocalOptions::new(workspace, spill);
    if let Some(user) = config.tools.user {
        options.user = Some((user.id, user.group));
        // These are about the user of this process, whose home is closed to another one.
        options.variables.remove(OsStr::new("USER"));
        let home = workspace.canonicalize().with_context(|| format!("use the workspace {}", workspace.display()))?;
        options.variables.insert("HOME".into(), home.into());
    }
    let env = LocalEnv::open(options).with_context(|| format!("use the workspace {}", workspace.display()))?;
    Ok(services.with_env(Arc::new(env)))
}

/// Whether a process of this user and group may run commands as another one.
fn may_choose(user: User, own: u32, own_group: u32) -> anyhow::Result<()> {
    let User { id, group } = user;
    ensure!(
        own == 0 || (id, group) == (own, own_group),
        Failure::Usage(format!(
            "[tools] user is {id}:{group} and this process is {own}:{own_group}; only root can choose: remove it or start as root"
        ))
    );
    Ok(())
}

/// Makes the workspace where there is none yet; it belongs to the user who works in it.
fn make(workspace: &Path, user: Option<User>) -> anyhow::Result<()> {
    if workspace.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(workspace).with_context(|| format!("make the workspace {}", workspace.display()))?;
    let Some(User { id, group }) = user else { return Ok(()) };
    let given = std::os::unix::fs::chown(workspace, Some(id), Some(group));
    given.with_context(|| format!("give the workspace {} to the user {id}:{group} of [tools] user", workspace.display()))
}

/// What every conversation begins with.
const PREAMBLE: &str = "You are a careful assistant that works in the user's workspace with the tools you are offered. \
                        Say what you did and what you found, in few words.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_chooses_another_user() {
        let user = User { id: 1000, group: 1001 };
        assert!(may_choose(user, 0, 0).is_ok());
        assert!(may_choose(user, 1000, 1001).is_ok());
        for (own, group) in [(1000, 1000), (1001, 1001)] {
            let error = may_choose(user, own, group).unwrap_err();
            assert!(matches!(error.downcast_ref(), Some(Failure::Usage(text)) if text.contains("only root can choose")), "{error}");
        }
    }
}
