//! What SQLite's errors mean to a caller.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use picofleet_session::storage::{Corruption, Rejection, StorageError, StorageRejected};
use rusqlite::ErrorCode;

/// Why a file can't be opened as a store. It is the cause below a [`StorageError::Failed`], which names the file.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is of another kind.
    #[error("{} is no SQLite database; name another file", .0.display())]
    NoDatabase(PathBuf),
    /// The database belongs to another application.
    #[error("{} is a database of another application; name another file", .0.display())]
    OtherApplication(PathBuf),
    /// There is a directory.
    #[error("{} is a directory; name a file in it", .0.display())]
    Directory(PathBuf),
    /// There is nothing to look at.
    #[error("{} does not exist; only a store that can be written is made new", .0.display())]
    Missing(PathBuf),
    /// The file of a copy is there already.
    #[error("{} exists; name a file that does not, so that nothing is overwritten", .0.display())]
    Exists(PathBuf),
    /// The log of a database whose own file is gone.
    #[error("{} is missing but its log {} is there; bring the file back, or remove the log with all that it holds", file.display(), log.display())]
    OnlyLog {
        /// The database's file.
        file: PathBuf,
        /// Its log.
        log: PathBuf,
    },
    /// The file has other names, and its log is beside one of them only.
    #[error("{} is one of {names} names (hard links) of its file, and the log is beside one only; remove the others", file.display())]
    SeveralNames {
        /// The file.
        file: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// The file or its directory can't be written.
    #[error("{} can't be written; give this process the right to write it and its directory", .0.display())]
    ReadOnly(PathBuf),
    /// Its newest commits are in a log that can't be read without writing beside it.
    #[error(
        "{} has commits in its log {} and is on a file system or in a folder that can't be written, which reading a log needs; make it writable, or copy both files to a folder that is, and name the copy", file.display(), log.display()
    )]
    UnreadableLog {
        /// The file.
        file: PathBuf,
        /// Its log.
        log: PathBuf,
    },
    /// The store hashes its sessions into another number of partitions.
    #[error("{} has {stored} partitions and {asked} are configured; the count never changes: configure {stored}", file.display())]
    Partitions {
        /// The file.
        file: PathBuf,
        /// What was fixed when it was made.
        stored: u16,
        /// What is configured.
        asked: u16,
    },
    /// The operating system refused.
    #[error("{}: the system refused; check the path and its permissions", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly(path.to_owned()),
            _ => Self::Io { path: path.to_owned(), source },
        }
    }

    pub(super) fn at(self, path: &Path) -> StorageError {
        StorageError::failed(format!("open {}", path.display()), self)
    }
}

/// A piece of work panicked: a defect of the program. It is the cause of a refusal.
#[derive(Debug, thiserror::Error)]
#[error("the work panicked and was undone: {0}")]
pub(super) struct Panicked(String);

/// The thread that writes is gone, which only a defect of the program can do. It is the cause of a refusal.
#[derive(Debug, thiserror::Error)]
#[error("the thread that writes ended by a panic; open the store again")]
pub(super) struct Gone;

/// Names a store in errors.
#[derive(Clone, Debug)]
pub(super) struct Place(pub(super) Arc<Path>);

impl Place {
    pub(super) fn name(&self) -> String {
        self.0.display().to_string()
    }

    pub(super) fn corrupt(&self, what: impl Into<String>, why: impl Into<String>) -> Corruption {
        Corruption { store: self.name(), what: what.into(), why: why.into() }
    }

    /// A failure after which nothing of the operation is in the file.
    pub(super) fn rejected(&self, operation: &str, error: rusqlite::Error) -> StorageError {
        let reason = match error.sqlite_error_code() {
            // Trying again would meet the same damage.
            _ if damage(&error).is_some() => Rejection::Damaged { store: self.name() },
            Some(ErrorCode::DiskFull) => Rejection::DiskFull { store: self.name() },
            Some(ErrorCode::ReadOnly) => Rejection::ReadOnly { store: self.name() },
            _ => Rejection::Unavailable { operation: format!("{operation} in {}", self.name()) },
        };
        StorageError::Rejected(StorageRejected { reason, cause: Some(Arc::new(error)) })
    }

    fn unavailable(&self, operation: &str, cause: impl std::error::Error + Send + Sync + 'static) -> StorageError {
        let reason = Rejection::Unavailable { operation: format!("{operation} in {}", self.name()) };
        StorageError::Rejected(StorageRejected { reason, cause: Some(Arc::new(cause)) })
    }

    /// Work that panicked; nothing of it is in the file. `payload` is what it panicked with.
    pub(super) fn panicked(&self, operation: &str, payload: &(dyn Any + Send)) -> StorageError {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string).or_else(|| payload.downcast_ref::<String>().cloned());
        let text = text.unwrap_or_else(|| "without a message".to_owned());
        tracing::error!(store = %self.name(), operation, panic = text, "work panicked and was undone");
        self.unavailable(operation, Panicked(text))
    }

    /// Work that was never begun, since nobody is there to do it.
    pub(super) fn gone(&self) -> StorageError {
        self.unavailable("write", Gone)
    }

    /// A failure after which it can't be told whether the operation is in the file.
    pub(super) fn uncertain(&self, operation: &str, error: rusqlite::Error) -> StorageError {
        StorageError::Uncertain { operation: format!("{operation} in {}", self.name()), cause: Arc::new(error) }
    }

    /// A read that failed.
    pub(super) fn failed(&self, operation: &str, error: rusqlite::Error) -> StorageError {
        match damage(&error) {
            Some(why) => self.corrupt("the file", why).into(),
            None => StorageError::failed(format!("{operation} in {}", self.name()), error),
        }
    }

    /// Opening failed in SQLite.
    pub(super) fn unopened(&self, error: rusqlite::Error) -> StorageError {
        let path = &*self.0;
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => OpenError::NoDatabase(path.to_owned()).at(path),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => OpenError::ReadOnly(path.to_owned()).at(path),
            _ => self.failed("open", error),
        }
    }
}

impl Place {
    /// Opening to read failed in SQLite.
    pub(super) fn unread(&self, error: rusqlite::Error) -> StorageError {
        let path = &*self.0;
        let refused = matches!(error.sqlite_error_code(), Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly));
        match super::schema::log(path).filter(|_| refused) {
            Some(log) => OpenError::UnreadableLog { file: path.to_owned(), log }.at(path),
            None => self.unopened(error),
        }
    }
}

/// Damage, also where SQLite does not see it: pages may be whole and hold what this program never wrote. No statement of ours asks for
/// what a constraint refuses or a column does not hold, since the rules have judged every write before.
fn damage(error: &rusqlite::Error) -> Option<String> {
    let damaged = match error {
        rusqlite::Error::InvalidColumnType(..)
        | rusqlite::Error::FromSqlConversionFailure(..)
        | rusqlite::Error::IntegralValueOutOfRange(..)
        | rusqlite::Error::Utf8Error(..) => true,
        _ => matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch)
        ),
    };
    damaged.then(|| error.to_string())
}

/// Whether a COMMIT that failed in this way can't have left its last frame in the log, see `group`.
pub(super) fn nothing_landed(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
