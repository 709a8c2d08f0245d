//! The suite on SQLite. Reopening closes the file, lets go of everything and opens it again.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use picofleet_session::storage::Store;
use picofleet_storage::conformance::Backend;
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

struct Sqlite {
    directory: TempDir,
    /// The stores that are open, with their files.
    open: Mutex<Vec<(Arc<dyn Store>, PathBuf)>>,
}

impl Sqlite {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), open: Mutex::default() }
    }

    fn open_at(&self, path: PathBuf) -> Arc<dyn Store> {
        // The suite counts what maintenance removes, so nothing is removed before.
        let options = SqliteOptions { reclaim_rows: 0, ..SqliteOptions::default() };
        let store: Arc<dyn Store> = Arc::new(SqliteStore::open(&path, options).unwrap());
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
            assert!(!path.with_extension("db-wal").exists(), "a closed store is one file");
            self.open_at(path)
        }
        .boxed()
    }
}

picofleet_storage::conformance!(Sqlite::new());
