//! Conversation setups: what every new conversation gets in the commit that creates it (section 7.1).

use futures::future::BoxFuture;
use picofleet_session::{ConversationCreated, ConversationRecord, Tx, TxError};

use super::Registry;

/// The key of the built-in setup.
pub const PI_SETUP: &str = "pi";

/// Stages documents of a new conversation, behind the copies of a fork and before the host's own initialization.
pub trait ConversationSetup: Send + Sync + 'static {
    /// Stages them. Reads of tables are refused; a fork holds its copied documents already.
    ///
    /// # Errors
    /// An error fails the creation.
    fn setup<'a>(&'a self, tx: &'a Tx, conversation: &'a ConversationRecord, tools: &'a [String]) -> BoxFuture<'a, Result<(), TxError>>;
}

/// The built-in documents: configuration, live state, inbox and usage.
pub(super) struct PiSetup;

impl ConversationSetup for PiSetup {
    fn setup<'a>(&'a self, tx: &'a Tx, conversation: &'a ConversationRecord, tools: &'a [String]) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(crate::setup::built_in_documents(tx, conversation.id, tools))
    }
}

/// Runs the setups that an application registered, as they are when the conversation is made; the built-in one is the line's.
pub struct AppSetups(Registry);

impl AppSetups {
    /// The setups of a registry.
    #[must_use]
    pub const fn new(registry: Registry) -> Self {
        Self(registry)
    }
}

impl ConversationCreated for AppSetups {
    fn created<'a>(&'a self, tx: &'a Tx, record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move {
            let snapshot = self.0.snapshot();
            let tools = snapshot.tool_names();
            for (key, setup) in snapshot.setups() {
                if key != PI_SETUP {
                    setup.setup(tx, record, &tools).await?;
                }
            }
            Ok(())
        })
    }
}

/// Runs all setups of the registry as it is when the conversation is made.
impl ConversationCreated for Registry {
    fn created<'a>(&'a self, tx: &'a Tx, record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(async move {
            let snapshot = self.snapshot();
            let tools = snapshot.tool_names();
            for (_, setup) in snapshot.setups() {
                setup.setup(tx, record, &tools).await?;
            }
            Ok(())
        })
    }
}
