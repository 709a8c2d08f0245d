//! Reading a session that another process may be writing, without a lock and without changing anything.
//!
//! The length of `main.jsonl` decides what is looked at: its last marker there. Sidecars are read after that, so that they have all that
//! the marker confirms, and what they have of later commits is left out. Only a reclamation in between can take away what was confirmed;
//! it comes with a further marker, so that `main.jsonl` has grown, and then everything is read again.

use std::io;
use std::path::{Path, PathBuf};

use picofleet_session::storage::StorageError;

use super::{Input, Loaded, Sidecar, load};
use crate::jsonl::{MAIN, OpenError};

/// How often a session is read that changes while it is read.
const TRIES: usize = 50;

/// The session changed each time.
#[derive(Debug, thiserror::Error)]
#[error("its sidecars were written anew each time that they were read; try again, or when less is written")]
struct Busy;

/// Reads a session's directory as it is; `None` where it is gone.
///
/// # Errors
/// As [`super::session`].
pub(in crate::jsonl) fn look(directory: &Path) -> Result<Option<Loaded>, StorageError> {
    for _ in 0..TRIES {
        let Some(seen) = inputs(directory).map_err(|error| OpenError::io(directory, error).at(directory))? else { return Ok(None) };
        let (main, sidecars, length) = seen;
        let loaded = load(directory, &main, sidecars);
        match (&loaded, length_of(main.path())) {
            (Err(StorageError::Corrupt(_) | StorageError::Failed { .. }), now) if now.as_ref().ok() != Some(&length) => {}
            _ => return loaded.map(Some),
        }
    }
    Err(StorageError::failed(format!("read {}", directory.display()), Busy))
}

fn length_of(main: &Path) -> io::Result<u64> {
    Ok(main.metadata()?.len())
}

/// The files; `None` where there is no `main.jsonl`, which a session has from its first moment on.
#[expect(clippy::type_complexity, reason = "the files and the length, for the one caller above")]
fn inputs(directory: &Path) -> io::Result<Option<(Input, Vec<(Sidecar, Input)>, u64)>> {
    let main = directory.join(MAIN);
    let length = match length_of(&main) {
        Ok(length) => length,
        Err(error) if gone(&error) && !directory.exists() => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut sidecars = Vec::new();
    for entry in directory.read_dir()? {
        let path: PathBuf = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(sidecar) = Sidecar::named(name) else { continue };
        match std::fs::read(&path) {
            Ok(bytes) => sidecars.push((sidecar, Input::Copy { path, bytes })),
            // Its end was confirmed, or a reclamation says so below.
            Err(error) if gone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some((Input::Begin { path: main, length }, sidecars, length)))
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}
