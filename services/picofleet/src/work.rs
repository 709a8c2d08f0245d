//! What `run` and `chat` work with: a session of the configured store, models and tools, and what a new conversation gets.

mod configure;
mod interrupts;
mod session;
mod unfinished;
mod verdict;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;
use picofleet_harness::effects::Services;
use picofleet_harness::host::{Conversation, Harness};
use picofleet_harness::registry::Registry;
use picofleet_session::storage::Store;
use picofleet_session::{ConversationId, ROOT_CONVERSATION_ID, SessionId};

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;
use crate::services::Fresh;
use crate::stores::StoreArgs;

pub(crate) use configure::{configure, model, tools};
pub(crate) use interrupts::Interrupts;
pub(crate) use unfinished::{Unfinished, askable};
pub(crate) use verdict::{unanswered, verdict};

/// Which session, and how it works.
#[derive(Args)]
pub(crate) struct Target {
    #[command(flatten)]
    store: StoreArgs,
    /// The session to go on with
    #[arg(long, conflicts_with = "latest")]
    pub(crate) session: Option<SessionId>,
    /// Go on with the session that was used last
    #[arg(long = "continue")]
    pub(crate) latest: bool,
    /// The conversation of that session, such as a fork; without it the one that the session began with
    #[arg(long, value_name = "ID", value_parser = conversation)]
    pub(crate) conversation: Option<ConversationId>,
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
        let url = target.store.url(config)?;
        let (services, fresh) = crate::services::services(registry, config);
        // Before anything is made for what can't be.
        let named = target.model.as_deref().map(|name| model(name, &services)).transpose()?;
        target.tools.iter().try_for_each(|names| tools(names, &services).map(drop))?;
        if target.session.is_none() && !target.latest {
            let Some(first) = named.as_ref().or(fresh.model.as_ref()) else { bail!(configure::no_model()) };
            fresh.usable(first)?;
        } else if !url.exists() {
            // It would be made, to find nothing in it.
            bail!(session::none(&target, &url));
        }
        let workspace = target.workspace.as_deref().unwrap_or(&config.tools.workspace);
        let store = url.open(config.storage.fsync).await?;
        let services = crate::services::in_workspace(services, config, workspace).await?;
        Ok(Self { target, url, store, services, fresh })
    }

    /// The session that the command line names, or a new one.
    pub(crate) async fn session(&self) -> anyhow::Result<SessionId> {
        session::session(&*self.store, &self.target, &self.url).await
    }

    /// Whether the session is a new one.
    pub(crate) const fn begins(&self) -> bool {
        self.target.session.is_none() && !self.target.latest
    }

    /// What the conversation of a session left when it was used last. Nothing is opened for that.
    pub(crate) async fn unfinished(&self, session: SessionId) -> anyhow::Result<Unfinished> {
        if self.begins() {
            return Ok(Unfinished::default());
        }
        unfinished::read(self, session).await
    }

    /// The conversation that the command line names, or that the session began with.
    pub(crate) async fn conversation(&self, harness: &Harness) -> anyhow::Result<Conversation> {
        match self.target.conversation.filter(|id| *id != ROOT_CONVERSATION_ID) {
            None => Ok(harness.root().await?),
            Some(id) => harness.conversation(id).await?.ok_or_else(|| {
                let session = harness.session();
                let text =
                    format!("there is no conversation {id} in session {session}; `picofleet inspect {session}` shows those that are there");
                Failure::Usage(text).into()
            }),
        }
    }

    /// Closes the store behind what was done, unless nothing is to be waited for. What went wrong first is what is said.
    pub(crate) async fn close(self, done: anyhow::Result<()>) -> anyhow::Result<()> {
        if left(&done) {
            return done;
        }
        let closed = self.store.close().await.map_err(Into::into);
        done.and(closed)
    }

    /// How a conversation is gone on with, by a command.
    pub(crate) fn again(&self, command: &str, session: SessionId, conversation: ConversationId) -> String {
        let conversation = if conversation == ROOT_CONVERSATION_ID { String::new() } else { format!(" --conversation {conversation}") };
        let store = self.target.store.given().map(|store| format!(" --store {}", quoted(store))).unwrap_or_default();
        format!("picofleet {command} --session {session}{conversation}{store}")
    }

    /// What is said to somebody who does not wait for the end; `None` where no conversation was reached yet.
    pub(crate) fn leave(&self, command: &str, session: SessionId, conversation: Option<ConversationId>, how: Leaving) -> anyhow::Error {
        let Leaving { aborted, code } = how;
        let conversation = conversation.or(self.target.conversation).unwrap_or(ROOT_CONVERSATION_ID);
        let what = if aborted { "the abort is completed" } else { "the work goes on" };
        let text = match self.url {
            StoreUrl::Sqlite(_) | StoreUrl::Jsonl(_) | StoreUrl::Postgres(_) => {
                format!("left; {what} with: {}", self.again(command, session, conversation))
            }
            StoreUrl::Memory => "left; the work is gone, since its store was the memory of this process".to_owned(),
        };
        Failure::Left { text, code }.into()
    }
}

/// Reads the id of a conversation.
fn conversation(text: &str) -> Result<ConversationId, String> {
    let number: i64 = text.parse().map_err(|_| "it is the number of a conversation".to_owned())?;
    ConversationId::new(number).map_err(|error| error.to_string())
}

/// How somebody leaves.
pub(crate) struct Leaving {
    /// An abort is stored.
    pub(crate) aborted: bool,
    /// The exit code.
    pub(crate) code: u8,
}

/// A word of a command line, as a shell reads it.
fn quoted(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | ':' | '_' | '-' | '+' | ',' | '=' | '@' | '%');
    if !word.is_empty() && word.chars().all(plain) { word.into() } else { format!("'{}'", word.replace('\'', "'\\''")).into() }
}

/// Whether nothing is to be waited for any more.
pub(crate) fn left(result: &anyhow::Result<()>) -> bool {
    result.as_ref().is_err_and(Failure::leaves)
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_reads_back_what_was_quoted() {
        for (word, shown) in [
            ("a/b-1.db", "a/b-1.db"),
            ("jsonl:dir", "jsonl:dir"),
            ("my db", "'my db'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(word), shown);
        }
    }
}
