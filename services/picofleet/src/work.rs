//! What `run` and `chat` work with: a session of the configured store, models and tools, and what a new conversation gets.

mod configure;
mod interrupts;
mod session;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use picofleet_harness::effects::Services;
use picofleet_harness::registry::Registry;
use picofleet_session::SessionId;
use picofleet_session::storage::Store;

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;
use crate::services::Fresh;

pub(crate) use configure::{configure, model, tools};
pub(crate) use interrupts::Interrupts;

/// Which session, and how it works.
#[derive(Args)]
pub(crate) struct Target {
    /// The SQLite file, instead of the configured store
    #[arg(long, value_name = "FILE")]
    pub(crate) store: Option<PathBuf>,
    /// The session to go on with
    #[arg(long, conflicts_with = "latest")]
    pub(crate) session: Option<SessionId>,
    /// Go on with the newest session
    #[arg(long = "continue")]
    pub(crate) latest: bool,
    /// The model, as PROVIDER/MODEL
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The tools to offer, by name and with commas between; without it a new session offers all, and another one what it offered before
    #[arg(long, value_delimiter = ',')]
    pub(crate) tools: Option<Vec<String>>,
    /// The folder that the tools work in, instead of the configured one
    #[arg(long)]
    pub(crate) workspace: Option<PathBuf>,
}

impl Target {
    /// Where sessions are: the file of the command line, or what is configured.
    fn url(&self, config: &Config) -> anyhow::Result<StoreUrl> {
        match &self.store {
            Some(file) => Ok(StoreUrl::Sqlite(file.clone())),
            None => config.storage.url.parse().map_err(|error: crate::config::StoreUrlError| Failure::configuration(error.into()).into()),
        }
    }
}

/// An open store with what its sessions work with.
pub(crate) struct Work {
    pub(crate) target: Target,
    pub(crate) url: StoreUrl,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) services: Services,
    /// What a new conversation gets.
    pub(crate) fresh: Fresh,
}

impl Work {
    pub(crate) async fn open(target: Target, registry: Registry, config: &Config) -> anyhow::Result<Self> {
        let url = target.url(config)?;
        let (opening, fsync, workspace) =
            (url.clone(), config.storage.fsync, target.workspace.as_deref().unwrap_or(&config.tools.workspace));
        let store = tokio::task::spawn_blocking(move || opening.open(fsync)).await.context("open the store")??;
        let (services, fresh) = crate::services::services(registry, config, workspace).await?;
        // Before a session is made for what can't be.
        target.model.iter().try_for_each(|name| model(name, &services).map(drop))?;
        target.tools.iter().try_for_each(|names| tools(names, &services).map(drop))?;
        Ok(Self { target, url, store, services, fresh })
    }

    /// The session that the command line names, or a new one.
    pub(crate) async fn session(&self) -> anyhow::Result<SessionId> {
        session::session(&*self.store, &self.target, &self.url).await
    }

    /// How a session is gone on with, by a command.
    pub(crate) fn again(&self, command: &str, session: SessionId) -> String {
        let store = self.target.store.as_ref().map(|file| format!(" --store {}", file.display())).unwrap_or_default();
        format!("picofleet {command} --session {session}{store}")
    }

    /// What is said to somebody who does not wait for the end.
    pub(crate) fn leave(&self, command: &str, session: SessionId, aborted: bool) -> anyhow::Error {
        let what = if aborted { "the abort is completed" } else { "the work goes on" };
        let text = match self.url {
            StoreUrl::Sqlite(_) | StoreUrl::Jsonl(_) => format!("left; {what} with: {}", self.again(command, session)),
            StoreUrl::Memory => "left; the work is gone, since its store was the memory of this process".to_owned(),
        };
        Failure::Left(text).into()
    }
}

/// Whether nothing is to be waited for any more.
pub(crate) fn left(result: &anyhow::Result<()>) -> bool {
    result.as_ref().is_err_and(Failure::leaves)
}
