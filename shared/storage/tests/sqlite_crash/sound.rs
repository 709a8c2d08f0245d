//! The SQLite file after a run.

use rusqlite::Connection;

use crate::run::Run;

/// The file itself: SQLite's own check, and what must hold between the tables once maintenance is done.
pub(crate) fn sound(run: &Run) {
    let connection = Connection::open(run.store()).unwrap();
    let text = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok", "{}", run.name);
    let count = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    for table in ["commits", "conversation", "entry", "task", "submission", "document", "content", "reclaim", "request"] {
        let lost = count(&format!("SELECT count(*) FROM {table} WHERE session NOT IN (SELECT n FROM session)"));
        assert_eq!(lost, 0, "{}: rows of {table} belong to no session", run.name);
    }
    let unneeded = [
        "SELECT count(*) FROM reclaim",
        "SELECT count(*) FROM session WHERE state > 1",
        "SELECT count(*) FROM content c JOIN document d ON d.session = c.session AND d.id = c.document
            WHERE d.policy < 20 AND (d.retired_at IS NOT NULL OR c.seq < (SELECT max(b.seq) FROM content b
                WHERE b.session = c.session AND b.document = c.document AND b.base = 1))",
    ];
    for sql in unneeded {
        assert_eq!(count(sql), 0, "{}: {sql}", run.name);
    }
    let without = count(
        "SELECT count(*) FROM document d WHERE (d.retired_at IS NULL OR (d.policy >= 20 AND d.retired_at > d.created_at))
            AND NOT EXISTS (SELECT 1 FROM content c WHERE c.session = d.session AND c.document = d.id AND c.base = 1)",
    );
    assert_eq!(without, 0, "{}: documents without a base", run.name);
    let gaps = count(
        "SELECT count(*) FROM commits c WHERE c.seq > (SELECT min(seq) FROM commits m WHERE m.session = c.session)
            AND NOT EXISTS (SELECT 1 FROM commits p WHERE p.session = c.session AND p.seq = c.seq - 1)",
    );
    assert_eq!(gaps, 0, "{}: the chain has a gap", run.name);
}
