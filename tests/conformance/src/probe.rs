//! Stands between a session and its storage.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt as _;
use picofleet_session::storage::{Batch, CommitHandle, Fut, Head, Rejection, SessionReader, SessionStore, StorageError, Write};
use picofleet_storage::reading::ReadThrough;
use tokio::sync::watch;

/// What becomes of a batch, on any backend.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It does not reach the backend, and whether it landed can't be told.
    LostBefore,
    /// It is written, and whether it landed can't be told.
    LostAfter,
    /// It does not reach the backend and is refused.
    Rejected(Rejection),
}

#[derive(Debug)]
enum Plan {
    Fault(Fault),
    Hold { arrived: watch::Sender<bool>, go: watch::Receiver<Option<Result<(), Fault>>> },
}

/// Sees every batch of a session, on whatever backend, and does to it what a case asks for. Clones are one probe.
#[derive(Clone, Debug, Default)]
pub struct Probe(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    batches: Mutex<Vec<Batch>>,
    plans: Mutex<VecDeque<Plan>>,
    slow: AtomicBool,
    reads: AtomicUsize,
    /// The read with this number fails; 0 is none.
    failing: AtomicUsize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Probe {
    /// What was sent since the last call.
    #[must_use]
    pub fn batches(&self) -> Vec<Batch> {
        std::mem::take(&mut lock(&self.0.batches))
    }

    /// The writes that were sent since the last call, of all batches.
    #[must_use]
    pub fn writes(&self) -> Vec<Write> {
        self.batches().into_iter().flat_map(|batch| batch.commits).flat_map(|commit| commit.writes).collect()
    }

    /// How many reads reached storage.
    #[must_use]
    pub fn reads(&self) -> usize {
        self.0.reads.load(Ordering::SeqCst)
    }

    /// From now on every read gives way once, so that whoever waits for one can be interrupted there.
    pub fn slow(&self, slow: bool) {
        self.0.slow.store(slow, Ordering::SeqCst);
    }

    /// One read fails, after `after` others that do not.
    pub fn fail_read(&self, after: usize) {
        self.0.failing.store(self.reads().saturating_add(after).saturating_add(1), Ordering::SeqCst);
    }

    /// The next batch meets `fault`.
    pub fn fault(&self, fault: Fault) {
        lock(&self.0.plans).push_back(Plan::Fault(fault));
    }

    /// Nothing is planned any more: the batch that a fault was for never came.
    pub fn forget_plans(&self) {
        lock(&self.0.plans).clear();
    }

    /// The next batch stays inside storage until the hold is released or dropped.
    #[must_use]
    pub fn hold(&self) -> Hold {
        let (arrived, seen) = watch::channel(false);
        let (go, gone) = watch::channel(None);
        lock(&self.0.plans).push_back(Plan::Hold { arrived, go: gone });
        Hold { seen, go }
    }

    /// `store` behind the probe.
    #[must_use]
    pub fn before(&self, store: Arc<dyn SessionStore>) -> Arc<dyn SessionStore> {
        Arc::new(Probed { probe: self.clone(), store })
    }
}

/// A batch that waits.
#[derive(Debug)]
pub struct Hold {
    seen: watch::Receiver<bool>,
    go: watch::Sender<Option<Result<(), Fault>>>,
}

impl Hold {
    /// Waits until the batch is inside storage.
    pub async fn arrived(&self) {
        self.seen.clone().wait_for(|seen| *seen).await.expect("the batch was answered already");
    }

    /// Whether the batch is inside storage.
    #[must_use]
    pub fn has_arrived(&self) -> bool {
        *self.seen.borrow()
    }

    /// Lets it be written.
    pub fn release(self) {
        drop(self);
    }

    /// Lets it meet `fault`.
    pub fn fail(self, fault: Fault) {
        self.go.send_replace(Some(Err(fault)));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.go.send_if_modified(|go| go.is_none() && go.insert(Ok(())).is_ok());
    }
}

struct Probed {
    probe: Probe,
    store: Arc<dyn SessionStore>,
}

impl ReadThrough for Probed {
    fn target(&self) -> &dyn SessionReader {
        &*self.store
    }

    fn through<'a, T: Send + 'a>(&'a self, read: impl FnOnce(&'a dyn SessionReader) -> Fut<'a, T> + Send + 'a) -> Fut<'a, T> {
        async move {
            let number = self.probe.0.reads.fetch_add(1, Ordering::SeqCst) + 1;
            if self.probe.0.slow.load(Ordering::SeqCst) {
                tokio::task::yield_now().await;
            }
            if number == self.probe.0.failing.load(Ordering::SeqCst) {
                return Err(StorageError::failed("read", std::io::Error::other("a test asked for it")));
            }
            read(self.target()).await
        }
        .boxed()
    }
}

picofleet_storage::read_through!(Probed);

impl SessionStore for Probed {
    fn commit(&self, batch: Batch) -> CommitHandle {
        lock(&self.probe.0.batches).push(batch.clone());
        let Some(plan) = lock(&self.probe.0.plans).pop_front() else { return self.store.commit(batch) };
        let (answer, handle) = CommitHandle::channel();
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            let fault = match plan {
                Plan::Fault(fault) => Some(fault),
                Plan::Hold { arrived, mut go } => {
                    arrived.send_replace(true);
                    go.wait_for(Option::is_some).await.ok().and_then(|go| go.clone()).and_then(Result::err)
                }
            };
            let outcome = match fault {
                None => store.commit(batch).await,
                Some(Fault::LostBefore) => Err(StorageError::lost()),
                Some(Fault::LostAfter) => store.commit(batch).await.and(Err(StorageError::lost())),
                Some(Fault::Rejected(reason)) => Err(reason.into()),
            };
            // The session may be gone by now.
            let _ = answer.send(outcome);
        });
        handle
    }

    fn opened(&self) -> Head {
        self.store.opened()
    }

    fn release(&self) -> Fut<'_, ()> {
        self.store.release()
    }
}
