//! The plan of every statement: no table is scanned and nothing is sorted, whatever the planner knows about the tables.

use picofleet_session::PartitionCount;
use rusqlite::Connection;
use rusqlite::types::Null;

use super::{schema, sql};

fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch(schema::TABLES).unwrap();
    connection
}

/// The steps of a plan that touch more than they have to.
fn bad_steps(connection: &Connection, text: &str) -> Vec<String> {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {text}")).unwrap_or_else(|error| panic!("{text}: {error}"));
    let nulls = vec![Null; statement.parameter_count()];
    let steps = statement.query_map(rusqlite::params_from_iter(nulls), |row| row.get::<_, String>(3)).unwrap();
    let steps: Vec<String> = steps.map(Result::unwrap).collect();
    steps.into_iter().filter(|step| step.contains("SCAN") || step.contains("TEMP B-TREE") || step.contains("AUTOMATIC")).collect()
}

fn check(connection: &Connection, state: &str) {
    for (name, text) in sql::ALL {
        let bad = bad_steps(connection, text);
        assert!(bad.is_empty(), "{name} on {state} tables: {bad:?}");
    }
}

/// Rows of `sessions` sessions with `rows` records of each kind.
fn fill(connection: &Connection, sessions: i64, rows: i64) {
    connection.execute_batch("BEGIN").unwrap();
    for s in 1..=sessions {
        let id = [u8::try_from(s % 251).unwrap(); 16];
        connection.execute("INSERT INTO session VALUES (?1, randomblob(16), 'default', 'k' || ?1, '{}', ?1 % 3, 0)", [s]).unwrap();
        connection.execute("INSERT INTO tombstone VALUES (randomblob(16), 'default', ?1)", [s]).unwrap();
        connection.execute("INSERT INTO wake VALUES (randomblob(16), ?1 % 256, ?1)", [s]).unwrap();
        for r in 1..=rows {
            let insert = |text: &str| connection.execute(text, (s, r)).unwrap();
            insert("INSERT INTO commits VALUES (?1, ?2, randomblob(16), 0, ?2, 0, ?2)");
            insert("INSERT INTO conversation VALUES (?1, ?2, iif(?2 % 2, 1, NULL), iif(?2 % 2, ?2, NULL), '{}')");
            insert("INSERT INTO entry VALUES (?1, ?2 % 3, ?2, ?2, iif(?2 % 9, NULL, ?2), '{}')");
            insert("INSERT INTO task VALUES (?1, ?2, ?2 % 3, iif(?2 % 4, NULL, 1), 'k' || (?2 % 5), ?2 % 6, ?2 % 6 < 5, 0, 0, '{}', NULL)");
            insert("INSERT INTO submission VALUES (?1, ?2, ?2 % 3, 'r' || ?2, 1, ?2 % 4, ?2 % 4 < 2, '{}')");
            insert("INSERT INTO document VALUES (?1, ?2, 'k', '=' || ?2, 1, ?2 % 3, 21, ?2, iif(?2 % 2, NULL, ?2 + 5))");
            insert("INSERT INTO content VALUES (?1, ?2 % 5, ?2, 1, ?2 % 7 = 0, '{}')");
            insert("INSERT INTO reclaim VALUES (?1, ?2, ?2)");
            insert("INSERT INTO request VALUES (?1, 'k' || ?2, '', '{}', ?2)");
            connection.execute("INSERT OR REPLACE INTO outbox VALUES (?1, ?2, '{}')", (id, r)).unwrap();
        }
    }
    connection.execute_batch("COMMIT").unwrap();
}

#[test]
fn no_statement_scans_or_sorts() {
    let new = database();
    check(&new, "new");
    let empty = database();
    empty.execute_batch("ANALYZE").unwrap();
    check(&empty, "empty and analysed");
    for (sessions, rows, state) in [(1, 2, "small"), (1, 400, "one session's"), (300, 3, "many sessions'")] {
        let filled = database();
        fill(&filled, sessions, rows);
        check(&filled, state);
        filled.execute_batch("ANALYZE").unwrap();
        check(&filled, state);
    }
}

#[test]
fn the_check_of_plans_finds_scans_and_sorts() {
    let connection = database();
    for text in ["SELECT record FROM task WHERE status = ?1", "SELECT record FROM entry WHERE session = ?1 ORDER BY seq"] {
        assert!(!bad_steps(&connection, text).is_empty(), "{text}");
    }
}

#[test]
fn a_new_file_is_a_store_of_this_version() {
    let directory = tempfile::tempdir().unwrap();
    let place = super::errors::Place(directory.path().join("a.db").into());
    schema::create(&place, PartitionCount::DEFAULT).unwrap();
    let names: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a.db"], "nothing is left of the building");
    let connection = schema::reader(&place.0).unwrap();
    assert_eq!(schema::check(&connection, &place).unwrap(), PartitionCount::DEFAULT);
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}
