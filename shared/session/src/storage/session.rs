//! Sessions as a store lists them, and the head of a session's chain of commits.

use picofleet_delta::Json;
use serde::{Deserialize, Serialize};

use crate::{CommitToken, Epoch, Millis, Seq, SessionId};

/// Whose session it is. Without authentication there is only `default`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(pub String);

impl Default for Tenant {
    fn default() -> Self {
        Self("default".to_owned())
    }
}

/// A session to be made.
#[derive(Clone, PartialEq, Debug)]
pub struct SessionCreate {
    /// Its id: [`SessionId::from_key`] where there is a key.
    pub id: SessionId,
    /// Whose it is.
    pub tenant: Tenant,
    /// The caller's key; one key names one session of the tenant.
    pub key: Option<String>,
    /// What the caller keeps with it.
    pub metadata: Json,
    /// The time.
    pub at: Millis,
}

impl SessionCreate {
    /// A new session of the default tenant, without key or metadata.
    #[must_use]
    pub fn new(at: Millis) -> Self {
        Self { id: SessionId::random(), tenant: Tenant::default(), key: None, metadata: Json::object::<&str, Json>([]), at }
    }
}

/// What a store says to a creation.
#[derive(Clone, PartialEq, Debug)]
pub struct Created {
    /// The session.
    pub session: SessionRecord,
    /// It was there before.
    pub existed: bool,
}

/// A session as it is listed.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionRecord {
    /// Its id.
    pub id: SessionId,
    /// Whose it is.
    pub tenant: Tenant,
    /// The caller's key.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub key: Option<String>,
    /// What the caller keeps with it.
    pub metadata: Json,
    /// Whether it can be used.
    pub state: SessionState,
    /// When it was made.
    pub created_at: Millis,
}

/// Whether a session can be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SessionState {
    /// It can.
    Active,
    /// Opening it failed too often; an operator has to look at it (`protocol.md` 4).
    Quarantined,
    /// Its rows are being removed.
    Deleting,
}

impl SessionState {
    /// The word that is stored and sent.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Quarantined => "quarantined",
            Self::Deleting => "deleting",
        }
    }
}

/// The newest commit of a session: what the next one must stand on (`protocol.md` 1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    /// Its sequence.
    pub seq: Seq,
    /// Its token; `(seq, token)` names it.
    pub token: CommitToken,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// The next id that the session mints.
    pub next_id: i64,
    /// Fences in a row without a later commit: three quarantine the session.
    pub opens: u32,
    /// Its time.
    pub at: Millis,
}
