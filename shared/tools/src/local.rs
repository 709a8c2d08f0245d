//! Files and processes of one workspace directory.
//!
//! **Files.** A path is relative to the workspace, or absolute and inside. It is resolved below an open handle of the workspace, by
//! the kernel in one step where it can (`openat2`) and component by component elsewhere, so that a symbolic link that is exchanged
//! during the call leads nowhere else. What is not covered: a directory that is moved out of the workspace while a file in it is
//! written takes that file along; a hard link is a file of the workspace like any other (writing gives it a content of its own).
//!
//! **Processes.** A command runs in its own session without a terminal. To its tree belongs, on Linux, what is in its session or
//! process group, what descends from a process of the tree, and what carries its mark in its environment, also after it left the group
//! or session. A process escapes if it does all of this: leaves the session, is orphaned before anybody looked, and starts another
//! program with a cleared environment; so does one that the user may not signal. Elsewhere the tree is the process group alone.
//! When the process that hosts this environment is itself killed, running commands stay; [`LocalEnv::end_orphans`] ends them later.

mod files;
mod shell;
mod spill;
mod tree;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use picofleet_harness::tools::{EnvError, FileStat, FileSystem, Shell, ShellExit, ShellRequest};
use tokio_util::sync::CancellationToken;

use files::Files;
use spill::SpillDir;

/// The variables that a command gets from the environment of this process; also every `LC_*`. Keys of providers are none of them.
pub const VARIABLES: [&str; 8] = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "SHELL", "TZ"];

/// How long the processes of a command may take to end after SIGTERM, before they are killed.
pub const GRACE: Duration = Duration::from_secs(2);

/// What a [`LocalEnv`] works with.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// The directory of the files; commands start there. It is made.
    pub workspace: PathBuf,
    /// Where complete output goes. It is made; files in it are readable through the environment. Not shared with anything else: the
    /// oldest files are removed.
    pub spill: PathBuf,
    /// The whole environment of commands.
    pub variables: BTreeMap<OsString, OsString>,
    /// The user and group id of commands and new files, where this process may choose. Without, its own.
    pub user: Option<(u32, u32)>,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
}

impl LocalOptions {
    /// A workspace and a place for complete output, with the allowed variables of this process and its own user.
    #[must_use]
    pub fn new(workspace: impl Into<PathBuf>, spill: impl Into<PathBuf>) -> Self {
        let variables = std::env::vars_os().filter(|(name, _)| allowed(name)).collect();
        Self { workspace: workspace.into(), spill: spill.into(), variables, user: None, grace: GRACE }
    }
}

fn allowed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| VARIABLES.contains(&name) || name.starts_with("LC_"))
}

/// A directory of the environment can't be used.
#[derive(Debug, thiserror::Error)]
#[error("open {}: make it a directory that this user may write to", path.display())]
pub struct OpenError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Files and processes of one workspace directory. A cheap clone.
#[derive(Clone)]
pub struct LocalEnv(Arc<Inner>);

struct Inner {
    files: Files,
    spill: Arc<SpillDir>,
    options: LocalOptions,
}

impl LocalEnv {
    /// Opens the workspace; makes it and the place for complete output. It blocks: call it at start-up.
    ///
    /// # Errors
    /// [`OpenError`] names the directory.
    pub fn open(mut options: LocalOptions) -> Result<Self, OpenError> {
        let make = |path: &Path| {
            let made = std::fs::create_dir_all(path).and_then(|()| path.canonicalize());
            made.map_err(|source| OpenError { path: path.to_owned(), source })
        };
        options.workspace = make(&options.workspace)?;
        options.spill = make(&options.spill)?;
        let open = |path: &Path| files::Root::open(path).map_err(|source| OpenError { path: path.to_owned(), source });
        let files = Files::new(open(&options.workspace)?, open(&options.spill)?, options.user);
        let spill = SpillDir::new(options.spill.clone(), options.user);
        Ok(Self(Arc::new(Inner { files, spill: Arc::new(spill), options })))
    }

    /// The workspace, absolute and without symbolic links.
    #[must_use]
    pub fn workspace(&self) -> &Path {
        &self.0.options.workspace
    }

    /// Ends what commands left behind whose host was killed, whichever environment of this machine started them; says how many
    /// processes that were. It blocks for some milliseconds: call it at start-up. Linux only; elsewhere it finds none.
    pub fn end_orphans() -> usize {
        tree::end_orphans()
    }

    /// Keeps processes of the same user from reading the memory and the environment of this process, where keys of providers are:
    /// without it a command reads `/proc/$PPID/environ`. Root may still. It ends core dumps, too. Call it at start-up; it stays for good.
    /// Where the system has no such thing it does nothing.
    ///
    /// # Errors
    /// What the system says.
    pub fn hide_host() -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?;
        Ok(())
    }

    async fn blocking<T: Send + 'static>(
        &self,
        path: &str,
        work: impl FnOnce(&Files) -> Result<T, EnvError> + Send + 'static,
    ) -> Result<T, EnvError> {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner.files)).await;
        done.unwrap_or_else(|error| Err(EnvError::Failed { path: path.to_owned(), why: format!("the file operation broke off: {error}") }))
    }
}

impl FileSystem for LocalEnv {
    fn stat<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<FileStat, EnvError>> {
        let owned = path.to_owned();
        Box::pin(self.blocking(path, move |files| files.stat(&owned)))
    }

    fn read<'a>(&'a self, path: &'a str, limit: u64) -> BoxFuture<'a, Result<Vec<u8>, EnvError>> {
        let owned = path.to_owned();
        Box::pin(self.blocking(path, move |files| files.read(&owned, limit)))
    }

    fn write<'a>(&'a self, path: &'a str, content: &'a [u8]) -> BoxFuture<'a, Result<(), EnvError>> {
        let (owned, content) = (path.to_owned(), content.to_vec());
        Box::pin(self.blocking(path, move |files| files.write(&owned, &content)))
    }

    fn replace<'a>(&'a self, path: &'a str, expected: &'a [u8], content: &'a [u8]) -> BoxFuture<'a, Result<bool, EnvError>> {
        let (owned, expected, content) = (path.to_owned(), expected.to_vec(), content.to_vec());
        Box::pin(self.blocking(path, move |files| files.replace(&owned, &expected, &content)))
    }
}

impl Shell for LocalEnv {
    fn run<'a>(
        &'a self,
        request: ShellRequest,
        output: &'a mut (dyn FnMut(&[u8]) + Send),
        cancel: CancellationToken,
    ) -> BoxFuture<'a, Result<ShellExit, EnvError>> {
        Box::pin(shell::run(&self.0.options, Arc::clone(&self.0.spill), request, output, cancel))
    }
}
