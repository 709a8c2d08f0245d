//! The command line. Doc comments are the help.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use picofleet_session::SessionId;

/// A durable agent harness that runs as a fleet.
#[derive(Parser)]
#[command(name = "picofleet", version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what Picofleet promises: kill a writer in the middle of its commits and find exactly what it was told was stored
    Demo,
    /// The writer that `demo` kills
    #[command(hide = true)]
    DemoWriter {
        /// The SQLite file
        store: PathBuf,
        /// The session to write
        session: SessionId,
    },
}
