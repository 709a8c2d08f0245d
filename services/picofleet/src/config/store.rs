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
use picofleet_storage::postgres::{PostgresOptions, PostgresStore};
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
    /// `postgres://USER@HOST/DATABASE`: a database that `picofleet migrate` has made ready. Several processes may share it.
    Postgres(DatabaseUrl),
}

/// The URL of a database, which may have a password in it: shown without that, and without parameters.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl DatabaseUrl {
    /// All of it.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rest = self.0.split_once("://").map_or(self.0.as_str(), |(_, rest)| rest);
        let rest = rest.split_once('?').map_or(rest, |(rest, _)| rest);
        write!(to, "postgres://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest))
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, to)
    }
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
    /// `postgres:` without a host or a database.
    #[error("the URL of a database is postgres://USER:PASSWORD@HOST:PORT/DATABASE; the password, the port and parameters may be left out")]
    Postgres,
    /// Another one.
    #[error("no store has such a URL; use sqlite:PATH, jsonl:DIR, postgres://USER@HOST/DATABASE or memory:")]
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
            Some(("postgres" | "postgresql", rest)) => match rest.strip_prefix("//").and_then(|rest| rest.rsplit_once('/')) {
                Some((server, database)) if !server.is_empty() && !database.is_empty() && !database.starts_with('?') => {
                    Ok(Self::Postgres(DatabaseUrl(url.to_owned())))
                }
                _ => Err(StoreUrlError::Postgres),
            },
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
            Self::Postgres(url) => url.fmt(to),
        }
    }
}

impl StoreUrl {
    /// Opens it; a file is made where there is none.
    ///
    /// With `fsync` a loss of power takes no commit of a SQLite store that was acknowledged, and leaves a JSONL store consistent, perhaps
    /// without its newest commits. Without it a SQLite store may lose its newest commits and stays whole, and sessions of a JSONL store
    /// may be damaged. The end of the process takes nothing that was acknowledged either way. A database does as its server is set up.
    ///
    /// # Errors
    /// What is wrong with the file or the database.
    pub async fn open(&self, fsync: bool) -> anyhow::Result<Arc<dyn Store>> {
        let url = self.clone();
        match self {
            Self::Sqlite(path) => {
                let path = path.clone();
                blocking(move || {
                    // Before the lock file and whatever else is made beside it.
                    ready::to_write(&url)?;
                    let durability = if fsync { Durability::Power } else { Durability::Process };
                    let options = SqliteOptions { durability, ..SqliteOptions::default() };
                    Ok(Arc::new(SqliteStore::open(&path, options).with_context(|| format!("open {}", path.display()))?))
                })
                .await
            }
            Self::Jsonl(path) => {
                let path = path.clone();
                blocking(move || {
                    ready::to_write(&url)?;
                    let options = JsonlOptions { fsync, ..JsonlOptions::default() };
                    Ok(Arc::new(JsonlStore::open(&path, options).with_context(|| format!("open {}", path.display()))?))
                })
                .await
            }
            Self::Memory => Ok(Arc::new(MemoryStore::new())),
            Self::Postgres(url) => database(url).await,
        }
    }

    /// Whether it is there, as far as can be seen without opening it; memory never is.
    pub(crate) fn exists(&self) -> bool {
        match self {
            Self::Sqlite(path) | Self::Jsonl(path) => path.exists(),
            Self::Memory => false,
            Self::Postgres(_) => true,
        }
    }

    /// Opens it to look at it: nothing is made and nothing is written, and it may be in use.
    ///
    /// # Errors
    /// What is wrong with the file or the database; that memory has nothing to look at.
    pub async fn look(&self) -> anyhow::Result<Arc<dyn Store>> {
        let url = self.clone();
        match self {
            Self::Sqlite(path) => {
                let path = path.clone();
                blocking(move || {
                    ready::to_read(&url)?;
                    Ok(Arc::new(SqliteStore::open_read_only(&path).with_context(|| format!("look at {}", path.display()))?))
                })
                .await
            }
            Self::Jsonl(path) => {
                let path = path.clone();
                blocking(move || {
                    ready::to_read(&url)?;
                    Ok(Arc::new(JsonlStore::open_read_only(&path).with_context(|| format!("look at {}", path.display()))?))
                })
                .await
            }
            Self::Memory => {
                let text = "memory: is gone with the process that used it; name another store with --store or [storage] url";
                Err(crate::failure::Failure::Usage(text.to_owned()).into())
            }
            Self::Postgres(url) => database(url).await,
        }
    }
}

/// Opens a store whose calls block.
async fn blocking<S: Store>(open: impl FnOnce() -> anyhow::Result<Arc<S>> + Send + 'static) -> anyhow::Result<Arc<dyn Store>> {
    Ok(tokio::task::spawn_blocking(open).await.context("open the store")??)
}

/// Connects to a database. Nothing is written there by that.
async fn database(url: &DatabaseUrl) -> anyhow::Result<Arc<dyn Store>> {
    let store = PostgresStore::open(url.secret(), PostgresOptions::default()).await.with_context(|| format!("open {url}"))?;
    Ok(Arc::new(store))
}
