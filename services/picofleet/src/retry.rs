//! `picofleet retry`: a quarantined session may be opened again.

use anyhow::bail;
use clap::Args;
use picofleet_session::SessionId;
use picofleet_session::storage::{OPENS_MAX, SessionState, Store};
use serde::Serialize;

use crate::config::{Config, StoreUrl};
use crate::output::{self, Format};
use crate::stores::{self, StoreArgs};

/// What `picofleet retry` takes.
#[derive(Args)]
pub(crate) struct RetryArgs {
    /// The session
    #[arg(long)]
    session: SessionId,
    #[command(flatten)]
    pub(crate) store: StoreArgs,
}

#[derive(Serialize)]
struct Done {
    session: SessionId,
    /// How often it had been opened in a row without a commit.
    opens: u32,
}

pub(crate) async fn retry(args: RetryArgs, config: &Config, format: Format) -> anyhow::Result<()> {
    // Looked at first: opening makes a store where there is none.
    let (url, seen) = args.store.look(config).await?;
    let looked = refused_opens(&*seen, &url, args.session).await;
    seen.close().await?;
    looked?;
    let store = url.open(config.storage.fsync).await?;
    let done = clear(&*store, &url, args.session).await;
    // What went wrong first is what is said.
    let closed = store.close().await;
    let opens = done?;
    closed?;
    let session = args.session;
    match format {
        Format::Json => output::json(&Done { session, opens }),
        Format::Table => output::remark(&format!(
            "session {session} is not quarantined any more: it was opened {opens} times in a row without a commit, which is forgotten; the next \
             open goes on with its work"
        )),
    }
}

/// Clears it, unless somebody else did meanwhile. Says how often the session had been opened.
async fn clear(store: &dyn Store, url: &StoreUrl, id: SessionId) -> anyhow::Result<u32> {
    let opens = refused_opens(store, url, id).await?;
    store.set_quarantined(id, false).await?;
    Ok(opens)
}

/// How often a session that is not opened any more was opened without a commit.
async fn refused_opens(store: &dyn Store, url: &StoreUrl, id: SessionId) -> anyhow::Result<u32> {
    let session = stores::session(store, url, id).await?;
    let opens = store.reader(id).await?.head().await?.opens;
    // The state is set by the first open that is refused, and perhaps nobody has tried yet.
    if session.state != SessionState::Quarantined && opens < OPENS_MAX {
        bail!("session {id} is not quarantined: nothing keeps it from being opened, and nothing was changed");
    }
    Ok(opens)
}
