//! What is printed above the line that is being typed.

use std::io::{self, Write as _};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use rustyline::ExternalPrinter;
use tokio::sync::Notify;

/// How much text waits until no more of it is wanted, in bytes.
const WAITING_MAX: usize = 64 * 1024;

/// A text that shows nothing: up one line, and down again. The editor has room for one text that it did not look at yet, so that this one is
/// taken only when it has looked at the one before, which may otherwise be lost with its last line.
const NOTHING: &str = "\x1b[A\n";

/// A terminal that a line editor uses, too. Handing text to the editor waits for it to look, and between two lines it does not look: so
/// that is done by a thread of its own, and never by who asks for the next line.
#[derive(Clone)]
pub(super) struct Screen(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    room: Notify,
}

#[derive(Default)]
struct State {
    /// What was not handed to the editor yet.
    waiting: String,
    /// What is being handed to it.
    handed: String,
    /// The editor waits for keys.
    editing: bool,
    /// Nothing is handed to the editor any more.
    closed: bool,
    failed: Option<String>,
}

impl Screen {
    /// Starts the thread that hands text to an editor.
    pub(super) fn start(printer: impl ExternalPrinter + Send + 'static) -> anyhow::Result<Self> {
        let shared = Shared { state: Mutex::default(), changed: Condvar::new(), room: Notify::new() };
        let screen = Self(Arc::new(shared));
        let shared = Arc::clone(&screen.0);
        let thread = std::thread::Builder::new().name("screen".to_owned());
        thread.spawn(move || shared.serve(printer)).context("start the thread that writes to the terminal")?;
        Ok(screen)
    }

    /// Prints text behind what was printed before.
    pub(super) fn print(&self, text: &str) -> anyhow::Result<()> {
        let mut state = self.0.lock();
        if let Some(why) = &state.failed {
            anyhow::bail!("write to the terminal: {why}");
        }
        state.waiting.push_str(text);
        self.0.changed.notify_all();
        Ok(())
    }

    /// Whether so much waits that no more is to come.
    pub(super) fn full(&self) -> bool {
        self.0.lock().waiting.len() >= WAITING_MAX
    }

    /// Waits until it is not full. Cancel-safe.
    pub(super) async fn room(&self) {
        loop {
            let room = self.0.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if !self.full() {
                return;
            }
            room.await;
        }
    }

    /// Runs the editor.
    pub(super) fn edit<T>(&self, read: impl FnOnce() -> T) -> T {
        self.editing(true);
        let read = read();
        self.editing(false);
        read
    }

    fn editing(&self, editing: bool) {
        self.0.lock().editing = editing;
        self.0.changed.notify_all();
    }

    /// Ends the printing. Gives what was not printed, and whether the editor still waits for keys.
    pub(super) fn close(&self) -> (String, bool) {
        let mut state = self.0.lock();
        state.closed = true;
        self.0.changed.notify_all();
        // What was handed over is shown by an editor that still runs, and by nobody after its last line.
        let mut rest = if state.editing { String::new() } else { std::mem::take(&mut state.handed) };
        rest.push_str(&std::mem::take(&mut state.waiting));
        (rest, state.editing)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut printer: impl ExternalPrinter) {
        while let Some(text) = self.next() {
            let printed = printer.print(text).and_then(|()| printer.print(NOTHING.to_owned()));
            let mut state = self.lock();
            state.handed.clear();
            if let Err(error) = printed {
                state.failed = Some(error.to_string());
                return;
            }
        }
    }

    /// What is to be handed over next, while the editor runs: between two lines it would be written past what the editor did not show yet.
    fn next(&self) -> Option<String> {
        let idle = |state: &mut State| !state.closed && (!state.editing || state.waiting.is_empty());
        let mut state = self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let text = std::mem::take(&mut state.waiting);
        state.handed.clone_from(&text);
        self.room.notify_waiters();
        Some(text)
    }
}

/// Writes text where no editor runs.
pub(super) fn write(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("write to standard output")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// An editor that takes one text and then no other until it is looked at.
    struct Editor(mpsc::SyncSender<String>);

    impl ExternalPrinter for Editor {
        fn print(&mut self, text: String) -> rustyline::Result<()> {
            if text == NOTHING {
                return Ok(());
            }
            self.0.send(text).map_err(|_| io::Error::other("nobody looks").into())
        }
    }

    #[test]
    fn text_waits_for_the_editor_and_keeps_its_order() {
        let (sender, shown) = mpsc::sync_channel(0);
        let screen = Screen::start(Editor(sender)).unwrap();
        screen.print("one\n").unwrap();
        screen.print("two\n").unwrap();
        assert!(shown.try_recv().is_err(), "nothing is handed over between two lines");
        let first = screen.edit(|| shown.recv().unwrap());
        assert_eq!(first, "one\ntwo\n");
        screen.print("three\n").unwrap();
        assert_eq!(screen.edit(|| shown.recv().unwrap()), "three\n");
    }

    #[test]
    fn an_editor_that_does_not_look_stops_nobody_and_loses_nothing() {
        let (sender, shown) = mpsc::sync_channel(0);
        let screen = Screen::start(Editor(sender)).unwrap();
        screen.edit(|| {
            screen.print("one\n").unwrap();
            while screen.0.lock().handed.is_empty() {
                std::thread::yield_now();
            }
        });
        screen.print("two\n").unwrap();
        assert_eq!(screen.close(), ("one\ntwo\n".to_owned(), false));
        drop(shown);
    }

    /// What the editor has room for and did not look at is not lost when it does not run again.
    #[test]
    fn a_text_that_the_editor_did_not_look_at_is_not_lost() {
        /// An editor with room for one text, as the real one has, that tells when it is handed one.
        struct Roomy(mpsc::SyncSender<String>, mpsc::SyncSender<()>);

        impl ExternalPrinter for Roomy {
            fn print(&mut self, text: String) -> rustyline::Result<()> {
                let _ = self.1.send(());
                self.0.send(text).map_err(|_| io::Error::other("nobody looks").into())
            }
        }

        let (sender, shown) = mpsc::sync_channel(1);
        let (handed, begun) = mpsc::sync_channel(8);
        let screen = Screen::start(Roomy(sender, handed)).unwrap();
        screen.edit(|| {
            screen.print("one\n").unwrap();
            // The second text waits for the first to be looked at, which does not happen before the line ends.
            for _ in 0..2 {
                begun.recv_timeout(std::time::Duration::from_secs(60)).expect("another text is handed over");
            }
        });
        assert_eq!(screen.close(), ("one\n".to_owned(), false));
        drop(shown);
    }

    #[tokio::test]
    async fn too_much_text_waits_for_room() {
        let (sender, shown) = mpsc::sync_channel(0);
        let screen = Screen::start(Editor(sender)).unwrap();
        screen.print(&"x".repeat(WAITING_MAX)).unwrap();
        assert!(screen.full());
        let other = screen.clone();
        let edited = std::thread::spawn(move || other.edit(|| shown.recv().unwrap().len()));
        screen.room().await;
        assert!(!screen.full());
        assert_eq!(edited.join().unwrap(), WAITING_MAX);
    }
}
