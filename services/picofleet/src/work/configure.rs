//! The configuration of a conversation by the command line.

use anyhow::{bail, ensure};
use picofleet_harness::config::{ConfigPatch, ConversationConfig, ModelRef};
use picofleet_harness::effects::Services;
use picofleet_harness::host::Conversation;

use super::Work;
use crate::failure::Failure;

/// Sets the model and the tools that the command line names. A new conversation gets the defaults for the rest; one that goes on keeps
/// what it has.
pub(crate) async fn configure(conversation: &Conversation, work: &Work) -> anyhow::Result<()> {
    let stored = conversation.config().await?;
    let patch = patch(&stored, work)?;
    if patch != ConfigPatch::default() {
        conversation.update(patch).await?;
    }
    Ok(())
}

fn patch(stored: &ConversationConfig, work: &Work) -> anyhow::Result<ConfigPatch> {
    let mut patch = ConfigPatch::default();
    // Nobody configured it yet: what made it gave it the registered tools and no model.
    if stored.model.is_none() {
        patch.thinking_level = Some(work.fresh.thinking_level.as_str().to_owned());
        patch.model = work.fresh.model.clone().map(Some);
    }
    if let Some(name) = &work.target.model {
        patch.model = Some(Some(model(name, &work.services)?));
    }
    ensure!(stored.model.is_some() || patch.model.is_some(), no_model());
    if let Some(names) = &work.target.tools {
        patch.active_tools = Some(tools(names, &work.services)?);
    }
    Ok(patch)
}

/// What is said where nothing names a model.
pub(super) fn no_model() -> Failure {
    Failure::Usage("there is no default model; name one of `picofleet models list` with --model".to_owned())
}

/// The model of this name, if it is configured.
pub(crate) fn model(name: &str, services: &Services) -> anyhow::Result<ModelRef> {
    let Some((provider, model_id)) = name.split_once('/') else {
        bail!(Failure::Usage(format!("{name:?} is no PROVIDER/MODEL; `picofleet models list` shows those that are configured")));
    };
    let model = ModelRef { provider: provider.to_owned(), model_id: model_id.to_owned() };
    if services.models.find(&model).is_none() {
        bail!(Failure::Usage(format!("there is no model {name}; `picofleet models list` shows those that are configured")));
    }
    Ok(model)
}

/// These tools, if all are registered.
pub(crate) fn tools(names: &[String], services: &Services) -> anyhow::Result<Vec<String>> {
    let known = services.registry.snapshot().tool_names();
    if let Some(unknown) = names.iter().find(|tool| !known.contains(tool)) {
        bail!(Failure::Usage(format!("there is no tool {unknown:?}; there are: {}", known.join(", "))));
    }
    Ok(names.to_vec())
}
