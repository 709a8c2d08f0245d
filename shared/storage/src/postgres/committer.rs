//! The task that writes groups over a connection of its own (`protocol.md` 2).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use picofleet_session::storage::{Rejection, StorageError};
use picofleet_session::{PartitionCount, SessionId};
use tokio_postgres::{Client, Error, Row, Statement};
use uuid::Uuid;

use super::connect::{Access, Purpose, full};
use super::errors::{Class, class, code};
use super::group::{Arrays, Part};
use super::line::Work;
use super::queue::Queue;
use super::retry::{Attempts, PATIENCE};
use super::rows;
use super::settle::Settled;

/// How often a group is repeated that met a deadlock or a lock.
const REPEATS: u32 = 3;

/// A connection with its prepared statements and its number at the server.
pub(super) struct Link {
    pub(super) client: Client,
    pub(super) pid: i32,
    statements: HashMap<&'static str, Statement>,
}

impl Link {
    async fn open(access: &Access) -> Result<Self, Error> {
        let client = access.connect(Purpose::Commit).await?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await?.try_get(0)?;
        Ok(Self { client, pid, statements: HashMap::new() })
    }

    pub(super) async fn prepared(&mut self, sql: &'static str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }
}

/// What became of an attempt to write a group.
enum Attempt {
    /// It is stored for these sessions; others have another owner.
    Landed(Vec<SessionId>),
    /// Nothing is stored, and the same again would fail.
    Absent(Error),
    /// Nothing is stored, and this is the answer.
    Given(StorageError),
    /// What is stored can't be told.
    Unknown(Error),
}

/// See the module.
pub(super) struct Committer {
    pub(super) access: Access,
    partitions: PartitionCount,
    queue: Arc<Queue>,
    link: Option<Link>,
    /// The server of the connection that was lost last; it may still work on the group.
    pub(super) lost: Option<i32>,
    /// New batches are refused at once while this one can't write.
    troubled: Arc<AtomicBool>,
}

impl Committer {
    pub(super) fn new(access: Access, partitions: PartitionCount, queue: Arc<Queue>, troubled: Arc<AtomicBool>) -> Self {
        Self { access, partitions, queue, link: None, lost: None, troubled }
    }

    /// Writes what comes until the queue is sealed and empty.
    pub(super) async fn run(mut self) {
        while let Some(group) = Arc::clone(&self.queue).next().await {
            self.group(group).await;
            self.troubled.store(false, Ordering::SeqCst);
        }
    }

    async fn group(&mut self, works: Vec<Work>) {
        // Halves of a group that failed as a whole wait here, the earliest on top.
        let mut rest = vec![works];
        let mut attempts = Attempts::within(PATIENCE);
        while let Some(mut works) = rest.pop() {
            if works.is_empty() {
                continue;
            }
            match self.attempt(&works, &mut attempts).await {
                Attempt::Landed(winners) => {
                    let mut won = vec![false; works.len()];
                    for (index, work) in works.iter().enumerate() {
                        won[index] = winners.contains(&work.session());
                    }
                    for (work, won) in works.into_iter().zip(won) {
                        if won { work.landed() } else { work.fenced() }
                    }
                }
                Attempt::Absent(error) if works.len() == 1 => {
                    tracing::error!(store = %self.access.place.0, error = %full(&error), "a batch was refused by the server");
                    let refused = self.access.place.rejected("commit", error);
                    works.into_iter().for_each(|work| work.refused(refused.clone()));
                }
                Attempt::Absent(error) => {
                    tracing::warn!(store = %self.access.place.0, batches = works.len(), error = %full(&error), "a group failed, trying its halves");
                    let second = works.split_off(works.len() / 2);
                    rest.push(second);
                    rest.push(works);
                }
                Attempt::Given(error) => works.into_iter().for_each(|work| work.refused(error.clone())),
                Attempt::Unknown(error) => {
                    tracing::warn!(store = %self.access.place.0, batches = works.len(), error = %full(&error), "a connection was lost with a group on it");
                    self.troubled.store(true, Ordering::SeqCst);
                    let Settled { landed, fenced, again, uncertain } = self.settle(works, &mut Attempts::within(PATIENCE)).await;
                    landed.into_iter().for_each(Work::landed);
                    fenced.into_iter().for_each(Work::fenced);
                    let unknown = self.access.place.uncertain("commit", error);
                    uncertain.into_iter().for_each(|work| work.refused(unknown.clone()));
                    rest.push(again);
                }
            }
        }
    }

    async fn attempt(&mut self, works: &[Work], attempts: &mut Attempts) -> Attempt {
        let parts = works.iter().map(|work| Part { session: work.session(), behind: work.behind(), staged: work.staged() }).collect();
        let arrays = Arrays::new(parts, self.partitions);
        let mut repeats = 0;
        loop {
            let link = match self.link(attempts).await {
                Ok(link) => link,
                Err(error) => return Attempt::Given(error),
            };
            let statement = match link.prepared(arrays.sql()).await {
                Ok(statement) => statement,
                // Nothing was sent.
                Err(error) => {
                    self.lose();
                    if !attempts.again().await {
                        return Attempt::Given(self.access.place.unavailable("commit", error));
                    }
                    continue;
                }
            };
            // With its parameters, Execute and Sync go out as one piece. What the server answers is complete only behind ReadyForQuery:
            // the commit itself is made at Sync.
            let error = match link.client.query(&statement, &arrays.parameters()).await {
                Ok(rows) => match rows.iter().map(|row| rows::session_id(row, 0)).collect() {
                    Ok(winners) => return Attempt::Landed(winners),
                    Err(why) => return Attempt::Given(self.access.place.corrupt("the answer to a group", why).into()),
                },
                Err(error) => error,
            };
            match class(&error) {
                Class::Again if repeats < REPEATS => {
                    repeats += 1;
                    if code(&error) == Some("55P03") {
                        self.evict().await;
                    }
                }
                Class::Again => return Attempt::Given(self.access.place.rejected("commit", error)),
                Class::Unable => {
                    self.troubled.store(true, Ordering::SeqCst);
                    // A server that became a standby never gets writable for this connection.
                    self.lose();
                    if !attempts.again().await {
                        return Attempt::Given(self.access.place.rejected("commit", error));
                    }
                }
                Class::Refused => return Attempt::Absent(error),
                Class::Unknown => {
                    self.lose();
                    return Attempt::Unknown(error);
                }
            }
        }
    }

    /// The connection, or a new one.
    pub(super) async fn link(&mut self, attempts: &mut Attempts) -> Result<&mut Link, StorageError> {
        if self.link.as_ref().is_some_and(|link| link.client.is_closed()) {
            self.lose();
        }
        while self.link.is_none() {
            match Link::open(&self.access).await {
                Ok(link) => self.link = Some(link),
                Err(error) => {
                    self.troubled.store(true, Ordering::SeqCst);
                    if !attempts.again().await {
                        return Err(self.access.place.unavailable("commit", error));
                    }
                }
            }
        }
        self.link.as_mut().ok_or_else(|| Rejection::Unavailable { operation: "commit".to_owned() }.into())
    }

    /// The connection that is open.
    pub(super) fn link_now(&self) -> Option<&Link> {
        self.link.as_ref()
    }

    /// Lets go of the connection.
    pub(super) fn lose(&mut self) {
        if let Some(link) = self.link.take() {
            self.lost = Some(link.pid);
        }
    }

    /// Ends connections of other runs that hold what a group waits for: a client that stalls inside a transaction is ended by no timeout.
    pub(super) async fn evict(&mut self) {
        let Some(link) = &self.link else { return };
        if let Err(error) = evict(&link.client, &self.access, self.lost).await {
            tracing::warn!(store = %self.access.place.0, error = %full(&error), "connections that hold locks could not be ended");
        }
    }
}

/// Ends the backends of ours that hold a row of the chain longer than a lock is waited for: those of other runs, and the one of a lost
/// connection.
pub(super) async fn evict(client: &Client, access: &Access, lost: Option<i32>) -> Result<Vec<Row>, Error> {
    let sql = "SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid() AND a.xact_start < clock_timestamp() - interval '1500 ms'
        AND a.application_name LIKE 'picofleet/%' AND (a.pid = $1 OR a.application_name <> $2)
        AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.relation = 'commit'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted)";
    client.query(sql, &[&lost, &access.committers()]).await
}

/// The identifiers of sessions as a parameter.
pub(super) fn uuids<'w>(works: impl Iterator<Item = &'w Work>) -> Vec<Uuid> {
    works.map(|work| rows::uuid(work.session())).collect()
}
