//! The configuration of a run's conversation.

use anyhow::{bail, ensure};
use picofleet_harness::config::{CONFIG, ConversationConfig, ModelRef};
use picofleet_harness::effects::Services;
use picofleet_harness::wire::HostCall;
use picofleet_session::{Json, ROOT_CONVERSATION_ID, SessionId};

use super::Run;
use crate::engine::Engine;
use crate::failure::Failure;

/// Sets the model and the tools that the arguments name. A new conversation gets the defaults for the rest; one that goes on keeps what it has.
pub(super) async fn configure(engine: &Engine, session: SessionId, run: &Run<'_>) -> anyhow::Result<()> {
    let watch = engine.watch(session, ROOT_CONVERSATION_ID).await?;
    let stored: Option<ConversationConfig> = watch.documents().get(CONFIG.kind).map(Json::to).transpose()?;
    let config = wanted(stored.clone(), run)?;
    if stored.as_ref() != Some(&config) {
        let call = HostCall::Configure { conversation: ROOT_CONVERSATION_ID, config: Box::new(config) };
        let _: Json = engine.host(session, call).await?;
    }
    Ok(())
}

fn wanted(stored: Option<ConversationConfig>, run: &Run<'_>) -> anyhow::Result<ConversationConfig> {
    let mut config = stored.unwrap_or_default();
    // Nobody configured it yet: what made it gave it the registered tools and no model.
    if config.model.is_none() {
        config.thinking_level = run.fresh.thinking_level.as_str().to_owned();
    }
    if let Some(model) = &run.args.model {
        config.model = Some(named(model, run.services)?);
    }
    if config.model.is_none() {
        config.model.clone_from(&run.fresh.model);
    }
    ensure!(
        config.model.is_some(),
        Failure::Usage("there is no default model; name one of `picofleet models list` with --model".to_owned())
    );
    if let Some(tools) = &run.args.tools {
        let known = run.services.registry.snapshot().tool_names();
        if let Some(unknown) = tools.iter().find(|tool| !known.contains(tool)) {
            bail!(Failure::Usage(format!("there is no tool {unknown:?}; there are: {}", known.join(", "))));
        }
        config.active_tools.clone_from(tools);
    }
    Ok(config)
}

/// The model of this name, if it is configured.
fn named(name: &str, services: &Services) -> anyhow::Result<ModelRef> {
    let Some((provider, model_id)) = name.split_once('/') else {
        bail!(Failure::Usage(format!("{name:?} is no PROVIDER/MODEL; `picofleet models list` shows those that are configured")));
    };
    let model = ModelRef { provider: provider.to_owned(), model_id: model_id.to_owned() };
    if services.models.find(&model).is_none() {
        bail!(Failure::Usage(format!("there is no model {name}; `picofleet models list` shows those that are configured")));
    }
    Ok(model)
}
