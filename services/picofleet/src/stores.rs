//! Which store a command works on, and how it is opened.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use picofleet_session::SessionId;
use picofleet_session::storage::{Head, PAGE_MAX, SessionQuery, SessionRecord, StorageError, Store};

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;

/// The store of a command.
#[derive(Args)]
pub(crate) struct StoreArgs {
    /// The store, instead of the configured one: a SQLite file, or a URL such as jsonl:DIR. Put the URL of a database with a password
    /// into PICOFLEET_STORAGE__URL: others see command lines
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

    /// The configuration of a command that only looks at a store: where the command line names that, nothing of it is needed, and what is
    /// wrong in it keeps nobody from looking.
    pub(crate) fn look_config(&self, configured: impl FnOnce() -> anyhow::Result<Config>) -> anyhow::Result<Config> {
        if self.store.is_some() { Ok(Config::default()) } else { configured() }
    }

    /// Opens it to be looked at: nothing is written, and whoever uses it is not disturbed.
    pub(crate) async fn look(&self, config: &Config) -> anyhow::Result<(StoreUrl, Arc<dyn Store>)> {
        let url = self.url(config)?;
        let store = url.look().await?;
        Ok((url, store))
    }
}

/// Whether a text begins as a URL of a store does, or of anything else.
fn named(text: &str) -> bool {
    text.split_once(':').is_some_and(|(scheme, rest)| {
        let known = matches!(scheme, "sqlite" | "jsonl" | "memory" | "postgres" | "postgresql");
        let other = rest.starts_with("//") && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        known || other
    })
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

/// A session and its newest commit.
pub(crate) struct Used {
    pub(crate) record: SessionRecord,
    pub(crate) head: Head,
}

/// What there is in a store: sessions, the one that was used last first, and those that can't be read.
pub(crate) struct Sessions {
    pub(crate) whole: Vec<Used>,
    pub(crate) damaged: Vec<Damaged>,
}

/// A session that can't be read.
pub(crate) struct Damaged {
    pub(crate) id: SessionId,
    /// What is wrong and what to do.
    pub(crate) why: String,
}

impl Damaged {
    fn new(url: &StoreUrl, id: SessionId, why: &str) -> Self {
        // Only JSON lines have files of a session, that can be taken away without the others.
        let away = match url {
            StoreUrl::Jsonl(folder) => {
                format!("; without a copy, move {} away, and the other sessions are as they were", folder.join(id.to_string()).display())
            }
            _ => String::new(),
        };
        Self { id, why: format!("session {id} is damaged: {why}{away}") }
    }
}

/// All sessions of a store.
pub(crate) async fn sessions(store: &dyn Store, url: &StoreUrl) -> Result<Sessions, StorageError> {
    let mut found = Sessions { whole: Vec::new(), damaged: Vec::new() };
    if matches!(url, StoreUrl::Jsonl(_)) {
        // Lists leave out what can't be read. On other stores this would look at every page of a file.
        let files = store.examine().await?.into_iter().filter(|finding| finding.rule == "files");
        found.damaged.extend(files.filter_map(|finding| Some(Damaged::new(url, finding.session?, &finding.what))));
    }
    let mut cursor = None;
    loop {
        let page = store.sessions(SessionQuery::default(), PAGE_MAX, cursor).await?;
        for record in page.items {
            match head(store, record.id).await {
                Ok(head) => found.whole.push(Used { record, head }),
                // It was deleted meanwhile.
                Err(StorageError::NotFound { .. }) => {}
                Err(StorageError::Corrupt(corruption)) => found.damaged.push(Damaged::new(url, record.id, &corruption.to_string())),
                Err(error) => return Err(error),
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    found.whole.sort_by_key(|used| std::cmp::Reverse((used.head.at, used.record.id)));
    Ok(found)
}

async fn head(store: &dyn Store, id: SessionId) -> Result<Head, StorageError> {
    store.reader(id).await?.head().await
}
