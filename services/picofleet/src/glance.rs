//! What a session is about, read without opening it: its first input, its model, what was cut off.

use picofleet_harness::config::{CONFIG, ConversationConfig};
use picofleet_harness::live::{LIVE, LiveState};
use picofleet_session::message::Message;
use picofleet_session::storage::{EntryQuery, PAGE_MAX, SessionReader, StorageError};
use picofleet_session::{ConversationId, DocumentAddress, EntryId, Point, ROOT_CONVERSATION_ID};
use serde::de::DeserializeOwned;

/// Most characters of a text that stands for a longer one.
const SHORT_MAX: usize = 60;

/// Up to which id the first input is looked for, with growing steps: ids are in the order of entries, and most sessions begin with it.
const LOOKS: [i64; 3] = [64, 1_024, 16_384];

/// The first input of a session, on one line. `None` where there is none among its oldest entries.
pub(crate) async fn first_input(reader: &dyn SessionReader) -> Result<Option<String>, StorageError> {
    for max in LOOKS {
        let query = EntryQuery { max_entry_id: EntryId::new(max).ok(), ..EntryQuery::all(ROOT_CONVERSATION_ID) };
        let mut oldest = None;
        let mut cursor = None;
        loop {
            let page = match reader.scan_entries(query, PAGE_MAX, cursor).await {
                Err(StorageError::UnknownConversation { .. }) => return Ok(None),
                page => page?,
            };
            let mut inputs =
                page.items.iter().flat_map(|entry| entry.model.iter().flatten()).filter(|said| matches!(said, Message::User(_)));
            oldest = inputs.next_back().map(Message::text).or(oldest);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        if let Some(text) = oldest {
            return Ok(Some(begin(&text)));
        }
    }
    Ok(None)
}

/// Whether nothing was ever said in a session.
pub(crate) async fn is_empty(reader: &dyn SessionReader) -> Result<bool, StorageError> {
    match reader.scan_entries(EntryQuery::all(ROOT_CONVERSATION_ID), 1, None).await {
        Err(StorageError::UnknownConversation { .. }) => Ok(true),
        page => Ok(page?.items.is_empty()),
    }
}

/// The configuration of a conversation; `None` where nobody configured it yet.
pub(crate) async fn config(reader: &dyn SessionReader, conversation: ConversationId) -> Result<Option<ConversationConfig>, StorageError> {
    document(reader, CONFIG.address(conversation)).await
}

/// What was going on in a conversation.
pub(crate) async fn live(reader: &dyn SessionReader, conversation: ConversationId) -> Result<Option<LiveState>, StorageError> {
    document(reader, LIVE.address(conversation)).await
}

/// A document's value; `None` also where this program can't read it, which is for others to tell.
async fn document<T: DeserializeOwned>(reader: &dyn SessionReader, address: DocumentAddress) -> Result<Option<T>, StorageError> {
    let Some(record) = reader.find_document(address, Point::Current).await? else { return Ok(None) };
    let stored = reader.document(record.create.id, Point::Current).await?;
    Ok(stored.and_then(|stored| stored.value.to().ok()))
}

/// The begin of a text on one line.
pub(crate) fn begin(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if line.chars().count() >= SHORT_MAX {
            break;
        }
        line.extend((!line.is_empty()).then_some(' '));
        line.push_str(word);
    }
    let rest = line.split_whitespace().count() < text.split_whitespace().count();
    match line.char_indices().nth(SHORT_MAX) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None if rest => format!("{line}..."),
        None => line,
    }
}

/// The end of a text on one line.
pub(crate) fn end(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().rev().nth(SHORT_MAX - 1) {
        Some((at, _)) if at > 0 => format!("...{}", &line[at..]),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_shortened_at_either_end() {
        assert_eq!((begin(" one\n two "), end(" one\n two ")), ("one two".to_owned(), "one two".to_owned()));
        let long = "é".repeat(SHORT_MAX);
        assert_eq!((begin(&long), end(&long)), (long.clone(), long.clone()));
        assert_eq!(begin(&format!("{long}x")), format!("{long}..."));
        assert_eq!(begin(&format!("{long} x")), format!("{long}..."));
        assert_eq!(end(&format!("x{long}")), format!("...{long}"));
    }
}
