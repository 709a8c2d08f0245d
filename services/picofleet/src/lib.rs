//! The `picofleet` program: every role is a subcommand of one binary.
//!
//! **Architecture invariants.** This crate puts the other ones together and decides nothing itself: no rule of a session, no SQL and no
//! wire format is written here, but for the rules that `doctor` checks a second time.

mod backup;
mod chat;
mod cli;
pub mod config;
mod demo;
mod doctor;
mod engine;
mod export;
mod failure;
mod import;
mod inspect;
mod log;
mod models;
mod output;
mod retry;
mod run;
mod services;
mod stores;
mod terminal;
mod tool_output;
mod transcript;
mod work;

pub use engine::Engine;
pub use services::{scripted, scripted_model, standard};
pub use transcript::transcript_line;

/// The example of the README, so that it compiles.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use config::Loaded;
use failure::{Failure, USAGE};
use picofleet_harness::registry::Registry;

/// Runs the program with what an application registers (tools, tasks, hooks, setups; [`standard`] for none of its own): reads the command
/// line, does what it says, and gives the exit code: 0 done, 1 failed, 64 wrong usage, 130 ended by Ctrl-C. An application's binary is
/// `fn main() -> ExitCode { picofleet::main(my_registry) }` and has every subcommand.
#[must_use]
pub fn main(registry: impl FnOnce() -> anyhow::Result<Registry>) -> ExitCode {
    // Before anything can make a client: with two providers built in, rustls panics when it has to choose. It fails only where the
    // application has chosen already, and that stands.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Also the way that help and the version take.
            let code = if error.use_stderr() { USAGE } else { 0 };
            return if error.print().is_ok() { ExitCode::from(code) } else { ExitCode::FAILURE };
        }
    };
    // A chat has the screen, and the others say what they meet themselves.
    if matches!(cli.command, cli::Command::Run(_)) {
        log::show();
    }
    match dispatch(cli, registry) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("error: {error}\n");
            for cause in error.chain().skip(1) {
                text.push_str(&format!("  because: {cause}\n"));
            }
            // Errors repeat what servers say. Nothing is left to do where even this can't be written.
            let _ = std::io::stderr().write_all(terminal::text(&text).as_bytes());
            error.downcast_ref::<Failure>().map_or(ExitCode::FAILURE, |failure| ExitCode::from(failure.code()))
        }
    }
}

fn dispatch(cli: cli::Cli, registry: impl FnOnce() -> anyhow::Result<Registry>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let configuration = || Loaded::read(cli.config.as_deref(), std::env::vars_os()).map_err(Failure::configuration);
        match cli.command {
            cli::Command::Run(args) => run::run(args, registry()?, &configuration()?.config).await,
            cli::Command::Chat(args) => chat::chat(args, registry()?, &configuration()?.config).await,
            cli::Command::Inspect(args) => inspect::inspect(args, &registry()?, &configuration()?.config).await,
            cli::Command::Doctor(args) => doctor::doctor(args, &configuration()?.config).await,
            cli::Command::Export(args) => export::export(args, &configuration()?.config).await,
            cli::Command::Import(args) => import::import(args, &configuration()?.config).await,
            cli::Command::Backup(args) => backup::backup(args, &configuration()?.config).await,
            cli::Command::Retry(args) => retry::retry(args, &configuration()?.config).await,
            cli::Command::Config { command: cli::ConfigCommand::Check(args) } => config::print::checked(&configuration()?, args.output),
            cli::Command::Config { command: cli::ConfigCommand::Show(args) } => config::print::show(&configuration()?.config, args.output),
            cli::Command::Models { command: cli::ModelsCommand::List(args) } => models::list(&configuration()?.config, args.output),
            cli::Command::Models { command: cli::ModelsCommand::Test { model, output } } => {
                models::test(&configuration()?.config, &model, output.output).await
            }
            cli::Command::Demo => demo::run().await,
            cli::Command::DemoTurn { store, log, session } => demo::turn::worker(&store, session, &log).await,
            cli::Command::DemoWriter { store, session } => demo::writer::run(&store, session).await,
        }
    });
    if result.as_ref().is_err_and(Failure::leaves) {
        // Otherwise the runtime waits for threads that wait for files and processes.
        runtime.shutdown_background();
    }
    result
}
