//! Random fork trees against a naive model, random programs on one backend against another, and watches against replay.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]

#[path = "properties/elsewhere.rs"]
mod elsewhere;
#[path = "properties/forks.rs"]
mod forks;
#[path = "properties/many.rs"]
mod many;
#[path = "properties/programs.rs"]
mod programs;
#[path = "properties/watches.rs"]
mod watches;
