//! Running a command.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use picofleet_harness::tools::{EnvError, ShellExit, ShellRequest};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

use super::LocalOptions;
use super::spill::{SpillDir, Spilled};
use super::tree::{self, Ended, Tree};

/// The most that is read at once; the size of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// What is still taken from the pipe when everything has ended. A pipe holds at most this for an ordinary user; a process that
/// escaped could print for ever.
const LAST_BYTES_MAX: usize = 1 << 20;

/// Why it is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over {
    Itself,
    Time,
    Cancelled,
}

pub(super) async fn run(
    options: &LocalOptions,
    spill: Arc<SpillDir>,
    request: ShellRequest,
    output: &mut (dyn FnMut(&[u8]) + Send),
    cancel: CancellationToken,
) -> Result<ShellExit, EnvError> {
    if cancel.is_cancelled() {
        return Err(EnvError::Cancelled);
    }
    let fails = |why: String| EnvError::Failed { path: "bash".to_owned(), why };
    let owned = options.clone();
    // When this future is dropped meanwhile, the tree is dropped where it was made, and so ended.
    let started = tokio::task::spawn_blocking(move || Tree::start(&request.command, &owned)).await;
    let (tree, reader) = flat(started).map_err(|error| fails(error.to_string()))?;
    let pipe = pipe::Receiver::from_owned_fd(OwnedFd::from(reader)).map_err(|error| fails(error.to_string()))?;
    let mut sink = Sink { pipe: Some(pipe), buffer: vec![0; CHUNK_BYTES], output, spilled: Spilled::new(spill) };
    let over = sink.until_over(&tree, request.timeout, &cancel).await;
    let grace = options.grace;
    let ending = tokio::task::spawn_blocking(move || tree.end(grace, over == Over::Itself));
    let ended = sink.until_ended(ending).await.map_err(|error| fails(error.to_string()))?;
    if over == Over::Cancelled {
        return Err(EnvError::Cancelled);
    }
    if let Err(error) = &ended.status {
        return Err(fails(error.to_string()));
    }
    let left = if over == Over::Itself { ended.left } else { 0 };
    let (code, signal) = (ended.code(), ended.signal());
    Ok(ShellExit { code, signal, timed_out: over == Over::Time, left, spill: sink.spilled.finish() })
}

fn flat<T>(joined: Result<io::Result<T>, JoinError>) -> io::Result<T> {
    joined.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// Where the output of a command comes from and goes to.
struct Sink<'a> {
    /// `None` once every writer is gone.
    pipe: Option<pipe::Receiver>,
    buffer: Vec<u8>,
    output: &'a mut (dyn FnMut(&[u8]) + Send),
    spilled: Spilled,
}

impl Sink<'_> {
    /// Hands output over until the shell ended or has to. The end of the output is not the end of the command.
    async fn until_over(&mut self, tree: &Tree, timeout: Option<Duration>, cancel: &CancellationToken) -> Over {
        let Some(leader) = tree.leader() else { return Over::Itself };
        let mut ended = tokio::task::spawn_blocking(move || tree::wait_ended(leader));
        let time = async {
            match timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(time);
        loop {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return Over::Cancelled,
                () = &mut time => return Over::Time,
                _ = &mut ended => return Over::Itself,
                length = self.next() => self.take(length).await,
            }
        }
    }

    /// Hands output over until everything has ended, and then what is still in the pipe.
    async fn until_ended(&mut self, mut ending: JoinHandle<Ended>) -> Result<Ended, JoinError> {
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut ending => break ended,
                length = self.next() => self.take(length).await,
            }
        };
        self.last().await;
        ended
    }

    /// Reads the next chunk into the buffer; waits for ever once there is none. Dropping it loses nothing.
    async fn next(&mut self) -> usize {
        while let Some(pipe) = &mut self.pipe {
            match pipe.read(&mut self.buffer).await {
                Ok(0) | Err(_) => self.pipe = None,
                Ok(length) => return length,
            }
        }
        std::future::pending().await
    }

    /// Reads past the runtime, which may not have heard yet that there is something to read.
    async fn last(&mut self) {
        let Some(Ok(pipe)) = self.pipe.take().map(pipe::Receiver::into_nonblocking_fd) else { return };
        let mut pipe = File::from(pipe);
        let mut taken = 0;
        while taken < LAST_BYTES_MAX {
            match pipe.read(&mut self.buffer) {
                Ok(0) => return,
                Ok(length) => {
                    taken += length;
                    self.take(length).await;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A process that escaped keeps it open.
                Err(_) => return,
            }
        }
    }

    async fn take(&mut self, length: usize) {
        let chunk = &self.buffer[..length];
        (self.output)(chunk);
        self.spilled.push(chunk).await;
    }
}
