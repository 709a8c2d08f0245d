//! One process at a time.

use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{Error, ErrorKind, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use picofleet_session::storage::StorageError;

use super::errors::OpenError;

/// Device and inode: what a file is, whatever its names are.
pub(crate) type Identity = (u64, u64);

/// The files that this process has open as stores to be written.
static OPEN: Mutex<BTreeSet<Identity>> = Mutex::new(BTreeSet::new());

fn open_files() -> MutexGuard<'static, BTreeSet<Identity>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The path without symbolic links, also where there is no file yet: SQLite's log and the lock file are named after it, so every way to
/// the file must come to the same names.
pub(super) fn resolved(path: &Path) -> Result<PathBuf, StorageError> {
    let failed = |error| OpenError::io(path, error).at(path);
    match path.canonicalize() {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        found => return found.map_err(failed),
    }
    // A link to a file that is not there yet leads to where SQLite would make it. Links in a circle were an error above.
    if let Ok(target) = path.read_link() {
        return resolved(&path.parent().unwrap_or_else(|| Path::new("")).join(target));
    }
    let name = path.file_name().ok_or_else(|| failed(Error::new(ErrorKind::InvalidInput, "it has no file name")))?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    Ok(parent.canonicalize().map_err(failed)?.join(name))
}

/// Refuses a file with several names (hard links). The log belongs to one of the names, so that whoever opens the file by another one
/// misses commits and damages it; no lock beside a name could keep two processes apart.
pub(super) fn one_name(path: &Path, file: &Metadata) -> Result<(), StorageError> {
    match names(file) {
        0 | 1 => Ok(()),
        names => Err(OpenError::SeveralNames { file: path.to_owned(), names }.at(path)),
    }
}

#[cfg(unix)]
pub(crate) fn identity(file: &Metadata) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt as _;
    Some((file.dev(), file.ino()))
}

#[cfg(unix)]
fn names(file: &Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    file.nlink()
}

#[cfg(not(unix))]
pub(crate) fn identity(_: &Metadata) -> Option<Identity> {
    None
}

#[cfg(not(unix))]
fn names(_: &Metadata) -> u64 {
    1
}

/// The lock on a store, held as long as the value lives.
///
/// It is a lock of the operating system on a file beside the database, never on the database itself: SQLite's own locks there are
/// dropped when any descriptor of the file is closed in the process. A process that dies leaves the file and not the lock. The file is
/// never removed, since another process may be about to lock it.
#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// What is locked, once it is known.
    identity: Option<Identity>,
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(identity) = self.identity {
            open_files().remove(&identity);
        }
        // Closing is not enough: a process that another thread is just starting has the descriptor until it runs its program.
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, "lock of a store not released before its file is closed");
        }
    }
}

impl Lock {
    /// # Errors
    /// [`StorageError::InUse`] with the holder's process id as far as it can be read.
    pub(crate) fn take(store: &Path) -> Result<Self, StorageError> {
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
        Ok(Self { file, identity: None })
    }

    /// Also locks the store's file itself, by what it is, against other names of it.
    ///
    /// # Errors
    /// [`StorageError::InUse`] where this process has it open under another name; [`OpenError::SeveralNames`].
    pub(super) fn identify(&mut self, store: &Path) -> Result<(), StorageError> {
        let file = store.metadata().map_err(|error| OpenError::io(store, error).at(store))?;
        if let Some(identity) = identity(&file) {
            if !open_files().insert(identity) {
                return Err(StorageError::InUse { store: store.display().to_string(), pid: Some(std::process::id()) });
            }
            self.identity = Some(identity);
        }
        one_name(store, &file)
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

    #[cfg(unix)]
    #[test]
    fn a_path_is_resolved_also_where_there_is_no_file_yet() {
        use std::os::unix::fs::symlink;
        let directory = tempfile::tempdir().unwrap();
        let real = directory.path().canonicalize().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        symlink("folder", at("way")).unwrap();
        symlink("way/new.db", at("link")).unwrap();
        symlink("link", at("further")).unwrap();
        symlink("circle", at("circle")).unwrap();
        for name in ["folder/new.db", "way/new.db", "link", "further"] {
            assert_eq!(resolved(&at(name)).unwrap(), real.join("folder/new.db"), "{name}");
        }
        std::fs::write(at("folder/new.db"), "").unwrap();
        assert_eq!(resolved(&at("further")).unwrap(), real.join("folder/new.db"));
        assert!(resolved(&at("circle")).is_err());
        assert!(resolved(&at("nowhere/new.db")).is_err());
        assert!(resolved(&at("folder/..")).is_ok_and(|path| path == real));
    }
}
