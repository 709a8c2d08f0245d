//! Failures that have an exit code of their own, and how failures are told.

use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use picofleet_session::Json;
use serde::Serialize;

use crate::output::Format;
use crate::terminal;

/// Exit code of a wrong command line (EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// Exit code of what Ctrl-C ended, as shells give it: 128 and the number of SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;
/// The same of SIGHUP.
pub(crate) const HUNG_UP: u8 = 129;
/// The same of SIGTERM.
pub(crate) const TERMINATED: u8 = 143;

/// A failure that is no error of the program. Its text says what to do.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line names what there is not, or the configuration is wrong.
    Usage(String),
    /// Ctrl-C ended it.
    Interrupted(String),
    /// A second Ctrl-C, or a signal that ends programs: the process ends at once and waits for nothing.
    Left {
        /// What is left, and how it goes on.
        text: String,
        /// The exit code.
        code: u8,
    },
}

impl Failure {
    /// A configuration that can't be used, with all its causes.
    pub(crate) fn configuration(error: anyhow::Error) -> Self {
        let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
        Self::Usage(causes.join("\n  because: "))
    }

    /// The exit code.
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::Interrupted(_) => INTERRUPTED,
            Self::Left { code, .. } => *code,
        }
    }

    /// Whether an error asks to end at once.
    pub(crate) fn leaves(error: &anyhow::Error) -> bool {
        matches!(error.downcast_ref(), Some(Self::Left { .. }))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Interrupted(text) | Self::Left { text, .. } => to.write_str(text),
        }
    }
}

impl std::error::Error for Failure {}

/// How long is waited for a terminal that nobody reads to take the last words of a process.
const LAST_WORDS_MAX: Duration = Duration::from_secs(2);

/// A failure as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    error: &'a str,
    causes: &'a [String],
    exit_code: u8,
}

/// Says on standard error why the process fails.
pub(crate) fn tell(format: Format, error: &str, causes: &[String], exit_code: u8) {
    let json = (format == Format::Json).then(|| Json::from_serde_envelope(&Told { error, causes, exit_code }).ok()).flatten();
    let text = match json {
        Some(json) => format!("{}\n", terminal::json(&json.to_string())),
        None => {
            let causes: Vec<String> = causes.iter().map(|cause| format!("  because: {cause}\n")).collect();
            // Errors repeat what servers say.
            terminal::text(&format!("error: {error}\n{}", causes.concat()))
        }
    };
    last_words(move || std::io::stderr().write_all(text.as_bytes()));
}

/// Writes what comes last, for a bounded time: a terminal that nobody reads takes nothing more, and the process ends all the same.
pub(crate) fn last_words(write: impl FnOnce() -> std::io::Result<()> + Send + 'static) {
    let (over, ended) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("last-words".to_owned());
    // Nothing is left to do where this can't be written.
    let started = thread.spawn(move || {
        let _ = write();
        let _ = over.send(());
    });
    if started.is_ok() {
        let _ = ended.recv_timeout(LAST_WORDS_MAX);
    }
}
