//! The `picofleet` program: every role is a subcommand of one binary (`design.md` 1).
//!
//! **Architecture invariants.** This crate puts the other ones together and decides nothing itself: no rule of a session, no SQL and no
//! wire format is written here.

mod cli;
mod demo;

/// The example of the README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;

/// Exit code of a wrong command line or configuration (EX_USAGE).
const USAGE: u8 = 64;

/// Runs the program: reads the command line, does what it says, and gives the exit code: 0 done, 1 failed, 64 wrong usage.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Also the way that help and the version take.
            let code = if error.use_stderr() { USAGE } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::FAILURE };
        }
    };
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("error: {error}\n");
            for cause in error.chain().skip(1) {
                text.push_str(&format!("  because: {cause}\n"));
            }
            // Nothing is left to do where even this can't be written.
            let _ = std::io::stderr().write_all(text.as_bytes());
            ExitCode::FAILURE
        }
    }
}

fn run(cli: cli::Cli) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match cli.command {
            cli::Command::Demo => demo::run().await,
            cli::Command::DemoWriter { store, session } => demo::writer::run(&store, session).await,
        }
    })
}
