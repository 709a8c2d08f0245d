//! The files and processes that a tool may reach: chosen per call, never captured at registration (section 7.3).

use std::time::Duration;

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

/// Why a file or process could not be used. The text is for the model and names the path.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// There is nothing at the path.
    #[error("{path} does not exist")]
    NotFound {
        /// The path.
        path: String,
    },
    /// The path leaves the workspace.
    #[error("{path} is outside the workspace")]
    Outside {
        /// The path.
        path: String,
    },
    /// The path is no regular file where one is needed, and the like.
    #[error("{path} {why}")]
    Unsuitable {
        /// The path.
        path: String,
        /// What is wrong, for who can do something about it.
        kind: Unsuitable,
        /// What is wrong.
        why: String,
    },
    /// The system refused.
    #[error("{path}: {why}")]
    Failed {
        /// The path or the command.
        path: String,
        /// What the system says.
        why: String,
    },
    /// The call was cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// In what way a path is unsuitable.
#[non_exhaustive]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unsuitable {
    /// It is a directory.
    Directory,
    /// The file is larger than the caller's limit.
    TooLarge,
    /// Anything else.
    Other,
}

/// What a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// Anything else: a device, a pipe, a socket.
    Other,
}

/// What is known of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileStat {
    /// What it names.
    pub kind: FileKind,
    /// Its size in bytes.
    pub size: u64,
}

/// Files of one workspace. Paths are relative to it, or absolute and inside.
pub trait FileSystem: Send + Sync + 'static {
    /// What a path names.
    fn stat<'a>(&'a self, path: &'a str) -> BoxFuture<'a, Result<FileStat, EnvError>>;

    /// The bytes of a regular file, at most `limit`; a larger one is [`EnvError::Unsuitable`].
    fn read<'a>(&'a self, path: &'a str, limit: u64) -> BoxFuture<'a, Result<Vec<u8>, EnvError>>;

    /// Replaces a file whole or not at all; makes its directories.
    fn write<'a>(&'a self, path: &'a str, content: &'a [u8]) -> BoxFuture<'a, Result<(), EnvError>>;

    /// Like [`FileSystem::write`], if the file still has the bytes `expected`; says whether it had them.
    ///
    /// An environment makes this one step for all that write through it. This default is two steps.
    fn replace<'a>(&'a self, path: &'a str, expected: &'a [u8], content: &'a [u8]) -> BoxFuture<'a, Result<bool, EnvError>> {
        Box::pin(async move {
            match self.read(path, expected.len() as u64).await {
                Ok(present) if present == expected => self.write(path, content).await.map(|()| true),
                Ok(_) | Err(EnvError::NotFound { .. } | EnvError::Unsuitable { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }
}

/// A command to run.
#[derive(Clone, Debug)]
pub struct ShellRequest {
    /// The command line, for `bash -c`.
    pub command: String,
    /// When it is killed, with everything that it started.
    pub timeout: Option<Duration>,
}

/// How a command ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShellExit {
    /// Its exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// How many processes that it had started were still there when it ended by itself, and were killed.
    pub left: usize,
    /// Its complete output, where that was too much to be kept.
    pub spill: Option<Spill>,
}

/// A file with the output of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spill {
    /// Where it is; the environment's own `read` takes this path.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// It has everything; `false` where the environment's limit or the disk cut it.
    pub complete: bool,
}

/// Processes.
pub trait Shell: Send + Sync + 'static {
    /// Runs a command and hands its output over as it comes, both streams in the order in which they come.
    ///
    /// Everything that it started ends with it: when it ended by itself, when its time is over, when it is cancelled, which gives
    /// [`EnvError::Cancelled`], and when this future is dropped.
    fn run<'a>(
        &'a self,
        request: ShellRequest,
        output: &'a mut (dyn FnMut(&[u8]) + Send),
        cancel: CancellationToken,
    ) -> BoxFuture<'a, Result<ShellExit, EnvError>>;
}

/// Files and processes.
pub trait ExecutionEnv: FileSystem + Shell {}

impl<T: FileSystem + Shell> ExecutionEnv for T {}
