//! A session made of lines, in one transaction of a connection of its own: nobody sees anything of it before the end, and a crash leaves
//! nothing. Its rows go through the statement of groups, on a chain of rows that goes with the last step.

use std::time::Duration;

use deadpool_postgres::{Client, Object};
use futures::StreamExt as _;
use futures::stream::BoxStream;
use picofleet_session::storage::{ExportLine, Head, ImportId, ImportTarget, Rejection, SessionRecord, StorageError};
use picofleet_session::{CommitToken, Epoch, Millis, Seq, SessionId};

use super::Shared;
use super::errors::Place;
use super::group::{Arrays, Part};
use super::known::Known;
use super::read::Answer;
use super::run::Run;
use super::staged::Staged;
use super::{rows, sql};
use crate::rules::{Import, imported};

/// A step ends when it has this many lines or bytes of text.
const STEP_LINES: usize = 512;
const STEP_BYTES: usize = 1 << 20;

/// How long the next line may take: the transaction is open meanwhile.
const LINE: Duration = Duration::from_secs(30);

/// Where the chain of the steps begins, below all that a session has.
const STEPS_FROM: i64 = -1_000_000_000_000;

/// A transaction that is undone when it is dropped before its end.
struct Open<'p> {
    client: Option<Client>,
    place: &'p Place,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // The server undoes what a closed connection leaves.
        if let Some(client) = self.client.take() {
            drop(Object::take(client));
        }
    }
}

impl Open<'_> {
    fn client(&self) -> Answer<&Client> {
        self.client.as_ref().ok_or(StorageError::Closed)
    }

    async fn execute(&self, sql: &str, parameters: super::read::Parameters<'_>) -> Answer<u64> {
        self.client()?.execute(sql, parameters).await.map_err(|error| self.place.rejected("import", error))
    }

    async fn write(&self, shared: &Shared, id: SessionId, behind: CommitToken, staged: &Staged) -> Answer<()> {
        let arrays = Arrays::new(vec![Part { session: id, behind, staged }], shared.partitions);
        let failed = |error| self.place.rejected("import", error);
        let client = self.client()?;
        let statement = client.prepare_cached(arrays.sql()).await.map_err(failed)?;
        let won = client.query(&statement, &arrays.parameters()).await.map_err(failed)?;
        if won.is_empty() { Err(StorageError::Fenced { session: id }) } else { Ok(()) }
    }

    async fn end(mut self) -> Answer<()> {
        self.client()?.batch_execute("COMMIT").await.map_err(|error| self.place.written("import", error))?;
        // It goes back to the pool.
        drop(self.client.take());
        Ok(())
    }
}

/// Imports.
pub(super) async fn import(
    shared: &Shared,
    target: ImportTarget,
    mut lines: BoxStream<'static, Result<ExportLine, StorageError>>,
) -> Answer<SessionRecord> {
    shared.check()?;
    let place = &shared.access.place;
    let (mut import, mut known) = (Import::default(), Known::complete());
    let (first, mut last) = gather(&mut lines).await?;
    let id = match (target.id, first.first()) {
        (ImportId::Keep, Some(ExportLine::Session(session))) => session.id,
        _ => SessionId::random(),
    };
    let mut staged = take(&mut import, &known, &first)?;
    let client = shared.bulk.get().await.map_err(|error| place.no_connection("import", error))?;
    let open = Open { client: Some(client), place };
    open.client()?.batch_execute("BEGIN").await.map_err(|error| place.rejected("import", error))?;
    let tenant = rows::escape(&target.tenant.0).into_owned();
    let row = open.execute(sql::SESSION_INSERT, &[&rows::uuid(id), &tenant, &None::<String>, &"{}", &target.at.0]).await?;
    if row == 0 {
        return Err(Rejection::SessionExists { session: id }.into());
    }
    let mut step = Head { seq: Seq(STEPS_FROM), token: CommitToken::random(), epoch: Epoch(0), next_id: 0, opens: 0, at: Millis(0) };
    put(&open, id, &step).await?;
    loop {
        let behind = step.token;
        step = Head { seq: step.seq.next(), token: CommitToken::random(), ..step };
        staged.commits = vec![step];
        open.write(shared, id, behind, &staged).await?;
        staged.land(&mut known);
        // No line asks for these.
        known.tasks.clear();
        known.submissions.clear();
        if last {
            break;
        }
        let (lines, end) = gather(&mut lines).await?;
        last = end;
        staged = take(&mut import, &known, &lines)?;
    }
    finish(shared, open, id, &target, import, &known, step).await
}

/// What the lines say about the whole.
async fn finish(
    shared: &Shared,
    open: Open<'_>,
    id: SessionId,
    target: &ImportTarget,
    import: Import,
    known: &Known,
    step: Head,
) -> Answer<SessionRecord> {
    let mut run = Run::new(known, i64::MAX);
    let line = import.finish(&mut run)?;
    let mut staged = run.staged;
    let head = staged.commits.pop().ok_or(StorageError::Closed)?;
    staged.commits.push(Head { seq: step.seq.next(), token: CommitToken::random(), ..step });
    open.write(shared, id, step.token, &staged).await?;
    let record = SessionRecord { id, ..imported(target, line) };
    let session = rows::uuid(id);
    open.execute("DELETE FROM commit WHERE session_id = $1", &[&session]).await?;
    put(&open, id, &head).await?;
    let whole = "UPDATE session SET metadata = $2, created_at = $3 WHERE id = $1";
    open.execute(whole, &[&session, &record.metadata.to_string(), &record.created_at.0]).await?;
    // Whoever imports a deleted session wants it back.
    open.execute(sql::TOMBSTONE_REMOVE, &[&session]).await?;
    open.end().await?;
    Ok(record)
}

async fn put(open: &Open<'_>, id: SessionId, head: &Head) -> Answer<()> {
    let opens = i32::try_from(head.opens).unwrap_or(i32::MAX);
    let (session, token) = (rows::uuid(id), rows::token(head.token));
    let parameters: super::read::Parameters<'_> = &[&session, &head.seq.0, &token, &head.epoch.0, &head.next_id, &opens, &head.at.0];
    open.execute(sql::COMMIT_INSERT, parameters).await.map(drop)
}

/// The rows of some lines.
fn take(import: &mut Import, known: &Known, lines: &[ExportLine]) -> Answer<Staged> {
    let mut run = Run::new(known, i64::MAX);
    lines.iter().try_for_each(|line| import.take(&mut run, line))?;
    Ok(run.staged)
}

/// Some lines, and whether they are the last.
async fn gather(lines: &mut BoxStream<'static, Result<ExportLine, StorageError>>) -> Answer<(Vec<ExportLine>, bool)> {
    let mut step = Vec::new();
    let mut bytes = 0;
    while step.len() < STEP_LINES && bytes < STEP_BYTES {
        let next = tokio::time::timeout(LINE, lines.next()).await;
        let Some(line) = next.map_err(|late| StorageError::failed("wait for the next line of an import", late))? else {
            return Ok((step, true));
        };
        let line = line?;
        // A line that has no text is refused when it is taken.
        bytes += line.to_text().map_or(0, |text| text.len());
        step.push(line);
    }
    Ok((step, false))
}
