//! The local execution environment, and the tools that every fleet has: `read`, `bash`, `edit` and `write` (section 7.3).
//!
//! | module | what |
//! | --- | --- |
//! | [`local`] | files and processes of one workspace directory |
//! | [`read`], [`write`], [`edit`], [`bash`] | the tools |
//!
//! Architecture invariants:
//!
//! - A tool reaches files and processes only through the environment of its call. It holds none.
//! - No file outside the workspace is read or written by [`local::LocalEnv`]'s file operations, save its own spilled output. This is no
//!   sandbox for commands: a command may do what its user may do.
//! - What a command started is gone when its call is over, as far as [`local`] says.
//! - A thread of the asynchronous runtime never waits for a file or a process.

mod arguments;
pub mod bash;
pub mod edit;
pub mod local;
pub mod read;
pub mod write;

pub use bash::Bash;
pub use edit::Edit;
pub use local::{LocalEnv, LocalOptions, OpenError};
pub use read::Read;
pub use write::Write;

/// Most bytes of a file that a tool takes into memory.
pub const FILE_BYTES_MAX: u64 = 16 << 20;
