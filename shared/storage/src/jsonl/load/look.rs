//! Reading a session that another process may be writing, without a lock and without changing anything.
//!
//! The length of `main.jsonl` decides what is looked at: its last marker there. All that the marker confirms was in sidecars before, and
//! what sidecars have of later commits is left out. Only a reclamation can take away what was confirmed, and it puts another file in the
//! place of the sidecar, or none. So sidecars are opened right before the length is read, and again right after: what was confirmed is in
//! one of the two, unless a sidecar came and went in between. Then `main.jsonl` has grown, and everything is read again.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use picofleet_session::storage::StorageError;

use super::{Input, Loaded, Sidecar, load};
use crate::jsonl::{MAIN, OpenError};
use crate::sqlite::lock;

/// How often a session is read that changes while it is read.
const TRIES: usize = 50;

/// How many sidecars stay open meanwhile; of further ones only the second reading counts.
const OPEN_MAX: usize = 512;

/// The session changed each time.
#[derive(Debug, thiserror::Error)]
#[error("its sidecars came and went each time that they were read; try again, or when less is written")]
struct Busy;

/// Reads a session's directory as it is; `None` where it is gone.
///
/// # Errors
/// As [`super::session`].
pub(in crate::jsonl) fn look(directory: &Path) -> Result<Option<Loaded>, StorageError> {
    for _ in 0..TRIES {
        let seen = Seen::take(directory).map_err(|error| OpenError::io(directory, error).at(directory))?;
        let Some(Seen { main, length, sidecars }) = seen else { return Ok(None) };
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

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// The files of a session at one length of `main.jsonl`.
struct Seen {
    main: Input,
    length: u64,
    sidecars: Vec<(Sidecar, Input)>,
}

impl Seen {
    /// `None` where there is no `main.jsonl`, which a session has from its first moment on.
    fn take(directory: &Path) -> io::Result<Option<Self>> {
        let main = directory.join(MAIN);
        let seen = Opened::default().and_open(directory, OPEN_MAX).and_then(|before| {
            let length = length_of(&main)?;
            Ok((length, before.and_open(directory, usize::MAX)?))
        });
        let (length, opened) = match seen {
            Err(error) if gone(&error) && !directory.exists() => return Ok(None),
            seen => seen?,
        };
        let sidecars = opened.0.into_iter().map(OpenedFile::read).collect::<io::Result<_>>()?;
        Ok(Some(Self { main: Input::Begin { path: main, length }, length, sidecars }))
    }
}

/// Sidecars that were opened, each file once.
#[derive(Default)]
struct Opened(Vec<OpenedFile>);

struct OpenedFile {
    sidecar: Sidecar,
    path: PathBuf,
    content: Content,
}

enum Content {
    Open(File, Option<lock::Identity>),
    Bytes(Vec<u8>),
}

impl OpenedFile {
    fn is(&self, sidecar: Sidecar, identity: Option<lock::Identity>) -> bool {
        let known = if let Content::Open(_, known) = &self.content { *known } else { None };
        self.sidecar == sidecar && known.is_some() && known == identity
    }

    fn read(self) -> io::Result<(Sidecar, Input)> {
        let bytes = match self.content {
            Content::Bytes(bytes) => bytes,
            Content::Open(mut file, _) => {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                bytes
            }
        };
        Ok((self.sidecar, Input::Copy { path: self.path, bytes }))
    }
}

impl Opened {
    /// Opens what the directory has now, at most so many in all.
    fn and_open(mut self, directory: &Path, most: usize) -> io::Result<Self> {
        for entry in directory.read_dir()? {
            if self.0.len() >= most {
                break;
            }
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let Some(sidecar) = Sidecar::named(name) else { continue };
            let mut file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if gone(&error) => continue,
                Err(error) => return Err(error),
            };
            let identity = lock::identity(&file.metadata()?);
            if self.0.iter().any(|known| known.is(sidecar, identity)) {
                continue;
            }
            let content = if self.0.len() < OPEN_MAX {
                Content::Open(file, identity)
            } else {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Content::Bytes(bytes)
            };
            self.0.push(OpenedFile { sidecar, path, content });
        }
        Ok(self)
    }
}
