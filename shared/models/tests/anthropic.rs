//! The adapter of Anthropic Messages: the golden vectors (see `tests/vectors/README.md` of the repository) and servers that
//! the tests write themselves.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

#[path = "anthropic/batches.rs"]
mod batches;
#[path = "anthropic/server.rs"]
mod server;
#[path = "anthropic/streams.rs"]
mod streams;
#[path = "anthropic/vectors.rs"]
mod vectors;
