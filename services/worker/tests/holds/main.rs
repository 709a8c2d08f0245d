//! Commits with closures over the transport: what a closure may do, how it lands, and what becomes of one that does not.

#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]

mod ends;
mod lands;
mod trust;
mod world;
