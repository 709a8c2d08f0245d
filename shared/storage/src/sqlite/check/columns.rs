//! The narrow columns, which queries and indexes look at, against the records beside them.

use picofleet_session::storage::Finding;
use picofleet_session::{ConversationRecord, EntryRecord, Id, SubmissionRecord, SubmissionState, TaskRecord};
use rusqlite::Row;
use rusqlite::types::Value;
use serde::de::DeserializeOwned;

use super::super::read::Answer;
use super::super::rows::{self, DELETING};
use super::Check;

/// The columns that a record should have.
type Columns = Vec<(&'static str, Value)>;

pub(super) fn check(check: &mut Check<'_>) -> Answer<()> {
    table(check, "conversation", "id, owner_conversation, owner_task", |record: &ConversationRecord| {
        let owner = |pick: fn(&picofleet_session::ConversationOwner) -> i64| optional(record.owner.as_ref().map(pick));
        vec![
            ("id", record.id.get().into()),
            ("owner_conversation", owner(|owner| owner.conversation_id.get())),
            ("owner_task", owner(|owner| owner.task_id.get())),
        ]
    })?;
    table(check, "entry", "id, conversation, head", |record: &EntryRecord| {
        vec![
            ("id", record.id.get().into()),
            ("conversation", record.conversation_id.get().into()),
            ("head", optional(record.head.map(Id::get))),
        ]
    })?;
    table(check, "task", "id, conversation, owner, kind, status, live, abort, background", |record: &TaskRecord| {
        vec![
            ("id", record.id.get().into()),
            ("conversation", record.conversation_id.get().into()),
            ("owner", optional(record.owner.map(Id::get))),
            ("kind", record.kind.clone().into()),
            ("status", rows::task_status(record.status()).into()),
            ("live", i64::from(!record.terminal()).into()),
            ("abort", i64::from(record.abort_requested).into()),
            ("background", i64::from(record.background).into()),
        ]
    })?;
    table(check, "submission", "id, conversation, request_id, input, status, open", |record: &SubmissionRecord| {
        vec![
            ("id", record.id.get().into()),
            ("conversation", record.conversation_id.get().into()),
            ("request_id", record.request_id.clone().map_or(Value::Null, Value::from)),
            ("input", i64::from(matches!(record.state, SubmissionState::Input(_))).into()),
            ("status", rows::submission_status(record.status()).into()),
            ("open", i64::from(!record.settled()).into()),
        ]
    })
}

fn optional(id: Option<i64>) -> Value {
    id.map_or(Value::Null, Value::from)
}

/// Each row of a table: its record can be read, and its columns are those of the record.
fn table<T: DeserializeOwned>(check: &mut Check<'_>, name: &'static str, columns: &str, of: impl Fn(&T) -> Columns) -> Answer<()> {
    let sql = format!(
        "SELECT s.id, t.record, t.{} FROM {name} t JOIN session s ON s.n = t.session WHERE s.id IS NOT NULL AND s.state < {DELETING}",
        columns.replace(", ", ", t.")
    );
    check.rows(&sql, [], |check, row| {
        let session = rows::session_id(row, 0)?;
        let number: i64 = row.get(2)?;
        let finding = match rows::record::<T>(row, 1)? {
            Err(why) => Some(Finding::of_session("record", session, format!("{name} {number} can't be read: {why}"))),
            Ok(record) => differing(row, &of(&record))?.map(|column| {
                let what = format!("the column {column} of {name} {number} is not what its record says");
                Finding::of_session("index", session, what)
            }),
        };
        finding.into_iter().for_each(|finding| check.add(finding));
        Ok(())
    })
}

/// The first column that is not what the record says.
fn differing(row: &Row<'_>, columns: &Columns) -> rusqlite::Result<Option<&'static str>> {
    for (index, (name, expected)) in columns.iter().enumerate() {
        if row.get::<_, Value>(index + 2)? != *expected {
            return Ok(Some(name));
        }
    }
    Ok(None)
}
