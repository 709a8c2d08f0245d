//! What a transaction has staged of documents, for code that goes on with it elsewhere (`design.md` 1).

use super::Tx;
use crate::storage::DocumentCopy;
use crate::{DocumentRecord, StoredDocument};

/// The documents that a transaction makes, as they are in it now.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Staged {
    /// New ones with their values.
    pub created: Vec<StoredDocument>,
    /// Those that a fork copies; their values are where they are copied from.
    pub copies: Vec<DocumentCopy>,
}

impl Tx {
    /// What the transaction has staged of new documents. Drafts that are open go on.
    #[must_use]
    pub fn staged_documents(&self) -> Staged {
        let state = self.state();
        let created_at = state.line.head.seq;
        let open = self.open_slots().filter(|slot| slot.is_created() && !slot.is_retired());
        let created = open.filter_map(|slot| {
            let record = DocumentRecord { create: slot.create.clone(), created_at, retired_at: None };
            Some(StoredDocument { record, version: slot.rules.version, value: slot.change.draft().get()?, deltas_since_base: 0 })
        });
        Staged { created: created.collect(), copies: state.staged.copies.values().cloned().collect() }
    }

    /// Refuses reads of tables from here on, as behind a write: this transaction goes on with one that has written to them.
    pub fn close_reads(&self) {
        self.state().staged.written = true;
    }
}
