//! The documents of a replayed commit.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use picofleet_delta::Tracker;

use super::super::assign::assign;
use super::super::documents::{Origin, Slot};
use super::super::fork::child_address;
use super::{Ids, Replayed, Tx, broken};
use crate::definition::Rules;
use crate::line::Loaded;
use crate::storage::DocumentCopy;
use crate::{
    ConversationId, ConversationPolicy, DocumentAddress, DocumentContent, DocumentCreate, DocumentId, DocumentRecord, Json, Placement,
    Point, TxError, Violation,
};

/// What the forks of the commit copy, by the address in the child.
#[derive(Default)]
pub(super) struct Forks(HashMap<DocumentAddress, (DocumentId, Point, ConversationPolicy)>);

/// The writes of documents.
pub(super) struct Writes {
    pub(super) created: BTreeMap<DocumentId, (DocumentCreate, u32, Json)>,
    pub(super) copies: Vec<DocumentCopy>,
    pub(super) changed: BTreeMap<DocumentId, DocumentContent>,
    pub(super) retired: BTreeSet<DocumentId>,
}

impl Forks {
    /// Takes note of what a fork copies; the sources can't be written in this transaction.
    pub(super) fn expect(
        &mut self,
        used: &mut Vec<(DocumentId, DocumentAddress)>,
        child: ConversationId,
        from: Vec<(DocumentRecord, Point)>,
    ) {
        for (record, point) in from {
            let Placement::Conversation { policy, .. } = record.create.placement else { continue };
            let address = child_address(&record, child);
            if let Entry::Vacant(place) = self.0.entry(address.clone()) {
                used.push((record.create.id, address));
                place.insert((record.create.id, point, policy));
            }
        }
    }
}

impl Tx {
    pub(super) async fn replay_documents(&self, ids: &mut Ids, forks: &Forks, writes: Writes) -> Result<Replayed, TxError> {
        let Writes { created, copies, changed, retired } = writes;
        let mut replayed = Replayed::default();
        for (id, content) in changed {
            let slot = self.slot_of(id, &content).await?;
            self.check_scope(&slot.create.placement).await?;
            change(slot, content)?;
            replayed.changed.push(slot.create.clone());
        }
        for id in retired.iter().filter(|id| !created.contains_key(id)) {
            replayed.changed.push(self.replay_retirement(*id).await?);
        }
        for copy in copies {
            self.replay_copy(ids, forks, copy).await?;
        }
        for (id, (create, version, value)) in created {
            ids.claim("document", id.get())?;
            replayed.created.push((create.clone(), value.clone()));
            self.replay_creation(forks, (create, version, value), retired.contains(&id)).await?;
        }
        Ok(replayed)
    }

    /// The open slot of a document that is changed: one that is open already, or a new one over the committed value.
    async fn slot_of(&self, id: DocumentId, content: &DocumentContent) -> Result<&Slot, TxError> {
        let version = content.version();
        if let Some(slot) = self.open_slots().find(|slot| slot.create.id == id && !slot.is_retired()) {
            if slot.rules.version != version {
                let (open, asked) = (slot.rules.version, version);
                return Err(Violation::TwoVersions { address: slot.create.address(), open, asked }.into());
            }
            return Ok(slot);
        }
        if let Some(copy) = self.staged_copy(id) {
            return self.open_staged_copy(copy, content).await;
        }
        let Loaded { record, stored_version, deltas_since_base, tracker, .. } = self.committed_by_id(id).await?;
        let base = matches!(content, DocumentContent::Base { .. });
        let tracker = match content {
            _ if version == stored_version => tracker,
            // The migrated value is known to its definition only: for who observes, the document becomes the new value at once.
            DocumentContent::Base { value, .. } if version > stored_version => Tracker::new(value.clone())?,
            _ => return Err(broken(format!("document {id} is stored at version {stored_version}, its change is of version {version}"))),
        };
        let change = tracker.begin();
        let create = record.create.clone();
        let address = create.address();
        let slot = Slot {
            create,
            rules: Rules::foreign(version, base),
            origin: Origin::Loaded { record, stored_version, deltas_since_base },
            tracker,
            change,
            retired: AtomicBool::new(false),
        };
        self.place(address, slot)
    }

    /// What a fork of this transaction itself copies to a document.
    fn staged_copy(&self, id: DocumentId) -> Option<DocumentCopy> {
        self.state().staged.copies.values().find(|copy| copy.create.id == id).cloned()
    }

    /// The slot of a copy that this transaction's own fork makes: changed, it becomes an ordinary creation (section 3.7).
    async fn open_staged_copy(&self, copy: DocumentCopy, content: &DocumentContent) -> Result<&Slot, TxError> {
        let DocumentCopy { create, source, at } = copy;
        let stored = self.store.document(source, at).await?.ok_or_else(|| broken(format!("there is no document {source}")))?;
        let tracker = match content {
            _ if content.version() == stored.version => Tracker::new(stored.value)?,
            DocumentContent::Base { version, value } if *version > stored.version => Tracker::new(value.clone())?,
            _ => return Err(broken(format!("document {source} is stored at version {}", stored.version))),
        };
        let address = create.address();
        self.state().staged.copies.remove(&address);
        self.place(address, Slot::created(create, Rules::foreign(content.version(), true), tracker))
    }

    /// A committed document at the version that storage has, out of the line's memory where that fits.
    async fn committed_by_id(&self, id: DocumentId) -> Result<Loaded, TxError> {
        let cached = self.state().line.take_document_by_id(id);
        if let Some(loaded) = cached.filter(|loaded| loaded.version == loaded.stored_version) {
            return Ok(loaded);
        }
        let stored = self.store.document(id, Point::Current).await?.ok_or_else(|| broken(format!("there is no document {id}")))?;
        let (record, version, deltas_since_base) = (stored.record, stored.version, stored.deltas_since_base);
        Ok(Loaded { record, stored_version: version, version, deltas_since_base, tracker: Tracker::new(stored.value)? })
    }

    /// Registers a slot at its address, so that later accesses of this transaction find it.
    fn place(&self, address: DocumentAddress, slot: Slot) -> Result<&Slot, TxError> {
        let cell = Arc::clone(self.addresses().entry(address.clone()).or_default());
        let index = self.slots.push_get_index(Box::new(slot));
        let placed = cell.set(index).is_ok();
        self.slots.get(index).filter(|_| placed).ok_or_else(|| broken(format!("document {address} is open already")))
    }

    async fn replay_retirement(&self, id: DocumentId) -> Result<DocumentCreate, TxError> {
        let open = self.open_slots().find(|slot| slot.create.id == id && !slot.is_retired());
        let create = if let Some(slot) = open {
            slot.retire();
            slot.create.clone()
        } else if let Some(copy) = self.staged_copy(id) {
            // Nothing has been written of it yet: without it the fork simply has no such document.
            self.state().staged.copies.remove(&copy.create.address());
            return Ok(copy.create);
        } else {
            if self.state().staged.retired.iter().any(|record| record.create.id == id) {
                return Err(broken(format!("document {id} is retired already")));
            }
            let record = self.committed_by_id(id).await?.record;
            let create = record.create.clone();
            self.state().staged.retired.push(record);
            create
        };
        self.check_scope(&create.placement).await?;
        let address = create.address();
        self.addresses().remove(&address);
        self.state().staged.gone.insert(address);
        Ok(create)
    }

    async fn replay_copy(&self, ids: &mut Ids, forks: &Forks, copy: DocumentCopy) -> Result<(), TxError> {
        ids.claim("document", copy.create.id.get())?;
        let address = copy.create.address();
        let Placement::Conversation { policy, .. } = copy.create.placement else {
            return Err(broken("only documents of conversations are copied"));
        };
        if forks.0.get(&address) != Some(&(copy.source, copy.at, policy)) {
            return Err(broken(format!("no fork copies document {} to {address}", copy.source)));
        }
        if self.state().staged.copies.insert(address.clone(), copy).is_some() {
            return Err(broken(format!("document {address} is copied twice")));
        }
        Ok(())
    }

    async fn replay_creation(&self, forks: &Forks, new: (DocumentCreate, u32, Json), retired: bool) -> Result<(), TxError> {
        let (create, version, value) = new;
        let address = create.address();
        self.check_scope(&create.placement).await?;
        if self.occupied(&address).await? {
            return Err(broken(format!("document {address} is there already")));
        }
        if let (Some((.., expected)), Placement::Conversation { policy, .. }) = (forks.0.get(&address), create.placement)
            && *expected != policy
        {
            return Err(broken(format!("document {address} has another policy than what the fork copies")));
        }
        if version == 0 {
            return Err(broken(format!("document {address} has version 0")));
        }
        let slot = Slot::created(create, Rules::foreign(version, true), Tracker::new(value)?);
        if retired {
            slot.retire();
            self.slots.push_get_index(Box::new(slot));
            self.state().staged.gone.insert(address);
            return Ok(());
        }
        self.place(address, slot).map(|_| ())
    }
}

/// Applies content to an open document, so that its operations are known to who observes it.
fn change(slot: &Slot, content: DocumentContent) -> Result<(), TxError> {
    let draft = slot.change.draft();
    match content {
        DocumentContent::Delta { ops, .. } => draft.apply_relative(&ops)?,
        DocumentContent::Base { value, .. } => assign(draft, value)?,
    }
    Ok(())
}
