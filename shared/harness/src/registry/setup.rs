//! Conversation setups: what every new conversation gets in the commit that creates it (section 7.1).

use futures::future::BoxFuture;
use picofleet_session::{ConversationRecord, Tx, TxError};

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
    fn setup<'a>(&'a self, tx: &'a Tx, conversation: &'a ConversationRecord, _tools: &'a [String]) -> BoxFuture<'a, Result<(), TxError>> {
        Box::pin(crate::line::built_in_documents(tx, conversation.id))
    }
}
