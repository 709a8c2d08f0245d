//! What a commit may do, once for all backends that run a transaction in this process (section 10; `protocol.md` 1 and 2).
//!
//! A commit is applied in this order, whatever the order of its writes: copies read their sources, records of the tables, invocations,
//! content, retirements, creations, the rest, the commit's row.

mod ancestry;
mod documents;
mod head;
mod ids;
mod import;
mod page;
mod replay;

use picofleet_session::storage::{Batch, Commit, Head, Rejection, SessionCreate, StorageError, Write};
use picofleet_session::{ConversationRecord, EntryRecord, InvocationRow, Json, SessionId, SubmissionRecord, SubmissionState, TaskRecord};

use crate::tables::{Found, SubmissionIdentity, Tables, TaskIdentity};

pub(crate) use ancestry::{Segment, ancestry, visible};
pub(crate) use head::{Fencing, fence, genesis};
pub(crate) use import::{Import, imported};
pub(crate) use page::{CursorKey, page, page_size, read_cursor};
pub(crate) use replay::{Replay, exported, readable};

/// Commit rows are kept this far behind the newest one (`protocol.md` 1).
pub(crate) const COMMITS_KEPT: i64 = 256;
/// Commit rows are kept at least this long, in milliseconds: 10 minutes.
pub(crate) const COMMIT_AGE: i64 = 10 * 60 * 1_000;
/// Answers to request keys are kept this long, in milliseconds: 48 hours (`protocol.md` 3).
pub(crate) const REQUEST_AGE: i64 = 48 * 60 * 60 * 1_000;
/// Tombstones of deleted sessions are kept this long, in milliseconds: 30 days (`protocol.md` 7).
pub(crate) const TOMBSTONE_AGE: i64 = 30 * 24 * 60 * 60 * 1_000;

use documents::Documents;
use ids::Ids;

/// Applies a batch on the rows of `session`, whose newest commit is `head`, and gives the newest commit after it. On an error the backend
/// undoes everything that was written since the beginning of the batch.
///
/// # Errors
/// [`StorageError::Fenced`] when `head` is not the predecessor that the batch names; [`Rejection`] for a batch that breaks a rule; what
/// the tables fail with.
pub(crate) fn apply_batch(tables: &mut impl Tables, session: SessionId, head: &Head, batch: &Batch) -> Found<Head> {
    if batch.expect != (head.seq, head.token) {
        return Err(StorageError::Fenced { session });
    }
    if batch.commits.is_empty() || batch.commits.len() > Batch::COMMITS_MAX {
        let text = format!("a batch has 1 to {} commits, this one {}", Batch::COMMITS_MAX, batch.commits.len());
        return Err(Rejection::Malformed(text).into());
    }
    batch.commits.iter().try_fold(*head, |head, commit| apply_commit(tables, &head, commit))
}

fn apply_commit(tables: &mut impl Tables, head: &Head, commit: &Commit) -> Found<Head> {
    let next = Head { seq: head.seq.next(), token: commit.token, epoch: head.epoch, next_id: commit.next_id, opens: 0, at: commit.at };
    let mut ids = Ids::new(head.next_id, commit.next_id)?;
    let documents = Documents::prepare(tables, commit, next.seq)?;
    for write in &commit.writes {
        match write {
            Write::Conversation(record) => put_conversation(tables, &mut ids, record)?,
            Write::Entry(entry) => put_entry(tables, &mut ids, &next, entry)?,
            Write::Task(record) => put_task(tables, &mut ids, record)?,
            Write::Submission(record) => put_submission(tables, &mut ids, record)?,
            Write::Request(row) => {
                readable_again("the answer to a request", &row.answer)?;
                tables.put_request(row)?;
            }
            Write::Outbox(row) => {
                readable_again("a notice", &row.body)?;
                tables.put_outbox(row)?;
            }
            Write::Wake(at) => tables.put_wake(*at)?,
            Write::Invocation(_)
            | Write::DocumentCreate { .. }
            | Write::DocumentCopy(_)
            | Write::DocumentChange { .. }
            | Write::DocumentRetire(_) => {}
        }
    }
    for write in &commit.writes {
        if let Write::Invocation(row) = write {
            put_invocation(tables, &ids, row)?;
        }
    }
    documents.apply(tables, &mut ids)?;
    tables.put_commit(&next)?;
    Ok(next)
}

/// Refuses what could be written and not be read again: a value that nests too deep, which only its constructors can make.
pub(crate) fn readable_again(what: &str, value: &Json) -> Result<(), Rejection> {
    Json::from_serde(value).map(|_| ()).map_err(|error| Rejection::Malformed(format!("{what} can't be stored: {error}")))
}

/// Refuses a session whose metadata is no object or could not be read again.
pub(crate) fn creatable(session: &SessionCreate) -> Result<(), Rejection> {
    if session.metadata.as_object().is_none() {
        return Err(Rejection::Malformed("the metadata of a session is a JSON object".to_owned()));
    }
    readable_again("the metadata of a session", &session.metadata)
}

fn put_conversation(tables: &mut impl Tables, ids: &mut Ids, record: &ConversationRecord) -> Found<()> {
    ids.claim(tables, record.id.get(), "conversation")?;
    tables.put_conversation(record)
}

fn put_entry(tables: &mut impl Tables, ids: &mut Ids, next: &Head, entry: &EntryRecord) -> Found<()> {
    ids.claim(tables, entry.id.get(), "entry")?;
    tables.put_entry(next.seq, entry)
}

fn put_task(tables: &mut impl Tables, ids: &mut Ids, record: &TaskRecord) -> Found<()> {
    let id = record.id.get();
    let stored = if ids.may_be_stored(id) { tables.task(record.id)? } else { None };
    let Some(stored) = stored else {
        ids.claim(tables, id, "task")?;
        return tables.insert_task(record);
    };
    let TaskIdentity { conversation_id, owner, kind } = stored;
    let changed =
        [(conversation_id != record.conversation_id, "conversations"), (owner != record.owner, "owner"), (kind != record.kind, "kind")];
    unchanged("task", id, changed)?;
    ids.name(id, "task");
    tables.replace_task(record)
}

fn put_submission(tables: &mut impl Tables, ids: &mut Ids, record: &SubmissionRecord) -> Found<()> {
    let id = record.id.get();
    let stored = if ids.may_be_stored(id) { tables.submission(record.id)? } else { None };
    let Some(stored) = stored else {
        ids.claim(tables, id, "submission")?;
        free_request(tables, record)?;
        return tables.insert_submission(record);
    };
    let SubmissionIdentity { conversation_id, request_id, input } = stored;
    let changed = [
        (conversation_id != record.conversation_id, "conversations"),
        (request_id != record.request_id, "request ID"),
        (input != matches!(record.state, SubmissionState::Input(_)), "type"),
    ];
    unchanged("submission", id, changed)?;
    tables.replace_submission(record)
}

fn unchanged(what: &'static str, id: i64, fields: [(bool, &'static str); 3]) -> Result<(), Rejection> {
    match fields.into_iter().find(|(changed, _)| *changed) {
        Some((_, field)) => Err(Rejection::Immutable { what, id, field }),
        None => Ok(()),
    }
}

fn free_request(tables: &mut impl Tables, record: &SubmissionRecord) -> Found<()> {
    let Some(request_id) = &record.request_id else { return Ok(()) };
    match tables.request_owner(record.conversation_id, request_id)? {
        Some(submission) => Err(Rejection::RequestTaken { request_id: request_id.clone(), submission: submission.get() }.into()),
        None => Ok(()),
    }
}

fn put_invocation(tables: &mut impl Tables, ids: &Ids, row: &InvocationRow) -> Found<()> {
    let id = row.task_id.get();
    if !ids.named(id, "task") && tables.task(row.task_id)?.is_none() {
        return Err(Rejection::Missing { what: "task", id }.into());
    }
    tables.put_invocation(row)
}
