//! The seam between workers, hosts and lines (`design.md` 1). Only what can be encoded crosses it.

use futures::future::BoxFuture;
use picofleet_session::SessionId;

use crate::wire::{Answer, Beat, BeatAnswer, Request};

/// Why a message got no answer from a line. A numbered saying or a keyed call can be sent again.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No answer came: whether the message arrived can't be told.
    #[error("no answer from the line of session {0}; send it again")]
    NoAnswer(SessionId),
    /// Nobody has the session.
    #[error("nobody has session {session}: {why}")]
    Unavailable {
        /// The session.
        session: SessionId,
        /// Why.
        why: String,
    },
    /// What had the session has ended, and nothing else can have it: embedded, the process closes. It is not sent again.
    #[error("session {0} is closed for good: what had it has ended")]
    Closed(SessionId),
    /// The session is quarantined: opening it failed too often. Nothing of it is done until somebody retries it.
    #[error(
        "session {0} is quarantined: it was opened too often without a commit since; look at it with `picofleet inspect {0}`, and once the \
         cause is gone let it be opened again with `picofleet retry --session {0}`"
    )]
    Quarantined(SessionId),
    /// A message could not be encoded or decoded.
    #[error("a message of session {session} can't be read: {why}")]
    Encoding {
        /// The session.
        session: SessionId,
        /// Why.
        why: String,
    },
    /// A beat got no answer; the next one may.
    #[error("a beat got no answer: {why}")]
    Beat {
        /// Why.
        why: String,
    },
}

/// Carries messages to the lines of sessions. Local: a call; NATS: subjects.
pub trait Transport: Send + Sync + 'static {
    /// Sends a message to a session's line and waits for the answer.
    fn call(&self, session: SessionId, request: Request) -> BoxFuture<'_, Result<Answer, CallError>>;

    /// Tells the coordinators that a worker is alive (`protocol.md` 4).
    fn beat(&self, beat: Beat) -> BoxFuture<'_, Result<BeatAnswer, CallError>>;
}
