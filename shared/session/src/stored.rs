//! Stored documents read by their tokens away from the session: a worker gets the value and its version, and brings it up itself.

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use crate::definition::{Located, Rules, typed};
use crate::line::check_semantics;
use crate::{DefinitionError, DocToken, DocValue, DocumentAddress, DocumentRecord, FamilyToken, Placement, Scope, StoredDocument};

/// A document as storage has it: what a token needs to read it (section 3.6).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StoredValue {
    /// Its record.
    pub record: DocumentRecord,
    /// The version of the definition that wrote it.
    pub version: u32,
    /// Its value: a JSON object.
    pub value: Json,
}

impl From<StoredDocument> for StoredValue {
    fn from(stored: StoredDocument) -> Self {
        Self { record: stored.record, version: stored.version, value: stored.value }
    }
}

/// Reads the stored values of one document by its token, whatever version they have. It is not bound to the token.
#[derive(Clone)]
pub struct StoredReader {
    address: DocumentAddress,
    placement: Placement,
    rules: Rules,
}

impl StoredReader {
    fn new(located: &Located<'_>) -> Self {
        Self { address: located.address.clone(), placement: located.placement, rules: located.rules.clone() }
    }

    /// The document.
    #[must_use]
    pub const fn address(&self) -> &DocumentAddress {
        &self.address
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        self.rules.kind
    }

    /// The version of the token.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.rules.version
    }

    /// A stored value, brought to the token's version in memory.
    ///
    /// # Errors
    /// As [`DocToken::read_stored`].
    pub fn value(&self, stored: StoredValue) -> Result<Json, DefinitionError> {
        check_semantics(&self.address, self.placement.semantics(), stored.record.create.placement.semantics())?;
        self.rules.migrate(stored.value, stored.version)
    }
}

fn read<T: DocValue>(located: &Located<'_>, stored: StoredValue) -> Result<T, DefinitionError> {
    check_semantics(&located.address, located.placement.semantics(), stored.record.create.placement.semantics())?;
    typed(located.rules.kind, &located.rules.migrate(stored.value, stored.version)?)
}

impl<T: DocValue, S: Scope> DocToken<T, S> {
    /// The address of the document at `at`.
    #[must_use]
    pub fn address(&self, at: S::At) -> DocumentAddress {
        Located::singleton(self, at).address
    }

    /// A reader of the document at `at`.
    #[must_use]
    pub fn reader(&self, at: S::At) -> StoredReader {
        StoredReader::new(&Located::singleton(self, at))
    }

    /// The value of the stored document at `at`, brought to this token's version in memory.
    ///
    /// # Errors
    /// [`DefinitionError`]: it was stored with another scope, history or fork policy, its migration failed, or it has another type.
    pub fn read_stored(&self, at: S::At, stored: StoredValue) -> Result<T, DefinitionError> {
        read(&Located::singleton(self, at), stored)
    }
}

impl<T: DocValue, Seed, S: Scope> FamilyToken<T, Seed, S> {
    /// The address of the member at `at` with a key.
    #[must_use]
    pub fn address(&self, at: S::At, key: &str) -> DocumentAddress {
        Located::existing_member(self, at, key).address
    }

    /// A reader of the member at `at` with a key.
    #[must_use]
    pub fn reader(&self, at: S::At, key: &str) -> StoredReader {
        StoredReader::new(&Located::existing_member(self, at, key))
    }

    /// The value of the stored member at `at`, brought to this token's version in memory.
    ///
    /// # Errors
    /// As [`DocToken::read_stored`].
    pub fn read_stored(&self, at: S::At, key: &str, stored: StoredValue) -> Result<T, DefinitionError> {
        read(&Located::existing_member(self, at, key), stored)
    }
}
