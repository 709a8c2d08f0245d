//! Where recovery reads lines, and what becomes of those that nothing confirms.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use picofleet_session::storage::StorageError;

use super::corrupt;
use crate::jsonl::OpenError;

/// A file of lines.
pub(in crate::jsonl) enum Input {
    /// A file of this process: what nothing confirms is cut off.
    Own(PathBuf),
    /// The first bytes of a file that somebody else may write. It is left as it is.
    Begin { path: PathBuf, length: u64 },
    /// What such a file held.
    Copy { path: PathBuf, bytes: Vec<u8> },
}

/// What nothing confirms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::jsonl) struct Tail {
    /// The file.
    pub(in crate::jsonl) path: PathBuf,
    /// How many bytes.
    pub(in crate::jsonl) bytes: u64,
}

impl Input {
    pub(in crate::jsonl) fn path(&self) -> &Path {
        match self {
            Self::Own(path) | Self::Begin { path, .. } | Self::Copy { path, .. } => path,
        }
    }

    /// Whether the file may be changed.
    pub(in crate::jsonl) const fn own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// Reads the lines that end; the last one that does not, and everything from the line on that `take` does not want, is a tail.
    ///
    /// # Errors
    /// [`StorageError::Corrupt`] for a line that `take` can't read; [`StorageError::Failed`] where the system refuses.
    pub(in crate::jsonl) fn lines(&self, take: impl FnMut(&[u8]) -> Result<bool, String>) -> Result<Option<Tail>, StorageError> {
        let path = self.path();
        let failed = |error| OpenError::io(path, error).at(path);
        let (kept, all) = match self {
            Self::Copy { bytes, .. } => (lines(path, bytes.as_slice(), take)?, bytes.len() as u64),
            Self::Own(_) => {
                let file = File::open(path).map_err(failed)?;
                let all = file.metadata().map_err(failed)?.len();
                (lines(path, BufReader::new(file), take)?, all)
            }
            Self::Begin { length, .. } => {
                let file = File::open(path).map_err(failed)?;
                (lines(path, BufReader::new(file.take(*length)), take)?, *length)
            }
        };
        if kept >= all {
            return Ok(None);
        }
        if self.own() {
            tracing::info!(path = %path.display(), from = kept, "lines that nothing confirms are cut off");
            cut(path, kept).map_err(failed)?;
        }
        Ok(Some(Tail { path: path.to_owned(), bytes: all - kept }))
    }
}

/// How many bytes the wanted lines have.
fn lines(path: &Path, mut reader: impl BufRead, mut take: impl FnMut(&[u8]) -> Result<bool, String>) -> Result<u64, StorageError> {
    let (mut kept, mut number, mut line) = (0_u64, 0_u64, Vec::new());
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(|error| OpenError::io(path, error).at(path))?;
        number += 1;
        let wanted = match line.strip_suffix(b"\n") {
            Some(whole) => take(whole).map_err(|why| corrupt(path, format!("line {number}"), why))?,
            None => false,
        };
        if !wanted {
            return Ok(kept);
        }
        kept += read as u64;
    }
}

fn cut(path: &Path, length: u64) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_len(length)?;
    file.sync_all()
}
