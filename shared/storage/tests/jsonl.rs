//! The suite on JSON lines.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use picofleet_storage::conformance::Jsonl;
use picofleet_storage::jsonl::JsonlOptions;

// The suite counts what maintenance removes, so nothing is removed before.
picofleet_storage::conformance!(Jsonl::new(JsonlOptions { reclaim_bytes: 0, ..JsonlOptions::default() }));
