//! The command line. Doc comments are the help.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use picofleet_session::SessionId;

use crate::run::RunArgs;

/// A durable agent harness that runs as a fleet.
#[derive(Parser)]
#[command(name = "picofleet", version)]
pub(crate) struct Cli {
    /// The configuration file; `picofleet.toml` is read where it is there
    #[arg(long, global = true, env = "PICOFLEET_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
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
    /// Print the configuration with its defaults and overrides; secrets are hidden
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
