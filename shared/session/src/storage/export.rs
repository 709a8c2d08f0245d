//! The lines of an exported session: `{type, ...record}`, the last one with their count and hash (`design.md` 9, `protocol.md` 7).

use std::sync::Arc;

use picofleet_delta::{Json, Op, ops_from_json, ops_to_json};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Rejection, RequestRow, Tenant};
use crate::{
    ConversationRecord, DocumentContent, DocumentId, DocumentRecord, EntryRecord, InvocationRow, Millis, Seq, SessionId, SubmissionRecord,
    TaskRecord,
};

/// The version of the lines; a reader refuses another one.
pub const EXPORT_FORMAT: u32 = 1;

/// One line. They come in the order of the variants, entries and records in the order of their ids.
#[derive(Clone, PartialEq, Debug)]
pub enum ExportLine {
    /// The session: the first line.
    Session(SessionLine),
    /// A conversation.
    Conversation(ConversationRecord),
    /// An entry with the sequence of its commit.
    Entry {
        /// The sequence.
        seq: Seq,
        /// The entry.
        entry: Box<EntryRecord>,
    },
    /// A task with what it keeps of its invocation.
    Task {
        /// The task.
        task: Box<TaskRecord>,
        /// Its invocation.
        invocation: Option<InvocationRow>,
    },
    /// A submission.
    Submission(Box<SubmissionRecord>),
    /// A document incarnation; retired ones too where their content is kept.
    Document(DocumentRecord),
    /// What one commit stored of a document's content.
    Content {
        /// The document.
        document: DocumentId,
        /// The sequence of the commit.
        seq: Seq,
        /// The content.
        content: DocumentContent,
    },
    /// The answer to a request key.
    Request(RequestRow),
    /// The last line.
    End {
        /// How many lines came before.
        count: u64,
        /// The SHA-256 of those lines, each with its line feed, in hexadecimal digits.
        sha256: String,
    },
}

/// The session of an export.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionLine {
    /// [`EXPORT_FORMAT`].
    pub format: u32,
    /// Its id.
    pub id: SessionId,
    /// What the caller keeps with it.
    pub metadata: Json,
    /// When it was made.
    pub created_at: Millis,
    /// The sequence that the export shows.
    pub seq: Seq,
    /// The next id that the session mints.
    pub next_id: i64,
    /// The time of its newest commit.
    pub at: Millis,
    /// Its wake time.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub wake: Option<Millis>,
}

/// Where imported lines go.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportTarget {
    /// Under which id.
    pub id: ImportId,
    /// Whose it becomes.
    pub tenant: Tenant,
    /// The time.
    pub at: Millis,
}

/// The id of an imported session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportId {
    /// A new one.
    New,
    /// The exported one.
    Keep,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ContentWire {
    document_id: DocumentId,
    seq: Seq,
    version: u32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    base: Option<Json>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ops: Option<Json>,
}

#[derive(Serialize, Deserialize)]
struct EndWire {
    count: u64,
    sha256: String,
}

#[derive(Deserialize)]
struct SeqField {
    seq: Seq,
}

#[derive(Deserialize)]
struct InvocationField {
    #[serde(default)]
    invocation: Option<InvocationRow>,
}

impl ExportLine {
    /// The line without its line feed.
    ///
    /// # Errors
    /// A text that says which record can't be written.
    pub fn to_text(&self) -> Result<Vec<u8>, String> {
        let (kind, record, extra) = match self {
            Self::Session(session) => ("session", Json::from_serde_envelope(session), None),
            Self::Conversation(record) => ("conversation", Json::from_serde_envelope(record), None),
            Self::Entry { seq, entry } => ("entry", Json::from_serde_envelope(&**entry), Some(("seq", Json::from(seq.0)))),
            Self::Task { task, invocation } => {
                let extra = invocation.as_ref().map(Json::from_serde_envelope).transpose().map_err(|e| e.to_string())?;
                ("task", Json::from_serde_envelope(&**task), extra.map(|row| ("invocation", row)))
            }
            Self::Submission(record) => ("submission", Json::from_serde_envelope(&**record), None),
            Self::Document(record) => ("document", Json::from_serde_envelope(record), None),
            Self::Content { document, seq, content } => {
                ("content", Json::from_serde_envelope(&content_wire(*document, *seq, content)), None)
            }
            Self::Request(row) => ("request", Json::from_serde_envelope(row), None),
            Self::End { count, sha256 } => ("end", Json::from_serde_envelope(&EndWire { count: *count, sha256: sha256.clone() }), None),
        };
        let record = record.map_err(|error| format!("{kind}: {error}"))?;
        let fields =
            record.as_object().into_iter().flat_map(|object| object.iter().map(|(key, value)| (Arc::from(own_key(key)), value.clone())));
        let head = std::iter::once((Arc::from("type"), Json::from(kind)));
        let line = Json::object(head.chain(fields).chain(extra.map(|(key, value)| (Arc::from(key), value))));
        let mut text = Vec::new();
        line.write(&mut text);
        Ok(text)
    }

    /// Reads a line.
    ///
    /// # Errors
    /// A text that says what is wrong with it.
    pub fn from_text(text: &[u8]) -> Result<Self, String> {
        let line = Json::parse_envelope(text).map_err(|error| error.to_string())?;
        let kind = line.get("type").and_then(Json::as_str).ok_or("it has no type")?;
        let read = |error: picofleet_delta::JsonError| format!("{kind}: {error}");
        Ok(match &*kind {
            "session" => Self::Session(line.to().map_err(read)?),
            "conversation" => Self::Conversation(line.to().map_err(read)?),
            "entry" => Self::Entry { seq: line.to::<SeqField>().map_err(read)?.seq, entry: Box::new(line.to().map_err(read)?) },
            "task" => {
                Self::Task { task: Box::new(line.to().map_err(read)?), invocation: line.to::<InvocationField>().map_err(read)?.invocation }
            }
            "submission" => Self::Submission(Box::new(submission_record(&line).to().map_err(read)?)),
            "document" => Self::Document(line.to().map_err(read)?),
            "content" => content_line(line.to().map_err(read)?)?,
            "request" => Self::Request(line.to().map_err(read)?),
            "end" => {
                let end: EndWire = line.to().map_err(read)?;
                Self::End { count: end.count, sha256: end.sha256 }
            }
            other => return Err(format!("{other:?} is no type of an exported line")),
        })
    }

    /// Reads a line that must be exactly as [`ExportLine::to_text`] writes it: a member that this program does not know would otherwise
    /// get lost without a word.
    ///
    /// # Errors
    /// A text that says what is wrong with it.
    pub fn from_exported(text: &[u8]) -> Result<Self, String> {
        let line = Self::from_text(text)?;
        if line.to_text()? == text {
            return Ok(line);
        }
        Err("it is not written as an export writes it: a member is unknown, doubled or out of place, or the line was changed".to_owned())
    }

    /// The place of the line's kind in the order of the lines.
    const fn rank(&self) -> u8 {
        match self {
            Self::Session(_) => 0,
            Self::Conversation(_) => 1,
            Self::Entry { .. } => 2,
            Self::Task { .. } => 3,
            Self::Submission(_) => 4,
            Self::Document(_) => 5,
            Self::Content { .. } => 6,
            Self::Request(_) => 7,
            Self::End { .. } => 8,
        }
    }
}

/// A submission has a type of its own; in a line it is its kind.
fn own_key(key: &str) -> &str {
    if key == "type" { "kind" } else { key }
}

fn submission_record(line: &Json) -> Json {
    let fields = line.as_object().into_iter().flat_map(|object| object.iter()).filter(|(key, _)| *key != "type");
    fields.map(|(key, value)| (Arc::from(if key == "kind" { "type" } else { key }), value.clone())).collect()
}

fn content_wire(document_id: DocumentId, seq: Seq, content: &DocumentContent) -> ContentWire {
    let wire = ContentWire { document_id, seq, version: content.version(), base: None, ops: None };
    match content {
        DocumentContent::Base { value, .. } => ContentWire { base: Some(value.clone()), ..wire },
        DocumentContent::Delta { ops, .. } => ContentWire { ops: Some(ops_to_json(ops)), ..wire },
    }
}

fn content_line(wire: ContentWire) -> Result<ExportLine, String> {
    let content = match (wire.base, wire.ops) {
        (Some(value), None) => DocumentContent::Base { version: wire.version, value },
        (None, Some(ops)) => {
            let ops: Vec<Op> = ops_from_json(&ops).map_err(|error| format!("content: {error}"))?;
            DocumentContent::Delta { version: wire.version, ops: ops.into() }
        }
        _ => return Err("content: it needs either a base or operations".to_owned()),
    };
    Ok(ExportLine::Content { document: wire.document_id, seq: wire.seq, content })
}

/// Counts and hashes the lines of an export, to make its last one.
#[derive(Clone, Debug, Default)]
pub struct ExportWriter {
    count: u64,
    hash: Sha256,
}

impl ExportWriter {
    /// Takes the next line into account.
    ///
    /// # Errors
    /// As [`ExportLine::to_text`].
    pub fn count(&mut self, line: &ExportLine) -> Result<(), String> {
        let text = line.to_text()?;
        self.count += 1;
        self.hash.update(&text);
        self.hash.update(b"\n");
        Ok(())
    }

    /// The last line.
    #[must_use]
    pub fn end(self) -> ExportLine {
        ExportLine::End { count: self.count, sha256: hex(&self.hash.finalize()) }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Checks lines while they are imported: their order, their count and their hash.
#[derive(Clone, Debug, Default)]
pub struct ExportReader {
    written: ExportWriter,
    /// How many lines came.
    taken: u64,
    rank: u8,
    ended: bool,
}

impl ExportReader {
    /// Takes the next line into account.
    ///
    /// # Errors
    /// [`Rejection::Import`] for a line that is out of order, of another format, or a last line that does not match.
    pub fn check(&mut self, line: &ExportLine) -> Result<(), Rejection> {
        self.taken += 1;
        let number = self.taken;
        let bad = |why: String| Rejection::Import { line: number, why };
        if self.ended {
            return Err(bad("it comes after the end".to_owned()));
        }
        if (number == 1) != matches!(line, ExportLine::Session(_)) || line.rank() < self.rank {
            return Err(bad("it is out of order".to_owned()));
        }
        self.rank = line.rank();
        match line {
            ExportLine::Session(session) if session.format != EXPORT_FORMAT => {
                Err(bad(format!("its format is {}, this program reads {EXPORT_FORMAT}", session.format)))
            }
            ExportLine::End { count, sha256 } => {
                self.ended = true;
                self.check_end(*count, sha256).map_err(bad)
            }
            _ => self.written.count(line).map_err(bad),
        }
    }

    fn check_end(&mut self, count: u64, sha256: &str) -> Result<(), String> {
        let written = std::mem::take(&mut self.written);
        if written.count != count {
            return Err(format!(
                "it says that {count} lines come before it, and there are {}: lines are missing or were added",
                written.count
            ));
        }
        if hex(&written.hash.finalize()) != sha256 {
            return Err("the SHA-256 of the lines is not the one that it says: a line was changed".to_owned());
        }
        Ok(())
    }

    /// Checks that the last line was there.
    ///
    /// # Errors
    /// [`Rejection::Import`] where it was not.
    pub fn finish(&self) -> Result<(), Rejection> {
        if self.ended {
            return Ok(());
        }
        Err(Rejection::Import { line: self.taken + 1, why: "the export ends here without its last line".to_owned() })
    }
}
