//! The document commands of one commit (sections 3.2, 3.7 and 10).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use picofleet_delta::Json;
use picofleet_session::storage::{Commit, DocumentCopy, Rejection, StorageRejected, Write};
use picofleet_session::{DocumentContent, DocumentCreate, DocumentId, DocumentRecord, Placement, Point, Seq};

use super::Ids;
use crate::tables::{DocumentState, Found, Tables, base};

/// The commands of a commit by incarnation, with the content that its copies got.
pub(crate) struct Documents<'c> {
    seq: Seq,
    created: BTreeMap<DocumentId, (&'c DocumentCreate, DocumentContent)>,
    changed: BTreeMap<DocumentId, &'c DocumentContent>,
    retired: BTreeSet<DocumentId>,
}

impl<'c> Documents<'c> {
    /// Collects the commands and reads the sources of copies, before the commit writes anything.
    pub(crate) fn prepare(tables: &mut impl Tables, commit: &'c Commit, seq: Seq) -> Found<Self> {
        let mut documents = Self { seq, created: BTreeMap::new(), changed: BTreeMap::new(), retired: BTreeSet::new() };
        let mut copies = Vec::new();
        for write in &commit.writes {
            match write {
                Write::DocumentCreate { create, version, value } => {
                    object(create.id, value)?;
                    documents.create(create, base(*version, value.clone()))?;
                }
                // What the copy gets is not known yet; its place is, for the checks of the other commands.
                Write::DocumentCopy(copy) => {
                    documents.create(&copy.create, base(0, Json::null()))?;
                    copies.push(copy);
                }
                Write::DocumentChange { id, content } => documents.change(*id, content)?,
                Write::DocumentRetire(id) => documents.retire(*id)?,
                _ => {}
            }
        }
        for copy in copies {
            let content = documents.copied(tables, copy)?;
            documents.created.insert(copy.create.id, (&copy.create, content));
        }
        Ok(documents)
    }

    fn create(&mut self, create: &'c DocumentCreate, content: DocumentContent) -> Result<(), Rejection> {
        let again = self.created.insert(create.id, (create, content)).is_some();
        if again || self.changed.contains_key(&create.id) {
            return Err(Rejection::Repeated { id: create.id.get() });
        }
        Ok(())
    }

    fn change(&mut self, id: DocumentId, content: &'c DocumentContent) -> Result<(), Rejection> {
        if let DocumentContent::Base { value, .. } = content {
            object(id, value)?;
        }
        let again = self.changed.insert(id, content).is_some();
        if again || self.created.contains_key(&id) {
            return Err(Rejection::Repeated { id: id.get() });
        }
        Ok(())
    }

    fn retire(&mut self, id: DocumentId) -> Result<(), Rejection> {
        if self.retired.insert(id) { Ok(()) } else { Err(Rejection::Repeated { id: id.get() }) }
    }

    fn copied(&self, tables: &mut impl Tables, copy: &DocumentCopy) -> Found<DocumentContent> {
        let refused = |why| Rejection::Copy { id: copy.create.id.get(), origin: copy.source.get(), why };
        if self.touches(copy.source) {
            return Err(refused("the same commit creates, changes or retires the source").into());
        }
        let Some(DocumentState { record, .. }) = tables.document(copy.source)? else {
            return Err(Rejection::Missing { what: "document", id: copy.source.get() }.into());
        };
        if let Some(why) = unlike(&record, copy) {
            return Err(refused(why).into());
        }
        let replayed = tables
            .replay(copy.source, copy.at)?
            .run(copy.source)
            .map_err(|damage| StorageRejected { reason: refused("the source's content is damaged"), cause: Some(Arc::new(damage)) })?;
        Ok(base(replayed.version, replayed.value))
    }

    fn touches(&self, id: DocumentId) -> bool {
        self.created.contains_key(&id) || self.changed.contains_key(&id) || self.retired.contains(&id)
    }

    /// Content first, then retirements, so that an address is free again, then creations.
    pub(crate) fn apply(&self, tables: &mut impl Tables, ids: &mut Ids) -> Found<()> {
        for (id, content) in &self.changed {
            let record = self.apply_change(tables, *id, content)?;
            if self.retired.contains(id) {
                tables.retire(&record, self.seq)?;
            }
        }
        for id in &self.retired {
            if !self.changed.contains_key(id) && !self.created.contains_key(id) {
                let record = alive(tables, *id)?.record;
                tables.retire(&record, self.seq)?;
            }
        }
        for (id, (create, content)) in &self.created {
            ids.claim(tables, id.get(), "document")?;
            self.apply_create(tables, create, content)?;
        }
        Ok(())
    }

    fn apply_change(&self, tables: &mut impl Tables, id: DocumentId, content: &DocumentContent) -> Found<DocumentRecord> {
        let DocumentState { record, version: stored } = alive(tables, id)?;
        if let (DocumentContent::Delta { version: delta, .. }, Some(stored)) = (content, stored)
            && *delta != stored
        {
            return Err(Rejection::VersionTransition { id: id.get(), stored, delta: *delta }.into());
        }
        tables.put_content(&record, self.seq, content)?;
        Ok(record)
    }

    /// One that is retired at once has an empty lifetime: it is nowhere current and nobody can read it, so it needs no content.
    fn apply_create(&self, tables: &mut impl Tables, create: &DocumentCreate, content: &DocumentContent) -> Found<()> {
        let retired_at = self.retired.contains(&create.id).then_some(self.seq);
        let record = DocumentRecord { create: create.clone(), created_at: self.seq, retired_at };
        if retired_at.is_some() {
            return tables.put_document(&record);
        }
        let address = create.address();
        if tables.current(&address)?.is_some() {
            return Err(Rejection::AddressTaken { address: address.to_string() }.into());
        }
        tables.put_document(&record)?;
        tables.put_content(&record, self.seq, content)
    }
}

fn alive(tables: &mut impl Tables, id: DocumentId) -> Found<DocumentState> {
    match tables.document(id)? {
        None => Err(Rejection::Missing { what: "document", id: id.get() }.into()),
        Some(state) if state.record.retired_at.is_some() => Err(Rejection::Retired { id: id.get() }.into()),
        Some(state) => Ok(state),
    }
}

fn object(id: DocumentId, value: &Json) -> Result<(), Rejection> {
    match value.as_object() {
        Some(_) => Ok(()),
        None => Err(Rejection::Malformed(format!("the base of document {id} is no JSON object"))),
    }
}

/// Why a document can't be the source of a copy.
fn unlike(source: &DocumentRecord, copy: &DocumentCopy) -> Option<&'static str> {
    let create = &source.create;
    let policies = match (create.placement, copy.create.placement) {
        (Placement::Conversation { policy: source, .. }, Placement::Conversation { policy, .. }) => source == policy,
        _ => return Some("only documents of conversations are copied"),
    };
    if create.kind != copy.create.kind || create.key != copy.create.key {
        return Some("kind or key differ");
    }
    if !policies {
        return Some("history or fork policy differ");
    }
    if matches!(copy.at, Point::At(_)) && !create.placement.rewindable() {
        return Some("the source keeps only its newest value");
    }
    if !source.alive(copy.at) {
        return Some("the source is not alive at that point");
    }
    None
}
