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
mod glance;
mod import;
mod inspect;
mod limits;
mod log;
mod migrate;
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

use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use config::Loaded;
use failure::{Failure, USAGE};
use output::Format;
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
        Err(error) => return unparsed(&error),
    };
    let format = cli.output;
    // A chat has the screen, and the others say what they meet themselves.
    if matches!(cli.command, cli::Command::Run(_)) {
        log::show();
    }
    match limits::files().and_then(|()| dispatch(cli, registry)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let code = error.downcast_ref::<Failure>().map_or(1, Failure::code);
            let causes: Vec<String> = error.chain().skip(1).map(ToString::to_string).collect();
            failure::tell(format, &error.to_string(), &causes, code);
            ExitCode::from(code)
        }
    }
}

/// A command line that asks for what there is not, or for help or the version.
fn unparsed(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if output::asked(std::env::args_os().skip(1)) == Format::Json {
        let text = error.to_string();
        failure::tell(Format::Json, text.trim().trim_start_matches("error: "), &[], USAGE);
        return ExitCode::from(USAGE);
    }
    if error.print().is_ok() { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
}

fn dispatch(cli: cli::Cli, registry: impl FnOnce() -> anyhow::Result<Registry>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("start the threads of this process")?;
    let format = cli.output;
    let result = runtime.block_on(async {
        let loaded = || Loaded::read(cli.config.as_deref(), std::env::vars_os()).map_err(Failure::configuration);
        let configuration = || anyhow::Ok(loaded()?.config);
        let no_json = |what: &str| Failure::Usage(format!("{what} has no JSON output; leave out -o json, or see `picofleet run --json`"));
        match cli.command {
            cli::Command::Run(args) => run::run(args, registry()?, &configuration()?, format).await,
            cli::Command::Chat(_) if format == Format::Json => bail!(no_json("chat")),
            cli::Command::Demo if format == Format::Json => bail!(no_json("demo")),
            cli::Command::Chat(args) => chat::chat(args, registry()?, &configuration()?).await,
            cli::Command::Inspect(args) => {
                let config = args.store.look_config(configuration)?;
                inspect::inspect(args, &registry()?, &config, format).await
            }
            cli::Command::Doctor(args) => {
                let config = args.store.look_config(configuration)?;
                doctor::doctor(args, &config, format).await
            }
            cli::Command::Export(args) => {
                let config = args.store.look_config(configuration)?;
                export::export(args, &config, format).await
            }
            cli::Command::Backup(args) => {
                let config = args.store.look_config(configuration)?;
                backup::backup(args, &config, format).await
            }
            cli::Command::Migrate(args) => {
                let config = args.store.look_config(configuration)?;
                migrate::migrate(args, &config, format).await
            }
            cli::Command::Retry(args) => {
                let config = args.store.look_config(configuration)?;
                retry::retry(args, &config, format).await
            }
            cli::Command::Import(args) => import::import(args, &configuration()?, format).await,
            cli::Command::Config { command: cli::ConfigCommand::Check } => config::print::checked(&loaded()?, format),
            cli::Command::Config { command: cli::ConfigCommand::Show } => config::print::show(&loaded()?, format),
            cli::Command::Models { command: cli::ModelsCommand::List } => models::list(&configuration()?, format),
            cli::Command::Models { command: cli::ModelsCommand::Test { model } } => models::test(&configuration()?, &model, format).await,
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
