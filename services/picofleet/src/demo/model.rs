//! What the demo's writer keeps.

use picofleet_session::{DocDefinition, DocToken, Rewindable, TxError, every};
use serde::{Deserialize, Serialize};

/// A rewindable document that counts commits: every past value can be asked for, and a fork gets the one at its entry.
pub(super) static COUNTER: DocToken<Counter, Rewindable<picofleet_session::AsOf>> =
    DocToken::new("demo.counter", 1, || DocDefinition { initial: Counter::default, migrate: None, checkpoint_when: every::<31> });

#[derive(Default, Serialize, Deserialize)]
pub(super) struct Counter {
    pub(super) commits: u64,
    pub(super) log: String,
}

/// Counts one commit; costs the change and not the log.
pub(super) fn bump(counter: &picofleet_session::Doc<'_, Counter>, text: &str) -> Result<u64, TxError> {
    let commits = counter.draft.key("commits").get().and_then(|value| value.as_u64()).unwrap_or_default() + 1;
    counter.draft.key("commits").set(commits)?;
    counter.draft.key("log").append(&format!("{text};"))?;
    Ok(commits)
}

/// Operations as they are stored.
pub(super) fn ops_text(ops: &[picofleet_session::Op]) -> String {
    picofleet_session::ops_to_json(ops).to_string()
}
