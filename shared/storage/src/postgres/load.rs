//! What the rules ask for, read in one round trip.

use std::collections::HashMap;

use deadpool_postgres::Client;
use futures::future::try_join_all;
use picofleet_session::storage::{Batch, Head, StorageError, Write};
use picofleet_session::{DocumentId, Point, SessionId, SubmissionId, SubmissionRecord, SubmissionState, TaskId};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Shared;
use super::known::{Key, Known, TaskKnown};
use super::rows::{self, Read};
use super::sql;
use crate::rules::Replay;
use crate::tables::{DocumentState, SubmissionIdentity, TaskIdentity};

/// Fewer lookups than this are begun in their order.
const ORDERED: usize = 24;

/// Answers to lookups, and the head of the chain after they were read.
pub(super) struct Loaded {
    pub(super) head: Head,
    found: Known,
}

impl Loaded {
    pub(super) fn add_to(self, known: &mut Known) {
        let found = self.found;
        known.owners.extend(found.owners);
        known.tasks.extend(found.tasks);
        known.invocations.extend(found.invocations);
        known.submissions.extend(found.submissions);
        known.requests.extend(found.requests);
        known.documents.extend(found.documents);
        known.current.extend(found.current);
        known.replays.extend(found.replays);
    }
}

/// Whether a lookup is answered already.
pub(super) fn known(known: &Known, key: &Key) -> bool {
    match key {
        Key::Owner(id) => known.owners.contains_key(id),
        Key::Task(id) => known.tasks.contains_key(id),
        Key::Invocation(id) => known.invocations.contains_key(id),
        Key::Submission(id) => known.submissions.contains_key(id),
        Key::Request(conversation, request) => known.requests.contains_key(&(*conversation, request.clone())),
        Key::Document(id) => known.documents.contains_key(id),
        Key::Current(address) => known.current.contains_key(address),
        Key::Replay(id, at) => known.replays.contains_key(&(*id, *at)),
    }
}

/// The lookups that a batch can need. Some are of rows that it makes itself: those are not there and cost little.
pub(super) fn foreseen(batch: &Batch) -> Vec<Key> {
    let mut keys = Vec::new();
    for write in batch.commits.iter().flat_map(|commit| &commit.writes) {
        match write {
            Write::Task(record) => keys.push(Key::Task(record.id)),
            Write::Invocation(row) => keys.push(Key::Task(row.task_id)),
            Write::Submission(record) => {
                keys.push(Key::Submission(record.id));
                if let Some(request) = &record.request_id {
                    keys.push(Key::Request(record.conversation_id, request.clone()));
                }
            }
            Write::DocumentCreate { create, .. } => keys.push(Key::Current(create.address())),
            Write::DocumentCopy(copy) => {
                keys.push(Key::Current(copy.create.address()));
                keys.push(Key::Document(copy.source));
                keys.push(Key::Replay(copy.source, newest(copy.at)));
            }
            Write::DocumentChange { id, .. } | Write::DocumentRetire(id) => keys.push(Key::Document(*id)),
            Write::Conversation(_) | Write::Entry(_) | Write::Request(_) | Write::Outbox(_) | Write::Wake(_) => {}
        }
    }
    keys
}

/// Reads. The head is read behind everything else: where it is still the caller's, so is everything that was read.
pub(super) async fn load(shared: &Shared, id: SessionId, keys: &[&Key]) -> Result<Loaded, StorageError> {
    let place = &shared.access.place;
    let client = shared.reads.get().await.map_err(|error| place.no_connection("read", error))?;
    let lookups: Vec<Lookup> = keys.iter().map(|key| Lookup::of(id, key)).collect();
    let mut statements = HashMap::new();
    for sql in lookups.iter().map(|lookup| lookup.sql).chain([sql::HEAD]) {
        if let std::collections::hash_map::Entry::Vacant(vacant) = statements.entry(sql) {
            vacant.insert(client.prepare_cached(sql).await.map_err(|error| place.failed("read", error))?);
        }
    }
    let client: &Client = &client;
    let session = rows::uuid(id);
    let answers = try_join_all(lookups.iter().map(|lookup| {
        let statement = &statements[lookup.sql];
        async move { client.query(statement, &lookup.parameters()).await }
    }));
    let parameters: [&(dyn ToSql + Sync); 1] = [&session];
    let head = client.query_opt(&statements[sql::HEAD], &parameters);
    // Polled in this order, which is the order in which they are sent; many at once have no order.
    let both = async { if keys.len() < ORDERED { futures::try_join!(answers, head) } else { Ok((answers.await?, head.await?)) } };
    let (answers, head) = both.await.map_err(|error| place.failed("read", error))?;
    // A session whose rows are gone was deleted, which fenced it.
    let row = head.ok_or(StorageError::Fenced { session: id })?;
    let head = rows::sound(place, "a commit", rows::head(&row, 0))?;
    let mut found = Known::default();
    for (key, rows) in keys.iter().zip(answers) {
        rows::sound(place, "a record", add(&mut found, key, &rows))?;
    }
    Ok(Loaded { head, found })
}

/// A statement with its parameters.
struct Lookup {
    sql: &'static str,
    parameters: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Lookup {
    fn of(session: SessionId, key: &Key) -> Self {
        let mut parameters: Vec<Box<dyn ToSql + Sync + Send>> = vec![Box::new(rows::uuid(session))];
        let mut with = |parameter: Box<dyn ToSql + Sync + Send>| parameters.push(parameter);
        let sql = match key {
            Key::Owner(id) => {
                with(Box::new(*id));
                sql::OWNER
            }
            Key::Task(id) => {
                with(Box::new(id.get()));
                sql::TASK_IDENTITY
            }
            Key::Invocation(id) => {
                with(Box::new(id.get()));
                sql::TASK_INVOCATION
            }
            Key::Submission(id) => {
                with(Box::new(id.get()));
                sql::SUBMISSION
            }
            Key::Request(conversation, request) => {
                with(Box::new(conversation.get()));
                with(Box::new(rows::indexable(request)));
                sql::SUBMISSION_BY_REQUEST
            }
            Key::Document(id) => {
                with(Box::new(id.get()));
                sql::DOCUMENT_STATE
            }
            Key::Current(address) => {
                let (scope, scope_id) = rows::scope_columns(address.scope);
                with(Box::new(scope));
                with(Box::new(scope_id));
                with(Box::new(rows::address(&address.kind, &rows::name(address.key.as_deref()))));
                with(Box::new(i64::MAX));
                sql::DOCUMENT_AT
            }
            Key::Replay(id, at) => {
                with(Box::new(id.get()));
                with(Box::new(*at));
                sql::CONTENT_DOWN
            }
        };
        Self { sql, parameters }
    }

    fn parameters(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.parameters.iter().map(|parameter| &**parameter as &(dyn ToSql + Sync)).collect()
    }
}

pub(super) const fn newest(at: Point) -> i64 {
    match at {
        Point::Current => i64::MAX,
        Point::At(seq) => seq.0,
    }
}

fn add(found: &mut Known, key: &Key, rows: &[Row]) -> Read<()> {
    let row = rows.first();
    match key {
        Key::Owner(id) => {
            let owner = row.map(|row| rows::get::<Option<String>>(row, 0)).transpose()?.flatten();
            found.owners.insert(*id, owner.and_then(|owner| OWNERS.into_iter().find(|known| *known == owner)));
        }
        Key::Task(id) => {
            found.tasks.insert(*id, row.map(task).transpose()?);
        }
        Key::Invocation(id) => {
            found.invocations.insert(*id, row.map(|row| rows::get(row, 0)).transpose()?.flatten());
        }
        Key::Submission(id) => {
            found.submissions.insert(*id, row.map(submission).transpose()?);
        }
        Key::Request(conversation, request) => {
            let id: Option<SubmissionId> = row.map(|row| rows::id(row, 1)).transpose()?;
            found.requests.insert((*conversation, request.clone()), id);
        }
        Key::Document(id) => {
            found.documents.insert(*id, row.map(document).transpose()?);
        }
        Key::Current(address) => {
            let newest = row.map(|row| rows::document(row, 0)).transpose()?;
            let current: Option<DocumentId> = newest.filter(|record| record.alive(Point::Current)).map(|record| record.create.id);
            found.current.insert(address.clone(), current);
        }
        Key::Replay(id, at) => {
            let replay = Replay::newest_first(rows.iter().map(|row| rows::content(row, 0)))?;
            found.replays.insert((*id, *at), replay);
        }
    }
    Ok(())
}

const OWNERS: [&str; 5] = ["conversation", "entry", "task", "submission", "document"];

/// `conversation, owner, kind, terminal, invoked`.
fn task(row: &Row) -> Read<TaskKnown> {
    let owner = rows::get::<Option<i64>>(row, 1)?.map(TaskId::new).transpose().map_err(|error| error.to_string())?;
    let identity = TaskIdentity { conversation_id: rows::id(row, 0)?, owner, kind: rows::string(row, 2)? };
    Ok(TaskKnown { identity, terminal: rows::get(row, 3)?, invoked: rows::get(row, 4)? })
}

fn submission(row: &Row) -> Read<SubmissionIdentity> {
    let record: SubmissionRecord = rows::record(row, 0)?;
    let input = matches!(record.state, SubmissionState::Input(_));
    Ok(SubmissionIdentity { conversation_id: record.conversation_id, request_id: record.request_id, input })
}

/// A document with the version of its newest content.
fn document(row: &Row) -> Read<DocumentState> {
    let version = rows::get::<Option<i64>>(row, 8)?.map(u32::try_from).transpose().map_err(|error| error.to_string())?;
    Ok(DocumentState { record: rows::document(row, 0)?, version })
}
