//! `picofleet run`: one prompt, shown as it is answered.

mod configure;
mod follow;
mod interrupts;
mod printer;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use clap::Args;
use picofleet_harness::effects::Services;
use picofleet_harness::registry::Registry;
use picofleet_session::SessionId;
use picofleet_session::storage::Store;

use crate::config::{Config, StoreUrl};
use crate::engine::Engine;
use crate::failure::Failure;
use crate::services::Fresh;
use interrupts::Interrupts;

/// What `picofleet run` takes.
#[derive(Args)]
pub(crate) struct RunArgs {
    /// What to say to the model; without it unfinished work of the session goes on
    prompt: Option<String>,
    /// The SQLite file, instead of the configured store
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// The session to go on with
    #[arg(long, conflicts_with = "latest")]
    session: Option<SessionId>,
    /// Go on with the newest session
    #[arg(long = "continue")]
    latest: bool,
    /// The model, as PROVIDER/MODEL
    #[arg(long)]
    model: Option<String>,
    /// The tools to offer, by name and with commas between; without it a new session offers all, and another one what it offered before
    #[arg(long, value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// The folder that the tools work in, instead of the configured one
    #[arg(long)]
    workspace: Option<PathBuf>,
}

impl RunArgs {
    /// Where sessions are: the file of the command line, or what is configured.
    fn url(&self, config: &Config) -> anyhow::Result<StoreUrl> {
        match &self.store {
            Some(file) => Ok(StoreUrl::Sqlite(file.clone())),
            None => config.storage.url.parse().map_err(|error: crate::config::StoreUrlError| Failure::configuration(error.into()).into()),
        }
    }
}

/// What a run works with.
struct Run<'a> {
    args: &'a RunArgs,
    url: StoreUrl,
    services: &'a Services,
    /// What a new conversation gets.
    fresh: Fresh,
}

pub(crate) async fn run(args: RunArgs, registry: Registry, config: &Config) -> anyhow::Result<()> {
    ensure!(
        args.prompt.is_some() || args.session.is_some() || args.latest,
        Failure::Usage("there is nothing to do: say something to the model, or name a session with --session or --continue".to_owned())
    );
    let url = args.url(config)?;
    let (opening, workspace) = (url.clone(), args.workspace.as_deref().unwrap_or(&config.tools.workspace));
    let store = tokio::task::spawn_blocking(move || opening.open()).await.context("open the store")??;
    let (services, fresh) = crate::services::services(registry, config, workspace).await?;
    // Until here Ctrl-C ends the process as it ends any other.
    let mut interrupts = Interrupts::listen()?;
    let result = with_engine(&store, Run { args: &args, url, services: &services, fresh }, &mut interrupts).await;
    if !left(&result) {
        store.close().await?;
    }
    result
}

async fn with_engine(store: &Arc<dyn Store>, run: Run<'_>, interrupts: &mut Interrupts) -> anyhow::Result<()> {
    let session = session::session(&**store, &run).await?;
    let engine = Engine::start(Arc::clone(store), run.services.clone());
    let result = follow::converse(&engine, session, &run, interrupts).await;
    if left(&result) {
        // As a killed process: whoever leaves does not wait for tools to end.
        return result;
    }
    tokio::select! {
        closed = engine.close() => closed?,
        () = interrupts.next() => return Err(run.leave(session, false)),
    }
    result
}

/// Whether nothing is to be waited for any more.
fn left(result: &anyhow::Result<()>) -> bool {
    result.as_ref().is_err_and(Failure::leaves)
}

impl Run<'_> {
    /// What is said to somebody who does not wait for the end.
    fn leave(&self, session: SessionId, aborted: bool) -> anyhow::Error {
        let store = self.args.store.as_ref().map(|file| format!(" --store {}", file.display())).unwrap_or_default();
        let what = if aborted { "the abort is completed" } else { "the work goes on" };
        let text = match self.url {
            StoreUrl::Sqlite(_) | StoreUrl::Jsonl(_) => format!("left; {what} with: picofleet run --session {session}{store}"),
            StoreUrl::Memory => "left; the work is gone, since its store was the memory of this process".to_owned(),
        };
        Failure::Left(text).into()
    }
}
