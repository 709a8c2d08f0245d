//! The built-in setup of conversations (sections 2.2 and 7.1): which documents every conversation of a harness has.

use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_session::{ConversationCreated, ConversationId, ConversationRecord, Json, Tx, TxError};

use crate::config::CONFIG;
use crate::hooks::GenerationTask;
use crate::inbox::{INBOX, InboxState};
use crate::live::{LIVE, LiveState};
use crate::registry::{Registry, RegistryFailure};
use crate::usage::{USAGE, UsageState};

/// Which tools there are, for the configuration of new conversations.
pub trait ToolCatalogue: Send + Sync + 'static {
    /// Their names, in their order.
    fn tool_names(&self) -> Vec<String>;

    /// What is registered and absent, because a wrapper failed.
    fn failures(&self) -> Vec<RegistryFailure> {
        Vec::new()
    }

    /// Whether hooks may want to see the end of a tool round. Where none can, no worker is asked about it.
    fn sees_rounds(&self) -> bool {
        true
    }
}

impl ToolCatalogue for Registry {
    fn tool_names(&self) -> Vec<String> {
        self.snapshot().tool_names()
    }

    fn failures(&self) -> Vec<RegistryFailure> {
        self.snapshot().failures().to_vec()
    }

    fn sees_rounds(&self) -> bool {
        !self.snapshot().hooks::<GenerationTask>().is_empty()
    }
}

/// No tools.
impl ToolCatalogue for () {
    fn tool_names(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Gives a conversation `pi.conversation.config` with every tool active, and empty `pi.live`, `pi.inbox` and `pi.usage`. What is there
/// already, a fork's configuration for one, stays as it is.
#[derive(Clone)]
pub struct BuiltInSetup {
    catalogue: Arc<dyn ToolCatalogue>,
}

impl BuiltInSetup {
    /// The setup with the tools of a catalogue.
    #[must_use]
    pub fn new(catalogue: Arc<dyn ToolCatalogue>) -> Self {
        Self { catalogue }
    }
}

impl ConversationCreated for BuiltInSetup {
    fn created<'a>(&'a self, tx: &'a Tx, record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move { built_in_documents(tx, record.id, &self.catalogue.tool_names()).await })
    }
}

/// The documents of a new conversation, with these tools active.
pub(crate) async fn built_in_documents(tx: &Tx, id: ConversationId, tools: &[String]) -> Result<(), TxError> {
    if !tx.has_doc(&CONFIG, id).await? {
        tx.doc(&CONFIG, id).await?.edit(|config| config.active_tools = tools.to_vec())?;
    }
    tx.doc(&LIVE, id).await?;
    tx.doc(&INBOX, id).await?;
    tx.doc(&USAGE, id).await?;
    Ok(())
}

/// Whether a new conversation begins with this value of a built-in document that only the line changes. `None` for other kinds.
pub(crate) fn begins_with(kind: &str, value: &Json) -> Option<bool> {
    let initial = match kind {
        kind if kind == LIVE.kind => Json::from_serde(&LiveState::default()),
        kind if kind == INBOX.kind => Json::from_serde(&InboxState::default()),
        kind if kind == USAGE.kind => Json::from_serde(&UsageState::default()),
        _ => return None,
    };
    Some(initial.is_ok_and(|initial| initial == *value))
}
