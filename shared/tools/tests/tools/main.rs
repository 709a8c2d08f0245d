//! The environment and the tools, on real files and processes.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod edit;
mod files;
mod processes;
mod races;
mod shell;
mod support;
mod tools;
