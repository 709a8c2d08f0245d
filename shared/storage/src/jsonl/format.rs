//! The lines of the files.

use picofleet_delta::Json;
use picofleet_session::storage::{ExportLine, Head, SessionRecord, SessionState, Write};
use picofleet_session::{
    CommitToken, DocumentContent, DocumentCreate, DocumentId, Millis, Seq, SessionId, SubmissionId, TaskId, TaskRecord,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the files; a reader refuses a newer one.
pub(super) const FORMAT: u32 = 1;

/// `store.json`: what holds for the whole directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct StoreFile {
    pub(super) format: u32,
    pub(super) partitions: u16,
}

/// A line of `main.jsonl`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum MainLine {
    /// The first line. Those of an export follow where the session was imported.
    Session { record: SessionRecord, head: Head },
    /// A fence, or a count of openings that began again.
    Head(Head),
    /// Whether the session can be used.
    State(SessionState),
    /// A batch: the marker that publishes it.
    Commits(Vec<CommitLine>),
    /// Settlement notices that were acknowledged.
    Acknowledged(Vec<SubmissionId>),
    /// What maintenance removed.
    Pruned(Pruned),
    /// How many rows of the deleted session maintenance removed.
    Swept(u64),
}

/// The oldest that is left.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Pruned {
    /// Commit rows from here on.
    pub(super) commits_from: Seq,
    /// Answers to request keys from this time and key on; `None` where none is left.
    pub(super) requests_from: Option<(Millis, String)>,
}

/// A commit of a batch.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CommitLine {
    pub(super) token: CommitToken,
    pub(super) at: Millis,
    pub(super) next_id: i64,
    pub(super) writes: Vec<WriteLine>,
}

/// A write of a commit. What is in a sidecar is found there by the sequence of the commit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum WriteLine {
    /// A write that is here as a whole.
    Whole(Write),
    /// A record of a live task, in its sidecar.
    Task(TaskId),
    /// A new incarnation, whose base is in its sidecar. Copies are made out.
    Create { create: DocumentCreate, version: u32 },
    /// Content of an incarnation, in its sidecar.
    Content { id: DocumentId, base: bool },
}

/// A line of a document's sidecar.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct ContentLine {
    pub(super) seq: Seq,
    pub(super) content: DocumentContent,
}

/// A line of a task's sidecar.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct TaskLine {
    pub(super) seq: Seq,
    pub(super) task: TaskRecord,
}

/// A line of `tombstones.jsonl`: when a session was deleted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct TombstoneLine {
    pub(super) session: SessionId,
    pub(super) at: Millis,
}

/// A line with its line feed.
pub(super) fn encode<T: Serialize>(line: &T) -> Result<Vec<u8>, String> {
    let mut bytes = Json::from_serde_envelope(line).map_err(|error| error.to_string())?.to_vec();
    bytes.push(b'\n');
    Ok(bytes)
}

/// A line without its line feed.
pub(super) fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    Json::parse_envelope(line).and_then(|json| json.to()).map_err(|error| error.to_string())
}

/// A line of `main.jsonl`, which may be one of an export.
pub(super) enum AnyLine {
    Main(MainLine),
    Export(ExportLine),
}

/// A line of `main.jsonl` without its line feed. The lines of an export begin with their type.
pub(super) fn decode_main(line: &[u8]) -> Result<AnyLine, String> {
    if line.starts_with(b"{\"type\":") { ExportLine::from_text(line).map(AnyLine::Export) } else { decode(line).map(AnyLine::Main) }
}
