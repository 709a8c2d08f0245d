//! Hooks (section 7.2): typed questions that a task asks before it commits a decision. They run in the worker; a crash before the
//! commit that uses their answer may ask them again, and memos keep what must not change then.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use futures::future::BoxFuture;
use picofleet_session::message::{AssistantMessage, Message, ToolCall, UserInput};
use picofleet_session::{ConversationId, EntryId, EntryRecord, Json, SessionId};

use crate::compaction::CompactionReason;
use crate::kind::TaskKind;
use crate::kinds::{COMPACTION, GENERATION, TOOL};
use crate::tools::ToolResult;

pub use crate::effects::HookApi;

/// Why a hook or a prompt section threw. Any error becomes one with `?`.
pub struct HookError(Box<dyn Error + Send + Sync>);

impl HookError {
    /// An error with this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into().into())
    }

    /// The error.
    #[must_use]
    pub fn as_error(&self) -> &(dyn Error + 'static) {
        &*self.0
    }

    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self::new(panic_text(panic))
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("no message"))
}

impl<E: Error + Send + Sync + 'static> From<E> for HookError {
    fn from(error: E) -> Self {
        Self(Box::new(error))
    }
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::line::chain(&*self.0))
    }
}

impl fmt::Debug for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// What a hook answers: nothing, a value, or an error that its table row says what to do with.
pub type HookResult<'a, T> = BoxFuture<'a, Result<Option<T>, HookError>>;

/// What an observer answers.
pub type Observed<'a> = BoxFuture<'a, Result<(), HookError>>;

fn none<'a, T: Send + 'a>() -> HookResult<'a, T> {
    Box::pin(async { Ok(None) })
}

fn seen<'a>() -> Observed<'a> {
    Box::pin(async { Ok(()) })
}

/// The conversations that hooks are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HookScope {
    /// The session; without one, the conversation with this id in every session that the process works for.
    pub session: Option<SessionId>,
    /// The conversation.
    pub conversation: ConversationId,
    /// Also the conversations that its tasks own, transitively.
    pub subtree: bool,
}

impl HookScope {
    /// One conversation.
    #[must_use]
    pub const fn conversation(conversation: ConversationId) -> Self {
        Self { session: None, conversation, subtree: false }
    }

    /// Also what its tasks own, transitively.
    #[must_use]
    pub const fn subtree(self) -> Self {
        Self { subtree: true, ..self }
    }

    /// Of one session only.
    #[must_use]
    pub const fn in_session(self, session: SessionId) -> Self {
        Self { session: Some(session), ..self }
    }
}

/// A task that asks hooks. They are registered with its type and found by its name, so that they survive a reload of the task.
pub trait Asks: 'static {
    /// The name of the task.
    const NAME: &'static str;
    /// The trait of its hooks.
    type Hooks: ?Sized + Send + Sync + 'static;
}

impl<K: TaskKind> Asks for K {
    const NAME: &'static str = K::NAME;
    type Hooks = K::Hooks;
}

/// The built-in generation task.
pub enum GenerationTask {}

/// The built-in tool task.
pub enum ToolTask {}

/// The built-in compaction task.
pub enum CompactionTask {}

impl Asks for GenerationTask {
    const NAME: &'static str = GENERATION;
    type Hooks = dyn GenerationHooks;
}

impl Asks for ToolTask {
    const NAME: &'static str = TOOL;
    type Hooks = dyn ToolHooks;
}

impl Asks for CompactionTask {
    const NAME: &'static str = COMPACTION;
    type Hooks = dyn CompactionHooks;
}

/// What a generation asks. Errors of all four are reported, and the next handler is asked.
pub trait GenerationHooks: Send + Sync {
    /// Before every attempt of a request, also after a crash. The answer replaces the messages of this attempt and nothing else; the
    /// next handler sees it.
    fn before_request<'a>(&'a self, messages: &'a [Message], api: &'a HookApi) -> HookResult<'a, Vec<Message>> {
        let _ = (messages, api);
        none()
    }

    /// After every complete message of a provider, before the generation classifies it; not for one that is still deferred.
    fn after_response<'a>(&'a self, message: &'a AssistantMessage, api: &'a HookApi) -> Observed<'a> {
        let _ = (message, api);
        seen()
    }

    /// For a final answer. The first answer wins: it is appended as a user message and the run goes on, unless the boundary has
    /// something else to place.
    fn on_yield<'a>(&'a self, answer: &'a AssistantMessage, api: &'a HookApi) -> HookResult<'a, UserInput> {
        let _ = (answer, api);
        none()
    }

    /// After every tool of a round has ended: the calling message, and the result entries in call order.
    fn after_tools<'a>(&'a self, assistant: EntryId, results: &'a [EntryId], api: &'a HookApi) -> Observed<'a> {
        let _ = (assistant, results, api);
        seen()
    }
}

/// What a hook does with a call before it executes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct BeforeTool {
    /// Arguments in the place of the call's; they are validated again.
    pub arguments: Option<Json>,
    /// The call is blocked, for this reason.
    pub block: Option<String>,
}

impl BeforeTool {
    /// Other arguments.
    #[must_use]
    pub const fn arguments(arguments: Json) -> Self {
        Self { arguments: Some(arguments), block: None }
    }

    /// No execution.
    #[must_use]
    pub fn block(reason: impl Into<String>) -> Self {
        Self { arguments: None, block: Some(reason.into()) }
    }
}

/// What a tool task asks.
pub trait ToolHooks: Send + Sync {
    /// Before the intent. The next handler sees replaced arguments; after a block no other one is asked. An error blocks the call.
    fn before_tool<'a>(&'a self, call: &'a ToolCall, api: &'a HookApi) -> HookResult<'a, BeforeTool> {
        let _ = (call, api);
        none()
    }

    /// After the execution returned, before the result is bounded. The next handler sees the replaced result. An error is reported.
    fn after_tool<'a>(&'a self, call: &'a ToolCall, result: &'a ToolResult, api: &'a HookApi) -> HookResult<'a, ToolResult> {
        let _ = (call, result, api);
        none()
    }
}

/// A compaction that is about to summarize.
#[derive(Clone, PartialEq, Debug)]
pub struct CompactionRequest {
    /// Why.
    pub reason: CompactionReason,
    /// The active entries that the summary replaces, the head marker first.
    pub entries: Vec<Arc<EntryRecord>>,
    /// What the model sees of them.
    pub messages: Vec<Message>,
    /// The first entry that stays.
    pub first_kept: EntryId,
    /// What the summary is to say, where somebody asked for it.
    pub instructions: Option<String>,
}

/// What a hook decides about a compaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CompactionChoice {
    /// There is none.
    Decline,
    /// This is the summary.
    Summary(String),
}

/// What a compaction asks.
pub trait CompactionHooks: Send + Sync {
    /// After the range is selected, before the summary is asked for. The first answer wins. An error is reported.
    fn before_compact<'a>(&'a self, compaction: &'a CompactionRequest, api: &'a HookApi) -> HookResult<'a, CompactionChoice> {
        let _ = (compaction, api);
        none()
    }
}
