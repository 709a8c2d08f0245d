//! `picofleet migrate`: makes a database ready, or brings it up to this version.

use anyhow::Context as _;
use clap::Args;
use picofleet_session::PartitionCount;
use picofleet_storage::postgres::PostgresStore;
use serde::Serialize;

use crate::config::{Config, StoreUrl};
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::stores::StoreArgs;

/// What `picofleet migrate` takes.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    /// Into how many partitions sessions are spread, which never changes again; 256 where nothing is said
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u16>,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Serialize)]
struct Done {
    store: String,
}

pub(crate) async fn migrate(args: MigrateArgs, config: &Config, format: Format) -> anyhow::Result<()> {
    let url = args.store.url(config)?;
    let StoreUrl::Postgres(database) = &url else {
        return Err(
            Failure::Usage(format!("{url} needs no migration: files are brought up when they are opened; only a database does")).into()
        );
    };
    let partitions = match args.partitions {
        Some(count) => Some(PartitionCount::new(count).ok_or_else(|| Failure::Usage("--partitions is at least 1".to_owned()))?),
        None => None,
    };
    PostgresStore::migrate(database.secret(), partitions).await.with_context(|| format!("migrate {url}"))?;
    match format {
        Format::Json => output::json(&Done { store: url.to_string() }),
        Format::Table => output::remark(&format!("{url} is ready for this version")),
    }
}
