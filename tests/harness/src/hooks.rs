//! Hooks that are closures.

use picofleet_harness::hooks::{
    BeforeTool, CompactionChoice, CompactionHooks, CompactionRequest, GenerationHooks, HookApi, HookError, HookResult, Observed, ToolHooks,
};
use picofleet_harness::tools::ToolResult;
use picofleet_session::EntryId;
use picofleet_session::message::{AssistantMessage, ToolCall, UserInput};

type Ask<A, T> = Box<dyn Fn(&A) -> Result<Option<T>, HookError> + Send + Sync>;
type Watch<A> = Box<dyn Fn(&A) -> Result<(), HookError> + Send + Sync>;

/// What a generation asks; nothing is answered where a closure is missing.
#[derive(Default)]
pub struct AskedGeneration {
    /// For a final answer.
    pub on_yield: Option<Ask<AssistantMessage, UserInput>>,
    /// After a round: the calling message and the results.
    pub after_tools: Option<Watch<(EntryId, Vec<EntryId>)>>,
}

impl GenerationHooks for AskedGeneration {
    fn on_yield<'a>(&'a self, answer: &'a AssistantMessage, _: &'a HookApi) -> HookResult<'a, UserInput> {
        Box::pin(async move { self.on_yield.as_ref().map_or(Ok(None), |ask| ask(answer)) })
    }

    fn after_tools<'a>(&'a self, assistant: EntryId, results: &'a [EntryId], _: &'a HookApi) -> Observed<'a> {
        Box::pin(async move { self.after_tools.as_ref().map_or(Ok(()), |watch| watch(&(assistant, results.to_vec()))) })
    }
}

/// What a tool task asks; nothing is answered where a closure is missing.
#[derive(Default)]
pub struct AskedTool {
    /// Before the execution.
    pub before: Option<Ask<ToolCall, BeforeTool>>,
    /// After the execution.
    pub after: Option<Ask<ToolResult, ToolResult>>,
}

impl AskedTool {
    /// A question before the execution.
    pub fn before(ask: impl Fn(&ToolCall) -> Result<Option<BeforeTool>, HookError> + Send + Sync + 'static) -> Self {
        Self { before: Some(Box::new(ask)), after: None }
    }

    /// A question after the execution.
    pub fn after(ask: impl Fn(&ToolResult) -> Result<Option<ToolResult>, HookError> + Send + Sync + 'static) -> Self {
        Self { before: None, after: Some(Box::new(ask)) }
    }
}

impl ToolHooks for AskedTool {
    fn before_tool<'a>(&'a self, call: &'a ToolCall, _: &'a HookApi) -> HookResult<'a, BeforeTool> {
        Box::pin(async move { self.before.as_ref().map_or(Ok(None), |ask| ask(call)) })
    }

    fn after_tool<'a>(&'a self, _: &'a ToolCall, result: &'a ToolResult, _: &'a HookApi) -> HookResult<'a, ToolResult> {
        Box::pin(async move { self.after.as_ref().map_or(Ok(None), |ask| ask(result)) })
    }
}

/// What a compaction asks.
pub struct AskedCompaction(Ask<CompactionRequest, CompactionChoice>);

impl AskedCompaction {
    /// A question behind the selection of a range.
    pub fn new(ask: impl Fn(&CompactionRequest) -> Result<Option<CompactionChoice>, HookError> + Send + Sync + 'static) -> Self {
        Self(Box::new(ask))
    }
}

impl CompactionHooks for AskedCompaction {
    fn before_compact<'a>(&'a self, compaction: &'a CompactionRequest, _: &'a HookApi) -> HookResult<'a, CompactionChoice> {
        Box::pin(async move { (self.0)(compaction) })
    }
}
