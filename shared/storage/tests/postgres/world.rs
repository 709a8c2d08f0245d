//! Sessions on a database, and looks into its tables.

use std::sync::Arc;

use picofleet_session::storage::{
    Batch, Commit, Fence, Head, OutboxRow, RequestRow, SessionCreate, SessionStore, StorageError, Store, Write,
};
use picofleet_session::{CommitToken, Epoch, Millis, SessionId, SubmissionId};
use picofleet_storage::conformance::records::{
    conversation, create, entry, input, json, latest, pending, put_submission, put_task, set, task,
};
use picofleet_storage::conformance::{Database, NOW};
use picofleet_storage::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::Client;

/// One committer, so that everything that waits goes into one group.
pub(crate) async fn store(url: &str) -> Arc<dyn Store> {
    let options = PostgresOptions { committers: 1, ..PostgresOptions::default() };
    Arc::new(PostgresStore::open(url, options).await.unwrap())
}

pub(crate) const fn fence(epoch: i64) -> Fence {
    Fence { epoch: Epoch(epoch), at: NOW }
}

/// A session as its owner sees it.
pub(crate) struct Owner {
    pub(crate) line: Arc<dyn SessionStore>,
    pub(crate) id: SessionId,
    pub(crate) head: Head,
}

impl Owner {
    /// A new session with its root.
    pub(crate) async fn new(store: &dyn Store) -> Self {
        let id = store.create(SessionCreate::new(NOW)).await.unwrap().session.id;
        let mut owner = Self::open(store, id).await;
        owner.send(owner.batch(owner.head.next_id, vec![conversation(1)])).await.unwrap();
        owner
    }

    pub(crate) async fn open(store: &dyn Store, id: SessionId) -> Self {
        let line = store.open(id, fence(0)).await.unwrap();
        let head = line.opened();
        Self { line, id, head }
    }

    pub(crate) fn batch(&self, next_id: i64, writes: Vec<Write>) -> Batch {
        let commit = Commit { token: CommitToken::random(), at: NOW, next_id, writes };
        Batch { expect: (self.head.seq, self.head.token), commits: vec![commit] }
    }

    /// A batch that writes into every table.
    pub(crate) fn of_every_kind(&self) -> Batch {
        let id = self.head.next_id;
        let request = RequestRow { key: format!("k{id}"), digest: "d".to_owned(), answer: json("1"), at: NOW };
        let notice = OutboxRow { submission_id: SubmissionId::new(id + 3).unwrap(), body: json("1") };
        let mut batch = self.batch(
            id + 6,
            vec![
                entry(id, 1),
                put_task(&task(id + 1, pending())),
                conversation(id + 2),
                put_submission(&input(id + 3, 1, Some(&format!("r{id}")))),
                create(id + 4, latest(id + 2), r#"{"n":1}"#),
                Write::Request(Box::new(request)),
                Write::Outbox(Box::new(notice)),
                Write::Wake(Some(Millis(id))),
            ],
        );
        let second = Commit { token: CommitToken::random(), at: NOW, next_id: id + 6, writes: vec![set(id + 4, "n", "2")] };
        batch.commits.push(second);
        batch
    }

    /// The document that the last batch made.
    pub(crate) fn document(&self) -> i64 {
        self.head.next_id - 2
    }

    /// A batch that writes into nearly every table and asks for nothing that is not known: `document` was made by this owner.
    pub(crate) fn blind(&self, document: i64) -> Batch {
        let id = self.head.next_id;
        let request = RequestRow { key: format!("k{id}"), digest: "d".to_owned(), answer: json("1"), at: NOW };
        let notice = OutboxRow { submission_id: SubmissionId::new(id + 3).unwrap(), body: json("1") };
        let mut batch = self.batch(
            id + 6,
            vec![
                entry(id, 1),
                put_task(&task(id + 1, pending())),
                conversation(id + 2),
                put_submission(&input(id + 3, 1, None)),
                create(id + 4, latest(id + 2), r#"{"n":1}"#),
                Write::Request(Box::new(request)),
                Write::Outbox(Box::new(notice)),
            ],
        );
        let second = Commit { token: CommitToken::random(), at: NOW, next_id: id + 6, writes: vec![set(document, "n", "2")] };
        batch.commits.push(second);
        batch
    }

    pub(crate) async fn send(&mut self, batch: Batch) -> Result<Head, StorageError> {
        self.head = self.line.commit(batch).await?;
        Ok(self.head)
    }

    /// One more entry.
    pub(crate) async fn append(&mut self) -> Result<Head, StorageError> {
        let id = self.head.next_id;
        self.send(self.batch(id + 1, vec![entry(id, 1)])).await
    }
}

const TABLES: [&str; 10] =
    ["commit", "conversation", "entry", "task_live", "submission", "document_record", "document_content", "request", "outbox", "wake"];

/// How many rows a session has in each table.
pub(crate) async fn counts(client: &Client, id: SessionId) -> Vec<(&'static str, i64)> {
    let mut counts = Vec::new();
    for table in TABLES {
        let sql = format!("SELECT count(*) FROM {table} WHERE session_id = $1");
        let row = client.query_one(&sql, &[&uuid(id)]).await.unwrap();
        counts.push((table, row.get(0)));
    }
    counts
}

pub(crate) fn uuid(id: SessionId) -> uuid::Uuid {
    uuid::Uuid::from_bytes(*id.as_bytes())
}

/// A database, its store and a look into it.
pub(crate) async fn database() -> (Database, Arc<dyn Store>, Client) {
    let database = Database::new().await;
    let store = store(database.url()).await;
    let client = database.client().await;
    (database, store, client)
}
