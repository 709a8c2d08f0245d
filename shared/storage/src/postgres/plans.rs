//! The plan of every statement: no table is scanned as a whole and nothing large is sorted, whatever the planner knows about the tables.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tokio_postgres::Client;
use tokio_postgres::types::Type;

use super::connect::PLANNER;
use super::group::{NARROW, WIDE};
use super::settle::{FENCE, PLACES};
use super::sql;
use crate::conformance::Database;

fn statements() -> Vec<(&'static str, &'static str)> {
    let mut all = sql::ALL.to_vec();
    all.extend([("NARROW", NARROW), ("WIDE", WIDE), ("FENCE", FENCE), ("PLACES", PLACES)]);
    all.extend(sql::SWEEPS.map(|sweep| ("SWEEP", sweep)));
    all
}

async fn plan(client: &Client, sql: &str) -> Vec<String> {
    let statement = client.prepare(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let types: Vec<&str> = statement.params().iter().map(Type::name).map(named).collect();
    let values = vec!["NULL"; types.len()].join(", ");
    let (types, values) =
        if types.is_empty() { (String::new(), String::new()) } else { (format!("({})", types.join(", ")), format!("({values})")) };
    client.batch_execute(&format!("DEALLOCATE ALL; PREPARE looked_at {types} AS {sql}")).await.unwrap();
    let rows = client.query(&format!("EXPLAIN (COSTS OFF) EXECUTE looked_at {values}"), &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Arrays have names of their own.
fn named(name: &str) -> &str {
    match name {
        "_uuid" => "uuid[]",
        "_int8" => "bigint[]",
        "_int4" => "integer[]",
        "_text" => "text[]",
        "_bool" => "boolean[]",
        other => other,
    }
}

fn bad(plan: &[String]) -> Vec<&String> {
    plan.iter()
        .filter(|step| step.contains("Seq Scan") || step.contains("Bitmap") || step.contains("Hash Join") || step.contains("Merge Join"))
        .collect()
}

async fn check(client: &Client, state: &str) {
    for (name, sql) in statements() {
        let plan = plan(client, sql).await;
        assert!(bad(&plan).is_empty(), "{name} on {state} tables:\n{}", plan.join("\n"));
        if name == "WIDE" || name == "NARROW" {
            let restricted = plan.iter().filter(|step| step.contains("hashed SubPlan")).count();
            let branches = plan.iter().filter(|step| step.contains("Insert on")).count();
            // The parts of partitioned tables are no branches of their own.
            assert!(restricted >= 7 && branches > restricted, "{name} on {state} tables:\n{}", plan.join("\n"));
        }
    }
}

const FILL: &str = "
INSERT INTO session SELECT gen_random_uuid(), 'default', 'k' || n, '{}', n % 3, 0 FROM generate_series(1, $SESSIONS) n;
INSERT INTO tombstone SELECT gen_random_uuid(), 'default', n FROM generate_series(1, $SESSIONS) n;
INSERT INTO wake SELECT id, 7, 1 FROM session;
INSERT INTO commit SELECT id, n, gen_random_uuid(), 0, n, 0, n FROM session, generate_series(1, $ROWS) n;
INSERT INTO conversation SELECT id, n, 1, n, '{}' FROM session, generate_series(1, $ROWS) n;
INSERT INTO entry SELECT id, n, n % 3, n, CASE WHEN n % 9 = 0 THEN n END, '{}' FROM session, generate_series(1, $ROWS) n;
INSERT INTO task_live SELECT id, n, n % 2 = 0, n % 3, 1, 'k', n % 5, false, false, '{}', NULL FROM session, generate_series(1, $ROWS) n;
INSERT INTO task_done SELECT id, n, false, n % 3, 1, 'k' || n % 5, 5, false, false, '{}', NULL FROM session, generate_series(1, $ROWS) n;
INSERT INTO submission SELECT id, n, n % 3, 'r' || n, true, n % 4, n % 4 < 2, '{}' FROM session, generate_series(1, $ROWS) n;
INSERT INTO document_record SELECT id, n, 'k', '=' || n, 'k=' || n, 1, n % 3, 21, n, CASE WHEN n % 2 = 0 THEN n + 5 END FROM session, generate_series(1, $ROWS) n;
INSERT INTO document_content SELECT id, n % 5, n, 1, n % 7 = 0, '{}' FROM session, generate_series(1, $ROWS) n;
INSERT INTO reclaim SELECT id, n, n FROM session, generate_series(1, $ROWS) n;
INSERT INTO request SELECT id, 'k' || n, 'k' || n, '', '{}', n FROM session, generate_series(1, $ROWS) n;
INSERT INTO outbox SELECT id, n, '{}' FROM session, generate_series(1, $ROWS) n;
";

/// As the connections of the store are set.
async fn client(database: &Database) -> Client {
    let client = database.client().await;
    for setting in PLANNER.split("-c ").filter(|setting| !setting.is_empty()) {
        let (name, value) = setting.trim().split_once('=').unwrap();
        client.batch_execute(&format!("SET {name} = {value}")).await.unwrap();
    }
    client
}

#[tokio::test]
async fn no_statement_scans_a_table() {
    let database = Database::new().await;
    let client = client(&database).await;
    check(&client, "new").await;
    client.batch_execute("VACUUM ANALYZE").await.unwrap();
    check(&client, "empty and analysed").await;
    for (sessions, rows, state) in [(1, 2, "small"), (1, 2_000, "one session's"), (600, 10, "many sessions'")] {
        let fill = FILL.replace("$SESSIONS", &sessions.to_string()).replace("$ROWS", &rows.to_string());
        let tables = "session, tombstone, wake, commit, conversation, entry, task_live, task_done, submission, document_record,
            document_content, reclaim, request, outbox";
        client.batch_execute(&format!("TRUNCATE {tables}; {fill}")).await.unwrap();
        check(&client, state).await;
        client.batch_execute("VACUUM ANALYZE").await.unwrap();
        check(&client, state).await;
    }
}

#[tokio::test]
async fn the_check_of_plans_finds_scans() {
    let database = Database::new().await;
    let client = client(&database).await;
    for text in ["SELECT record FROM entry WHERE seq = $1", "SELECT record FROM task_live WHERE kind = $1 ORDER BY id"] {
        let plan = plan(&client, text).await;
        assert!(!bad(&plan).is_empty(), "{text}:\n{}", plan.join("\n"));
    }
}
