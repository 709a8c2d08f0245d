//! The program as a process: what it reads, prints, sends and leaves behind, and its exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

mod chat;
mod chat_input;
mod config;
mod kill;
mod looks;
mod models;
mod place;
mod postgres;
mod proxy;
mod quarantine;
mod run;
mod server;
mod stores;
mod terminal;
mod trouble;
mod user;
