//! The texts of a batch's records, made by the caller before the batch is sent: the one thread that writes has less to do.

use std::collections::HashMap;
use std::ptr;

use picofleet_session::storage::{Batch, Write};
use serde::Serialize;

use super::rows;
use crate::tables::Found;

/// The texts by the places of their records. A place names its record as long as the batch is not moved out of its heap memory or
/// changed, and the batch lives behind a `Box` beside its texts. No two kinds of records that are kept here begin at the same place.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: HashMap<usize, String>,
    bytes: usize,
}

impl Texts {
    /// # Errors
    /// [`picofleet_session::storage::Rejection::Malformed`] for a record that JSON can't hold.
    pub(super) fn of(batch: &Batch) -> Found<Self> {
        let mut texts = Self::default();
        for write in batch.commits.iter().flat_map(|commit| &commit.writes) {
            match write {
                Write::Conversation(record) => texts.add(record)?,
                Write::Entry(entry) => texts.add(&**entry)?,
                Write::Task(record) => texts.add(&**record)?,
                Write::Invocation(row) => texts.add(&**row)?,
                Write::Submission(record) => texts.add(&**record)?,
                Write::DocumentChange { content, .. } => texts.put(content, rows::body(content)),
                // Made by the rules, or small.
                Write::DocumentCreate { .. }
                | Write::DocumentCopy(_)
                | Write::DocumentRetire(_)
                | Write::Request(_)
                | Write::Outbox(_)
                | Write::Wake(_) => {}
            }
        }
        Ok(texts)
    }

    fn add<T: Serialize>(&mut self, record: &T) -> Found<()> {
        self.put(record, rows::text(record)?);
        Ok(())
    }

    fn put<T>(&mut self, record: &T, text: String) {
        self.bytes += text.len();
        self.texts.insert(ptr::from_ref(record).addr(), text);
    }

    /// The text of the record at this place.
    pub(super) fn get<T>(&self, record: &T) -> Option<&str> {
        self.texts.get(&ptr::from_ref(record).addr()).map(String::as_str)
    }

    /// The length of all texts.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
