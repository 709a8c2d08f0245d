//! Forks (section 3.7): a conversation that begins with another one's history, and with copies of its documents.

use super::Tx;
use crate::storage::{DocumentCopy, DocumentQuery, PAGE_MAX};
use crate::{
    ConversationId, ConversationOwnership, ConversationRecord, DocumentAddress, DocumentCreate, DocumentRecord, DocumentScope, EntryId,
    Fork, ForkPoint, Placement, Point, TxError, Violation,
};

impl Tx {
    /// Forks a conversation at one of its visible entries. Documents are copied by storage at the commit, by their stored policy.
    ///
    /// # Errors
    /// [`Violation::UnknownConversation`], [`Violation::NotVisible`]; [`Violation::UnknownTask`] for an owner that is not there.
    /// What a setup says. A transaction that also writes a document that the fork copies fails with [`Violation::ForkSource`].
    pub async fn fork_conversation(
        &self,
        parent: ConversationId,
        at: EntryId,
        ownership: ConversationOwnership,
    ) -> Result<ConversationRecord, TxError> {
        let sources = self.fork_points(parent, at).await?;
        let owner = self.conversation_owner(ownership).await?;
        let record = {
            let mut state = self.state();
            let id = state.line.mint()?;
            for (record, point) in sources {
                let Placement::Conversation { policy, .. } = record.create.placement else { continue };
                let address = child_address(&record, id);
                if state.staged.copies.contains_key(&address) {
                    continue;
                }
                let placement = Placement::Conversation { id, policy };
                let create = DocumentCreate { id: state.line.mint()?, kind: address.kind.clone(), key: address.key.clone(), placement };
                state.staged.sources.push((record.create.id, address.clone()));
                state.staged.copies.insert(address, DocumentCopy { create, source: record.create.id, at: point });
            }
            state.staged.add_conversation(ConversationRecord { id, parent: Some(ForkPoint { conversation_id: parent, at }), owner })
        };
        self.set_up(record).await
    }

    /// What a fork of a conversation at one of its visible entries copies, and from which point.
    pub(super) async fn fork_points(&self, parent: ConversationId, at: EntryId) -> Result<Vec<(DocumentRecord, Point)>, TxError> {
        self.existing_conversation(parent).await?;
        let not_visible = Violation::NotVisible { conversation: parent, entry: at };
        if self.state().staged.conversations.contains_key(&parent) {
            // What this transaction made has no committed entries yet.
            return Err(not_visible.into());
        }
        let (entry, seq) = self.store.entry(Some(parent), at).await?.ok_or(not_visible)?;
        let as_of = self.fork_sources(entry.conversation_id, Point::At(seq), Fork::AsOf).await?;
        let current = self.fork_sources(parent, Point::Current, Fork::Current).await?;
        let as_of = as_of.into_iter().map(|record| (record, Point::At(seq)));
        Ok(as_of.chain(current.into_iter().map(|record| (record, Point::Current))).collect())
    }

    /// The documents of a conversation that a fork copies with one policy. Their number and not the history decides the cost.
    async fn fork_sources(&self, conversation: ConversationId, at: Point, fork: Fork) -> Result<Vec<DocumentRecord>, TxError> {
        let mut sources = Vec::new();
        let mut cursor = None;
        loop {
            let query = DocumentQuery { scope: DocumentScope::Conversation { id: conversation }, at, kind: None };
            let page = self.store.scan_documents(query, PAGE_MAX, cursor).await?;
            sources.extend(page.items.into_iter().filter(|record| has_policy(record, fork)));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(sources);
            }
        }
    }
}

/// The address that a copy has in the child.
pub(super) fn child_address(record: &DocumentRecord, child: ConversationId) -> DocumentAddress {
    let scope = DocumentScope::Conversation { id: child };
    DocumentAddress { kind: record.create.kind.clone(), scope, key: record.create.key.clone() }
}

fn has_policy(record: &DocumentRecord, fork: Fork) -> bool {
    matches!(record.create.placement, Placement::Conversation { policy, .. } if policy.fork() == fork)
}
