//! What a terminal gets.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{ControlModes, InputModes, LocalModes, OutputModes, tcgetattr};
use tokio::process::Child;

use crate::place::{Place, RUNS, soon};

const THINKS: &str = r#"
[[turns]]
[[turns.blocks]]
type = "thinking"
chunks = ["a thought"]
[[turns.blocks]]
type = "toolCall"
name = "bash"
arguments = { command = "echo some-output" }
[[turns]]
blocks = [{ type = "text", chunks = ["an answer"] }]
"#;

/// A terminal: what shows it, and what a program writes to.
pub(crate) fn terminal() -> (OwnedFd, OwnedFd) {
    let shows = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&shows).unwrap();
    unlockpt(&shows).unwrap();
    let name = ptsname(&shows, Vec::new()).unwrap();
    let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
    // Opening one may make it the controlling terminal, though not for a process that leads no session.
    let written = OpenOptions::new().read(true).write(true).open(path).unwrap();
    (shows, written.into())
}

/// What a terminal shows of a run.
async fn shown(place: &Place) -> String {
    let (shows, written) = terminal();
    let mut command = place.command(&["run", "hi"]);
    command.stdout(Stdio::from(written));
    let mut child = command.spawn().unwrap();
    // The test's own end, or the terminal would never be closed.
    drop(command);
    let read = tokio::task::spawn_blocking(move || {
        let (mut shows, mut bytes) = (std::fs::File::from(shows), Vec::new());
        // The end is an error when the last program closes a terminal.
        let _ = shows.read_to_end(&mut bytes);
        String::from_utf8(bytes).unwrap()
    });
    let (text, status) = soon("the end of the run", async { tokio::join!(read, child.wait()) }).await;
    assert!(status.unwrap().success());
    text.unwrap()
}

/// A chat at a terminal.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    pub(crate) keys: File,
    /// How the terminal was before.
    pub(crate) before: Modes,
    shown: tokio::sync::mpsc::Receiver<String>,
    text: String,
}

impl Terminal {
    pub(crate) fn open(place: &Place, arguments: &[&str]) -> Self {
        let (shows, written) = terminal();
        let before = modes(&shows);
        let mut command = place.command(&[&["chat"], arguments].concat());
        let ends = || Stdio::from(written.try_clone().unwrap());
        command.stdin(ends()).stdout(ends()).stderr(ends()).env("TERM", "xterm");
        let child = command.spawn().unwrap();
        // The test's own ends, or the terminal would never be closed.
        drop((command, written));
        let (sender, shown) = tokio::sync::mpsc::channel(1_024);
        let keys = File::from(shows);
        let mut reads = keys.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end is an error when the last program closes a terminal.
            while let Ok(count @ 1..) = reads.read(&mut bytes) {
                if sender.blocking_send(String::from_utf8_lossy(&bytes[..count]).into_owned()).is_err() {
                    break;
                }
            }
        });
        Self { child, keys, before, shown, text: String::new() }
    }

    /// Waits until a text is shown, and forgets what came up to it.
    pub(crate) async fn until(&mut self, wanted: &str) {
        loop {
            if let Some((_, rest)) = self.text.split_once(wanted) {
                self.text = rest.to_owned();
                return;
            }
            match soon(wanted, self.shown.recv()).await {
                Some(more) => self.text.push_str(&more),
                None => panic!("it ended without {wanted:?}: {:?}", self.text),
            }
        }
    }

    pub(crate) fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.keys.write_all(keys.as_ref()).unwrap();
    }

    /// Waits for its end, which leaves the terminal as it was.
    pub(crate) async fn end(mut self) -> Option<i32> {
        let code = soon("the end of the chat", self.child.wait()).await.unwrap().code();
        assert_eq!(modes(&self.keys), self.before);
        code
    }
}

pub(crate) fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
}

pub(crate) type Modes = (InputModes, OutputModes, ControlModes, LocalModes);

/// How a terminal treats what is typed and shown.
pub(crate) fn modes(terminal: impl AsFd) -> Modes {
    let now = tcgetattr(terminal).unwrap();
    (now.input_modes, now.output_modes, now.control_modes, now.local_modes)
}

#[tokio::test]
async fn thinking_and_output_are_dim_on_a_terminal() {
    let _runs = RUNS.read().await;
    let text = shown(&Place::scripted(THINKS)).await;
    assert!(text.contains("\x1b[2ma thought\x1b[0m"), "{text:?}");
    assert!(text.contains("\x1b[2msome-output\r\n\x1b[0m"), "{text:?}");
    assert!(text.contains("\x1b[1mbash\x1b[0m"), "{text:?}");
    assert!(text.contains("\x1b[0man answer\r\n"), "{text:?}");
}

#[tokio::test]
async fn no_color_and_pipes_get_plain_text() {
    let _runs = RUNS.read().await;
    let mut place = Place::scripted(THINKS);
    let piped = place.run(&["run", "hi"]).await.with(0);
    assert!(piped.contains("a thought\n* bash") && !piped.contains('\x1b'), "{piped:?}");
    place.set("NO_COLOR", "1");
    let plain = shown(&place).await;
    assert!(plain.contains("a thought") && !plain.contains('\x1b'), "{plain:?}");
}
