//! This crate's backends under test.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_session::storage::Store;
use tempfile::TempDir;

use super::Backend;
use crate::jsonl::{JsonlOptions, JsonlStore};
use crate::memory::MemoryStore;
use crate::sqlite::{SqliteOptions, SqliteStore};

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

/// The backend in a file of a directory that goes with it. Reopening closes the file, lets go of everything and opens it again.
pub struct Sqlite {
    directory: TempDir,
    options: SqliteOptions,
    /// The stores that are open, with their files.
    open: Mutex<Vec<(Arc<dyn Store>, PathBuf)>>,
}

impl Default for Sqlite {
    fn default() -> Self {
        Self::new(SqliteOptions::default())
    }
}

impl Sqlite {
    /// Stores that are opened with these options.
    #[must_use]
    pub fn new(options: SqliteOptions) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), options, open: Mutex::default() }
    }

    fn open_at(&self, path: PathBuf) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, self.options).unwrap());
        self.open.lock().unwrap().push((Arc::clone(&store), path));
        store
    }

    fn forget(&self, store: &Arc<dyn Store>) -> PathBuf {
        let mut open = self.open.lock().unwrap();
        let index = open.iter().position(|(other, _)| Arc::ptr_eq(other, store)).expect("a store of this backend");
        open.swap_remove(index).1
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
            let path = self.forget(&store);
            store.close().await.unwrap();
            drop(store);
            assert!(!path.with_extension("db-wal").exists(), "a closed store is one file");
            self.open_at(path)
        }
        .boxed()
    }
}

/// The backend in directories below one that goes with it. Reopening closes the store, lets go of everything and reads the files again.
pub struct Jsonl {
    directory: TempDir,
    options: JsonlOptions,
    /// The stores that are open, with their directories.
    open: Mutex<Vec<(Arc<dyn Store>, PathBuf)>>,
}

impl Default for Jsonl {
    fn default() -> Self {
        Self::new(JsonlOptions::default())
    }
}

impl Jsonl {
    /// Stores that are opened with these options.
    #[must_use]
    pub fn new(options: JsonlOptions) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), options, open: Mutex::default() }
    }

    fn open_at(&self, path: PathBuf) -> Arc<dyn Store> {
        let store: Arc<dyn Store> = Arc::new(JsonlStore::open(&path, self.options).unwrap());
        self.open.lock().unwrap().push((Arc::clone(&store), path));
        store
    }
}

impl Backend for Jsonl {
    fn open(&self) -> BoxFuture<'_, Arc<dyn Store>> {
        async {
            let number = self.directory.path().read_dir().unwrap().count();
            self.open_at(self.directory.path().join(format!("store-{number}")))
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
