//! Whether a path can be a store, before anything is made: what is no store is left as it was, and what this process may not do is said
//! with what to do about it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{Access, access};

use super::StoreUrl;
use crate::failure::Failure;

/// What a SQLite file begins with, and where and what a store of ours has in its header.
const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER: u64 = 100;
const APPLICATION: std::ops::Range<usize> = 68..72;
const OURS: &[u8] = b"PFLT";

/// Whether a store can be opened to be written, or made.
pub(super) fn to_write(url: &StoreUrl) -> anyhow::Result<()> {
    match url {
        StoreUrl::Sqlite(path) => match metadata(path)? {
            None => writable(folder(path), "a store is made in it"),
            Some(found) => {
                sqlite(path, &found, !beside(path, "-lock").exists())?;
                let log = || format!("looking needs less: `picofleet inspect --store {}`", path.display());
                ensure!(
                    access(path, Access::WRITE_OK).is_ok(),
                    "{} can't be written by {}; {}; {}",
                    path.display(),
                    user(),
                    give("write", path),
                    log()
                );
                writable(folder(path), "its log and its lock are made there")
            }
        },
        StoreUrl::Jsonl(path) => {
            let Some(found) = metadata(path)? else { return Ok(()) };
            directory(path, &found)?;
            if metadata(&path.join("store.json"))?.is_none() {
                let ours = |name: &std::ffi::OsStr| name == "store-lock" || name == "store.tmp";
                let mut others = path.read_dir().with_context(|| format!("look into {}", path.display()))?;
                let other = others.any(|entry| entry.is_ok_and(|entry| !ours(&entry.file_name())));
                ensure!(!other, Failure::Usage(format!("{} is no store and not empty; name another directory", path.display())));
            }
            writable(path, "sessions are written there")
        }
        StoreUrl::Memory | StoreUrl::Postgres(_) => Ok(()),
    }
}

/// Whether a store can be looked at.
pub(super) fn to_read(url: &StoreUrl) -> anyhow::Result<()> {
    let (StoreUrl::Sqlite(path) | StoreUrl::Jsonl(path)) = url else { return Ok(()) };
    let Some(found) = metadata(path)? else {
        bail!("{} does not exist; name another store with --store or [storage] url, or make this one with `picofleet run`", path.display());
    };
    match url {
        StoreUrl::Sqlite(_) => sqlite(path, &found, true),
        _ => directory(path, &found),
    }
}

/// What is at a path; `None` where nothing is.
fn metadata(path: &Path) -> anyhow::Result<Option<std::fs::Metadata>> {
    match path.metadata() {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let user = user();
            bail!(
                "{} can't be looked at: {user} may not enter a folder above it; give it the right to (chmod +x), or name another store",
                path.display()
            )
        }
        Err(error) => Err(error).with_context(|| format!("look at {}", path.display())),
    }
}

/// Whether it is a SQLite file of ours. Where the lock file is there, it was one, and is not opened: this process may have it open, and
/// to close it once more would drop the locks that SQLite has on it.
fn sqlite(path: &Path, found: &std::fs::Metadata, looks: bool) -> anyhow::Result<()> {
    let shown = path.display();
    let usage = |text: String| -> anyhow::Result<()> { Err(Failure::Usage(text).into()) };
    if found.is_dir() {
        return usage(format!("{shown} is a directory; name a file in it, or write jsonl:{shown} for a store of JSON lines"));
    }
    if !found.is_file() {
        return usage(format!("{shown} is a pipe, a device or a socket; name a regular file"));
    }
    ensure!(access(path, Access::READ_OK).is_ok(), "{shown} can't be read by {}; {}", user(), give("read", path));
    if !looks {
        return Ok(());
    }
    let mut header = Vec::new();
    File::open(path).and_then(|file| file.take(HEADER).read_to_end(&mut header)).with_context(|| format!("read {shown}"))?;
    if header.is_empty() && !beside(path, "-wal").exists() {
        return usage(format!("{shown} is empty, and no store is; remove it and a new one is made, or name another file"));
    }
    // What is cut off is damage, which the store explains.
    if !header.is_empty() && !header.starts_with(&MAGIC[..MAGIC.len().min(header.len())]) {
        return usage(format!("{shown} is no SQLite database; name another file"));
    }
    if header.get(APPLICATION).is_some_and(|id| id != OURS) {
        return usage(format!("{shown} is a database of another application; name another file"));
    }
    Ok(())
}

fn directory(path: &Path, found: &std::fs::Metadata) -> anyhow::Result<()> {
    let shown = path.display();
    ensure!(
        found.is_dir(),
        Failure::Usage(format!("{shown} is no directory, as a store of JSON lines is; name one, or write sqlite:{shown}"))
    );
    ensure!(access(path, Access::READ_OK | Access::EXEC_OK).is_ok(), "{shown} can't be read by {}; {}", user(), give("read", path));
    Ok(())
}

fn writable(folder: &Path, why: &str) -> anyhow::Result<()> {
    let shown = folder.display();
    ensure!(folder.is_dir(), Failure::Usage(format!("there is no directory {shown}; make it, or name another store")));
    let allowed = access(folder, Access::WRITE_OK | Access::EXEC_OK).is_ok();
    ensure!(allowed, "{shown} can't be written by {}, and {why}; {}, or name another store", user(), give("write", folder));
    Ok(())
}

/// A file beside another one: its name with something after it.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

fn user() -> String {
    format!("user {}", rustix::process::geteuid().as_raw())
}

fn give(right: &str, path: &Path) -> String {
    format!("give that user the right to {right} {} (chown, chmod, or a file system that is mounted so)", path.display())
}
