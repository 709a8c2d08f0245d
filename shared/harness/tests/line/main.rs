//! The line of a session with scripted tasks and no worker, on the memory and the SQLite store: each test reserves and says what a worker
//! would.

#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]

mod aborts;
mod blocked;
mod following;
mod inspect;
mod merged;
mod refused;
mod restarts;
mod resting;
mod schedule;
mod structure;
mod support;
mod waits;
