//! The suite on PostgreSQL, and what only a database that several processes share can do to a session.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod chain;
mod cuts;
mod examine;
mod locks;
mod migrations;
mod proxy;
mod secure;
mod world;

use picofleet_storage::conformance::Postgres;

picofleet_storage::conformance!(Postgres::default());
