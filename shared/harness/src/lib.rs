//! The harness: durable tasks over the session kernel, split between the line, which decides, and the workers, which run effects.
//!
//! **Architecture invariants.** This crate knows no SQL, no NATS and no HTTP. A decision is a value: applying it reads and writes the
//! transaction and nothing else: no clock, no registry, no model, no randomness. The step and the plan are pure functions.

pub mod compaction;
pub mod config;
pub mod effects;
pub mod events;
pub mod frame;
pub mod generation;
pub mod guard;
pub mod hooks;
pub mod host;
pub mod inbox;
pub mod inspection;
pub mod kind;
pub mod kinds;
pub mod line;
pub mod live;
pub mod ownership;
pub mod prompt;
pub mod registry;
mod run;
pub mod runtime;
pub mod setup;
pub mod step;
pub mod submission;
pub mod task;
pub mod tool;
pub mod tools;
pub mod transport;
pub mod usage;
pub mod view;
pub mod wire;
