//! The file against itself: what no read of a session shows. Everything here scans whole tables, on purpose.

mod columns;

use picofleet_session::SessionId;
use picofleet_session::storage::{FINDINGS_MAX, Finding};
use rusqlite::{Connection, Params, Row};

use super::errors::Place;
use super::read::Answer;
use super::rows::{self, DELETING, IMPORTING, REWINDABLE};

/// The tables whose rows begin with the number of a session.
const TABLES: [&str; 9] = ["commits", "conversation", "entry", "task", "submission", "document", "content", "reclaim", "request"];

/// What is found, up to a bound.
pub(super) struct Check<'a> {
    connection: &'a Connection,
    place: &'a Place,
    found: Vec<Finding>,
}

/// Looks at the whole file in one snapshot.
pub(super) fn check(connection: &Connection, place: &Place) -> Answer<Vec<Finding>> {
    let mut check = Check { connection, place, found: Vec::new() };
    check.integrity()?;
    // Where pages are damaged, queries may fail or give anything.
    if check.found.is_empty() {
        check.orphans()?;
        check.imports()?;
        check.chains()?;
        check.contents()?;
        columns::check(&mut check)?;
    }
    check.found.truncate(FINDINGS_MAX);
    Ok(check.found)
}

impl Check<'_> {
    fn full(&self) -> bool {
        self.found.len() >= FINDINGS_MAX
    }

    fn add(&mut self, finding: Finding) {
        if !self.full() {
            self.found.push(finding);
        }
    }

    /// Gives every row to `take`, until there are enough findings.
    fn rows(&mut self, sql: &str, params: impl Params, mut take: impl FnMut(&mut Self, &Row<'_>) -> rusqlite::Result<()>) -> Answer<()> {
        let (connection, place) = (self.connection, self.place);
        let failed = |error| place.failed("examine", error);
        let mut statement = connection.prepare(sql).map_err(failed)?;
        let mut rows = statement.query(params).map_err(failed)?;
        while !self.full()
            && let Some(row) = rows.next().map_err(failed)?
        {
            take(self, row).map_err(failed)?;
        }
        Ok(())
    }

    /// SQLite's own check: pages, and every index against its table.
    fn integrity(&mut self) -> Answer<()> {
        self.rows("PRAGMA integrity_check(100)", [], |check, row| {
            let said: String = row.get(0)?;
            if said != "ok" {
                check.add(Finding::of_store("integrity", said));
            }
            Ok(())
        })
    }

    fn orphans(&mut self) -> Answer<()> {
        for table in TABLES {
            let sql = format!("SELECT count(*) FROM {table} WHERE session NOT IN (SELECT n FROM session)");
            self.count(&sql, |count| Finding::of_store("orphan", format!("{count} rows of {table} belong to no session")))?;
        }
        for table in ["wake", "outbox"] {
            let sql = format!(
                "SELECT count(*) FROM {table} WHERE id NOT IN (SELECT id FROM session WHERE id IS NOT NULL AND state < {DELETING})"
            );
            self.count(&sql, |count| Finding::of_store("orphan", format!("{count} rows of {table} belong to no session")))?;
        }
        Ok(())
    }

    fn count(&mut self, sql: &str, finding: impl Fn(i64) -> Finding) -> Answer<()> {
        self.rows(sql, [], |check, row| {
            let count: i64 = row.get(0)?;
            if count > 0 {
                check.add(finding(count));
            }
            Ok(())
        })
    }

    fn imports(&mut self) -> Answer<()> {
        let sql = format!("SELECT count(*) FROM session WHERE state = {IMPORTING}");
        self.count(&sql, |count| Finding::of_store("import", format!("{count} imports are running or were cut off")))?;
        let sql =
            format!("SELECT count(*) FROM session WHERE (id IS NULL) <> (state = {IMPORTING}) OR state NOT BETWEEN 0 AND {IMPORTING}");
        self.count(&sql, |count| Finding::of_store("session", format!("{count} sessions have a state that their row contradicts")))
    }

    /// The commit rows of each session follow each other, and the newest is above everything else.
    fn chains(&mut self) -> Answer<()> {
        self.of_sessions(
            "chain",
            "SELECT s.id, 'it has no commit row' FROM session s
             WHERE s.id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM commits c WHERE c.session = s.n)",
        )?;
        self.of_sessions(
            "chain",
            "SELECT s.id, 'between the commit rows ' || c.before || ' and ' || c.seq || ' some are missing' FROM (
                SELECT session, seq, lag(seq) OVER (PARTITION BY session ORDER BY seq) AS before FROM commits
             ) c JOIN session s ON s.n = c.session WHERE s.id IS NOT NULL AND c.seq <> c.before + 1",
        )?;
        self.of_sessions(
            "C1",
            "SELECT s.id, 'commit ' || c.seq || ' takes the next id back to ' || c.next_id FROM (
                SELECT session, seq, next_id, lag(next_id) OVER (PARTITION BY session ORDER BY seq) AS before FROM commits
             ) c JOIN session s ON s.n = c.session WHERE s.id IS NOT NULL AND c.next_id < c.before",
        )?;
        for table in ["conversation", "entry", "task", "submission", "document"] {
            self.of_sessions(
                "C1",
                &format!(
                    "SELECT s.id, '{table} ' || t.id || ' has an id that was not minted' FROM {table} t JOIN session s ON s.n = t.session
                     WHERE s.id IS NOT NULL AND t.id > 1 AND t.id >= (SELECT max(next_id) FROM commits c WHERE c.session = t.session)"
                ),
            )?;
        }
        for (table, what) in [("entry", "entry ' || t.id || '"), ("content", "content of document ' || t.document || '")] {
            self.of_sessions(
                "C1",
                &format!(
                    "SELECT s.id, '{what} is of a commit that was not made' FROM {table} t JOIN session s ON s.n = t.session
                     WHERE s.id IS NOT NULL AND t.seq > (SELECT max(seq) FROM commits c WHERE c.session = t.session)"
                ),
            )?;
        }
        Ok(())
    }

    fn contents(&mut self) -> Answer<()> {
        self.of_sessions(
            "content",
            &format!(
                "SELECT s.id, 'document ' || d.id || ' has no base' FROM document d JOIN session s ON s.n = d.session
                 WHERE s.id IS NOT NULL AND s.state < {DELETING}
                 AND (d.retired_at IS NULL OR (d.policy >= {REWINDABLE} AND d.retired_at > d.created_at))
                 AND NOT EXISTS (SELECT 1 FROM content c WHERE c.session = d.session AND c.document = d.id AND c.base = 1)"
            ),
        )
    }

    /// A finding for each row of `id, what`.
    fn of_sessions(&mut self, rule: &'static str, sql: &str) -> Answer<()> {
        self.rows(sql, [], |check, row| {
            let (id, what): (SessionId, String) = (rows::session_id(row, 0)?, row.get(1)?);
            check.add(Finding::of_session(rule, id, what));
            Ok(())
        })
    }
}
