//! The command line. Doc comments are the help.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use picofleet_session::SessionId;

use crate::backup::BackupArgs;
use crate::chat::ChatArgs;
use crate::doctor::DoctorArgs;
use crate::export::ExportArgs;
use crate::import::ImportArgs;
use crate::inspect::InspectArgs;
use crate::migrate::MigrateArgs;
use crate::output::Format;
use crate::retry::RetryArgs;
use crate::run::RunArgs;

/// A durable agent harness that runs as a fleet.
#[derive(Parser)]
#[command(name = "picofleet", version)]
pub(crate) struct Cli {
    /// The configuration file; `picofleet.toml` is read where it is there
    #[arg(long, global = true, env = "PICOFLEET_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How to print data and errors
    #[arg(short, long, global = true, value_enum, default_value_t)]
    pub(crate) output: Format,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Say whether the configuration is valid, and what is wrong with it
    ///
    /// It looks at the configuration alone, and not at whether variables are set, files are there or servers answer: `models list` shows
    /// missing keys, files and scripts, and `models test` asks a server
    Check,
    /// Print the configuration with its overrides, and with the defaults of what is not set, marked as such; secrets are hidden
    Show,
}

#[derive(Subcommand)]
pub(crate) enum ModelsCommand {
    /// List the configured models, and the providers that can't be used for want of a key, a file or a script
    List,
    /// Ask a model for a streamed answer, a tool call and an error, and say what worked
    Test {
        /// The model, as PROVIDER/MODEL
        model: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Show what Picofleet promises: kill a writer in the middle of its commits, and a worker inside its tools, and find everything in order
    Demo,
    /// Say something to a model and show how it is answered; the work survives a killed process
    Run(RunArgs),
    /// Talk with a model: a line editor, commands, and what is typed while it works steers it
    ///
    /// What is typed is kept for the next chat in $XDG_STATE_HOME/picofleet/chat-history, or ~/.local/state/picofleet/chat-history
    Chat(ChatArgs),
    /// Show the sessions of a store, the conversations and tasks of one, one record, or why a task waits; it only reads
    Inspect(InspectArgs),
    /// Check whether what is stored can be true, and say what to do where it can't; it only reads
    ///
    /// The exit code is 0 where nothing is wrong and 1 where something is
    Doctor(DoctorArgs),
    /// Write a session as JSON lines, as of one commit, also while it is in use
    Export(ExportArgs),
    /// Make a session of exported JSON lines: all of it, or nothing
    Import(ImportArgs),
    /// Copy a whole SQLite store to a new file, as of one commit, also while it is in use
    Backup(BackupArgs),
    /// Make a PostgreSQL database ready, or bring it up to this version; any number of processes may do it at once
    Migrate(MigrateArgs),
    /// Let a quarantined session be opened again, once what ended its processes is gone
    Retry(RetryArgs),
    /// Look at the configuration
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// List the configured models, or try one
    Models {
        #[command(subcommand)]
        command: ModelsCommand,
    },
    /// The worker that `demo` kills inside its tools
    #[command(hide = true)]
    DemoTurn {
        /// The SQLite file
        store: PathBuf,
        /// Where the tools write down that they run
        log: PathBuf,
        /// The session
        session: SessionId,
    },
    /// The writer that `demo` kills
    #[command(hide = true)]
    DemoWriter {
        /// The SQLite file
        store: PathBuf,
        /// The session to write
        session: SessionId,
    },
}
