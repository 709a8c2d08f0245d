//! Which ids a commit gives to new records.

use std::collections::BTreeMap;

use picofleet_session::storage::Rejection;
use picofleet_session::{ID_MAX, ROOT_CONVERSATION_ID};

use crate::tables::{Found, Tables};

/// The ids that one commit mints, and the records that it named so far.
pub(crate) struct Ids {
    from: i64,
    below: i64,
    named: BTreeMap<i64, &'static str>,
}

impl Ids {
    pub(crate) fn new(from: i64, below: i64) -> Result<Self, Rejection> {
        if below < from || below > ID_MAX + 1 {
            return Err(Rejection::Malformed(format!("the next id can't go from {from} to {below}")));
        }
        Ok(Self { from, below, named: BTreeMap::new() })
    }

    /// Whether a record with this id can be there already, so that it is worth to look.
    pub(crate) fn may_be_stored(&self, id: i64) -> bool {
        id < self.from || self.named.contains_key(&id)
    }

    /// Whether the commit wrote a record of this kind under the id.
    pub(crate) fn named(&self, id: i64, what: &'static str) -> bool {
        self.named.get(&id) == Some(&what)
    }

    /// The commit replaces a record.
    pub(crate) fn name(&mut self, id: i64, what: &'static str) {
        self.named.insert(id, what);
    }

    /// The commit makes a record. Only the root conversation and what is refused need a lookup.
    pub(crate) fn claim(&mut self, tables: &mut impl Tables, id: i64, what: &'static str) -> Found<()> {
        if let Some(&owner) = self.named.get(&id) {
            return Err(Rejection::IdTaken { id, owner }.into());
        }
        if id < self.from || id >= self.below {
            if let Some(owner) = tables.owner(id)? {
                return Err(Rejection::IdTaken { id, owner }.into());
            }
            if !(what == "conversation" && id == ROOT_CONVERSATION_ID.get()) {
                return Err(Rejection::IdNotMinted { id, what, from: self.from, below: self.below }.into());
            }
        }
        self.named.insert(id, what);
        Ok(())
    }
}
