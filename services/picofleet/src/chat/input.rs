//! Lines as they are typed: with an editor and its history on a terminal, plain from a pipe.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::DefaultHistory;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Editor, Event, EventContext, EventHandler, KeyCode, KeyEvent, Modifiers, RepeatCount,
};
use tokio::sync::mpsc;

use super::history::{HISTORY_MAX, History};
use super::screen::{Screen, write};
use crate::failure::last_words;
use crate::terminal;

const PROMPT: &str = "> ";

/// A byte that a terminal sends for Esc is also how other keys begin: how long it is alone until it counts, in milliseconds.
const ESCAPE_MS: u16 = 50;

/// Ends the state in which a terminal marks what is pasted; the editor begins it with each line.
const NO_PASTE_MARKS: &str = "\x1b[?2004l";

/// What was typed.
#[derive(Debug)]
pub(super) enum Typed {
    /// A line.
    Line(String),
    /// Bytes that are no text. The line that they were in is gone.
    NoText,
    /// Esc.
    Escape,
    /// Ctrl-C, which a line editor gets as a key.
    Interrupt,
    /// Ctrl-D, or the end of the input.
    End,
    /// The input can't be read any more.
    Failed(String),
}

/// Where lines come from. The next one is read only when it is asked for, so that nothing reads the terminal when a chat ends.
pub(super) struct Input {
    typed: mpsc::Receiver<Typed>,
    wanted: std::sync::mpsc::SyncSender<()>,
    asked: bool,
    /// The terminal that an editor uses, and its state before that.
    screen: Option<(Screen, Termios)>,
}

impl Input {
    /// An editor where both ends are a terminal, else plain lines.
    pub(super) fn open() -> anyhow::Result<Self> {
        let (sender, typed) = mpsc::channel(1);
        let (wanted, asked) = std::sync::mpsc::sync_channel(1);
        let edits = io::stdin().is_terminal() && io::stdout().is_terminal();
        let screen = if edits {
            let before = tcgetattr(io::stdin()).context("read the state of the terminal")?;
            let mut lines = Lines::open()?;
            let screen = Screen::start(lines.editor.create_external_printer().context("share the terminal with the line editor")?)?;
            let edited = screen.clone();
            spawn(move || serve(&asked, &sender, || edited.edit(|| lines.read())))?;
            Some((screen, before))
        } else {
            spawn(move || serve(&asked, &sender, plain))?;
            None
        };
        Ok(Self { typed, wanted, asked: false, screen })
    }

    /// Whether somebody types it at a terminal.
    pub(super) const fn edits(&self) -> bool {
        self.screen.is_some()
    }

    /// What is typed next. Cancel-safe.
    pub(super) async fn next(&mut self) -> Typed {
        if !self.asked {
            // It has room for the one wish; a reader that is gone shows below.
            let _ = self.wanted.try_send(());
            self.asked = true;
        }
        if !self.edits() {
            // What happened before the next line of a pipe was read is shown before it, too.
            tokio::task::yield_now().await;
        }
        let typed = self.typed.recv().await;
        self.asked = false;
        typed.unwrap_or(Typed::End)
    }

    /// Prints whole lines, above what is being typed.
    pub(super) fn print(&self, text: &str) -> anyhow::Result<()> {
        match &self.screen {
            Some((screen, _)) => screen.print(text),
            None => write(text),
        }
    }

    /// Who prints, where that is not this thread.
    pub(super) fn screen(&self) -> Option<Screen> {
        self.screen.as_ref().map(|(screen, _)| screen.clone())
    }
}

impl Drop for Input {
    /// An editor that waits for a key has the terminal in a state of its own.
    fn drop(&mut self) {
        let Some((screen, before)) = &self.screen else { return };
        let (rest, editing) = screen.close();
        // Nothing can be done about a terminal that is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        let text = if editing { format!("{NO_PASTE_MARKS}\n{rest}") } else { rest };
        last_words(move || {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes()).and_then(|()| out.flush())
        });
    }
}

/// A thread of its own: reading blocks, and the process does not wait for it at its end.
fn spawn(serve: impl FnOnce() + Send + 'static) -> anyhow::Result<()> {
    std::thread::Builder::new().name("input".to_owned()).spawn(serve).context("start the thread that reads the input")?;
    Ok(())
}

fn serve(asked: &std::sync::mpsc::Receiver<()>, typed: &mpsc::Sender<Typed>, mut read: impl FnMut() -> Typed) {
    while asked.recv().is_ok() {
        if typed.blocking_send(read()).is_err() {
            break;
        }
    }
}

fn plain() -> Typed {
    let mut line = Vec::new();
    match io::stdin().lock().read_until(b'\n', &mut line) {
        Ok(0) => Typed::End,
        Ok(_) => String::from_utf8(line).map_or(Typed::NoText, Typed::Line),
        Err(error) => Typed::Failed(error.to_string()),
    }
}

/// The line editor.
struct Lines {
    editor: Editor<(), DefaultHistory>,
    escaped: Arc<AtomicBool>,
    history: Option<History>,
}

impl Lines {
    fn open() -> anyhow::Result<Self> {
        let config = Config::builder().max_history_size(HISTORY_MAX);
        let config = config.context("set the line editor up")?.keyseq_timeout(Some(ESCAPE_MS)).build();
        let mut editor = Editor::with_config(config).context("start the line editor")?;
        let escaped = Arc::new(AtomicBool::new(false));
        let escape = EventHandler::Conditional(Box::new(Escape(Arc::clone(&escaped))));
        editor.bind_sequence(KeyEvent(KeyCode::Esc, Modifiers::NONE), escape);
        let history = match History::open().transpose() {
            Ok(history) => history,
            Err(error) => {
                unkept(&error);
                None
            }
        };
        let history = history.map(|(history, lines)| {
            // A line like the one before is not kept twice.
            lines.iter().for_each(|line| drop(editor.add_history_entry(line)));
            history
        });
        Ok(Self { editor, escaped, history })
    }

    fn read(&mut self) -> Typed {
        match self.editor.readline(PROMPT) {
            Ok(line) => {
                self.remember(&line);
                Typed::Line(line)
            }
            Err(ReadlineError::Interrupted) if self.escaped.swap(false, Ordering::AcqRel) => Typed::Escape,
            Err(ReadlineError::Interrupted) => Typed::Interrupt,
            Err(ReadlineError::Eof) => Typed::End,
            Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => Typed::NoText,
            Err(error) => Typed::Failed(error.to_string()),
        }
    }

    /// Keeps a line, for this chat and the next ones.
    fn remember(&mut self, line: &str) {
        if line.trim().is_empty() || !self.editor.add_history_entry(line).unwrap_or(false) {
            return;
        }
        if let Some(history) = &mut self.history
            && let Err(error) = history.add(line)
        {
            unkept(&error);
            self.history = None;
        }
    }
}

fn unkept(error: &io::Error) {
    let _ = writeln!(io::stderr(), "{}", terminal::line(&format!("[what is typed is not kept for the next chat: {error}]")));
}

/// Esc ends the line as Ctrl-C does, and says that it was Esc.
struct Escape(Arc<AtomicBool>);

impl ConditionalEventHandler for Escape {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.store(true, Ordering::Release);
        Some(Cmd::Interrupt)
    }
}
