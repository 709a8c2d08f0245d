//! The value of a document from its base and deltas (section 10).

use std::sync::Arc;

use picofleet_delta::{Json, Op, apply};
use picofleet_session::storage::{Corruption, StorageError};
use picofleet_session::{DocumentContent, DocumentId, DocumentRecord, Point, StoredDocument};

/// What storage has of a document up to a point.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replay {
    /// The newest base with its version.
    pub(crate) base: Option<(u32, Json)>,
    /// The deltas after it with their versions, oldest first.
    pub(crate) deltas: Vec<(u32, Arc<[Op]>)>,
}

/// What a replay came to.
#[derive(Clone, Debug)]
pub(crate) struct Replayed {
    pub(crate) version: u32,
    pub(crate) value: Json,
    pub(crate) deltas: u32,
}

impl Replay {
    /// Of contents from the newest to the oldest; reading ends at the first base.
    pub(crate) fn newest_first<E>(contents: impl IntoIterator<Item = Result<DocumentContent, E>>) -> Result<Self, E> {
        let mut replay = Self::default();
        for content in contents {
            match content? {
                DocumentContent::Base { version, value } => {
                    replay.base = Some((version, value));
                    break;
                }
                DocumentContent::Delta { version, ops } => replay.deltas.push((version, ops)),
            }
        }
        replay.deltas.reverse();
        Ok(replay)
    }

    /// The value.
    ///
    /// # Errors
    /// [`Corruption`] where the base is missing, the version changes inside the deltas, or one does not apply.
    pub(crate) fn run(self, id: DocumentId) -> Result<Replayed, Corruption> {
        let corrupt = |why: String| Corruption { store: "session".to_owned(), what: format!("the content of document {id}"), why };
        let Some((version, base)) = self.base else {
            return Err(corrupt("its base is missing".to_owned()));
        };
        let deltas = u32::try_from(self.deltas.len()).unwrap_or(u32::MAX);
        let value = self.deltas.iter().try_fold(base, |value, (of, ops)| {
            if *of != version {
                return Err(corrupt(format!("a delta of version {of} stands on a base of version {version}")));
            }
            apply(Some(&value), ops).map_err(|error| corrupt(format!("a delta does not apply: {error}")))
        })?;
        Ok(Replayed { version, value, deltas })
    }

    /// The document as it is read.
    ///
    /// # Errors
    /// As [`Replay::run`].
    pub(crate) fn document(self, record: DocumentRecord) -> Result<StoredDocument, StorageError> {
        let Replayed { version, value, deltas } = self.run(record.create.id)?;
        Ok(StoredDocument { record, version, value, deltas_since_base: deltas })
    }
}

/// Whether a document has a value at a point.
///
/// # Errors
/// [`StorageError::NoHistory`] for a past point of one that keeps only its newest value.
pub(crate) fn readable(record: &DocumentRecord, at: Point) -> Result<bool, StorageError> {
    if matches!(at, Point::At(_)) && !record.create.placement.rewindable() {
        return Err(StorageError::NoHistory { document: record.create.id });
    }
    Ok(record.alive(at))
}

/// Whether a document goes into an export: retired ones only where their content is kept and can be read.
pub(crate) fn exported(record: &DocumentRecord) -> bool {
    record.retired_at.is_none_or(|retired| record.create.placement.rewindable() && record.created_at < retired)
}
