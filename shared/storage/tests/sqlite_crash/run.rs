//! One run of the child.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::child;

/// What the file layer does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    KillAfter,
    KillHalf,
    DiskFull,
    Failing,
    FailingOnce,
    /// The disk fails and then the process ends.
    FailingThenKilled,
    /// The disk is full and then the process ends.
    DiskFullThenKilled,
    /// A sync fails, and whatever comes after it; then the process ends.
    SyncThenKilled,
    /// One sync fails; then the process ends.
    SyncOnceThenKilled,
}

impl Fault {
    const fn word(self) -> &'static str {
        match self {
            Self::KillAfter => "kill-after",
            Self::KillHalf => "kill-half",
            Self::DiskFull | Self::DiskFullThenKilled => "enospc",
            Self::Failing | Self::FailingThenKilled | Self::SyncThenKilled => "eio",
            Self::FailingOnce | Self::SyncOnceThenKilled => "eio-once",
        }
    }

    /// Whether the child ends at the first failure.
    const fn ends(self) -> bool {
        matches!(self, Self::FailingThenKilled | Self::DiskFullThenKilled | Self::SyncThenKilled | Self::SyncOnceThenKilled)
    }

    /// Whether only syncs are chosen.
    const fn syncs(self) -> bool {
        matches!(self, Self::SyncThenKilled | Self::SyncOnceThenKilled)
    }
}

/// A run that is over.
pub(crate) struct Run {
    directory: TempDir,
    /// What the run was, for messages.
    pub(crate) name: String,
    /// What the child said.
    pub(crate) said: Vec<String>,
    pub(crate) killed: bool,
}

/// A directory in memory where there is one: syncs cost nothing there, and what is tested is what is written, not the disk.
pub(crate) fn directory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// The library beside this test, or one above.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let places = test.ancestors().skip(1).take(2).map(|folder| folder.join("libpicofleet_faultfs.so"));
    places.into_iter().find(|path| path.exists()).expect("the library of tests/faultfs is built with this test")
}

/// The test `child` of this file as a process.
pub(crate) fn command(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).stderr(Stdio::null()).stdin(Stdio::null());
    command
}

impl Run {
    /// Without a fault: counts the calls that the fault may meet.
    pub(crate) fn counting(fault: Fault, mode: &str) -> Self {
        Self::new("counting".to_owned(), |command| {
            command.env(child::MODE, mode);
            if fault.syncs() {
                command.env("FAULTFS_CALL", "fsync");
            }
        })
    }

    /// With a fault at a call. The mode is for how the child opens its store, where there are several.
    pub(crate) fn with(fault: Fault, at: usize, mode: &str) -> Self {
        Self::new(format!("{fault:?} at {at}, {mode}"), |command| {
            command.env(child::MODE, mode).env("FAULTFS_DO", fault.word()).env("FAULTFS_AT", at.to_string());
            if fault.ends() {
                command.env(child::EXIT, "1");
            }
            if fault.syncs() {
                command.env("FAULTFS_CALL", "fsync");
            }
        })
    }

    fn new(name: String, fault: impl FnOnce(&mut Command)) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        let directory = directory();
        let mut run = Self { directory, name, said: Vec::new(), killed: false };
        let mut command = command("child");
        command
            .env("LD_PRELOAD", library())
            .env("FAULTFS_MATCH", run.store())
            .env("FAULTFS_UNTIL", run.directory.path().join("until"))
            .env("FAULTFS_COUNT", run.directory.path().join("calls"))
            .env(child::STORE, run.store())
            .env(child::UNTIL, run.directory.path().join("until"));
        fault(&mut command);
        let output = command.output().unwrap();
        run.killed = matches!(output.status.signal(), Some(9 | 6));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(run.killed || output.status.success(), "{}: the child failed: {text}", run.name);
        let said = text.lines().filter_map(|line| line.split_once("child: ").map(|(_, said)| said.to_owned()));
        run.said = said.collect();
        run
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.directory.path().join(crate::STORE)
    }

    /// The counted calls.
    pub(crate) fn total(&self) -> usize {
        std::fs::read_to_string(self.directory.path().join("calls")).unwrap().lines().count()
    }
}
