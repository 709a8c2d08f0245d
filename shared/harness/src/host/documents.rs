//! Typed reads of committed documents (sections 2.2 and 3.4). They create and write nothing.

use picofleet_session::{
    ConversationId, DefinitionError, DocToken, DocValue, DocumentAddress, EntryId, FamilyToken, Rewindable, RewindablePolicy, Scope,
    StoredValue,
};

use super::{Harness, HostError};
use crate::wire::Read;

/// Each of these gives `None` where there is no such document. It fails with [`HostError::Unavailable`], and with [`HostError::Invalid`]
/// where the token does not fit what is stored.
#[allow(clippy::missing_errors_doc, reason = "said once above")]
impl Harness {
    /// The committed value of a token's document.
    pub async fn snapshot<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<T>, HostError> {
        let stored = self.document(token.address(at)).await?;
        typed(stored, |stored| token.read_stored(at, stored))
    }

    /// [`Harness::snapshot`] of a member of a family.
    pub async fn snapshot_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<T>, HostError> {
        let stored = self.document(family.address(at, key)).await?;
        typed(stored, |stored| family.read_stored(at, key, stored))
    }

    /// The value that a document had at an entry that is visible in the conversation; [`HostError::NotFound`] for one that is not.
    pub async fn snapshot_as_of<T: DocValue, F: RewindablePolicy>(
        &self,
        token: &DocToken<T, Rewindable<F>>,
        conversation: ConversationId,
        at: EntryId,
    ) -> Result<Option<T>, HostError> {
        let stored = self.stored_as_of(token.address(conversation), conversation, at).await?;
        typed(stored, |stored| token.read_stored(conversation, stored))
    }

    /// [`Harness::snapshot_as_of`] of a member of a family.
    pub async fn snapshot_as_of_in<T: DocValue, I, F: RewindablePolicy>(
        &self,
        family: &FamilyToken<T, I, Rewindable<F>>,
        conversation: ConversationId,
        key: &str,
        at: EntryId,
    ) -> Result<Option<T>, HostError> {
        let stored = self.stored_as_of(family.address(conversation, key), conversation, at).await?;
        typed(stored, |stored| family.read_stored(conversation, key, stored))
    }

    async fn stored_as_of(
        &self,
        address: DocumentAddress,
        conversation: ConversationId,
        at: EntryId,
    ) -> Result<Option<StoredValue>, HostError> {
        self.caller.read(Read::DocumentAsOf { address, conversation, at }).await
    }
}

fn typed<T>(stored: Option<StoredValue>, read: impl FnOnce(StoredValue) -> Result<T, DefinitionError>) -> Result<Option<T>, HostError> {
    stored.map(read).transpose().map_err(|error| HostError::Invalid { field: None, why: crate::line::chain(&error) })
}
