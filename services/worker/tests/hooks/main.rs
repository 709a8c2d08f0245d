//! Hooks, prompt sections and the API of tools in whole turns (section 7), over the encoded local transport.

#![allow(clippy::unwrap_used, reason = "a test panics where it can not go on")]

mod engine;
mod generation;
mod prompt;
mod tools;
