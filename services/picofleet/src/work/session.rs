//! The session of a command line.

use anyhow::bail;
use picofleet_session::storage::{PAGE_MAX, SessionCreate, SessionQuery, Store};
use picofleet_session::{Clock, SessionId};

use super::Target;
use crate::config::StoreUrl;
use crate::failure::Failure;

/// The session that the arguments name, or a new one.
pub(super) async fn session(store: &dyn Store, target: &Target, url: &StoreUrl) -> anyhow::Result<SessionId> {
    if target.conversation.is_some() && target.session.is_none() && !target.latest {
        bail!(Failure::Usage("--conversation needs the session that it is in: name it with --session or --continue".to_owned()));
    }
    if let Some(id) = target.session {
        return match store.session(id).await? {
            Some(session) => Ok(session.id),
            None => bail!(Failure::Usage(format!("there is no session {id} in {url}; name another store with --store or [storage] url"))),
        };
    }
    if target.latest {
        return match newest(store).await? {
            Some(id) => Ok(id),
            None => bail!(Failure::Usage(format!("there is no session in {url} yet; leave out --continue or name another store"))),
        };
    }
    Ok(store.create(SessionCreate::new(Clock::system().now())).await?.session.id)
}

async fn newest(store: &dyn Store) -> anyhow::Result<Option<SessionId>> {
    let mut newest = None;
    let mut cursor = None;
    loop {
        let page = store.sessions(SessionQuery::default(), PAGE_MAX, cursor).await?;
        newest = page.items.into_iter().map(|session| (session.created_at, session.id)).chain(newest).max();
        cursor = page.next;
        if cursor.is_none() {
            return Ok(newest.map(|(_, id)| id));
        }
    }
}
