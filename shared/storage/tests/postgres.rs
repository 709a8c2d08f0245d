//! The suite on PostgreSQL.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use picofleet_storage::conformance::Postgres;

picofleet_storage::conformance!(Postgres::default());
