//! Backends of the storage contract of `picofleet-session` (sections 10 and 11 of the specification).
//!
//! | module | what |
//! | --- | --- |
//! | [`memory`] | the reference semantics: everything in this process |
//! | `sqlite` | one file for many sessions |
//! | [`jsonl`] | a directory of JSON lines, to look into |
//! | `conformance` | the suite that every backend passes (feature `conformance`) |
//! | `reading` | readers that read as another one |
//! | [`postgres`] | PostgreSQL for a fleet |
//! | `columns` | what the columns beside a record hold |
//! | `tables`, `rules` | what a commit may do, once for all backends that run a transaction in this process |
//!
//! **Architecture invariants.** A backend decides nothing about a commit: `rules` does, on the keyed lookups and writes of
//! `tables`. Only the backends know where a record is kept. No definition's code runs here.

mod columns;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod jsonl;
pub mod memory;
pub mod postgres;
pub mod reading;
mod rules;
pub mod sqlite;
mod tables;
