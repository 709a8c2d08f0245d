//! What a terminal gets.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

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
