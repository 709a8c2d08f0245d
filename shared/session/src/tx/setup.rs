//! Setups of new conversations (section 7.1): what they have from their first commit on.

use std::sync::Arc;

use futures::future::BoxFuture;

use super::Tx;
use crate::{ConversationRecord, TxError, Violation};

/// A setup: runs in the transaction that makes a conversation, right after it is staged, a fork's copies included. It may write what any
/// callback may. Tables can't be read any more by then.
pub trait ConversationCreated: Send + Sync + 'static {
    /// Sets a conversation up.
    ///
    /// # Errors
    /// Whatever fails the creation, and with it the transaction.
    fn created<'a>(&'a self, tx: &'a Tx, record: &'a ConversationRecord) -> BoxFuture<'a, Result<(), TxError>>;
}

/// The setups of a session, in their order.
pub type Setups = Arc<[Arc<dyn ConversationCreated>]>;

/// How deep setups may make conversations whose setups make conversations.
const DEPTH_MAX: u32 = 8;

tokio::task_local! {
    /// How many setups the running callback is inside of.
    static DEPTH: u32;
}

impl Tx {
    /// Runs the setups of a conversation that was staged. The transaction fails unless this comes to its end.
    pub(super) async fn set_up(&self, record: ConversationRecord) -> Result<ConversationRecord, TxError> {
        if self.setups.is_empty() {
            return Ok(record);
        }
        self.state().staged.unfinished += 1;
        let result = self.run_setups(&record).await;
        let mut state = self.state();
        match result {
            Ok(()) => {
                state.staged.unfinished -= 1;
                Ok(record)
            }
            Err(error) => {
                state.staged.setup_error.get_or_insert_with(|| error.clone());
                Err(error)
            }
        }
    }

    async fn run_setups(&self, record: &ConversationRecord) -> Result<(), TxError> {
        let depth = DEPTH.try_with(|depth| *depth).unwrap_or(0);
        if depth >= DEPTH_MAX {
            return Err(Violation::SetupDepth { depth }.into());
        }
        for setup in &*self.setups {
            DEPTH.scope(depth + 1, setup.created(self, record)).await?;
        }
        Ok(())
    }

    /// Refuses a transaction with a conversation that was not set up: its callback swallowed the error or dropped the creation.
    pub(super) fn check_set_up(&self) -> Result<(), TxError> {
        let state = self.state();
        match &state.staged.setup_error {
            Some(error) => Err(error.clone()),
            None if state.staged.unfinished > 0 => Err(Violation::SetupUnfinished.into()),
            None => Ok(()),
        }
    }
}
