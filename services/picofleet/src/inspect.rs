//! `picofleet inspect`: what a store has. It reads what is stored and takes no session over, whoever uses it.

mod record;
mod sessions;
mod tree;
mod view;

use clap::Args;
use picofleet_harness::registry::Registry;
use picofleet_harness::task::LineTasks;
use picofleet_session::SessionId;

use crate::config::Config;
use crate::output::Format;
use crate::stores::{self, StoreArgs};

/// What `picofleet inspect` takes.
#[derive(Args)]
pub(crate) struct InspectArgs {
    /// The session to show; without it the sessions of the store are listed
    session: Option<SessionId>,
    /// One record of the session by its number: a task and why it waits, an entry, a conversation, a submission or a document
    #[arg(value_name = "ID")]
    id: Option<i64>,
    /// Show the tasks that are over, too
    #[arg(long, requires = "session", conflicts_with = "id")]
    all: bool,
    /// Most sessions to list: those that were used last
    #[arg(long, value_name = "COUNT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

pub(crate) async fn inspect(args: InspectArgs, registry: &Registry, config: &Config, format: Format) -> anyhow::Result<()> {
    let (url, store) = args.store.look(config).await?;
    let Some(id) = args.session else {
        return sessions::list(&*store, &url, args.limit, format).await;
    };
    let session = stores::session(&*store, &url, id).await?;
    let reader = store.reader(id).await?;
    let live = view::Live::read(&*reader, &session, LineTasks::of(registry)).await?;
    match args.id {
        Some(number) => record::show(&*reader, &live, number, format).await,
        None => tree::show(&*reader, &live, session, args.all, format).await,
    }
}
