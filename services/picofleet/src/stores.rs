//! Which store a command works on, and how it is opened.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use picofleet_session::SessionId;
use picofleet_session::storage::{SessionRecord, Store};

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;

/// The store of a command.
#[derive(Args)]
pub(crate) struct StoreArgs {
    /// The store, instead of the configured one: a SQLite file, or a URL such as jsonl:DIR
    #[arg(long, value_name = "FILE|URL")]
    store: Option<String>,
}

impl StoreArgs {
    /// What the command line names.
    pub(crate) fn given(&self) -> Option<&str> {
        self.store.as_deref()
    }

    /// What the command line names, or what is configured.
    pub(crate) fn url(&self, config: &Config) -> anyhow::Result<StoreUrl> {
        match &self.store {
            Some(store) if named(store) => {
                store.parse().map_err(|error: crate::config::StoreUrlError| Failure::configuration(error.into()).into())
            }
            Some(file) => Ok(StoreUrl::Sqlite(PathBuf::from(file))),
            None => config.storage.url.parse().map_err(|error: crate::config::StoreUrlError| Failure::configuration(error.into()).into()),
        }
    }

    /// Opens it to be looked at: nothing is written, and whoever uses it is not disturbed.
    pub(crate) async fn look(&self, config: &Config) -> anyhow::Result<(StoreUrl, Arc<dyn Store>)> {
        let url = self.url(config)?;
        let opening = url.clone();
        let store = tokio::task::spawn_blocking(move || opening.look()).await.context("open the store")??;
        Ok((url, store))
    }
}

/// Whether a text begins as a URL of a store does.
fn named(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, _)| matches!(scheme, "sqlite" | "jsonl" | "memory" | "postgres" | "postgresql"))
}

/// A session of a store.
pub(crate) async fn session(store: &dyn Store, url: &StoreUrl, id: SessionId) -> anyhow::Result<SessionRecord> {
    match store.session(id).await? {
        Some(session) => Ok(session),
        None => Err(no_session(url, id)),
    }
}

/// What is said of a session that is not there.
pub(crate) fn no_session(url: &StoreUrl, id: SessionId) -> anyhow::Error {
    Failure::Usage(format!("there is no session {id} in {url}; `picofleet inspect` lists those that are there")).into()
}
