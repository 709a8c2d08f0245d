//! Scenarios of the harness.
#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]

mod inbox;
