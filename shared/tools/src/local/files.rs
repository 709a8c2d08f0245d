//! Reading and writing below open directory handles.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, fchown};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cap_std::ambient_authority;
use cap_std::fs::{Dir, File, Metadata, MetadataExt as _, OpenOptions, OpenOptionsExt as _, Permissions, PermissionsExt as _};
use picofleet_harness::tools::{EnvError, FileKind, FileStat, Unsuitable};
use uuid::Uuid;

/// A directory and its place.
pub(super) struct Root {
    /// Absolute and without symbolic links.
    path: PathBuf,
    dir: Dir,
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), dir: Dir::open_ambient_dir(path, ambient_authority())? })
    }

    /// The rest of an absolute path below this directory. Links on the way to the directory itself are followed; what lies below it is
    /// for the handle to judge.
    fn below(&self, path: &Path) -> Option<PathBuf> {
        if let Ok(rest) = path.strip_prefix(&self.path) {
            return Some(rest.to_owned());
        }
        path.ancestors().find_map(|above| {
            let same = above.canonicalize().is_ok_and(|real| real == self.path);
            same.then(|| path.strip_prefix(above).ok().map(Path::to_owned)).flatten()
        })
    }
}

/// The files of a workspace, and spilled output to read.
pub(super) struct Files {
    workspace: Root,
    spill: Root,
    user: Option<(u32, u32)>,
    /// Held from the comparison to the replacement, so that of two edits of one file none is lost.
    writing: Mutex<()>,
}

/// What a file keeps when its content is replaced.
struct Kept {
    mode: u32,
    owner: (u32, u32),
}

impl Files {
    pub(super) fn new(workspace: Root, spill: Root, user: Option<(u32, u32)>) -> Self {
        Self { workspace, spill, user, writing: Mutex::new(()) }
    }

    pub(super) fn stat(&self, path: &str) -> Result<FileStat, EnvError> {
        let (root, relative) = self.resolve(path, true)?;
        let (_, metadata) = within(root, &relative, |relative| root.dir.metadata(relative)).map_err(|error| told(path, &error))?;
        Ok(FileStat { kind: kind(&metadata), size: metadata.len() })
    }

    pub(super) fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>, EnvError> {
        let (root, relative) = self.resolve(path, true)?;
        read_below(root, &relative, path, limit)
    }

    pub(super) fn write(&self, path: &str, content: &[u8]) -> Result<(), EnvError> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.write_alone(path, content)
    }

    pub(super) fn replace(&self, path: &str, expected: &[u8], content: &[u8]) -> Result<bool, EnvError> {
        let _alone = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        match self.read(path, expected.len() as u64) {
            Ok(present) if present == expected => self.write_alone(path, content).map(|()| true),
            Ok(_) | Err(EnvError::NotFound { .. } | EnvError::Unsuitable { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn write_alone(&self, path: &str, content: &[u8]) -> Result<(), EnvError> {
        let (root, relative) = self.resolve(path, false)?;
        let relative = behind_link(root, relative, path)?;
        let fails = |error: io::Error| told(path, &error);
        let Some(Component::Normal(name)) = relative.components().next_back().filter(|_| !path.ends_with('/')) else {
            return Err(unsuitable(path, Unsuitable::Directory, "names a directory; give the path of a file"));
        };
        let parent = match relative.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            Some(parent) => within(root, parent, |parent| open_made(&root.dir, parent)).map_err(fails)?.1,
            None => root.dir.try_clone().map_err(fails)?,
        };
        let name = Path::new(name);
        let kept = kept(&parent, name, path)?;
        let temporary = PathBuf::from(format!(".picofleet-{}.tmp", Uuid::new_v4().simple()));
        let written = self.fill(&parent, &temporary, content, kept.as_ref());
        let done = written.and_then(|()| parent.rename(&temporary, &parent, name));
        done.map_err(|error| {
            // What is left of it is no use; the error that counts is the first.
            let _ = parent.remove_file(&temporary);
            fails(error)
        })
    }

    /// Makes the file that is about to take its place.
    fn fill(&self, parent: &Dir, temporary: &Path, content: &[u8], kept: Option<&Kept>) -> io::Result<()> {
        let mode = if kept.is_some() { 0o600 } else { 0o666 };
        let mut file = parent.open_with(temporary, OpenOptions::new().write(true).create_new(true).mode(mode))?;
        file.write_all(content)?;
        let std = file.into_std();
        let made = std.metadata()?;
        if let Some((user, group)) = kept.map(|kept| kept.owner).or(self.user).filter(|owner| *owner != (made.uid(), made.gid())) {
            // Only root may; for others the file becomes their own, as every editor does it.
            let _ = fchown(&std, Some(user), Some(group));
        }
        let file = File::from_std(std);
        kept.map_or(Ok(()), |kept| file.set_permissions(Permissions::from_mode(kept.mode)))
    }

    /// Which directory a path belongs to, and the rest of it.
    fn resolve(&self, path: &str, reading: bool) -> Result<(&Root, PathBuf), EnvError> {
        if path.is_empty() || path.contains('\0') {
            return Err(unsuitable(&format!("{path:?}"), Unsuitable::Other, "is no path"));
        }
        let given = Path::new(path);
        let roots = if reading { &[&self.workspace, &self.spill][..] } else { &[&self.workspace][..] };
        if given.is_relative() {
            return Ok((&self.workspace, given.to_owned()));
        }
        let found = roots.iter().find_map(|root| root.below(given).map(|rest| (*root, rest)));
        let (root, rest) = found.ok_or_else(|| EnvError::Outside { path: path.to_owned() })?;
        Ok((root, if rest.as_os_str().is_empty() { PathBuf::from(".") } else { rest }))
    }
}

fn read_below(root: &Root, relative: &Path, path: &str, limit: u64) -> Result<Vec<u8>, EnvError> {
    let fails = |error: io::Error| told(path, &error);
    // Opening a device can have effects, so look first; who exchanges it in between gets a handle that is looked at again.
    let (relative, metadata) = within(root, relative, |relative| root.dir.metadata(relative)).map_err(fails)?;
    regular(&metadata, path)?;
    let flags = (rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY).bits();
    let file = root.dir.open_with(&relative, OpenOptions::new().read(true).custom_flags(flags.cast_signed())).map_err(fails)?;
    let metadata = file.metadata().map_err(fails)?;
    regular(&metadata, path)?;
    let size = metadata.len();
    let mut content = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or(0));
    // It may grow meanwhile, and the size of a file of the kernel's says nothing.
    let read = if size > limit { size } else { file.take(limit + 1).read_to_end(&mut content).map_err(fails)? as u64 };
    if read > limit {
        return Err(unsuitable(path, Unsuitable::TooLarge, &format!("has {} bytes, more than {limit}", size.max(read))));
    }
    Ok(content)
}

/// Does `work` with a path. An absolute link may lead back inside: then it is resolved here and tried as a relative path, which the
/// handle judges again. Gives the path that worked.
fn within<T>(root: &Root, relative: &Path, mut work: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(PathBuf, T)> {
    match work(relative) {
        Ok(done) => Ok((relative.to_owned(), done)),
        Err(error) if escapes(&error) => {
            let inside = real(&root.path.join(relative)).and_then(|real| real.strip_prefix(&root.path).ok().map(Path::to_owned));
            let inside = inside.filter(|inside| !inside.as_os_str().is_empty() && inside != relative);
            let Some(inside) = inside else { return Err(error) };
            let done = work(&inside)?;
            Ok((inside, done))
        }
        Err(error) => Err(error),
    }
}

/// The path without links, as far as it exists.
fn real(path: &Path) -> Option<PathBuf> {
    let existing = path.ancestors().find_map(|above| above.canonicalize().ok().map(|real| (above, real)));
    let (above, real) = existing?;
    let rest = path.strip_prefix(above).ok()?;
    let plain = rest.components().all(|part| matches!(part, Component::Normal(_)));
    plain.then(|| if rest.as_os_str().is_empty() { real } else { real.join(rest) })
}

/// Where a write through a symbolic link goes: the link stays and its target is replaced.
fn behind_link(root: &Root, relative: PathBuf, path: &str) -> Result<PathBuf, EnvError> {
    match root.dir.symlink_metadata(&relative) {
        Ok(metadata) if metadata.is_symlink() => {
            let target = within(root, &relative, |relative| root.dir.canonicalize(relative));
            target.map(|(_, target)| target).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => unsuitable(path, Unsuitable::Other, "is a symbolic link to nothing"),
                _ => told(path, &error),
            })
        }
        _ => Ok(relative),
    }
}

fn open_made(dir: &Dir, path: &Path) -> io::Result<Dir> {
    match dir.open_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            dir.create_dir_all(path)?;
            dir.open_dir(path)
        }
        other => other,
    }
}

/// What the present file hands on; refuses what is no writable regular file.
fn kept(parent: &Dir, name: &Path, path: &str) -> Result<Option<Kept>, EnvError> {
    let metadata = match parent.symlink_metadata(name) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(told(path, &error)),
    };
    regular(&metadata, path)?;
    // Renaming needs no right on the file, so it is asked for here: a file that is write-protected stays as it is.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    parent.open_with(name, OpenOptions::new().write(true).custom_flags(flags)).map_err(|error| told(path, &error))?;
    Ok(Some(Kept { mode: metadata.mode() & 0o7777, owner: (metadata.uid(), metadata.gid()) }))
}

fn regular(metadata: &Metadata, path: &str) -> Result<(), EnvError> {
    match kind(metadata) {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(unsuitable(path, Unsuitable::Directory, "is a directory")),
        FileKind::Other => Err(unsuitable(path, Unsuitable::Other, "is no regular file: a device, a pipe or a socket")),
    }
}

fn kind(metadata: &Metadata) -> FileKind {
    if metadata.is_file() {
        FileKind::File
    } else if metadata.is_dir() {
        FileKind::Directory
    } else {
        FileKind::Other
    }
}

/// The handle says so without a code of the system; the system's own refusals have one.
fn escapes(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied && error.raw_os_error().is_none()
}

fn told(path: &str, error: &io::Error) -> EnvError {
    let path = path.to_owned();
    match error.kind() {
        _ if escapes(error) => EnvError::Outside { path },
        io::ErrorKind::NotFound => EnvError::NotFound { path },
        io::ErrorKind::NotADirectory => unsuitable(&path, Unsuitable::Other, "goes through something that is no directory"),
        _ => EnvError::Failed { path, why: error.to_string() },
    }
}

fn unsuitable(path: &str, kind: Unsuitable, why: &str) -> EnvError {
    EnvError::Unsuitable { path: path.to_owned(), kind, why: why.to_owned() }
}
