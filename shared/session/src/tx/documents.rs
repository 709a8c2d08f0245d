//! Documents: get-or-create, and retirement (section 3.3).

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_delta::{Change, Tracker};
use serde::Serialize;

use super::{Doc, Tx};
use crate::definition::{Located, Rules};
use crate::line::{Loaded, check_semantics, load, task_documents, track};
use crate::storage::DocumentCopy;
use crate::{
    DocToken, DocValue, DocumentAddress, DocumentCreate, DocumentRecord, DocumentScope, FamilyToken, Placement, Point, Scope, TxError,
    Violation,
};

/// An open document.
pub(super) struct Slot {
    pub(super) create: DocumentCreate,
    pub(super) rules: Rules,
    pub(super) origin: Origin,
    pub(super) tracker: Tracker,
    pub(super) change: Change,
    /// It ends with this commit.
    pub(super) retired: AtomicBool,
}

/// Where an open document came from.
pub(super) enum Origin {
    /// It is new: made by its definition, or a fork's copy that takes its value from here.
    Created,
    /// It is committed.
    Loaded { record: DocumentRecord, stored_version: u32, deltas_since_base: u32 },
}

impl Slot {
    pub(super) fn created(create: DocumentCreate, rules: Rules, tracker: Tracker) -> Self {
        let change = tracker.begin();
        Self { create, rules, origin: Origin::Created, tracker, change, retired: AtomicBool::new(false) }
    }

    fn loaded(loaded: Loaded, rules: Rules) -> Self {
        let change = loaded.tracker.begin();
        let create = loaded.record.create.clone();
        let Loaded { record, stored_version, deltas_since_base, tracker, .. } = loaded;
        let origin = Origin::Loaded { record, stored_version, deltas_since_base };
        Self { create, rules, origin, tracker, change, retired: AtomicBool::new(false) }
    }

    /// Whether this transaction makes it.
    pub(super) const fn is_created(&self) -> bool {
        matches!(self.origin, Origin::Created)
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }
}

impl Tx {
    /// Opens the document of a token, and makes it where there is none. Later calls give the same draft.
    ///
    /// # Errors
    /// [`TxError::Definition`] where the token or its code do not fit; [`Violation::UnknownConversation`], [`Violation::UnknownTask`],
    /// [`Violation::TaskOver`] for a scope that is not there; [`Violation::TwoVersions`].
    pub async fn doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<Doc<'_, T>, TxError> {
        self.acquire(Located::singleton(token, at)).await
    }

    /// Opens a member of a family. The first call's seed makes a missing member; later seeds are ignored.
    ///
    /// # Errors
    /// As [`Tx::doc`].
    pub async fn doc_in<T: DocValue, I: Serialize + Sync, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
        seed: &I,
    ) -> Result<Doc<'_, T>, TxError> {
        self.acquire(Located::member(family, at, key, seed)).await
    }

    /// Ends the document of a token with this commit; what a draft of it holds by then is its last value. Makes nothing.
    ///
    /// # Errors
    /// As [`Tx::doc`].
    pub async fn retire_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<(), TxError> {
        self.retire(Located::singleton(token, at)).await
    }

    /// Ends a member of a family with this commit.
    ///
    /// # Errors
    /// As [`Tx::doc`].
    pub async fn retire_doc_in<T: DocValue, I, S: Scope>(
        &self,
        family: &FamilyToken<T, I, S>,
        at: S::At,
        key: &str,
    ) -> Result<(), TxError> {
        self.retire(Located::existing_member(family, at, key)).await
    }

    /// Whether the transaction sees a document at a token's address. Makes and opens nothing: a fork's copy stays one.
    ///
    /// # Errors
    /// [`TxError::Read`].
    pub async fn has_doc<T: DocValue, S: Scope>(&self, token: &DocToken<T, S>, at: S::At) -> Result<bool, TxError> {
        self.occupied(&Located::singleton(token, at).address).await
    }

    /// Whether an address has a document, by the candidate records.
    pub(super) async fn occupied(&self, address: &DocumentAddress) -> Result<bool, TxError> {
        if self.addresses().get(address).is_some_and(|cell| cell.initialized()) {
            return Ok(true);
        }
        {
            let state = self.state();
            if state.staged.copies.contains_key(address) {
                return Ok(true);
            }
            if state.staged.has_no_committed(address) {
                return Ok(false);
            }
            if state.line.has_document(address) {
                return Ok(true);
            }
        }
        Ok(self.store.find_document(address.clone(), Point::Current).await?.is_some())
    }

    async fn acquire<T>(&self, located: Located<'_>) -> Result<Doc<'_, T>, TxError> {
        let cell = Arc::clone(self.addresses().entry(located.address.clone()).or_default());
        // A caller that is dropped in here leaves the cell empty, and the next one fills it.
        let index = *cell.get_or_try_init(|| self.open_slot(&located)).await?;
        let Some(slot) = self.slots.get(index) else {
            return Err(Violation::UnknownDocument { address: located.address }.into());
        };
        check_semantics(&located.address, located.placement.semantics(), slot.create.placement.semantics())?;
        if slot.rules.version != located.rules.version {
            let violation = Violation::TwoVersions { address: located.address, open: slot.rules.version, asked: located.rules.version };
            return Err(violation.into());
        }
        if matches!(located.placement, Placement::Task { .. }) {
            self.check_scope(&located.placement).await?;
        }
        Ok(Doc { draft: slot.change.draft(), kind: located.rules.kind, ty: PhantomData })
    }

    async fn open_slot(&self, located: &Located<'_>) -> Result<usize, TxError> {
        self.check_scope(&located.placement).await?;
        let copy = self.state().staged.copies.get(&located.address).cloned();
        let slot = match copy {
            Some(copy) => self.open_copy(located, copy).await?,
            None => match self.committed(located).await? {
                Some(loaded) => Slot::loaded(loaded, located.rules.clone()),
                None => self.create_document(located)?,
            },
        };
        // The last step, so that a dropped caller leaves nothing behind.
        Ok(self.slots.push_get_index(Box::new(slot)))
    }

    fn create_document(&self, located: &Located<'_>) -> Result<Slot, TxError> {
        let value = located.initial()?;
        let id = self.state().line.mint()?;
        let create =
            DocumentCreate { id, kind: located.address.kind.clone(), key: located.address.key.clone(), placement: located.placement };
        Ok(Slot::created(create, located.rules.clone(), Tracker::new(value)?))
    }

    /// A typed access to what a fork of this transaction copies: the value comes here and becomes an ordinary creation (section 3.7).
    async fn open_copy(&self, located: &Located<'_>, copy: DocumentCopy) -> Result<Slot, TxError> {
        check_semantics(&located.address, located.placement.semantics(), copy.create.placement.semantics())?;
        let source = self.store.document(copy.source, copy.at).await?;
        let source = source.ok_or_else(|| Violation::UnknownDocument { address: located.address.clone() })?;
        let tracker = track(&located.rules, source.value, source.version)?;
        self.state().staged.copies.remove(&located.address);
        Ok(Slot::created(copy.create, located.rules.clone(), tracker))
    }

    /// The committed incarnation, out of the line's memory or from storage.
    async fn committed(&self, located: &Located<'_>) -> Result<Option<Loaded>, TxError> {
        {
            let mut state = self.state();
            if state.staged.has_no_committed(&located.address) {
                return Ok(None);
            }
            if let Some(loaded) = state.line.take_document(&located.address, located.rules.version) {
                check_semantics(&located.address, located.placement.semantics(), loaded.record.create.placement.semantics())?;
                return Ok(Some(loaded));
            }
        }
        load(&*self.store, located).await
    }

    /// Checks that the scope of a document is there, by the candidate records (section 3.3).
    pub(super) async fn check_scope(&self, placement: &Placement) -> Result<(), TxError> {
        match *placement {
            Placement::Session => Ok(()),
            Placement::Conversation { id, .. } => self.existing_conversation(id).await.map(|_| ()),
            Placement::Task { id } => match self.candidate_task(id).await? {
                None => Err(Violation::UnknownTask { task: id }.into()),
                Some(task) if task.terminal() => Err(Violation::TaskOver { task: id }.into()),
                Some(_) => Ok(()),
            },
        }
    }

    async fn retire(&self, located: Located<'_>) -> Result<(), TxError> {
        let cell = Arc::clone(self.addresses().entry(located.address.clone()).or_default());
        // The cell lets one at a time at the address: an acquisition at the same time comes before or after.
        let open = cell.get_or_try_init(|| async { Err(self.retire_unopened(&located).await) }).await;
        let index = match open {
            Ok(index) => *index,
            Err(retired) => return retired,
        };
        if let Some(slot) = self.slots.get(index) {
            check_semantics(&located.address, located.placement.semantics(), slot.create.placement.semantics())?;
            slot.retire();
            self.addresses().remove(&located.address);
            self.state().staged.gone.insert(located.address);
        }
        Ok(())
    }

    async fn retire_unopened(&self, located: &Located<'_>) -> Result<(), TxError> {
        {
            let mut state = self.state();
            if let Some(copy) = state.staged.copies.get(&located.address) {
                check_semantics(&located.address, located.placement.semantics(), copy.create.placement.semantics())?;
                // Nothing has been written of a copy yet: without it the fork simply has no such document.
                state.staged.copies.remove(&located.address);
                return Ok(());
            }
            if state.staged.has_no_committed(&located.address) {
                return Ok(());
            }
        }
        let record = self.store.find_document(located.address.clone(), Point::Current).await?;
        if let Some(record) = record {
            check_semantics(&located.address, located.placement.semantics(), record.create.placement.semantics())?;
            let mut state = self.state();
            state.staged.gone.insert(located.address.clone());
            state.staged.retired.push(record);
        }
        Ok(())
    }

    /// Retires the documents of tasks that end with this commit, also those that it made (section 3.3).
    pub(super) async fn retire_task_documents(&self) -> Result<(), TxError> {
        let ended: Vec<_> = self.state().staged.tasks.values().filter(|task| task.record.terminal()).map(|task| task.record.id).collect();
        for task in ended {
            for slot in self.open_slots().filter(|slot| slot.create.placement == (Placement::Task { id: task })) {
                slot.retire();
            }
            let known = {
                let mut state = self.state();
                let created = state.staged.tasks.get(&task).is_some_and(|staged| staged.created);
                if created { Some(Vec::new()) } else { state.line.cached_task(task).and_then(|cached| cached.documents.clone()) }
            };
            let documents = match known {
                Some(documents) => documents,
                None => task_documents(&*self.store, task).await?,
            };
            let mut state = self.state();
            for record in documents {
                let open = self.open_slots().any(|slot| slot.create.id == record.create.id);
                let retired = state.staged.retired.iter().any(|other| other.create.id == record.create.id);
                if !open && !retired {
                    state.staged.retired.push(record);
                }
            }
        }
        Ok(())
    }

    pub(super) fn open_slots(&self) -> impl Iterator<Item = &Slot> {
        (0..self.slots.len()).filter_map(|index| self.slots.get(index))
    }
}

impl super::staged::Staged {
    /// Whether storage can't have a current document at the address, from the transaction's point of view.
    pub(super) fn has_no_committed(&self, address: &DocumentAddress) -> bool {
        let new_scope = match address.scope {
            DocumentScope::Session => false,
            DocumentScope::Conversation { id } => self.conversations.contains_key(&id),
            DocumentScope::Task { id } => self.tasks.get(&id).is_some_and(|task| task.created),
        };
        new_scope || self.gone.contains(address)
    }
}
