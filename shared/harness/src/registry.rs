//! What an application registers (section 7.1): tools and their wrappers, tasks, hooks, prompt sections, conversation setups.
//!
//! It belongs to a process, may outlive every session, and nothing of it is stored. Every change is published at once, as a new
//! immutable [`Snapshot`]; a batch publishes all its changes together or none.

mod section;
mod setup;
mod snapshot;
mod stage;
mod state;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::ThreadId;

use tokio::sync::watch;

pub use section::{PromptInput, PromptSection, Section};
pub use setup::{AppSetups, ConversationSetup, PI_SETUP};
pub use snapshot::{FailureKind, RegisteredHooks, RegistryFailure, Snapshot};
pub use stage::Stage;
use state::State;

/// The registry of a process. Cheap to clone; all clones are one registry.
#[derive(Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    /// Held while somebody changes the registry, over the whole of a batch.
    writer: Mutex<()>,
    /// The batch that runs, with the thread that runs it.
    batch: Mutex<Option<Batch>>,
    state: Mutex<State>,
    published: RwLock<Arc<Snapshot>>,
    publications: watch::Sender<u64>,
    /// Ids are never given twice, also not when a batch rolls back.
    next_id: AtomicU64,
}

struct Batch {
    thread: ThreadId,
    state: State,
}

/// What one or more registrations added. Dropping it removes nothing.
#[derive(Clone)]
pub struct Registration {
    registry: Registry,
    ids: Arc<[u64]>,
}

/// Why something was not registered.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// The name or key is taken.
    #[error("{what} {name:?} is registered already")]
    Duplicate {
        /// `tool`, `task`, `section`, `setup`, `hook key`, `tool wrapper` or `section wrapper`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The key of a section has other characters than it may have.
    #[error("section key {0:?} does not match ^[a-z][a-z0-9_-]*$")]
    InvalidKey(String),
    /// A batch was begun inside a batch.
    #[error("a batch was begun inside a batch; register in the one that runs")]
    Nested,
    /// The registration is of another registry.
    #[error("the registration belongs to another registry")]
    Foreign,
    /// What the application itself says inside of a batch, to roll it back.
    #[error("{0}")]
    Rejected(String),
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A state is replaced whole, so that one behind a panic is a good one.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a batch, also when its closure panics: what it staged is gone.
struct EndOfBatch<'r>(&'r Inner);

impl Drop for EndOfBatch<'_> {
    fn drop(&mut self) {
        let batch = lock(&self.0.batch).take();
        drop(batch);
    }
}

impl Registry {
    /// A registry with the built-in tasks and the `pi` conversation setup.
    #[must_use]
    pub fn new() -> Self {
        let state = State::default();
        let published = RwLock::new(Arc::new(state.snapshot()));
        let inner = Inner {
            writer: Mutex::default(),
            batch: Mutex::default(),
            state: Mutex::new(state),
            published,
            publications: watch::Sender::new(0),
            next_id: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What is registered now. Changes that are staged in a batch are not in it.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.inner.published.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Wakes after every publication; the value counts them.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.inner.publications.subscribe()
    }

    /// Stages what `stage` registers and disposes, and publishes it at once when it returns. Only the final state has to be valid, so
    /// that a registration and the disposal of what it replaces may come in any order.
    ///
    /// Every change that this thread makes meanwhile belongs to the batch, whether through the [`Stage`] or not; other threads wait. The
    /// registration covers everything that was added and not disposed inside.
    ///
    /// # Errors
    /// What `stage` returns, [`RegistryError::Duplicate`] for the final state, [`RegistryError::Nested`]. Nothing is published then, and
    /// what was disposed inside is still there.
    pub fn batch<R>(&self, stage: impl FnOnce(&Stage<'_>) -> Result<R, RegistryError>) -> Result<(R, Registration), RegistryError> {
        let thread = std::thread::current().id();
        if lock(&self.inner.batch).as_ref().is_some_and(|batch| batch.thread == thread) {
            return Err(RegistryError::Nested);
        }
        let replaced;
        let result = {
            let _writer = lock(&self.inner.writer);
            let before = lock(&self.inner.state).clone();
            let known = before.ids();
            *lock(&self.inner.batch) = Some(Batch { thread, state: before });
            let end = EndOfBatch(&self.inner);
            let value = stage(&Stage::new(self))?;
            let staged = lock(&self.inner.batch).take();
            drop(end);
            // Only the end of the batch takes it out.
            let Some(Batch { state, .. }) = staged else { return Err(RegistryError::Nested) };
            state.validate()?;
            let ids: Arc<[u64]> = state.ids().difference(&known).copied().collect();
            replaced = self.publish(state);
            (value, Registration { registry: self.clone(), ids })
        };
        // The last owner of something that was registered may run its code here, where no lock is held.
        drop(replaced);
        Ok(result)
    }

    /// Changes the batch that this thread runs, or the registry at once.
    fn change<R>(&self, change: impl FnOnce(&mut State) -> Result<R, RegistryError>) -> Result<R, RegistryError> {
        let thread = std::thread::current().id();
        if let Some(batch) = lock(&self.inner.batch).as_mut().filter(|batch| batch.thread == thread) {
            return change(&mut batch.state);
        }
        let replaced;
        let value = {
            let _writer = lock(&self.inner.writer);
            let mut state = lock(&self.inner.state).clone();
            let value = change(&mut state)?;
            state.validate()?;
            replaced = self.publish(state);
            value
        };
        drop(replaced);
        Ok(value)
    }

    /// Puts a valid state in the place of the present one, and wakes who waits. The code of extensions does not run here.
    fn publish(&self, state: State) -> (State, Arc<Snapshot>) {
        let snapshot = Arc::new(state.snapshot());
        let old_state = std::mem::replace(&mut *lock(&self.inner.state), state);
        let old_snapshot = {
            let mut published = self.inner.published.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *published, snapshot)
        };
        self.inner.publications.send_modify(|count| *count += 1);
        (old_state, old_snapshot)
    }

    fn add(&self, slot: state::Slot, item: state::Item) -> Result<Registration, RegistryError> {
        let id = self.inner.next_id.fetch_add(1, Ordering::Relaxed);
        self.change(|state| {
            state.add(id, slot, item);
            Ok(())
        })?;
        Ok(Registration { registry: self.clone(), ids: Arc::from([id]) })
    }

    fn remove(&self, registration: &Registration) -> Result<(), RegistryError> {
        if !Arc::ptr_eq(&self.inner, &registration.registry.inner) {
            return Err(RegistryError::Foreign);
        }
        self.change(|state| {
            state.remove(&registration.ids);
            Ok(())
        })
    }
}

impl Registration {
    /// Removes exactly what it covers. Once is as good as twice. Inside a batch it is staged.
    pub fn dispose(&self) {
        // It is of this registry, and a state with less in it stays valid.
        let _ = self.registry.remove(self);
    }
}
