//! Where the child keeps the session of the recorded run.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use picofleet_session::storage::Store;
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use picofleet_storage::postgres::{PostgresOptions, PostgresStore};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};

/// The variable that names the store of a child.
const STORE: &str = "PICOFLEET_TEST_STORE";

/// The kind of store.
#[derive(Clone, Debug)]
pub(super) enum Kept {
    /// A database and its log.
    Sqlite,
    /// A directory of lines.
    Jsonl,
    /// A database of a server, with its URL.
    Postgres(String),
}

impl Kept {
    /// What the parent of this child chose.
    pub(super) fn chosen() -> Self {
        match std::env::var(STORE).as_deref() {
            Ok("store.jsonl") => Self::Jsonl,
            Ok("store.db") => Self::Sqlite,
            Ok(url) if url.starts_with("postgres") => Self::Postgres(url.to_owned()),
            other => panic!("{STORE} names no store: {other:?}"),
        }
    }

    /// The name in its directory, which is in the path of everything that belongs to it.
    fn name(&self) -> &str {
        match self {
            Self::Sqlite => "store.db",
            Self::Jsonl => "store.jsonl",
            Self::Postgres(url) => url,
        }
    }

    /// Chooses it for a child, and its files for the library that counts writes.
    pub(super) fn choose(&self, command: &mut Command) {
        command.env(STORE, self.name()).env("FAULTFS_MATCH", self.name());
    }

    /// Opens the store of a directory. Lines that nothing needs are written anew as soon as there are any, so that a kill meets that too.
    pub(super) async fn open(&self, directory: &Path) -> Arc<dyn Store> {
        let path = directory.join(self.name());
        match self {
            Self::Sqlite => Arc::new(SqliteStore::open(path, SqliteOptions::default()).unwrap()),
            Self::Jsonl => Arc::new(JsonlStore::open(path, JsonlOptions { reclaim_bytes: 1, ..JsonlOptions::default() }).unwrap()),
            Self::Postgres(url) => Arc::new(PostgresStore::open(url, PostgresOptions::default()).await.unwrap()),
        }
    }
}
