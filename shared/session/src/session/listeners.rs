//! Listeners that are called on the line.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

type Listener<T> = dyn Fn(&T) + Send + Sync;

/// Listeners of one kind of event.
pub(super) struct Listeners<T> {
    registered: Arc<Mutex<Registered<T>>>,
}

struct Registered<T> {
    next: u64,
    listeners: Vec<(u64, Arc<Listener<T>>)>,
}

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self { registered: Arc::new(Mutex::new(Registered { next: 0, listeners: Vec::new() })) }
    }
}

impl<T: 'static> Listeners<T> {
    pub(super) fn add(&self, listener: Arc<Listener<T>>) -> Subscription {
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        let id = registered.next;
        registered.next += 1;
        registered.listeners.push((id, listener));
        let weak = Arc::downgrade(&self.registered);
        Subscription { dispose: Some(Box::new(move || remove(&weak, id))) }
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).listeners.len()
    }

    /// Calls everybody; whether nobody panicked. The list is copied first: a listener may be added or dropped meanwhile.
    pub(super) fn call(&self, event: &T) -> bool {
        let listeners: Vec<_> = {
            let registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
            registered.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect()
        };
        // One that panics keeps the event from no other.
        let panicked = listeners.iter().filter(|listener| catch_unwind(AssertUnwindSafe(|| listener(event))).is_err()).count();
        panicked == 0
    }
}

fn remove<T>(registered: &Weak<Mutex<Registered<T>>>, id: u64) {
    if let Some(registered) = registered.upgrade() {
        registered.lock().unwrap_or_else(PoisonError::into_inner).listeners.retain(|(other, _)| *other != id);
    }
}

/// A listener's registration. Dropping it ends it.
#[must_use = "dropping the subscription ends it"]
pub struct Subscription {
    dispose: Option<Box<dyn FnOnce() + Send + Sync>>,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(dispose) = self.dispose.take() {
            dispose();
        }
    }
}
