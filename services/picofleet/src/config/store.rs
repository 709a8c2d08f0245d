//! Which store a URL names.

mod ready;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Context as _;
use picofleet_session::storage::Store;
use picofleet_storage::jsonl::{JsonlOptions, JsonlStore};
use picofleet_storage::memory::MemoryStore;
use picofleet_storage::sqlite::{Durability, SqliteOptions, SqliteStore};

/// Where sessions are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreUrl {
    /// `sqlite:PATH`: one file, below the working directory unless the path is absolute.
    Sqlite(PathBuf),
    /// `jsonl:DIR`: a directory of JSON lines, to look into.
    Jsonl(PathBuf),
    /// `memory:`: gone with the process.
    Memory,
}

/// A URL names no store that this build can open. The URL is not repeated, since it may have a password in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreUrlError {
    /// `sqlite:` or `jsonl:` without a path, or with slashes that look like a host, or with options.
    #[error(
        "sqlite: is followed by the path of a file, jsonl: by that of a directory, and both by no host and no options; write sqlite:./picofleet.db or jsonl:./picofleet"
    )]
    Path,
    /// `memory:` with something behind it.
    #[error("nothing follows memory:; remove the rest")]
    Rest,
    /// A backend that is not built in.
    #[error("this build cannot open PostgreSQL, so that `picofleet run` can't use it; use sqlite:PATH, jsonl:DIR or memory:")]
    Postgres,
    /// Another one.
    #[error("no store has such a URL; use sqlite:PATH, jsonl:DIR or memory:")]
    Unknown,
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(url: &str) -> Result<Self, StoreUrlError> {
        match url.split_once(':') {
            Some(("sqlite" | "jsonl", path))
                if path.is_empty() || path.starts_with("//") || path.starts_with(':') || path.contains('?') =>
            {
                Err(StoreUrlError::Path)
            }
            Some(("sqlite", path)) => Ok(Self::Sqlite(path.into())),
            Some(("jsonl", path)) => Ok(Self::Jsonl(path.into())),
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("memory", _)) => Err(StoreUrlError::Rest),
            Some(("postgres" | "postgresql", _)) => Err(StoreUrlError::Postgres),
            _ => Err(StoreUrlError::Unknown),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(to, "sqlite:{}", path.display()),
            Self::Jsonl(path) => write!(to, "jsonl:{}", path.display()),
            Self::Memory => to.write_str("memory:"),
        }
    }
}

impl StoreUrl {
    /// Opens it; a file is made where there is none. It blocks for as long as that takes.
    ///
    /// With `fsync` a loss of power takes no commit of a SQLite store that was acknowledged, and leaves a JSONL store consistent, perhaps
    /// without its newest commits. Without it a SQLite store may lose its newest commits and stays whole, and sessions of a JSONL store
    /// may be damaged. The end of the process takes nothing that was acknowledged either way.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub fn open(&self, fsync: bool) -> anyhow::Result<Arc<dyn Store>> {
        // Before the lock file and whatever else is made beside it.
        ready::to_write(self)?;
        Ok(match self {
            Self::Sqlite(path) => {
                let durability = if fsync { Durability::Power } else { Durability::Process };
                let options = SqliteOptions { durability, ..SqliteOptions::default() };
                let store = SqliteStore::open(path, options).with_context(|| format!("open {}", path.display()))?;
                Arc::new(store)
            }
            Self::Jsonl(path) => {
                let store = JsonlStore::open(path, JsonlOptions { fsync, ..JsonlOptions::default() })
                    .with_context(|| format!("open {}", path.display()))?;
                Arc::new(store)
            }
            Self::Memory => Arc::new(MemoryStore::new()),
        })
    }

    /// Whether it is there; memory never is.
    pub(crate) fn exists(&self) -> bool {
        match self {
            Self::Sqlite(path) | Self::Jsonl(path) => path.exists(),
            Self::Memory => false,
        }
    }

    /// Opens it to look at it: nothing is made and nothing is written, and it may be in use. It blocks for as long as that takes.
    ///
    /// # Errors
    /// What is wrong with the file; that memory has nothing to look at.
    pub fn look(&self) -> anyhow::Result<Arc<dyn Store>> {
        ready::to_read(self)?;
        Ok(match self {
            Self::Sqlite(path) => Arc::new(SqliteStore::open_read_only(path).with_context(|| format!("look at {}", path.display()))?),
            Self::Jsonl(path) => Arc::new(JsonlStore::open_read_only(path).with_context(|| format!("look at {}", path.display()))?),
            Self::Memory => {
                let text = "memory: is gone with the process that used it; name another store with --store or [storage] url";
                anyhow::bail!(crate::failure::Failure::Usage(text.to_owned()))
            }
        })
    }
}
