//! The texts of a batch's records, made by the caller before the batch is sent: the one thread that writes has less to do.

use std::collections::HashMap;
use std::ptr;

use picofleet_session::storage::{Batch, Write};
use picofleet_session::{DocumentContent, DocumentId, DocumentRecord, Seq};
use serde::Serialize;

use super::rows;
use crate::tables::Found;

/// The texts by the places of their records. A place names its record as long as the batch is not moved out of its heap memory or
/// changed, and the batch lives behind a `Box` beside its texts. No two kinds of records that are kept here begin at the same place.
#[derive(Debug, Default)]
pub(super) struct Texts {
    texts: HashMap<usize, String>,
    /// The first bases of the documents that the batch creates. The rules make their contents, so that those have no place in the batch;
    /// an id is created once in a batch that lands.
    bases: HashMap<DocumentId, String>,
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
                Write::DocumentCreate { create, value, .. } => {
                    let text = value.to_string();
                    texts.bytes += text.len();
                    texts.bases.insert(create.id, text);
                }
                Write::Request(row) => texts.put(&**row, row.answer.to_string()),
                Write::Outbox(row) => texts.put(&**row, row.body.to_string()),
                // What a copy gets is read when it is made; the others are small.
                Write::DocumentCopy(_) | Write::DocumentRetire(_) | Write::Wake(_) => {}
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

    /// The text of a document's content.
    pub(super) fn content(&self, record: &DocumentRecord, seq: Seq, content: &DocumentContent) -> Option<&str> {
        let first = || self.bases.get(&record.create.id).filter(|_| record.created_at == seq).map(String::as_str);
        self.get(content).or_else(first)
    }

    /// The length of all texts.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}
