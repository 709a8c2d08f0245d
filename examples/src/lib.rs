//! What the examples share: a command line, a session in a SQLite file on an embedded engine, and lines for people.
//!
//! `embedding` does all of this itself; read it first.

pub mod subagents;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use picofleet::{Engine, transcript_line};
use picofleet_harness::config::ConfigPatch;
use picofleet_harness::effects::Services;
use picofleet_harness::host::{Conversation, EntryRange, Harness};
use picofleet_harness::registry::Registry;
use picofleet_models::scripted::Script;
use picofleet_session::storage::{SessionQuery, Store};
use picofleet_storage::sqlite::{SqliteOptions, SqliteStore};
use tempfile::TempDir;

/// The most entries that [`show`] looks at.
const SHOWN_MAX: u32 = 1_000;

/// What an example is started with.
#[derive(clap::Parser)]
pub struct Args {
    /// Where the session is kept; a folder that an earlier run used is gone on with, and without one nothing is kept
    folder: Option<PathBuf>,
    /// A point of the program at which it stops for ever, so that you can kill it there
    #[arg(long, value_name = "POINT")]
    hold: Option<String>,
}

/// Where an example works.
pub struct Place {
    folder: PathBuf,
    hold: Option<String>,
    /// Goes with its folder.
    _temporary: Option<TempDir>,
}

impl Place {
    /// What the command line says; a folder that goes with the example where it says none. `points` are those at which it can hold.
    ///
    /// # Errors
    /// That it is to hold at another one; that no folder can be made.
    pub fn of_arguments(points: &[&str]) -> anyhow::Result<Self> {
        let Args { folder, hold } = Args::parse();
        if let Some(hold) = hold.as_deref().filter(|hold| !points.contains(hold)) {
            let known = if points.is_empty() { "no point".to_owned() } else { points.join(", ") };
            bail!("there is no point {hold:?}; this example holds at: {known}");
        }
        let (folder, temporary) = match folder {
            Some(folder) => (folder, None),
            None => {
                let temporary = tempfile::tempdir().context("make a folder for the example")?;
                (temporary.path().to_owned(), Some(temporary))
            }
        };
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { folder, hold, _temporary: temporary })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the command line asks to stop here.
    #[must_use]
    pub fn holds(&self, point: &str) -> bool {
        self.hold.as_deref() == Some(point)
    }
}

/// Says that a point was reached, and stops for ever: kill it here.
pub async fn hold(point: impl Display) {
    say(format_args!("holding at: {point}"));
    std::future::pending().await
}

/// A session in a SQLite file, on an embedded engine whose model plays a script.
pub struct App {
    engine: Engine,
    store: Arc<dyn Store>,
    /// The session.
    pub harness: Harness,
    /// Its root conversation, with the scripted model and every tool of the registry.
    pub root: Conversation,
}

impl App {
    /// Opens the file's session, or makes one; unfinished work of it goes on.
    ///
    /// # Errors
    /// What is wrong with the file or the script.
    pub async fn open(folder: &Path, registry: Registry, script: &str) -> anyhow::Result<Self> {
        let services = Services::new(registry, picofleet::scripted(Script::from_toml(script)?));
        Self::start(folder, services).await
    }

    /// [`App::open`] with other services.
    ///
    /// # Errors
    /// What is wrong with the file.
    pub async fn start(folder: &Path, services: Services) -> anyhow::Result<Self> {
        let file = folder.join("session.db");
        // Opening reads and locks the file: not on a thread that others wait for.
        let store = tokio::task::spawn_blocking(move || SqliteStore::open(&file, SqliteOptions::default())).await??;
        let store: Arc<dyn Store> = Arc::new(store);
        let tools = services.registry.snapshot().tool_names();
        let engine = Engine::start(Arc::clone(&store), services);
        let known = store.sessions(SessionQuery::default(), 1, None).await?.items.pop();
        let harness = match known {
            Some(session) => engine.harness(session.id),
            None => engine.create_session().await?,
        };
        let root = harness.root().await?;
        let config = ConfigPatch { model: Some(Some(picofleet::scripted_model())), active_tools: Some(tools), ..ConfigPatch::default() };
        root.update(config).await?;
        Ok(Self { engine, store, harness, root })
    }

    /// Stops what runs, where it is, and closes the file.
    ///
    /// # Errors
    /// That something ended in disorder.
    pub async fn close(self) -> anyhow::Result<()> {
        self.engine.close().await?;
        Ok(self.store.close().await?)
    }
}

/// Prints the transcript of a conversation.
///
/// # Errors
/// That the session can't be read.
pub async fn show(conversation: &Conversation) -> anyhow::Result<()> {
    let mut entries = conversation.entries(EntryRange::default(), SHOWN_MAX, None).await?.items;
    entries.reverse();
    for line in entries.iter().filter_map(transcript_line) {
        say(format_args!("  {line}"));
    }
    Ok(())
}

/// Prints a line.
#[allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]
pub fn say(line: impl Display) {
    println!("{line}");
}
