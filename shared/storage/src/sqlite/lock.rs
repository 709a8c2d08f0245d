//! One process at a time.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::path::Path;

use picofleet_session::storage::StorageError;

use super::errors::OpenError;

/// The lock on a store, held as long as the value lives.
///
/// It is a lock of the operating system on a file beside the database, never on the database itself: SQLite's own locks there are
/// dropped when any descriptor of the file is closed in the process. A process that dies leaves the file and not the lock. The file is
/// never removed, since another process may be about to lock it.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a process that another thread is just starting has the descriptor until it runs its program.
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "lock of a store not released before its file is closed");
        }
    }
}

impl Lock {
    /// # Errors
    /// [`StorageError::InUse`] with the holder's process id as far as it can be read.
    pub(super) fn take(store: &Path) -> Result<Self, StorageError> {
        let path = super::beside(store, "-lock");
        let failed = |error| OpenError::io(&path, error).at(store);
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
                return Err(StorageError::InUse { store: store.display().to_string(), pid });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The number only serves a message to people. Where it can't be written, on a full disk, the lock holds all the same.
        let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| writeln!(file, "{}", std::process::id()));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "process id not written to the lock file");
        }
        Ok(Self { file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was started but does not run its program yet has all descriptors of this one.
    #[test]
    fn the_lock_goes_although_another_descriptor_of_the_file_stays() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("a.db");
        let lock = Lock::take(&store).unwrap();
        let copy = lock.file.try_clone().unwrap();
        assert!(matches!(Lock::take(&store), Err(StorageError::InUse { pid, .. }) if pid == Some(std::process::id())));
        drop(lock);
        Lock::take(&store).unwrap();
        drop(copy);
    }
}
