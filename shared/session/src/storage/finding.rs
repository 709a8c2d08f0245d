//! What a look at stored data finds that no read shows.

use serde::Serialize;

use crate::SessionId;

/// How many findings one look gives at most: a damaged page can have thousands of consequences.
pub const FINDINGS_MAX: usize = 1_000;

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// The rule that is broken, as a stable word: that of `docs/invariants.md` where it is one of those.
    pub rule: &'static str,
    /// The session; absent where it is about the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// What was found.
    pub what: String,
}

impl Finding {
    /// A finding about a store.
    #[must_use]
    pub fn of_store(rule: &'static str, what: impl Into<String>) -> Self {
        Self { rule, session: None, what: what.into() }
    }

    /// A finding about a session.
    #[must_use]
    pub fn of_session(rule: &'static str, session: SessionId, what: impl Into<String>) -> Self {
        Self { rule, session: Some(session), what: what.into() }
    }
}
