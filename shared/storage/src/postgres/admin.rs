//! What happens to sessions as a whole.

use deadpool_postgres::{Client, Object};
use futures::future::try_join_all;
use picofleet_session::storage::{Created, Fence, Head, Rejection, SessionCreate, SessionRecord, SessionState, StorageError};
use picofleet_session::{CommitToken, Millis, SessionId, SubmissionId};
use tokio_postgres::{Error, Row};
use uuid::Uuid;

use super::Shared;
use super::committer::evict;
use super::errors::{Class, class, code};
use super::read::{Answer, Parameters};
use super::retry::{Attempts, PATIENCE};
use super::{rows, sql};
use crate::rules::{Fencing, fence, genesis};

/// Sessions that are fenced, and notices that are acknowledged, at once.
const PIECE: usize = 256;

/// A session and the beginning of its chain, unless it is there or was deleted.
const CREATE: &str = "WITH made AS (
  INSERT INTO session (id, tenant, key, metadata, state, created_at)
  SELECT $1, $2, $3, $4, 0, $5 WHERE (SELECT t.at FROM tombstone t WHERE t.id = $1) IS NULL ON CONFLICT DO NOTHING RETURNING id
) INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at) SELECT id, $6, $7, $8, $9, 0, $5 FROM made RETURNING session_id";

/// A row of the chain behind its predecessor.
const CHAIN: &str = "INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at)
  SELECT $1, $2::bigint, $3, $4, $5, $6, $7 WHERE (SELECT c.token FROM commit c WHERE c.session_id = $1 AND c.seq = $2 - 1) = $8
  ON CONFLICT DO NOTHING RETURNING session_id";

/// The fence of a deleted session, and what goes at once.
const DELETE: &str = "WITH fence AS (
  INSERT INTO commit (session_id, seq, token, epoch, next_id, opens, at)
  SELECT $1, $2::bigint, $3, $4, $5, $6, $7 WHERE (SELECT c.token FROM commit c WHERE c.session_id = $1 AND c.seq = $2 - 1) = $8
  ON CONFLICT DO NOTHING RETURNING session_id
), gone AS (UPDATE session SET state = 2 WHERE id = (SELECT session_id FROM fence) AND state < 2 RETURNING id, tenant
), notices AS (DELETE FROM outbox WHERE session_id = (SELECT session_id FROM fence)
), wakes AS (DELETE FROM wake WHERE session_id = (SELECT session_id FROM fence)
), stone AS (INSERT INTO tombstone (id, tenant, at) SELECT id, tenant, $7 FROM gone
  ON CONFLICT (id) DO UPDATE SET tenant = excluded.tenant, at = excluded.at)
SELECT session_id FROM fence";

impl Shared {
    pub(super) async fn client(&self, operation: &str) -> Answer<Client> {
        self.check()?;
        self.reads.get().await.map_err(|error| self.access.place.no_connection(operation, error))
    }

    async fn run(&self, client: &Client, sql: &'static str, parameters: Parameters<'_>) -> Result<Vec<Row>, Error> {
        let statement = client.prepare_cached(sql).await?;
        client.query(&statement, parameters).await
    }

    /// Does a write that may meet a lock of a stalled owner or a deadlock; the same again changes nothing.
    async fn write(&self, operation: &str, sql: &'static str, parameters: Parameters<'_>) -> Answer<Vec<Row>> {
        let mut attempts = Attempts::within(PATIENCE);
        loop {
            let client = self.client(operation).await?;
            let error = match self.run(&client, sql, parameters).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            if code(&error) == Some("55P03")
                && let Err(error) = evict(&client, &self.access, None).await
            {
                return Err(self.access.place.failed(operation, error));
            }
            let again = matches!(class(&error), Class::Again | Class::Unable);
            if class(&error) == Class::Unable {
                // A server that became a standby never gets writable for this connection.
                drop(Object::take(client));
            }
            if !again || !attempts.again().await {
                return Err(self.access.place.written(operation, error));
            }
        }
    }

    pub(super) async fn read(&self, sql: &'static str, parameters: Parameters<'_>) -> Answer<Vec<Row>> {
        let client = self.client("read").await?;
        self.run(&client, sql, parameters).await.map_err(|error| self.access.place.failed("read", error))
    }

    fn sound<T>(&self, what: &str, read: rows::Read<T>) -> Answer<T> {
        rows::sound(&self.access.place, what, read)
    }

    pub(super) async fn find(&self, id: SessionId) -> Answer<Option<SessionRecord>> {
        let found = self.read(sql::SESSION, &[&rows::uuid(id)]).await?;
        let record = found.first().map(|row| self.sound("a session", rows::session(row))).transpose()?;
        Ok(record.filter(|record| record.state != SessionState::Deleting))
    }

    /// A session that is not being deleted, with its newest commit.
    async fn present(&self, id: SessionId) -> Answer<Option<(SessionRecord, Head)>> {
        let found = self.read(sql::SESSION_HEAD, &[&rows::uuid(id)]).await?;
        let Some(row) = found.first() else { return Ok(None) };
        let record = self.sound("a session", rows::session(row))?;
        if record.state == SessionState::Deleting {
            return Ok(None);
        }
        let head = self.sound(&format!("the chain of session {id}"), rows::head(row, 6))?;
        Ok(Some((record, head)))
    }

    pub(super) async fn create(&self, session: SessionCreate) -> Answer<Created> {
        let SessionCreate { id, tenant, key, metadata, at } = session;
        let begin = genesis(at);
        let (uuid, token) = (rows::uuid(id), rows::token(begin.token));
        let escaped = (rows::escape(&tenant.0), key.as_deref().map(rows::escape), metadata.to_string());
        let mut attempts = Attempts::within(PATIENCE);
        loop {
            let parameters: Parameters<'_> =
                &[&uuid, &&*escaped.0, &escaped.1.as_deref(), &escaped.2, &at.0, &begin.seq.0, &token, &begin.epoch.0, &begin.next_id];
            if !self.write("create a session", CREATE, parameters).await?.is_empty() {
                let session = SessionRecord { id, tenant, key, metadata, state: SessionState::Active, created_at: at };
                return Ok(Created { session, existed: false });
            }
            if !self.read(sql::TOMBSTONE, &[&uuid]).await?.is_empty() {
                return Err(Rejection::SessionDeleted { session: id }.into());
            }
            if let Some(row) = self.read(sql::SESSION, &[&uuid]).await?.first() {
                return Ok(Created { session: self.sound("a session", rows::session(row))?, existed: true });
            }
            // The one that was in the way went meanwhile.
            if !attempts.again().await {
                return Err(self.access.place.unavailable("create a session", std::io::Error::other("others make and remove it")));
            }
        }
    }

    /// Puts a row on top of a chain; `false` where another one took the place.
    async fn chain(&self, operation: &str, sql: &'static str, id: SessionId, on: &Head, row: &Head) -> Answer<bool> {
        let (session, token, behind) = (rows::uuid(id), rows::token(row.token), rows::token(on.token));
        let opens = i32::try_from(row.opens).unwrap_or(i32::MAX);
        let parameters: Parameters<'_> = &[&session, &row.seq.0, &token, &row.epoch.0, &row.next_id, &opens, &row.at.0, &behind];
        Ok(!self.write(operation, sql, parameters).await?.is_empty())
    }

    pub(super) async fn open(&self, id: SessionId, by: Fence) -> Answer<(SessionRecord, Head)> {
        let mut attempts = Attempts::within(PATIENCE);
        loop {
            let Some((record, head)) = self.present(id).await? else { return Err(StorageError::NotFound { session: id }) };
            let opened = match fence(id, &head, by, Fencing::Open) {
                Err(error @ StorageError::Quarantined { .. }) => {
                    self.set_state(id, SessionState::Quarantined).await?;
                    return Err(error);
                }
                opened => opened?,
            };
            if record.state == SessionState::Quarantined {
                return Err(StorageError::Quarantined { session: id });
            }
            if self.chain("open a session", CHAIN, id, &head, &opened).await? {
                return Ok((record, opened));
            }
            if !attempts.again().await {
                return Err(self.access.place.unavailable("open a session", std::io::Error::other("its owner commits all the time")));
            }
        }
    }

    async fn set_state(&self, id: SessionId, state: SessionState) -> Answer<()> {
        let number = i16::try_from(rows::state_number(state)).unwrap_or_default();
        self.write("change a session", sql::SESSION_SET_STATE, &[&rows::uuid(id), &number]).await.map(drop)
    }

    /// Keeps earlier owners out of sessions.
    pub(super) async fn take_over(&self, mut sessions: Vec<SessionId>, by: Fence) -> Answer<Vec<(SessionId, Head)>> {
        sessions.sort();
        sessions.dedup();
        let mut fenced = Vec::new();
        for piece in sessions.chunks(PIECE) {
            let mut attempts = Attempts::within(PATIENCE);
            let mut left: Vec<Uuid> = piece.iter().map(|id| rows::uuid(*id)).collect();
            while !left.is_empty() {
                let tokens: Vec<Uuid> = left.iter().map(|_| rows::token(CommitToken::random())).collect();
                let taken = self.write("fence sessions", sql::TAKE_OVER, &[&left, &tokens, &by.epoch.0, &by.at.0]).await?;
                for row in &taken {
                    let id = self.sound("a commit", rows::session_id(row, 0))?;
                    fenced.push((id, self.sound("a commit", rows::head(row, 1))?));
                    left.retain(|other| *other != rows::uuid(id));
                }
                // What is left is not there, or has a higher epoch, or its owner committed at this moment.
                let takeable = self.read(sql::TAKEABLE, &[&left, &by.epoch.0]).await?;
                left = takeable.iter().map(|row| self.sound("a session", rows::get(row, 0))).collect::<Answer<_>>()?;
                left.sort();
                if !left.is_empty() && !attempts.again().await {
                    return Err(self.access.place.unavailable("fence sessions", std::io::Error::other("their owners commit all the time")));
                }
            }
        }
        Ok(fenced)
    }

    pub(super) async fn set_quarantined(&self, id: SessionId, quarantined: bool) -> Answer<()> {
        let Some((_, head)) = self.present(id).await? else { return Err(StorageError::NotFound { session: id }) };
        self.set_state(id, if quarantined { SessionState::Quarantined } else { SessionState::Active }).await?;
        if !quarantined {
            self.write("change a session", sql::COMMIT_CLEAR_OPENS, &[&rows::uuid(id), &head.seq.0]).await?;
        }
        Ok(())
    }

    pub(super) async fn delete(&self, id: SessionId, at: Millis) -> Answer<bool> {
        let mut attempts = Attempts::within(PATIENCE);
        loop {
            let Some((_, head)) = self.present(id).await? else { return Ok(false) };
            let fenced = fence(id, &head, Fence { epoch: head.epoch, at }, Fencing::Takeover)?;
            if self.chain("delete a session", DELETE, id, &head, &fenced).await? {
                return Ok(true);
            }
            if !attempts.again().await {
                return Err(self.access.place.unavailable("delete a session", std::io::Error::other("its owner commits all the time")));
            }
        }
    }

    pub(super) async fn acknowledge(&self, rows: &[(SessionId, SubmissionId)]) -> Answer<()> {
        for piece in rows.chunks(PIECE) {
            let client = self.client("acknowledge notices").await?;
            let failed = |error| self.access.place.written("acknowledge notices", error);
            let statement = client.prepare_cached(sql::OUTBOX_REMOVE).await.map_err(failed)?;
            let (client, statement) = (&client, &statement);
            let removed = piece
                .iter()
                .map(|(session, submission)| async move { client.execute(statement, &[&rows::uuid(*session), &submission.get()]).await });
            try_join_all(removed).await.map_err(failed)?;
        }
        Ok(())
    }
}
