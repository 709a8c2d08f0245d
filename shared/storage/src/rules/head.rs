//! The chain of commits: its beginning and its fences (`protocol.md` 1 and 4).

use picofleet_session::storage::{Fence, Head, OPENS_MAX, StorageError};
use picofleet_session::{CommitToken, Epoch, FIRST_MINTED_ID, Millis, Seq, SessionId};

/// Why a fence is set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fencing {
    /// An owner opens the session: counted.
    Open,
    /// Only earlier owners are kept out. It is not counted, since the owner that then opens the session is.
    Takeover,
}

/// The commit row that a new session begins with.
pub(crate) fn genesis(at: Millis) -> Head {
    Head { seq: Seq(0), token: CommitToken::random(), epoch: Epoch(0), next_id: FIRST_MINTED_ID, opens: 0, at }
}

/// The fence on top of `head`.
///
/// # Errors
/// [`StorageError::Fenced`] for an epoch below the session's. [`StorageError::Quarantined`] when it was opened too often: the backend then
/// also sets the session's state.
pub(crate) fn fence(session: SessionId, head: &Head, fence: Fence, why: Fencing) -> Result<Head, StorageError> {
    if fence.epoch < head.epoch {
        return Err(StorageError::Fenced { session });
    }
    let opens = match why {
        Fencing::Open if head.opens >= OPENS_MAX => return Err(StorageError::Quarantined { session }),
        Fencing::Open => head.opens + 1,
        Fencing::Takeover => head.opens,
    };
    Ok(Head { seq: head.seq.next(), token: CommitToken::random(), epoch: fence.epoch, next_id: head.next_id, opens, at: fence.at })
}
