//! The owner of a document's current revision, and the changes that lead to the next one.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::draft::{Draft, DraftError, Overlay};
use crate::height;
use crate::json::Json;
use crate::op::Op;

/// The current revision of one document (specification 3.4).
#[derive(Debug)]
pub struct Tracker {
    /// Tells trackers of one process apart, so that a result cannot be adopted by another document.
    id: u64,
    value: Json,
    revision: u64,
}

/// A change that was computed and not yet adopted. Dropping it aborts it.
///
/// It is not `Clone`, and adopting consumes it, so it is adopted once. Its parts are cheap to clone.
#[derive(Debug)]
pub struct Prepared {
    /// The revision that the change starts from.
    pub base: Json,
    /// The revision that adopting makes current. The same revision as `base` when `ops` is empty.
    pub value: Json,
    /// What leads from `base` to `value`; self-contained, and free to be stored or sent.
    pub ops: Arc<[Op]>,
    /// The tracker's revision number that `base` had.
    pub base_revision: u64,
    tracker: u64,
}

/// An open change. Dropping it aborts it.
pub struct Change {
    tracker: u64,
    base_revision: u64,
    overlay: Mutex<Overlay>,
}

/// A prepared change was not adopted; the tracker is as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("adopt change of revision {base_revision} on a tracker at revision {revision}: {kind}; prepare the change again")]
pub struct AdoptError {
    kind: AdoptErrorKind,
    base_revision: u64,
    revision: u64,
}

/// The class of an [`AdoptError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdoptErrorKind {
    /// The change was prepared by another tracker.
    OtherTracker,
    /// Another change was adopted since the base.
    Stale,
}

impl fmt::Display for AdoptErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdoptErrorKind::OtherTracker => "it belongs to another tracker",
            AdoptErrorKind::Stale => "another change was adopted meanwhile",
        })
    }
}

impl AdoptError {
    /// The class, to decide what to do.
    pub fn kind(&self) -> AdoptErrorKind {
        self.kind
    }
}

impl Tracker {
    /// Takes `value` as revision 0.
    ///
    /// # Errors
    ///
    /// `Depth` when it nests more than [`crate::DEPTH_MAX`] containers.
    pub fn new(value: Json) -> Result<Tracker, DraftError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        check_root(&value)?;
        Ok(Tracker { id: NEXT.fetch_add(1, Ordering::Relaxed), value, revision: 0 })
    }

    /// The current revision.
    pub fn value(&self) -> &Json {
        &self.value
    }

    /// The number of adopted changes.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Opens a change over the current revision. Several may be open; the first that is adopted makes the others stale.
    pub fn begin(&self) -> Change {
        Change { tracker: self.id, base_revision: self.revision, overlay: Mutex::new(Overlay::new(self.value.clone())) }
    }

    /// A change to a whole new value: one [`Op::Replace`], or nothing when the value equals the current one.
    ///
    /// # Errors
    ///
    /// `Depth` when it nests more than [`crate::DEPTH_MAX`] containers.
    pub fn prepare_replace(&self, value: Json) -> Result<Prepared, DraftError> {
        check_root(&value)?;
        let (value, ops) =
            if value == self.value { (self.value.clone(), Arc::default()) } else { (value.clone(), Arc::from([Op::Replace(value)])) };
        Ok(Prepared { base: self.value.clone(), value, ops, base_revision: self.revision, tracker: self.id })
    }

    /// Makes the prepared value the current revision, by a pointer swap. The revision grows also for an empty batch.
    ///
    /// # Errors
    ///
    /// When the change is another tracker's, or stale.
    pub fn adopt(&mut self, prepared: Prepared) -> Result<(), AdoptError> {
        let kind = if prepared.tracker != self.id {
            AdoptErrorKind::OtherTracker
        } else if prepared.base_revision != self.revision || !prepared.base.same_revision(&self.value) {
            AdoptErrorKind::Stale
        } else {
            self.value = prepared.value;
            self.revision += 1;
            return Ok(());
        };
        Err(AdoptError { kind, base_revision: prepared.base_revision, revision: self.revision })
    }
}

fn check_root(value: &Json) -> Result<(), DraftError> {
    if height::fits(value, 0) { Ok(()) } else { Err(DraftError::depth(&[])) }
}

impl Change {
    /// The root of the document. Drafts end with the borrow: none outlives [`Change::prepare`].
    pub fn draft(&self) -> Draft<'_> {
        Draft::root(&self.overlay)
    }

    /// Ends the change and computes operations and the next revision. Costs the change, not the document.
    ///
    /// A change that did nothing has an empty batch, and its base as value.
    pub fn prepare(self) -> Prepared {
        // Nothing that can panic leaves the overlay half changed.
        let overlay = self.overlay.into_inner().unwrap_or_else(PoisonError::into_inner);
        let base = overlay.base().clone();
        let (value, ops) = overlay.finish();
        Prepared { base, value, ops: ops.into(), base_revision: self.base_revision, tracker: self.tracker }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Change").field("base_revision", &self.base_revision).finish_non_exhaustive()
    }
}
