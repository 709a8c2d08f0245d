//! A folder of its own in which the program runs, with an environment of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};
use tokio::sync::RwLock;

/// Fails a test that waits for what does not come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every start of `run` ends commands that killed processes left. Tests that leave some hold this alone, others that run share it.
pub(crate) static RUNS: RwLock<()> = RwLock::const_new(());

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what} did not come"))
}

pub(crate) struct Place {
    folder: TempDir,
    variables: Vec<(OsString, OsString)>,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    /// Both outputs, if it ended as it should.
    #[track_caller]
    pub(crate) fn with(self, code: i32) -> String {
        assert_eq!(self.code, Some(code), "{self:?}");
        format!("{}{}", self.out, self.err)
    }
}

impl Ended {
    /// Waits for the end of a process.
    pub(crate) async fn of(mut child: Child) -> Self {
        Self::behind(&mut child, Vec::new(), Vec::new()).await
    }

    /// The same of one whose output was read up to here.
    async fn behind(child: &mut Child, mut printed: Vec<u8>, mut errors: Vec<u8>) -> Self {
        let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let read = async { tokio::join!(out.read_to_end(&mut printed), err.read_to_end(&mut errors), child.wait()) };
        let (_, _, status) = soon("the end of the program", read).await;
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: status.unwrap().code(), out: text(printed), err: text(errors) }
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), variables: Vec::new() }
    }

    /// A place whose default model plays a script, with a store and a workspace of its own.
    pub(crate) fn scripted(script: &str) -> Self {
        let place = Self::new();
        place.write("script.toml", script);
        place.write(
            "picofleet.toml",
            "[providers.s]\napi = \"scripted\"\nscript = \"script.toml\"\n\
             [[providers.s.models]]\nid = \"m\"\ncontext_window = 100000\nmax_tokens = 1000\n[defaults]\nmodel = \"s/m\"\n",
        );
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    pub(crate) fn set(&mut self, variable: &str, value: impl Into<OsString>) {
        self.variables.push((variable.into(), value.into()));
    }

    /// The program with these arguments. It has no variables but these, and nothing to read.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_picofleet"));
        command.args(arguments).current_dir(self.folder.path()).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap()).env("TMPDIR", self.folder.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end().await
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::of(self.command(arguments).spawn().unwrap())
    }
}

/// The program at work.
pub(crate) struct Running {
    child: Child,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Running {
    pub(crate) const fn of(child: Child) -> Self {
        Self { child, out: Vec::new(), err: Vec::new() }
    }

    /// Waits until it has printed a text; whether it did before it ended.
    pub(crate) async fn shows(&mut self, text: &str) -> bool {
        while !String::from_utf8_lossy(&self.out).contains(text) {
            let read = soon(text, self.child.stdout.as_mut().unwrap().read_buf(&mut self.out)).await.unwrap();
            if read == 0 {
                return false;
            }
        }
        true
    }

    /// Waits until it has printed a text; gives all of its standard output so far.
    pub(crate) async fn until(&mut self, text: &str) -> String {
        loop {
            let shown = String::from_utf8_lossy(&self.out).into_owned();
            if shown.contains(text) {
                return shown;
            }
            let read = soon(text, self.child.stdout.as_mut().unwrap().read_buf(&mut self.out)).await.unwrap();
            assert!(read > 0, "it ended without {text:?}: {shown}");
        }
    }

    /// The same of its remarks.
    pub(crate) async fn until_remark(&mut self, text: &str) {
        while !String::from_utf8_lossy(&self.err).contains(text) {
            let read = soon(text, self.child.stderr.as_mut().unwrap().read_buf(&mut self.err)).await.unwrap();
            assert!(read > 0, "it ended without {text:?}: {}", String::from_utf8_lossy(&self.err));
        }
    }

    pub(crate) fn send(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) async fn end(self) -> Ended {
        let Self { mut child, out, err } = self;
        Ended::behind(&mut child, out, err).await
    }

    /// Kills it with SIGKILL.
    pub(crate) async fn kill(mut self) {
        soon("the end of a killed program", self.child.kill()).await.unwrap();
    }
}

/// Whether a process runs. One that nobody waited for does not.
pub(crate) fn alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !matches!(rest.trim_start().chars().next(), Some('Z' | 'X'))))
}
