//! Transports between workers, hosts and the lines of sessions.
//!
//! **Architecture invariants.** A transport carries messages and decides nothing. Only this crate knows how a message is encoded or on
//! which subject it travels. Today there is the local transport; it can encode and decode every message, so that what would not survive a
//! network does not pass a test either.

mod local;

pub use local::{LineServer, Local};
