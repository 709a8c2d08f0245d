//! What the backend does to files: a narrow seam, so that tests see the order of the calls and let one fail.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// How many files stay open for further appends. Each live task and each document that changes has one.
const OPEN_MAX: usize = 128;

/// The calls that change files.
pub(super) trait Files: Send {
    /// Appends to a file, which is made where there is none. Says whether it was made.
    fn append(&mut self, path: &Path, bytes: &[u8]) -> io::Result<bool>;

    /// Flushes a file to the disk.
    fn sync(&mut self, path: &Path) -> io::Result<()>;

    /// Flushes the names in a directory to the disk.
    fn sync_directory(&mut self, path: &Path) -> io::Result<()>;

    /// Puts a file with other content in the place of one: whole, or not at all. With `sync` the content is flushed before.
    fn replace(&mut self, path: &Path, bytes: &[u8], sync: bool) -> io::Result<()>;

    /// Removes a file; it is no error that there is none.
    fn remove(&mut self, path: &Path) -> io::Result<()>;

    /// Makes a directory with one file in it: both, or neither.
    fn make_directory(&mut self, path: &Path, file: &str, bytes: &[u8], sync: bool) -> io::Result<()>;

    /// Removes a directory with everything in it; it is no error that there is none.
    fn remove_directory(&mut self, path: &Path) -> io::Result<()>;
}

/// The files of the operating system.
#[derive(Default)]
pub(super) struct SystemFiles {
    /// The files that were appended to, the one that was longest unused first.
    open: VecDeque<(PathBuf, File)>,
}

impl SystemFiles {
    fn forget(&mut self, path: &Path) {
        self.open.retain(|(open, _)| !open.starts_with(path));
    }

    /// The file, open to be appended to, and whether it was made.
    fn opened(&mut self, path: &Path) -> io::Result<(&mut File, bool)> {
        let known = self.open.iter().position(|(open, _)| open == path).and_then(|at| self.open.remove(at));
        let (entry, made) = match known {
            Some(entry) => (entry, false),
            None => {
                let made = !path.exists();
                ((path.to_owned(), OpenOptions::new().append(true).create(true).open(path)?), made)
            }
        };
        if self.open.len() >= OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back(entry);
        match self.open.back_mut() {
            Some((_, file)) => Ok((file, made)),
            None => Err(io::Error::other("the file that was just opened is gone")),
        }
    }
}

impl Files for SystemFiles {
    fn append(&mut self, path: &Path, bytes: &[u8]) -> io::Result<bool> {
        let (file, made) = self.opened(path)?;
        file.write_all(bytes)?;
        Ok(made)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        self.opened(path)?.0.sync_data()
    }

    fn sync_directory(&mut self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn replace(&mut self, path: &Path, bytes: &[u8], sync: bool) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        if sync {
            file.sync_data()?;
        }
        std::fs::rename(&temporary, path)?;
        // An open file would go on with the one that has no name any more.
        self.forget(path);
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.forget(path);
        absent_is_fine(std::fs::remove_file(path))
    }

    fn make_directory(&mut self, path: &Path, file: &str, bytes: &[u8], sync: bool) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        absent_is_fine(std::fs::remove_dir_all(&temporary))?;
        std::fs::create_dir(&temporary)?;
        let mut first = File::create(temporary.join(file))?;
        first.write_all(bytes)?;
        if sync {
            first.sync_all()?;
        }
        std::fs::rename(&temporary, path)
    }

    fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        self.forget(path);
        absent_is_fine(std::fs::remove_dir_all(path))
    }
}

fn absent_is_fine(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}
