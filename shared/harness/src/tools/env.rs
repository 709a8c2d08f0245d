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
    /// It was killed because its time was over.
    pub timed_out: bool,
    /// Where its complete output is, where that was too much to be kept.
    pub spill: Option<String>,
}

/// Processes.
pub trait Shell: Send + Sync + 'static {
    /// Runs a command and hands its output over as it comes. Cancellation kills everything that it started.
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
