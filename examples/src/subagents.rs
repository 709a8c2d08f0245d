//! Subagents (section 7.3) as an application writes them: [`foreground`] ones, which a call owns and waits for, and [`background`] ones,
//! which outlive the turns of their parent and report when they have something to say.
//!
//! The scenarios of the harness run these two files as they stand here.

pub mod background;
pub mod foreground;
