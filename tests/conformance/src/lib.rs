//! What the suites of more than one crate share: a session over a backend, restarts between the steps of a case, and a probe between
//! session and storage.
//!
//! | module | what |
//! | --- | --- |
//! | [`World`], [`Mode`] | one session on one backend, as a case works on it |
//! | [`Memory`], [`Sqlite`] | the backends |
//! | [`Probe`] | sees every batch, holds one, or takes its answer away |
//! | [`Logs`] | sees what is logged |
//! | [`documents`] | the documents, entries and tasks of the cases |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "the suites fail by panics")]

pub mod documents;
mod logs;
mod probe;
mod world;

pub use logs::Logs;
pub use picofleet_storage::conformance::{Backend, Memory, Postgres, Sqlite};
pub use probe::{Fault, Hold, Probe};
pub use world::{Mode, NOW, World, run, wait_for};
