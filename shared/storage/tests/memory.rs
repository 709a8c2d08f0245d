//! The suite on memory, and what only memory has: faults.

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_session::storage::Store;
use picofleet_storage::conformance::Backend;
use picofleet_storage::memory::MemoryStore;

/// Memory ends with its process, so reopening gives the same store again.
struct Memory;

impl Backend for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async { Arc::new(MemoryStore::new()) as Arc<dyn Store> }.boxed()
    }

    fn reopen(&self, store: Arc<dyn Store>) -> BoxFuture<'_, Arc<dyn Store>> {
        async { store }.boxed()
    }
}

picofleet_storage::conformance!(Memory);
