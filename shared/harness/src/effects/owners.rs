//! Which conversations own a conversation, through tasks. Owner edges never change, so that a chain is read once (section 7.2).

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;
use picofleet_session::{ConversationId, SessionId};

use super::invocation::{Fault, Invocation};
use crate::wire::Read;

/// Chains that a process keeps.
const CHAINS_MAX: NonZeroUsize = NonZeroUsize::MIN.saturating_add(4_095);

type Chains = LruCache<(SessionId, ConversationId), Arc<[ConversationId]>>;

/// The owner chains that are known. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(super) struct OwnerChains(Arc<Mutex<Chains>>);

impl Default for OwnerChains {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(LruCache::new(CHAINS_MAX))))
    }
}

/// The conversations that own `conversation`, the nearest first, without itself.
pub(super) async fn of(invocation: &Invocation, conversation: ConversationId) -> Result<Arc<[ConversationId]>, Fault> {
    let chains = &invocation.services().owners.0;
    let key = (invocation.session(), conversation);
    let known = chains.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    if let Some(known) = known {
        return Ok(known);
    }
    let owners: Vec<ConversationId> = invocation.read(Read::Owners(conversation)).await?;
    let owners: Arc<[ConversationId]> = owners.into();
    chains.lock().unwrap_or_else(PoisonError::into_inner).put(key, Arc::clone(&owners));
    Ok(owners)
}
