//! The names that clients see: task kinds, entry kinds, reasons (sections 6 and 8). They are stored and stay.

use picofleet_session::{EntryKind, Json};

/// The generation task.
pub const GENERATION: &str = "pi.generation";
/// The tool task.
pub const TOOL: &str = "pi.tool";
/// The compaction task.
pub const COMPACTION: &str = "pi.compaction";

/// A user message.
pub static USER: EntryKind<()> = EntryKind::new("pi.user");
/// A model's message, with any stop reason.
pub static ASSISTANT: EntryKind<()> = EntryKind::new("pi.assistant");
/// A patch of the system prompt and the tools.
pub static SYSTEM: EntryKind<()> = EntryKind::new("pi.system");
/// The result of a tool call; its data has the diagnostics.
pub static TOOL_RESULT: EntryKind<Json> = EntryKind::new("pi.tool-result");
/// The begin of a new context.
pub static RESET: EntryKind<()> = EntryKind::new("pi.reset");
/// A summary that stands for what is before its head.
pub static COMPACTED: EntryKind<Json> = EntryKind::new("pi.compaction");

/// Why an input ended without an answer, and why a task is blocked.
pub mod reason {
    /// No model is configured, or it is not known.
    pub const NO_MODEL: &str = "no_model";
    /// The model's request failed.
    pub const MODEL_ERROR: &str = "model_error";
    /// It was aborted or withdrawn.
    pub const ABORTED: &str = "aborted";
    /// The run's task faulted.
    pub const FAULTED: &str = "faulted";
    /// A reset came before an answer.
    pub const RESET: &str = "reset";
    /// Its head is older than the active range.
    pub const STALE: &str = "stale";
    /// Too much waits in the conversation already.
    pub const INBOX_FULL: &str = "inbox_full";
    /// The task's definition is not registered.
    pub const MISSING_TASK: &str = "missing_task";
    /// The stored task is of a newer version than the definition.
    pub const TASK_TOO_OLD: &str = "task_too_old";
    /// The definition could not migrate the task.
    pub const MIGRATION_FAILED: &str = "migration_failed";
    /// No live worker takes tasks of its route. Shown only: the task is ready.
    pub const NO_WORKER: &str = "no_worker";
    /// Its session is quarantined, so that nothing of it runs. Shown only.
    pub const SESSION_QUARANTINED: &str = "session_quarantined";
    /// It was cut off too often without progress.
    pub const RESTART_LIMIT: &str = "restart_limit";
}
