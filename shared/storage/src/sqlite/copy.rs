//! A copy of the whole store while it is in use.
//!
//! A file and its log that are copied one after the other are of two moments: a checkpoint in between moves pages from the one to the
//! other, and the copy has them twice, torn or not at all. SQLite's own `VACUUM INTO` reads everything in one transaction, so that the
//! copy is of one commit, beside a writer that is not held up, in this process or another one.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use picofleet_session::storage::StorageError;
use rusqlite::Connection;

use super::errors::{OpenError, Place};
use super::{beside, lock, schema};

pub(super) async fn copy(from: Place, to: PathBuf) -> Result<(), StorageError> {
    let name = from.name();
    let done = tokio::task::spawn_blocking(move || copy_now(&from, &to)).await;
    done.unwrap_or_else(|error| Err(StorageError::failed(format!("copy {name}"), error)))
}

fn copy_now(from: &Place, to: &Path) -> Result<(), StorageError> {
    let to = lock::resolved(to)?;
    let io = |error| OpenError::io(&to, error).at(&to);
    if to.symlink_metadata().is_ok() {
        return Err(OpenError::Exists(to.clone()).at(&to));
    }
    let new = reserved(&to).map_err(io)?;
    let copied = write(from, &new, &to).and_then(|()| {
        // Somebody may have made one meanwhile.
        if to.symlink_metadata().is_ok() {
            return Err(OpenError::Exists(to.clone()).at(&to));
        }
        std::fs::rename(&new, &to).map_err(io)?;
        let parent = to.parent().unwrap_or_else(|| Path::new("/"));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(io)
    });
    if copied.is_err() {
        // What is left of the copy is nothing that anybody could use. The first error counts.
        let _ = absent(&new);
    }
    copied
}

/// How many names are tried.
const NAMES_MAX: u64 = 1_000;

/// An empty file beside the copy that nobody else has, whatever is there already and whoever copies to the same name. SQLite writes into
/// an empty file, and into no other one.
fn reserved(to: &Path) -> std::io::Result<PathBuf> {
    let mut last = std::io::ErrorKind::AlreadyExists.into();
    for number in 0..NAMES_MAX {
        let new = beside(to, &format!("-new-{}-{number}", std::process::id()));
        if beside(&new, "-journal").symlink_metadata().is_ok() {
            continue;
        }
        match OpenOptions::new().write(true).create_new(true).open(&new) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => last = error,
            made => return made.map(|_| new),
        }
    }
    Err(last)
}

fn write(from: &Place, new: &Path, to: &Path) -> Result<(), StorageError> {
    let place = Place(to.into());
    let connection = schema::copier(&from.0).map_err(|error| from.unread(error))?;
    vacuum(&connection, new).map_err(|error| place.rejected("copy", error))?;
    File::open(new).and_then(|file| file.sync_all()).map_err(|error| OpenError::io(to, error).at(to))
}

fn vacuum(connection: &Connection, new: &Path) -> rusqlite::Result<()> {
    let Some(name) = new.to_str() else {
        return Err(rusqlite::Error::InvalidPath(new.to_owned()));
    };
    connection.execute("VACUUM INTO ?1", [name]).map(drop)
}

fn absent(path: &Path) -> std::io::Result<()> {
    for path in [path.to_owned(), beside(path, "-journal")] {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
