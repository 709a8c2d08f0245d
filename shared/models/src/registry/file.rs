//! Files that a configuration names.

use std::fs::File;
use std::io::{Error, Read as _, Result};
use std::path::Path;

/// What is in a regular file, unless that is more than `max` bytes. Any other kind of file is refused before it is opened: a pipe would be
/// waited for, and a device may never end.
///
/// # Errors
///
/// It is not there, not readable, no regular file, or too large.
pub fn read_file(path: &Path, max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        return Err(Error::other(format!("it has more than {}", size(max))));
    }
    Ok(bytes)
}

fn open(path: &Path) -> Result<File> {
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(Error::other("it is a folder and no file"));
    }
    if !metadata.is_file() {
        return Err(Error::other("it is a pipe, a device or a socket; only a regular file is read"));
    }
    File::open(path)
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{} KiB", bytes >> 10) }
}
