//! The active ranges of conversations in memory: what a context is derived from.

use std::num::NonZeroUsize;
use std::sync::Arc;

use lru::LruCache;
use serde::{Deserialize, Serialize};

use crate::message::{AssistantBlock, Message, TextOrBlocks, UserBlock};
use crate::{ContextView, ConversationId, EntryId, EntryRecord, derive_context};

/// Most conversations of a session that are kept, and the most text of one. One that has more is read from storage.
const KEPT: NonZeroUsize = NonZeroUsize::MIN.saturating_add(15);
const BYTES_MAX: usize = 8 << 20;

/// What an entry counts beside its texts.
const ENTRY_BYTES: usize = 256;

/// The active range of a conversation: the newest entry with a head, and every visible entry from that head on, oldest first.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Transcript {
    /// The marker that begins it, where there is one. It is in the range too.
    pub marker: Option<Arc<EntryRecord>>,
    /// Its entries, oldest first.
    pub range: Vec<Arc<EntryRecord>>,
}

impl Transcript {
    /// The newest entry.
    #[must_use]
    pub fn newest(&self) -> Option<EntryId> {
        self.range.last().map(|entry| entry.id)
    }

    /// What a model sees of it (section 2.1).
    #[must_use]
    pub fn view(&self) -> ContextView {
        derive_context(self.marker.clone(), self.range.iter().cloned())
    }

    /// The same up to an entry, where it is one of the range and the range begins for it as it does now.
    fn up_to(&self, entry: EntryId) -> Option<Self> {
        let end = self.range.binary_search_by_key(&entry, |entry| entry.id).ok()?;
        let begun = self.marker.as_ref().is_none_or(|marker| marker.id <= entry);
        begun.then(|| Self { marker: self.marker.clone(), range: self.range[..=end].to_vec() })
    }
}

/// One that is kept, with about how many bytes it has.
struct Kept {
    transcript: Transcript,
    bytes: usize,
}

impl Kept {
    fn new(transcript: Transcript) -> Self {
        let bytes = transcript.range.iter().map(|entry| weight(entry)).sum();
        Self { transcript, bytes }
    }

    /// Follows a new entry. Not where its head lies before the range.
    fn follow(&mut self, entry: &Arc<EntryRecord>) -> bool {
        let Transcript { marker, range } = &mut self.transcript;
        if let Some(head) = entry.head {
            let before = range.partition_point(|entry| entry.id < head);
            let known = before > 0 || marker.is_none() || range.first().is_some_and(|first| first.id == head);
            if !known {
                return false;
            }
            let cut: usize = range.drain(..before).map(|entry| weight(&entry)).sum();
            self.bytes = self.bytes.saturating_sub(cut);
            *marker = Some(Arc::clone(entry));
        }
        range.push(Arc::clone(entry));
        self.bytes += weight(entry);
        self.bytes <= BYTES_MAX
    }
}

/// About how many bytes an entry has.
fn weight(entry: &EntryRecord) -> usize {
    let block = |block: &UserBlock| match block {
        UserBlock::Text(text) => text.text.len(),
        UserBlock::Image(image) => image.data.len(),
    };
    let message = |message: &Message| match message {
        Message::System(system) => message.text().len() + system.tools_added.iter().flatten().count() * ENTRY_BYTES,
        Message::User(user) => match &user.content {
            TextOrBlocks::Text(text) => text.len(),
            TextOrBlocks::Blocks(blocks) => blocks.iter().map(block).sum(),
        },
        Message::Assistant(assistant) => assistant.content.iter().map(answer).sum(),
        Message::ToolResult(result) => {
            result.content.iter().map(block).sum::<usize>() + result.details.as_ref().map_or(0, |details| details.to_string().len())
        }
    };
    let model: usize = entry.model.iter().flatten().map(message).sum();
    ENTRY_BYTES + model + entry.data.as_ref().map_or(0, |data| data.to_string().len())
}

fn answer(block: &AssistantBlock) -> usize {
    match block {
        AssistantBlock::Text(text) => text.text.len(),
        AssistantBlock::Thinking(thinking) => thinking.thinking.len(),
        AssistantBlock::ToolCall(call) => call.arguments.to_string().len(),
    }
}

/// The committed ones that are in memory.
pub(crate) struct Transcripts {
    kept: LruCache<ConversationId, Kept>,
    /// How many entries were appended: who reads one off the line sees by it that nothing came between.
    appended: u64,
}

impl Transcripts {
    pub(crate) fn new(size: NonZeroUsize) -> Self {
        Self { kept: LruCache::new(size.min(KEPT)), appended: 0 }
    }

    pub(crate) fn get(&mut self, conversation: ConversationId) -> Option<&Transcript> {
        self.kept.get(&conversation).map(|kept| &kept.transcript)
    }

    /// Up to an entry, where one is named.
    pub(crate) fn up_to(&mut self, conversation: ConversationId, at: Option<EntryId>) -> Option<Transcript> {
        let kept = self.get(conversation)?;
        at.map_or_else(|| Some(kept.clone()), |entry| kept.up_to(entry))
    }

    pub(crate) const fn appended(&self) -> u64 {
        self.appended
    }

    /// Keeps one that was read, where nothing was appended since.
    pub(crate) fn keep(&mut self, conversation: ConversationId, transcript: Transcript, appended: u64) {
        if self.appended != appended {
            return;
        }
        let kept = Kept::new(transcript);
        if kept.bytes <= BYTES_MAX {
            self.kept.put(conversation, kept);
        }
    }

    /// Follows the entries of a commit.
    pub(crate) fn follow(&mut self, entries: &[Arc<EntryRecord>]) {
        for entry in entries {
            self.appended += 1;
            let conversation = entry.conversation_id;
            if self.kept.peek_mut(&conversation).is_some_and(|kept| !kept.follow(entry)) {
                self.kept.pop(&conversation);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Json, ROOT_CONVERSATION_ID};

    fn entry(id: i64, head: Option<i64>) -> Arc<EntryRecord> {
        let head = head.map_or_else(String::new, |head| format!(r#","head":{head}"#));
        let text = format!(r#"{{"id":{id},"conversationId":{ROOT_CONVERSATION_ID},"kind":"k"{head}}}"#);
        Arc::new(Json::parse(text.as_bytes()).unwrap().to().unwrap())
    }

    /// As storage has it: the newest marker up to an entry, and what is visible from its head on.
    fn read(entries: &[Arc<EntryRecord>], at: usize) -> Transcript {
        let visible = &entries[..=at];
        let marker = visible.iter().rev().find(|entry| entry.head.is_some()).cloned();
        let from = marker.as_ref().and_then(|marker| marker.head);
        let range = visible.iter().filter(|entry| from.is_none_or(|from| entry.id >= from)).cloned();
        Transcript { range: range.collect(), marker }
    }

    proptest! {
        /// Whatever is appended, a kept one is what a read gives or is not kept, up to any entry.
        #[test]
        fn a_kept_transcript_is_what_a_read_gives(heads in prop::collection::vec(prop::option::of(0_usize..40), 1..40)) {
            let mut entries: Vec<Arc<EntryRecord>> = Vec::new();
            let mut kept = Transcripts::new(KEPT);
            for (index, head) in heads.into_iter().enumerate() {
                let id = |index: usize| i64::try_from(index).unwrap() * 3 + 2;
                entries.push(entry(id(index), head.map(|head| id(head.min(index)))));
                if index == 0 {
                    kept.keep(ROOT_CONVERSATION_ID, read(&entries, 0), 0);
                } else {
                    kept.follow(&entries[index..]);
                }
                if let Some(found) = kept.up_to(ROOT_CONVERSATION_ID, None) {
                    prop_assert_eq!(found, read(&entries, index));
                } else {
                    kept.keep(ROOT_CONVERSATION_ID, read(&entries, index), kept.appended());
                }
                for (at, entry) in entries.iter().enumerate() {
                    if let Some(found) = kept.up_to(ROOT_CONVERSATION_ID, Some(entry.id)) {
                        prop_assert_eq!(found, read(&entries, at));
                    }
                }
            }
        }
    }

    #[test]
    fn a_head_before_the_range_and_a_range_that_is_too_long_are_not_kept() {
        let mut kept = Transcripts::new(KEPT);
        let transcript = Transcript { marker: Some(entry(9, Some(8))), range: vec![entry(8, None), entry(9, Some(8))] };
        kept.keep(ROOT_CONVERSATION_ID, transcript, 0);
        kept.follow(&[entry(10, Some(5))]);
        assert!(kept.get(ROOT_CONVERSATION_ID).is_none());
        kept.keep(ROOT_CONVERSATION_ID, Transcript::default(), kept.appended());
        let entries: Vec<_> = (0..=i64::try_from(BYTES_MAX / ENTRY_BYTES).unwrap()).map(|index| entry(index + 2, None)).collect();
        kept.follow(&entries[1..]);
        assert!(kept.get(ROOT_CONVERSATION_ID).is_some());
        kept.follow(&entries[..1]);
        assert!(kept.get(ROOT_CONVERSATION_ID).is_none());
    }

    #[test]
    fn one_that_was_read_before_an_entry_came_is_not_kept() {
        let mut kept = Transcripts::new(KEPT);
        let appended = kept.appended();
        kept.follow(&[entry(10, None)]);
        kept.keep(ROOT_CONVERSATION_ID, Transcript::default(), appended);
        assert!(kept.get(ROOT_CONVERSATION_ID).is_none());
    }
}
