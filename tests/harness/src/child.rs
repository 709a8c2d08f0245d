//! Running a test of the same binary as a child, to kill it as a crash does.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use picofleet_session::storage::{SessionCreate, SessionQuery, Store as _};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use std::sync::Arc;
use tempfile::TempDir;

use crate::{Backing, Kit, Wire};

/// The directory of the store; only a child has it.
const DIRECTORY: &str = "PICOFLEET_TEST_DIRECTORY";
/// What a line of a child begins with that its parent reads.
const PREFIX: &str = "child: ";

/// A child that runs one test of this binary.
pub struct Process {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Process {
    /// Starts the test with this whole name as a child, on a store in `directory`.
    pub fn spawn(entry: &str, directory: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", entry, "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// Waits until the child says this.
    pub fn expect(&mut self, word: &str) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "the child ended before it said {word:?}");
            // The harness of tests may print its own text in front of it.
            if line.trim_end().ends_with(&format!("{PREFIX}{word}")) {
                return;
            }
        }
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The directory, in a child; `None` in the ordinary run of the tests, where the entry returns at once.
pub fn directory() -> Option<PathBuf> {
    std::env::var_os(DIRECTORY).map(PathBuf::from)
}

/// Says a word to the parent.
#[allow(clippy::print_stdout, reason = "the parent reads it")]
pub fn say(word: &str) {
    println!("{PREFIX}{word}");
}

impl Kit {
    /// A started kit over the store in a directory: with its one session, or a new one.
    pub async fn in_directory(directory: &Path, keep: Option<TempDir>) -> Self {
        let mut kit = Self::at_rest(directory, keep).await;
        kit.start();
        kit
    }

    /// [`Kit::in_directory`] that has not started.
    pub async fn at_rest(directory: &Path, keep: Option<TempDir>) -> Self {
        let store = SqliteStore::open(directory.join("store.db"), SqliteOptions::default()).unwrap();
        let found = store.sessions(SessionQuery::default(), 1, None).await.unwrap().items.pop();
        let session = match found {
            Some(session) => session.id,
            None => store.create(SessionCreate::new(picofleet_session::Millis(0))).await.unwrap().session.id,
        };
        Self::over((Backing::Sqlite, Arc::new(store), keep), session, Wire::Encoded)
    }
}
