//! Complete output of commands, in files.

use std::fs::{DirEntry, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use picofleet_harness::tools::Spill;
use uuid::Uuid;

/// Output beyond this goes to a file, in bytes: what the result of a tool keeps by default.
const THRESHOLD_BYTES: usize = 50 * 1024;
/// The same in lines.
const THRESHOLD_LINES: usize = 2_000;
/// The size of one file: enough for a build log, and not enough to fill a disk by a loop that prints.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// How many files stay. Names begin with the time, so that the oldest go first.
const FILES_MAX: usize = 32;

/// Where the files are.
pub(super) struct SpillDir {
    path: PathBuf,
    user: Option<(u32, u32)>,
}

impl SpillDir {
    pub(super) fn new(path: PathBuf, user: Option<(u32, u32)>) -> Self {
        Self { path, user }
    }

    /// A new file. It blocks.
    fn create(&self) -> io::Result<(PathBuf, File)> {
        self.clean();
        let path = self.path.join(format!("{}.log", Uuid::now_v7().simple()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        if let Some((user, group)) = self.user {
            fchown(&file, Some(user), Some(group))?;
        }
        Ok((path, file))
    }

    /// Leaves room for one more. What can't be removed stays.
    fn clean(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        let log = |entry: DirEntry| Some(entry.path()).filter(|path| path.extension().is_some_and(|ending| ending == "log"));
        let mut logs: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().and_then(log)).collect();
        logs.sort();
        let surplus = (logs.len() + 1).saturating_sub(FILES_MAX);
        logs.iter().take(surplus).for_each(|path| drop(std::fs::remove_file(path)));
    }
}

/// The output of one command: in memory up to the thresholds, then in a file.
pub(super) struct Spilled {
    dir: Arc<SpillDir>,
    held: Vec<u8>,
    lines: usize,
    to: To,
}

enum To {
    Memory,
    File {
        path: PathBuf,
        file: Arc<File>,
        bytes: u64,
        complete: bool,
    },
    /// There is no file; that was logged.
    Nowhere,
}

impl Spilled {
    pub(super) fn new(dir: Arc<SpillDir>) -> Self {
        Self { dir, held: Vec::new(), lines: 0, to: To::Memory }
    }

    /// Takes a chunk. A file that can't be written is no reason to stop the command.
    pub(super) async fn push(&mut self, chunk: &[u8]) {
        match &mut self.to {
            To::Memory => {
                self.held.extend_from_slice(chunk);
                self.lines += chunk.iter().filter(|byte| **byte == b'\n').count();
                if self.held.len() > THRESHOLD_BYTES || self.lines > THRESHOLD_LINES {
                    self.begin().await;
                }
            }
            To::File { file, bytes, complete, .. } if *complete => append(file, bytes, complete, chunk.to_vec()).await,
            To::File { .. } | To::Nowhere => {}
        }
    }

    async fn begin(&mut self) {
        let dir = Arc::clone(&self.dir);
        let made = tokio::task::spawn_blocking(move || dir.create()).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        let held = std::mem::take(&mut self.held);
        self.to = match made {
            Ok((path, file)) => {
                let (file, mut bytes, mut complete) = (Arc::new(file), 0, true);
                append(&file, &mut bytes, &mut complete, held).await;
                To::File { path, file, bytes, complete }
            }
            Err(error) => {
                tracing::warn!(dir = %self.dir.path.display(), %error, "complete output of a command can't be kept");
                To::Nowhere
            }
        };
    }

    /// Where it is, if it is in a file.
    pub(super) fn finish(self) -> Option<Spill> {
        match self.to {
            To::File { path, bytes, complete, .. } => Some(Spill { path: shown(&path), bytes, complete }),
            To::Memory | To::Nowhere => None,
        }
    }
}

async fn append(file: &Arc<File>, bytes: &mut u64, complete: &mut bool, mut chunk: Vec<u8>) {
    let room = usize::try_from(FILE_BYTES_MAX - *bytes).unwrap_or(usize::MAX);
    if chunk.len() > room {
        chunk.truncate(room);
        *complete = false;
    }
    let (length, file) = (chunk.len() as u64, Arc::clone(file));
    let write = move || (&*file).write_all(&chunk);
    match tokio::task::spawn_blocking(write).await.unwrap_or_else(|error| Err(io::Error::other(error))) {
        Ok(()) => *bytes += length,
        Err(error) => {
            tracing::warn!(%error, "complete output of a command is cut");
            *complete = false;
        }
    }
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
