//! The suite on SQLite.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use picofleet_storage::conformance::Sqlite;
use picofleet_storage::sqlite::SqliteOptions;

// The suite counts what maintenance removes, so nothing is removed before.
picofleet_storage::conformance!(Sqlite::new(SqliteOptions { reclaim_rows: 0, ..SqliteOptions::default() }));
