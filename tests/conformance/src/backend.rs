//! The backends of the suites.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_session::storage::Store;
use picofleet_storage::conformance::Backend;
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// The backend in memory. Its data lives as long as the store, so that reopening gives the same store.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory;

impl Backend for Memory {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async { Arc::new(MemoryStore::new()) as Arc<dyn Store> }.boxed()
    }

    fn reopen(&self, store: Arc<dyn Store>) -> BoxFuture<'_, Arc<dyn Store>> {
        async { store }.boxed()
    }
}

/// The backend in a file. Reopening closes the file, lets go of everything and opens it again.
pub struct Sqlite {
    directory: TempDir,
    /// The stores that are open, with their files.
    open: Mutex<Vec<(Arc<dyn Store>, PathBuf)>>,
}

impl Default for Sqlite {
    fn default() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), open: Mutex::default() }
    }
}

impl Sqlite {
    fn open_at(&self, path: PathBuf) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
        self.open.lock().unwrap().push((Arc::clone(&store), path));
        store
    }
}

impl Backend for Sqlite {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async {
            let number = self.directory.path().read_dir().unwrap().count();
            self.open_at(self.directory.path().join(format!("store-{number}.db")))
        }
        .boxed()
    }

    fn reopen(&self, store: Arc<dyn Store>) -> BoxFuture<'_, Arc<dyn Store>> {
        async move {
            let path = {
                let mut open = self.open.lock().unwrap();
                let index = open.iter().position(|(other, _)| Arc::ptr_eq(other, &store)).expect("a store of this backend");
                open.swap_remove(index).1
            };
            store.close().await.unwrap();
            drop(store);
            self.open_at(path)
        }
        .boxed()
    }
}
