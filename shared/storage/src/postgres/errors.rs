//! What PostgreSQL's errors mean to a caller (`protocol.md` 2).

use std::sync::Arc;

use deadpool_postgres::PoolError;
use picofleet_session::storage::{Cause, Corruption, Rejection, StorageError, StorageRejected};
use tokio_postgres::Error;
use tokio_postgres::error::Severity;

/// Why a database can't be used as a store. It is the cause below a [`StorageError::Failed`], which names the database.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL can't be read. It is not shown, since it may hold a password.
    #[error("the URL can't be read; it looks like postgres://user:password@host:5432/database?sslmode=require")]
    Url(#[source] Cause),
    /// A value of a URL's parameter.
    #[error("{value:?} is no value of {parameter}; use {known}")]
    Parameter {
        /// Which parameter.
        parameter: &'static str,
        /// What it says.
        value: String,
        /// What it can say.
        known: &'static str,
    },
    /// Certificates can't be loaded.
    #[error("the certificates of {origin} can't be loaded")]
    Certificates {
        /// Where they are.
        origin: String,
        /// Why.
        #[source]
        cause: Cause,
    },
    /// The server is too old.
    #[error("the server has version {0}; version 14 or newer is needed")]
    OldServer(i32),
    /// The server may lose what it acknowledged.
    #[error("the server runs with {0} = off, so that acknowledged commits can be lost; turn it on")]
    Unsafe(&'static str),
    /// Text of another encoding.
    #[error("the database has the encoding {0}; make it with ENCODING 'UTF8'")]
    Encoding(String),
    /// The schema is missing or older than this program's.
    #[error("the schema has version {found} and this program needs {known}; run `picofleet migrate` first")]
    NotMigrated {
        /// The version; 0 where there is none.
        found: u32,
        /// The one that is needed.
        known: u32,
    },
    /// The schema could not be brought up.
    #[error("a migration failed and was undone")]
    Migration(#[source] Cause),
    /// The store hashes its sessions into another number of partitions.
    #[error("the database has {stored} partitions and {asked} are configured; the count never changes: configure {stored}")]
    Partitions {
        /// What was fixed at the first migration.
        stored: i64,
        /// What is configured.
        asked: u16,
    },
}

/// What a failed statement means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// Nothing landed; the same again may succeed at once: a deadlock, a lock that was not given.
    Again,
    /// Nothing landed; the server can't now: no space, read-only, going down.
    Unable,
    /// Nothing landed, and the same again would fail.
    Refused,
    /// The connection is gone, and with it the knowledge of what landed.
    Unknown,
}

/// The code of the error that the server sent.
pub(super) fn code(error: &Error) -> Option<&str> {
    error.as_db_error().map(|error| error.code().code())
}

pub(super) fn class(error: &Error) -> Class {
    let Some(server) = error.as_db_error() else { return Class::Unknown };
    // The server ends the connection with these, at any point of a transaction.
    if !matches!(server.parsed_severity(), Some(Severity::Error)) {
        return Class::Unknown;
    }
    match server.code().code() {
        "40001" | "40P01" | "55P03" => Class::Again,
        "53100" | "53200" | "53300" | "25006" | "57014" | "57P01" | "57P02" | "57P03" => Class::Unable,
        code if code.starts_with("08") => Class::Unable,
        _ => Class::Refused,
    }
}

/// Names a store in errors, without its password.
#[derive(Clone, Debug)]
pub(super) struct Place(pub(super) Arc<str>);

impl Place {
    pub(super) fn name(&self) -> String {
        self.0.to_string()
    }

    pub(super) fn corrupt(&self, what: impl Into<String>, why: impl Into<String>) -> Corruption {
        Corruption { store: self.name(), what: what.into(), why: why.into() }
    }

    pub(super) fn open(&self, cause: impl std::error::Error + Send + Sync + 'static) -> StorageError {
        StorageError::failed(format!("open {}", self.0), cause)
    }

    /// A read that failed.
    pub(super) fn failed(&self, operation: &str, error: Error) -> StorageError {
        match code(&error) {
            Some("XX001" | "XX002") => self.corrupt("the database", error.to_string()).into(),
            _ => StorageError::failed(format!("{operation} in {}", self.0), error),
        }
    }

    pub(super) fn no_connection(&self, operation: &str, error: PoolError) -> StorageError {
        match error {
            PoolError::Closed => StorageError::Closed,
            error => StorageError::failed(format!("{operation} in {}", self.0), error),
        }
    }

    /// A failure after which nothing of the operation is stored.
    pub(super) fn rejected(&self, operation: &str, error: Error) -> StorageError {
        let reason = match code(&error) {
            Some("53100") => Rejection::DiskFull { store: self.name() },
            Some("25006") => Rejection::ReadOnly { store: self.name() },
            // A key that the rules found free is taken, or a page is damaged: trying again would meet the same.
            Some("23505" | "XX001" | "XX002") => Rejection::Damaged { store: self.name() },
            _ => Rejection::Unavailable { operation: format!("{operation} in {}", self.0) },
        };
        self.refused(reason, error)
    }

    /// A failure of an administrative statement: certain or not.
    pub(super) fn written(&self, operation: &str, error: Error) -> StorageError {
        match class(&error) {
            Class::Unknown => self.uncertain(operation, error),
            _ => self.rejected(operation, error),
        }
    }

    pub(super) fn refused(&self, reason: Rejection, cause: impl std::error::Error + Send + Sync + 'static) -> StorageError {
        StorageError::Rejected(StorageRejected { reason, cause: Some(Arc::new(cause)) })
    }

    pub(super) fn unavailable(&self, operation: &str, cause: impl std::error::Error + Send + Sync + 'static) -> StorageError {
        self.refused(Rejection::Unavailable { operation: format!("{operation} in {}", self.0) }, cause)
    }

    pub(super) fn uncertain(&self, operation: &str, error: impl std::error::Error + Send + Sync + 'static) -> StorageError {
        StorageError::Uncertain { operation: format!("{operation} in {}", self.0), cause: Arc::new(error) }
    }
}
