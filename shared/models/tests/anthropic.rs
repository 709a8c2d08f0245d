//! The adapter of Anthropic Messages: the golden vectors (see `tests/vectors/README.md` of the repository) and servers that
//! the tests write themselves.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "anthropic/vectors.rs"]
mod vectors;
