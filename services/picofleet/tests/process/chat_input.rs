//! What comes to a chat that is no text, and what ends one that nobody looks at.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::Stdio;

use rustix::process::Signal;

use crate::chat::{SCRIPT, piped};
use crate::place::{Place, RUNS, soon};
use crate::terminal::{Terminal, send, terminal};

const NO_TEXT: &str = "that line is no UTF-8 text and was not said";

#[tokio::test]
async fn bytes_that_are_no_text_end_no_chat() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    let text = piped(&place, &[], b"hel\xfflo\nhello\n\xe9").await.with(0);
    let (before, behind) = text.split_once(NO_TEXT).unwrap();
    assert!(!before.contains("first answer") && behind.contains("first answer"), "{text}");
    assert!(behind.contains(NO_TEXT) && behind.contains("go on with: picofleet chat"), "{text}");

    let mut chat = Terminal::open(&place, &[]);
    chat.until("> ").await;
    chat.press(b"\xff");
    chat.until(NO_TEXT).await;
    chat.until("> ").await;
    chat.press("hello\r");
    chat.until("first answer").await;
    chat.press("\x04");
    assert_eq!(chat.end().await, Some(0));
}

/// Writes to a terminal until it takes nothing more.
fn fill(terminal: &impl std::os::fd::AsRawFd) {
    let path = format!("/proc/self/fd/{}", terminal.as_raw_fd());
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut writes = OpenOptions::new().write(true).custom_flags(flags).open(path).unwrap();
    loop {
        match writes.write(&[b'.'; 64]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn signals_end_a_chat_whose_terminal_nobody_reads() {
    let _runs = RUNS.read().await;
    let place = Place::scripted(SCRIPT);
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let (shows, written) = terminal();
        let mut command = place.command(&["chat"]);
        let ends = || Stdio::from(written.try_clone().unwrap());
        command.stdin(ends()).stdout(ends()).stderr(ends()).env("TERM", "xterm");
        let mut child = command.spawn().unwrap();
        let mut shows = File::from(shows);
        let prompt = tokio::task::spawn_blocking(move || {
            let (mut shown, mut bytes) = (Vec::new(), [0; 1024]);
            while !String::from_utf8_lossy(&shown).contains("> ") {
                let count = shows.read(&mut bytes).unwrap();
                shown.extend_from_slice(&bytes[..count]);
            }
            shows
        });
        // It stays open, and from here on nobody reads it.
        let _shows = soon("the prompt", prompt).await.unwrap();
        fill(&written);
        send(&child, signal);
        let status = soon("the end of the chat", child.wait()).await.unwrap();
        assert_eq!(status.code(), Some(code));
    }
}
