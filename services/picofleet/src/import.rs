//! `picofleet import`: exported lines become a session, or nothing does.

mod lines;

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::Args;
use picofleet_session::storage::{ImportId, ImportTarget, Rejection, StorageError, Store, Tenant};
use picofleet_session::{Clock, SessionId};
use serde::Serialize;

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::stores::StoreArgs;

/// How many rows of a failed import a step of clearing up removes.
const SWEEP_ROWS: u32 = 10_000;

/// What `picofleet import` takes.
#[derive(Args)]
pub(crate) struct ImportArgs {
    /// The exported lines; without it, or as `-`, standard input
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Import under the exported id instead of a new one
    #[arg(long)]
    keep_id: bool,
    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Serialize)]
struct Done {
    session: SessionId,
    lines: u64,
}

pub(crate) async fn import(args: ImportArgs, config: &Config, format: Format) -> anyhow::Result<()> {
    let url = args.store.url(config)?;
    let file = args.file.filter(|file| file.as_os_str() != "-");
    let name = file.as_ref().map_or_else(|| "standard input".to_owned(), |file| file.display().to_string());
    // Before the store, which is made where there is none.
    let (lines, count) = lines::lines(file).with_context(|| format!("read {name}"))?;
    let store = url.open(config.storage.fsync).await?;
    let clock = Clock::system();
    let id = if args.keep_id { ImportId::Keep } else { ImportId::New };
    let imported = store.import(ImportTarget { id, tenant: Tenant::default(), at: clock.now() }, lines).await;
    let session = match imported {
        Ok(session) => session.id,
        Err(error) => {
            let error = explained(error, &name, &url);
            clear(&*store, &clock).await;
            return Err(error);
        }
    };
    store.close().await?;
    // As an export says it: without the last one.
    let lines = count.load(std::sync::atomic::Ordering::Relaxed).saturating_sub(1);
    match format {
        Format::Json => output::json(&Done { session, lines }),
        Format::Table => {
            output::data(&format!("{session}\n"))?;
            output::remark(&format!("imported {lines} lines of {name} into {url}"))
        }
    }
}

/// Removes what a failed import left where nobody sees it, and closes the store. What fails here is said beside the error that came first
/// and does not take its place.
async fn clear(store: &dyn Store, clock: &Clock) {
    let swept = loop {
        match store.maintain(SWEEP_ROWS, clock.now()).await {
            Ok(done) if done.more => {}
            swept => break swept,
        }
    };
    let closed = store.close().await;
    let failed = [
        swept.err().map(|error| format!("rows of the failed import stay until the store is maintained again: {error}")),
        closed.err().map(|error| format!("the store was not closed in order: {error}")),
    ];
    // The first error is told whether or not these can be.
    failed.into_iter().flatten().for_each(|text| drop(output::remark(&text)));
}

/// What went wrong and what to do about it.
fn explained(error: StorageError, name: &str, url: &StoreUrl) -> anyhow::Error {
    let StorageError::Rejected(rejected) = &error else { return anyhow!(error).context("nothing was imported") };
    match &rejected.reason {
        Rejection::Import { line, why } => anyhow!(
            "line {line} of {name}: {why}\n  nothing was imported; take the file as `picofleet export` wrote it, whole and unchanged, or export the session again"
        ),
        Rejection::SessionExists { session } => Failure::Usage(format!(
            "session {session} exists already in {url}; leave out --keep-id to import it under a new id, or import into another store with --store"
        ))
        .into(),
        _ => anyhow!(error).context("nothing was imported"),
    }
}
