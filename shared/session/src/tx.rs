//! An open transaction (sections 3.3 and 4): what a commit callback may do.
//!
//! Every method takes `&self`, so that several documents stay open while entries are written. Nothing of it can outlive the callback:
//! a [`Tx`] and its drafts are borrowed, and the callback's lifetime is its own.

mod assign;
mod documents;
mod fork;
mod prepare;
mod replay;
mod setup;
mod shown;
mod staged;
mod tables;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use elsa::sync::FrozenVec;
use picofleet_delta::Draft;
use tokio::sync::{OnceCell, OwnedMutexGuard};

use crate::definition::typed;
use crate::line::Line;
use crate::storage::SessionStore;
use crate::{ConversationId, DocValue, DocumentAddress, Millis, TaskId, TxError};

use documents::Slot;
pub(crate) use prepare::Prepared;
pub use replay::Replayed;
pub use setup::{ConversationCreated, Setups};
pub use shown::Staged as StagedDocuments;
use staged::Staged;

/// What a commit belongs to: defaults for what it creates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Bound {
    /// The conversation of new tasks that name none.
    pub conversation: Option<ConversationId>,
    /// The task whose runtime commits; entries keep it as `byTaskId`.
    pub task: Option<TaskId>,
}

/// An open transaction.
pub struct Tx {
    store: Arc<dyn SessionStore>,
    now: Millis,
    setups: Setups,
    state: Mutex<State>,
    /// Documents in the order of their acquisition; they stay where they are until the transaction ends.
    slots: FrozenVec<Box<Slot>>,
    /// Which slot an address has now. A cell is filled once, so that two acquisitions at the same time get the same draft.
    addresses: Mutex<HashMap<DocumentAddress, Arc<OnceCell<usize>>>>,
}

/// The line, which the transaction holds, and what it wants to write.
struct State {
    line: OwnedMutexGuard<Line>,
    bound: Bound,
    staged: Staged,
}

/// An open document. `draft` costs what is changed, for hot paths; `edit` costs the document, for small ones.
pub struct Doc<'t, T> {
    /// The document's root.
    pub draft: Draft<'t>,
    kind: &'static str,
    ty: PhantomData<fn() -> T>,
}

impl<T> Clone for Doc<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Doc<'_, T> {}

impl<T: DocValue> Doc<'_, T> {
    /// The value as it is in the transaction now.
    ///
    /// # Errors
    /// [`crate::DefinitionError::Type`] where it does not have the type.
    pub fn read(&self) -> Result<T, TxError> {
        let value = self.draft.get().unwrap_or(picofleet_delta::Json::null());
        Ok(typed(self.kind, &value)?)
    }

    /// Changes the value as a Rust value. Only what differs is written.
    ///
    /// # Errors
    /// As [`Doc::read`]; [`TxError::Draft`] where the new value is no strict JSON object.
    pub fn edit<R>(&self, change: impl FnOnce(&mut T) -> R) -> Result<R, TxError> {
        let mut value = self.read()?;
        let result = change(&mut value);
        let value = crate::definition::object(&value)
            .map_err(|why| TxError::Definition(crate::DefinitionError::NotJson { call: "edit()", kind: self.kind, why }))?;
        assign::assign(self.draft, value)?;
        Ok(result)
    }
}

impl Tx {
    pub(crate) fn new(store: Arc<dyn SessionStore>, line: OwnedMutexGuard<Line>, now: Millis, bound: Bound, setups: Setups) -> Self {
        Self {
            store,
            now,
            setups,
            state: Mutex::new(State { line, bound, staged: Staged::default() }),
            slots: FrozenVec::new(),
            addresses: Mutex::default(),
        }
    }

    /// The line's time at the beginning of the transaction.
    #[must_use]
    pub const fn now(&self) -> Millis {
        self.now
    }

    /// What the commit belongs to.
    #[must_use]
    pub fn bound(&self) -> Bound {
        self.state().bound
    }

    /// From here on it belongs to something else: another task goes on in the same commit. Only the harness does this.
    pub fn bind(&self, bound: Bound) {
        self.state().bound = bound;
    }

    /// The id that the transaction mints next.
    #[must_use]
    pub fn next_id(&self) -> i64 {
        self.state().line.next_id()
    }

    /// Nothing that panics runs under this lock, and it is never held over an await.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<DocumentAddress, Arc<OnceCell<usize>>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
