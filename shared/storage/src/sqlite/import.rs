//! A session made of lines, in steps that are small enough not to hold up commits. Its row has no id until the last step, so nobody sees
//! it; what a crash or an error leaves is removed by maintenance.

use std::sync::{Arc, OnceLock, PoisonError};

use futures::StreamExt as _;
use futures::stream::BoxStream;
use picofleet_session::storage::{ExportLine, ImportId, ImportTarget, Rejection, SessionRecord, StorageError};

use super::rows::{self, IMPORTING};
use super::sql;
use super::tables::Tx;
use super::writer::{Imports, Queue};
use crate::rules::{Import, imported};
use crate::tables::{Found, Tables as _};

/// A step ends when it has this many lines or bytes of text.
const STEP_LINES: usize = 256;
const STEP_BYTES: usize = 1 << 20;

/// The rows of an import that runs, kept from maintenance as long as somebody works on them.
struct Running {
    imports: Imports,
    n: OnceLock<i64>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(n) = self.n.get() {
            self.imports.lock().unwrap_or_else(PoisonError::into_inner).remove(n);
        }
    }
}

/// Imports.
pub(super) async fn import(
    queue: Queue,
    imports: Imports,
    target: ImportTarget,
    mut lines: BoxStream<'static, Result<ExportLine, StorageError>>,
) -> Result<SessionRecord, StorageError> {
    let running = Arc::new(Running { imports, n: OnceLock::new() });
    let mut import = Import::default();
    let mut n = None;
    loop {
        let (step, last) = gather(&mut lines).await?;
        let number = match n {
            Some(number) => number,
            // The first lines decide whether it is worth to begin.
            None => begin(&queue, &running, &target, &step).await?,
        };
        n = Some(number);
        let running = Arc::clone(&running);
        let (state, result) = queue
            .alone(move |writer| {
                // As long as the step waits or runs its rows are somebody's.
                let _running = running;
                let mut import = import;
                let result = writer.alone(|tx| step.iter().try_for_each(|line| import.take(&mut tx.rows(number, None), line)));
                Ok((import, result))
            })
            .await?;
        result?;
        import = state;
        if last {
            break;
        }
    }
    let number = n.unwrap_or_default();
    queue.alone(move |writer| writer.alone(|tx| finish(tx, number, &target, import))).await
}

/// Some lines, and whether they are the last.
async fn gather(lines: &mut BoxStream<'static, Result<ExportLine, StorageError>>) -> Result<(Vec<ExportLine>, bool), StorageError> {
    let mut step = Vec::new();
    let mut bytes = 0;
    while step.len() < STEP_LINES && bytes < STEP_BYTES {
        let Some(line) = lines.next().await else { return Ok((step, true)) };
        let line = line?;
        // A line that has no text is refused when it is taken.
        bytes += line.to_text().map_or(0, |text| text.len());
        step.push(line);
    }
    Ok((step, false))
}

async fn begin(queue: &Queue, running: &Arc<Running>, target: &ImportTarget, step: &[ExportLine]) -> Result<i64, StorageError> {
    let keep = match (target.id, step.first()) {
        (ImportId::Keep, Some(ExportLine::Session(session))) => Some(session.id),
        _ => None,
    };
    let (running, target) = (Arc::clone(running), target.clone());
    queue
        .alone(move |writer| {
            let n = writer.alone(|tx| {
                if let Some(id) = keep {
                    free(tx, id)?;
                }
                tx.run(sql::SESSION_INSERT, (None::<[u8; 16]>, &target.tenant.0, None::<String>, "{}", IMPORTING, target.at.0))?;
                Ok(tx.connection.last_insert_rowid())
            })?;
            running.imports.lock().unwrap_or_else(PoisonError::into_inner).insert(n);
            Ok(*running.n.get_or_init(|| n))
        })
        .await
}

fn free(tx: &mut Tx<'_>, id: picofleet_session::SessionId) -> Found<()> {
    match tx.session(id)? {
        Some(_) => Err(Rejection::SessionExists { session: id }.into()),
        None => Ok(()),
    }
}

/// Writes what the lines say about the whole, and shows the session.
fn finish(tx: &mut Tx<'_>, n: i64, target: &ImportTarget, import: Import) -> Found<SessionRecord> {
    let line = import.finish(&mut tx.rows(n, None))?;
    let record = imported(target, line);
    free(tx, record.id)?;
    let wake = tx.wake.take();
    tx.rows(n, Some(record.id)).put_wake(wake)?;
    // Whoever imports a deleted session wants it back.
    tx.run(sql::TOMBSTONE_REMOVE, [record.id.as_bytes()])?;
    let params = (n, record.id.as_bytes(), record.metadata.to_string(), record.created_at.0, rows::state_number(record.state));
    tx.run(sql::SESSION_PUBLISH, params)?;
    Ok(record)
}
