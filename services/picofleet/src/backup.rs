//! `picofleet backup`: a copy of a whole SQLite store while it is in use.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;
use picofleet_storage::sqlite::SqliteStore;
use serde::Serialize;

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::stores::StoreArgs;

/// What `picofleet backup` takes.
#[derive(Args)]
pub(crate) struct BackupArgs {
    /// The file to make; it must not be there yet
    file: PathBuf,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Serialize)]
struct Done {
    file: String,
    bytes: u64,
}

pub(crate) async fn backup(args: BackupArgs, config: &Config, format: Format) -> anyhow::Result<()> {
    let StoreUrl::Sqlite(from) = args.store.url(config)? else {
        bail!(Failure::Usage(
            "only a SQLite store can be copied as a whole while it is used; export the sessions of another one, or stop what uses it and copy its directory"
                .to_owned()
        ));
    };
    if args.file.symlink_metadata().is_ok() {
        bail!(Failure::Usage(format!("{} is there already; name a file that is not, so that nothing is overwritten", args.file.display())));
    }
    let store = tokio::task::spawn_blocking(move || SqliteStore::open_read_only(from)).await.context("open the store")??;
    store.copy_to(&args.file).await?;
    let bytes = args.file.metadata().with_context(|| format!("look at {}", args.file.display()))?.len();
    let file = args.file.display().to_string();
    match format {
        Format::Json => output::json(&Done { file, bytes }),
        Format::Table => output::remark(&format!("copied the store to {file}: {bytes} bytes")),
    }
}
