//! The tables against each other: what no read of a session shows. Everything here reads whole tables, on purpose, in one snapshot.

use picofleet_session::storage::{FINDINGS_MAX, Finding};
use tokio_postgres::{IsolationLevel, Transaction};

use super::Shared;
use super::read::Answer;
use super::rows::{self, REWINDABLE};

/// The tables whose rows belong to a session.
const TABLES: [&str; 12] = [
    "commit",
    "conversation",
    "entry",
    "task_live",
    "task_done",
    "submission",
    "document_record",
    "document_content",
    "reclaim",
    "request",
    "outbox",
    "wake",
];

/// Looks at the whole database.
pub(super) async fn check(shared: &Shared) -> Answer<Vec<Finding>> {
    shared.check()?;
    let place = &shared.access.place;
    let failed = |error| place.failed("examine", error);
    let mut client = shared.bulk.get().await.map_err(|error| place.no_connection("examine", error))?;
    let transaction = client.build_transaction().read_only(true).isolation_level(IsolationLevel::RepeatableRead).start().await;
    let transaction = transaction.map_err(failed)?;
    // Whole tables take their time, and here the planner may choose how it reads them.
    let settings = "SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; SET LOCAL enable_hashjoin = on";
    transaction.batch_execute(settings).await.map_err(failed)?;
    let mut found = Vec::new();
    for table in TABLES {
        let sql = format!("SELECT count(*) FROM {table} t WHERE NOT EXISTS (SELECT FROM session s WHERE s.id = t.session_id)");
        let count: i64 = transaction.query_one(&sql, &[]).await.map_err(failed)?.get(0);
        if count > 0 {
            found.push(Finding::of_store("orphan", format!("{count} rows of {table} belong to no session")));
        }
    }
    for (rule, sql) in queries() {
        found.extend(of_sessions(shared, &transaction, rule, &sql).await?);
    }
    found.truncate(FINDINGS_MAX);
    transaction.commit().await.map_err(failed)?;
    Ok(found)
}

/// Queries of `session, what` that give nothing where all is well. Sessions that are being deleted are half there.
fn queries() -> Vec<(&'static str, String)> {
    let mut queries = vec![
        (
            "chain",
            "SELECT s.id, 'it has no commit row' FROM session s
             WHERE s.state < 2 AND NOT EXISTS (SELECT FROM commit c WHERE c.session_id = s.id)"
                .to_owned(),
        ),
        (
            "chain",
            "SELECT c.session_id, 'between the commit rows ' || c.before || ' and ' || c.seq || ' some are missing' FROM (
               SELECT session_id, seq, lag(seq) OVER (PARTITION BY session_id ORDER BY seq) AS before FROM commit
             ) c WHERE c.seq <> c.before + 1"
                .to_owned(),
        ),
        (
            "C1",
            "SELECT c.session_id, 'commit ' || c.seq || ' takes the next id back to ' || c.next_id FROM (
               SELECT session_id, seq, next_id, lag(next_id) OVER (PARTITION BY session_id ORDER BY seq) AS before FROM commit
             ) c WHERE c.next_id < c.before"
                .to_owned(),
        ),
        (
            "content",
            format!(
                "SELECT d.session_id, 'document ' || d.id || ' has no base' FROM document_record d JOIN session s ON s.id = d.session_id
                 WHERE s.state < 2 AND (d.retired_at IS NULL OR (d.policy >= {REWINDABLE} AND d.retired_at > d.created_at))
                 AND NOT EXISTS (SELECT FROM document_content c WHERE c.session_id = d.session_id AND c.document = d.id AND c.base)"
            ),
        ),
        (
            "index",
            "SELECT l.session_id, 'task ' || l.id || ' is among the live and the terminal ones' FROM task_live l
             JOIN task_done d ON d.session_id = l.session_id AND d.id = l.id WHERE NOT l.gone AND NOT d.gone"
                .to_owned(),
        ),
    ];
    for table in ["conversation", "entry", "task_live", "task_done", "submission", "document_record"] {
        let sql = format!(
            "SELECT t.session_id, '{table} ' || t.id || ' has an id that was not minted' FROM {table} t
             JOIN session s ON s.id = t.session_id AND s.state < 2
             WHERE t.id > 1 AND t.id >= (SELECT max(next_id) FROM commit c WHERE c.session_id = t.session_id)"
        );
        queries.push(("C1", sql));
    }
    for (table, what) in [("entry", "entry ' || t.id || '"), ("document_content", "content of document ' || t.document || '")] {
        let sql = format!(
            "SELECT t.session_id, '{what} is of a commit that was not made' FROM {table} t
             JOIN session s ON s.id = t.session_id AND s.state < 2
             WHERE t.seq > (SELECT max(seq) FROM commit c WHERE c.session_id = t.session_id)"
        );
        queries.push(("C1", sql));
    }
    queries
}

async fn of_sessions(shared: &Shared, transaction: &Transaction<'_>, rule: &'static str, sql: &str) -> Answer<Vec<Finding>> {
    let place = &shared.access.place;
    let bounded = format!("SELECT * FROM ({sql}) found LIMIT {FINDINGS_MAX}");
    let found = transaction.query(&bounded, &[]).await.map_err(|error| place.failed("examine", error))?;
    let findings = found.iter().map(|row| {
        let read = rows::session_id(row, 0).and_then(|id| Ok(Finding::of_session(rule, id, rows::get::<String>(row, 1)?)));
        rows::sound(place, "a finding", read)
    });
    findings.collect()
}
