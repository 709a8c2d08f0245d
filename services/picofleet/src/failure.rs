//! Failures that have an exit code of their own.

use std::fmt;

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
