//! The calls of the answers whose tools run: read once for a round, however many calls it has.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use picofleet_session::EntryId;
use picofleet_session::message::{Message, ToolCall};
use picofleet_session::storage::StorageError;

use super::SessionLine;
use crate::generation::calls;

/// Of how many answers the calls are kept: rounds that run at the same time.
const ANSWERS_MAX: usize = 8;

/// The calls of an answer, by the provider's names. Of two with one name the first counts.
type Calls = Arc<HashMap<String, ToolCall>>;

/// The calls of the newest answers that were asked for. Entries never change.
#[derive(Default)]
pub(super) struct Answers(VecDeque<(EntryId, Calls)>);

impl SessionLine {
    /// A call of an answer; `None` where there is none.
    pub(super) async fn call_of(&self, answer: EntryId, id: &str) -> Result<Option<ToolCall>, StorageError> {
        // Held while storage is read: the calls of a round ask at the same time.
        let mut answers = self.inner.answers.lock().await;
        if let Some((_, calls)) = answers.0.iter().find(|(kept, _)| *kept == answer) {
            return Ok(calls.get(id).cloned());
        }
        let entry = self.session().store().entry(None, answer).await?.map(|(entry, _)| entry);
        let Some(Message::Assistant(message)) = entry.as_ref().and_then(|entry| entry.model.as_ref()?.first()) else { return Ok(None) };
        let mut by_id = HashMap::new();
        for call in calls(message) {
            by_id.entry(call.id.clone()).or_insert_with(|| call.clone());
        }
        let found = by_id.get(id).cloned();
        if answers.0.len() == ANSWERS_MAX {
            answers.0.pop_front();
        }
        answers.0.push_back((answer, Arc::new(by_id)));
        Ok(found)
    }
}
