//! The session of a command line.

use std::os::unix::fs::MetadataExt as _;

use anyhow::bail;
use picofleet_session::storage::{SessionCreate, StorageError, Store};
use picofleet_session::{Clock, Millis, SessionId};

use super::Target;
use crate::config::StoreUrl;
use crate::failure::Failure;
use crate::glance;
use crate::output;
use crate::stores::{self, Damaged, Used};

/// The session that the arguments name, or a new one.
pub(super) async fn session(store: &dyn Store, target: &Target, url: &StoreUrl) -> anyhow::Result<SessionId> {
    if target.conversation.is_some() && target.session.is_none() && !target.latest {
        bail!(Failure::Usage("--conversation needs the session that it is in: name it with --session or --continue".to_owned()));
    }
    if let Some(id) = target.session {
        return match store.session(id).await? {
            Some(session) => Ok(session.id),
            None => bail!(none(target, url)),
        };
    }
    if target.latest {
        return last_used(store, url).await;
    }
    Ok(store.create(SessionCreate::new(Clock::system().now())).await?.session.id)
}

/// The session that was used last.
async fn last_used(store: &dyn Store, url: &StoreUrl) -> anyhow::Result<SessionId> {
    let stores::Sessions { whole, damaged } = stores::sessions(store, url).await?;
    let last = last_said(store, &whole).await?;
    // A damaged session does not say when it was used; its files do.
    let newer = |damaged: &&Damaged| last.is_none_or(|last| changed(url, damaged.id).is_none_or(|at| at >= last.head.at));
    if let Some(Damaged { why, .. }) = damaged.iter().find(newer) {
        bail!(
            "{why}\n  it may be the one that was used last; name the session to go on with, of those that `picofleet inspect` lists, with --session"
        );
    }
    for Damaged { why, .. } in &damaged {
        output::remark(why)?;
    }
    match last {
        Some(last) => Ok(last.record.id),
        None => bail!(none_yet(url)),
    }
}

/// The first of these sessions in which something was said: a chat that was left at once is nothing to go on with.
async fn last_said<'a>(store: &dyn Store, sessions: &'a [Used]) -> Result<Option<&'a Used>, StorageError> {
    for used in sessions {
        if !glance::is_empty(&*store.reader(used.record.id).await?).await? {
            return Ok(Some(used));
        }
    }
    Ok(None)
}

/// When the records of a session of JSON lines changed last, by the file system.
fn changed(url: &StoreUrl, id: SessionId) -> Option<Millis> {
    let StoreUrl::Jsonl(folder) = url else { return None };
    let main = folder.join(id.to_string()).join("main.jsonl").metadata().ok()?;
    Some(Millis(main.mtime().saturating_mul(1000).saturating_add(main.mtime_nsec() / 1_000_000)))
}

/// What is said where there is no session to go on with.
pub(super) fn none(target: &Target, url: &StoreUrl) -> Failure {
    match target.session {
        Some(id) => Failure::Usage(format!("there is no session {id} in {url}; name another store with --store or [storage] url")),
        None => none_yet(url),
    }
}

fn none_yet(url: &StoreUrl) -> Failure {
    Failure::Usage(format!("there is no session in {url} yet; leave out --continue or name another store"))
}
