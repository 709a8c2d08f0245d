//! Errors by what the caller can do.

use picofleet_session::{ConversationId, SessionId};

use crate::config::InvalidConfig;
use crate::wire::HostFailure;

/// Why a call failed.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// What the call names is not there. Nothing was written.
    #[error("{what} {id} does not exist")]
    NotFound {
        /// What.
        what: String,
        /// Its id.
        id: i64,
    },
    /// The call breaks a rule; sent again it fails again. Nothing was written.
    #[error("{}{why}", .field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default())]
    Invalid {
        /// The path of the field, where it is one.
        field: Option<String>,
        /// What is wrong.
        why: String,
    },
    /// Nobody has the session, or it is closing. Nothing was written; call again later.
    #[error("the session is not available: {0}")]
    Unavailable(String),
    /// The session is quarantined: opening it failed too often. Nothing was written; [`crate::host::Harness::inspect`] shows what it has, and
    /// [`crate::host::Harness::retry_session`] lets it be opened again.
    #[error(
        "session {0} is quarantined (session_quarantined): it was opened too often without a commit since; look at it with `picofleet inspect \
         {0}`, and once the cause is gone let it be opened again with `picofleet retry --session {0}`"
    )]
    Quarantined(SessionId),
    /// No answer came and none can be had now: whether the call was done can't be told. Look, or call again with the same key.
    #[error("whether the call was done can't be told: {0}")]
    OutcomeUnknown(String),
    /// The answer is none of this call: the two sides are not of one version.
    #[error("the line gave an answer of another kind: {0}")]
    Answer(String),
}

/// Why a submission was not admitted.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The conversation has a run and the input did not want to wait. Nothing was written.
    #[error("conversation {0} is busy")]
    Busy(ConversationId),
    /// Too much waits in the conversation already. Nothing was written; submit again once something of it was placed.
    #[error("the inbox of conversation {0} is full")]
    InboxFull(ConversationId),
    /// Anything else.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl From<InvalidConfig> for HostError {
    fn from(invalid: InvalidConfig) -> Self {
        Self::Invalid { field: Some(invalid.field), why: invalid.why }
    }
}

impl From<HostFailure> for SubmitError {
    fn from(failure: HostFailure) -> Self {
        match failure {
            HostFailure::Busy(conversation) => Self::Busy(conversation),
            HostFailure::InboxFull(conversation) => Self::InboxFull(conversation),
            HostFailure::NotFound { what, id } => Self::Host(HostError::NotFound { what, id }),
            HostFailure::InvalidField { field, why } => Self::Host(HostError::Invalid { field: Some(field), why }),
            HostFailure::Invalid(why) => Self::Host(HostError::Invalid { field: None, why }),
            HostFailure::Unavailable(why) => Self::Host(HostError::Unavailable(why)),
            HostFailure::OutcomeUnknown(why) => Self::Host(HostError::OutcomeUnknown(why)),
            failure @ HostFailure::KeyReused { .. } => {
                Self::Host(HostError::Invalid { field: Some("key".to_owned()), why: failure.to_string() })
            }
        }
    }
}

impl From<HostFailure> for HostError {
    fn from(failure: HostFailure) -> Self {
        match SubmitError::from(failure) {
            SubmitError::Host(error) => error,
            other => Self::Invalid { field: None, why: other.to_string() },
        }
    }
}
