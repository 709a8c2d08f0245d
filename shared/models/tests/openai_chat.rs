//! The adapter for chat completions and what it shares with the others: golden vectors, and servers that do what they like.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

#[path = "kit/loopback.rs"]
mod loopback;
#[path = "openai_chat/server.rs"]
mod server;

#[path = "openai_chat/forms.rs"]
mod forms;
#[path = "openai_chat/retries.rs"]
mod retries;
#[path = "openai_chat/streams.rs"]
mod streams;
#[path = "openai_chat/vectors.rs"]
mod vectors;
