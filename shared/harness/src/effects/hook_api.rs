//! What hooks, prompt sections and tools may read and remember.

use std::sync::Arc;

use picofleet_session::{
    ConversationId, DocToken, DocValue, DocumentAddress, EntryId, FamilyToken, Millis, Rewindable, RewindablePolicy, Scope, StoredValue,
    TaskId, Watch,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::invocation::{Fault, Invocation};
use crate::wire::Read;

/// Reads of committed documents, and the memos of the asking task. Cheap to clone; nothing of it works once the invocation is over.
#[derive(Clone)]
pub struct HookApi {
    invocation: Arc<Invocation>,
    conversation: ConversationId,
}

impl HookApi {
    pub(crate) const fn new(invocation: Arc<Invocation>, conversation: ConversationId) -> Self {
        Self { invocation, conversation }
    }

    pub(crate) const fn invocation(&self) -> &Arc<Invocation> {
        &self.invocation
    }

    /// The asking task.
    #[must_use]
    pub fn task_id(&self) -> TaskId {
        self.invocation.task()
    }

    /// Its conversation.
    #[must_use]
    pub const fn conversation_id(&self) -> ConversationId {
        self.conversation
    }

    /// Fires when the task is to stop.
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        self.invocation.cancel()
    }

    /// The time of this process. Durable times are the line's.
    #[must_use]
    pub fn now(&self) -> Millis {
        self.invocation.services().clock.now()
    }

    /// Keeps a value under a name and answers the one that was kept first. Memos stay with the task over restarts; all of a task share
    /// one set of names.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn memo<T: Serialize + DeserializeOwned + Sync>(&self, name: &str, candidate: &T) -> Result<T, Fault> {
        self.invocation.memo(name, candidate).await
    }

    /// The value that was kept under a name.
    ///
    /// # Errors
    /// [`Fault`].
    pub async fn memoized<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Fault> {
        self.invocation.memoized(name).await
    }

    /// The committed value of a token's document; `None` where there is none.
    ///
    /// # Errors
    /// [`Fault`], also where the token does not fit what is stored.
    pub async fn snapshot<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<T>, Fault> {
        let stored = self.stored(token.address(at)).await?;
        stored.map(|stored| token.read_stored(at, stored)).transpose().map_err(|error| Fault::failed(&error))
    }

    /// [`HookApi::snapshot`] of a member of a family.
    ///
    /// # Errors
    /// As [`HookApi::snapshot`].
    pub async fn snapshot_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<T>, Fault> {
        let stored = self.stored(family.address(at, key)).await?;
        stored.map(|stored| family.read_stored(at, key, stored)).transpose().map_err(|error| Fault::failed(&error))
    }

    /// The value that a document had at a visible entry of a conversation; `None` where there was none.
    ///
    /// # Errors
    /// As [`HookApi::snapshot`], also where the entry is not visible.
    pub async fn snapshot_as_of<T: DocValue, F: RewindablePolicy>(
        &self,
        token: &DocToken<T, Rewindable<F>>,
        conversation: ConversationId,
        at: EntryId,
    ) -> Result<Option<T>, Fault> {
        let address = token.address(conversation);
        let stored: Option<StoredValue> = self.invocation.read(Read::DocumentAsOf { address, conversation, at }).await?;
        stored.map(|stored| token.read_stored(conversation, stored)).transpose().map_err(|error| Fault::failed(&error))
    }

    /// [`HookApi::snapshot_as_of`] of a member of a family.
    ///
    /// # Errors
    /// As [`HookApi::snapshot_as_of`].
    pub async fn snapshot_as_of_in<T: DocValue, I, F: RewindablePolicy>(
        &self,
        family: &FamilyToken<T, I, Rewindable<F>>,
        conversation: ConversationId,
        key: &str,
        at: EntryId,
    ) -> Result<Option<T>, Fault> {
        let address = family.address(conversation, key);
        let stored: Option<StoredValue> = self.invocation.read(Read::DocumentAsOf { address, conversation, at }).await?;
        stored.map(|stored| family.read_stored(conversation, key, stored)).transpose().map_err(|error| Fault::failed(&error))
    }

    /// Watches a token's document: the committed value, and every later one as a frame (section 9.2). `None` where there is none. It stays
    /// with this incarnation, and ends as `stopped` when the invocation is over. Where the session gets another owner it goes on with one
    /// root replacement.
    ///
    /// # Errors
    /// As [`HookApi::snapshot`]; [`Fault::Failed`] also where the invocation has too many watches.
    pub async fn watch_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Option<Watch<T>>, Fault> {
        self.invocation.watch_doc(token.reader(at)).await
    }

    /// [`HookApi::watch_doc`] of a member of a family.
    ///
    /// # Errors
    /// As [`HookApi::watch_doc`].
    pub async fn watch_doc_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<Option<Watch<T>>, Fault> {
        self.invocation.watch_doc(family.reader(at, key)).await
    }

    async fn stored(&self, address: DocumentAddress) -> Result<Option<StoredValue>, Fault> {
        self.invocation.read(Read::Document(address)).await
    }
}
