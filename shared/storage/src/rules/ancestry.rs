//! Which entries a conversation sees (section 2.1).

use std::collections::BTreeSet;

use picofleet_session::storage::{Corruption, StorageError};
use picofleet_session::{ConversationId, ConversationRecord, EntryId};

/// One conversation of an ancestry and the newest of its entries that is seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Segment {
    pub(crate) conversation: ConversationId,
    /// `None` for the conversation itself.
    pub(crate) cap: Option<EntryId>,
}

/// The conversation and what it was forked from, nearest first. The cap of a segment is the least along the chain of forks: a fork at an
/// entry of a grandparent sees nothing newer of the parent either.
///
/// # Errors
/// [`StorageError::UnknownConversation`]; [`Corruption`] where a parent is missing or its own ancestor; what `get` fails with.
pub(crate) fn ancestry(
    id: ConversationId,
    mut get: impl FnMut(ConversationId) -> Result<Option<ConversationRecord>, StorageError>,
) -> Result<Vec<Segment>, StorageError> {
    let mut record = get(id)?.ok_or(StorageError::UnknownConversation { conversation: id })?;
    let mut segments = vec![Segment { conversation: id, cap: None }];
    let mut seen = BTreeSet::from([id]);
    let mut cap = None;
    while let Some(parent) = record.parent {
        let corrupt = |why: &str| Corruption {
            store: "session".to_owned(),
            what: format!("the parent {} of conversation {}", parent.conversation_id, record.id),
            why: why.to_owned(),
        };
        if !seen.insert(parent.conversation_id) {
            return Err(corrupt("it is its own ancestor").into());
        }
        let next = get(parent.conversation_id)?.ok_or_else(|| corrupt("it is missing"))?;
        cap = Some(cap.map_or(parent.at, |cap: EntryId| cap.min(parent.at)));
        segments.push(Segment { conversation: parent.conversation_id, cap });
        record = next;
    }
    Ok(segments)
}

/// Whether an entry of `conversation` is seen.
pub(crate) fn visible(segments: &[Segment], conversation: ConversationId, id: EntryId) -> bool {
    segments.iter().any(|segment| segment.conversation == conversation && segment.cap.is_none_or(|cap| id <= cap))
}
