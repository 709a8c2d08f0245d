//! The phases of a tool task (section 8.4).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use picofleet_models::validate::validate_tool_arguments;
use picofleet_session::message::{Message, TextContent, ToolCall, ToolDeclaration, UserBlock};
use picofleet_session::{EntryRecord, Json, Op, Segment, TaskRecord};
use tokio::time::Instant;

use super::invocation::{Fault, Invocation};
use super::output::{OutputBuffer, OutputLimits};
use crate::generation::calls;
use crate::live::{Severity, ToolDiagnostic};
use crate::task::checkpoint;
use crate::tool::{Checkpoint, DECISION_VERSION, Decision, Input, Replay, Settled, ToolCode};
use crate::tools::{Call, SharedTool, Shown, ToolApi, ToolError, ToolResult};
use crate::wire::{Next, Read};

/// The shortest time between two commits of running output (section 7.3).
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);
/// A commit delays the next one by its size at this rate, in bytes a second.
const PROGRESS_RATE: f64 = 100.0 * 1024.0;

pub(super) async fn run(invocation: &Invocation, record: &TaskRecord) -> Result<Next, Fault> {
    let null = Json::null();
    let at: Checkpoint = checkpoint(record).unwrap_or(&null).to().map_err(|error| Fault::failed(&error))?;
    let call = call(invocation, record).await?;
    let tool = invocation.services().registry.snapshot().tool(&call.name).cloned();
    match (at, tool) {
        (Checkpoint::Call, None) => refuse(invocation, ToolCode::ToolUnavailable, format!("Tool {} is not available", call.name)).await,
        (Checkpoint::Call, Some(tool)) => {
            let arguments = match arguments(&tool, &call) {
                Ok(arguments) => arguments,
                Err(text) => return refuse(invocation, ToolCode::InvalidArguments, text).await,
            };
            let replay = tool.spec().replay;
            invocation.decide(DECISION_VERSION, &Decision::Intent { arguments: arguments.clone(), replay }).await?;
            execute(invocation, record, &tool, &call, arguments).await
        }
        // Only recovery comes here: both the stored and the present policy have to allow it.
        (Checkpoint::Execute { arguments, replay: Replay::Safe }, Some(tool)) if tool.spec().replay == Replay::Safe => {
            execute(invocation, record, &tool, &call, arguments).await
        }
        (Checkpoint::Execute { .. }, _) => invocation.decide_last(DECISION_VERSION, &Decision::Interrupted).await,
    }
}

async fn refuse(invocation: &Invocation, code: ToolCode, text: String) -> Result<Next, Fault> {
    invocation.decide_last(DECISION_VERSION, &Decision::Refused { code, text }).await
}

async fn call(invocation: &Invocation, record: &TaskRecord) -> Result<ToolCall, Fault> {
    let input: Input = record.input.to().map_err(|error| Fault::failed(&error))?;
    let entry: Option<EntryRecord> = invocation.read(Read::Entry(input.assistant)).await?;
    let message = entry.as_ref().and_then(|entry| entry.model.as_ref()).and_then(|model| model.first());
    let call = match message {
        Some(Message::Assistant(message)) => calls(message).find(|call| call.id == input.call_id).cloned(),
        _ => None,
    };
    call.ok_or_else(|| {
        let message = format!("entry {} has no call {:?}", input.assistant, input.call_id);
        Fault::Failed(picofleet_session::TaskError { message, detail: None })
    })
}

/// Repaired and validated arguments, or the text of an invalid call.
fn arguments(tool: &SharedTool, call: &ToolCall) -> Result<Json, String> {
    let repaired = tool.prepare_arguments(call.arguments.clone()).map_err(|error| error.to_string())?;
    let spec = tool.spec();
    let declaration = ToolDeclaration {
        name: spec.name.clone(),
        description: spec.description.clone(),
        parameters: spec.parameters.clone(),
        constrained_sampling: None,
    };
    let call = ToolCall { arguments: repaired, ..call.clone() };
    validate_tool_arguments(&declaration, &call).map_err(|error| error.to_string())
}

/// Executes and settles. A tool that stops because it was told to decides nothing: the abort handler does.
async fn execute(invocation: &Invocation, record: &TaskRecord, tool: &SharedTool, call: &ToolCall, arguments: Json) -> Result<Next, Fault> {
    invocation.effect().await?;
    let services = invocation.services();
    let shown = Shown::new(tool.spec().output);
    let about = Call { task: invocation.task(), conversation: record.conversation_id, id: call.id.clone() };
    let api = ToolApi::new(Arc::clone(&shown), services.env.clone(), invocation.cancel().clone(), about);
    let started = Instant::now();
    let execution = AssertUnwindSafe(tool.execute(arguments, api)).catch_unwind();
    let result = show(invocation, &shown, execution).await?;
    shown.end();
    if invocation.cancel().is_cancelled() {
        return Err(Fault::Ended);
    }
    let result = result.unwrap_or_else(|_| Err(ToolError::new(format!("tool {} panicked", call.name))));
    let duration_ms = Some((started.elapsed().as_secs_f64() * 1_000.0).round());
    let settled = settle(result, &shown, tool.spec().output, duration_ms);
    invocation.decide_last(DECISION_VERSION, &Decision::Settled(Box::new(settled))).await
}

/// Awaits `execution` and commits what it reports meanwhile.
async fn show<R>(invocation: &Invocation, shown: &Shown, execution: impl Future<Output = R>) -> Result<R, Fault> {
    tokio::pin!(execution);
    let mut written = Written::default();
    let mut next = Instant::now();
    loop {
        let changed = async {
            shown.changed.notified().await;
            tokio::time::sleep_until(next).await;
        };
        tokio::select! {
            biased;
            result = &mut execution => return Ok(result),
            () = changed => {
                let (ops, size) = written.changes(shown);
                if !ops.is_empty() {
                    invocation.progress(&Decision::Progress { ops }).await?;
                    next = Instant::now() + PROGRESS_PAUSE.max(Duration::from_secs_f64(size as f64 / PROGRESS_RATE));
                }
            }
        }
    }
}

/// What the slot has already.
#[derive(Default)]
struct Written {
    output: String,
    dropped: (u64, u64),
    details: Option<Json>,
    diagnostics: usize,
}

impl Written {
    /// What is new, as operations relative to the slot, and about how many bytes that is.
    fn changes(&mut self, shown: &Shown) -> (Vec<Op>, usize) {
        let key = |name: &str| vec![Segment::Key(name.into())];
        let mut ops = Vec::new();
        let mut size = 0;
        shown.with(|state| {
            let output = state.output.text();
            if output != self.output {
                let appended = output.strip_prefix(&self.output).filter(|_| !self.output.is_empty());
                size += appended.map_or(output.len(), str::len);
                ops.push(match appended {
                    Some(more) => Op::Append(key("output"), more.into()),
                    None => Op::Set(key("output"), Json::from(output.as_str())),
                });
                self.output = output;
            }
            let dropped = state.output.dropped();
            if dropped != self.dropped {
                ops.push(Op::Set(key("droppedBytes"), Json::from(dropped.0)));
                ops.push(Op::Set(key("droppedLines"), Json::from(dropped.1)));
                self.dropped = dropped;
            }
            if state.details != self.details {
                ops.extend(state.details.clone().map(|details| Op::Set(key("details"), details)));
                self.details.clone_from(&state.details);
            }
            if state.diagnostics.len() != self.diagnostics {
                // Diagnostics are plain words; they are JSON by construction.
                ops.extend(Json::from_serde(&state.diagnostics).ok().map(|all| Op::Set(key("diagnostics"), all)));
                self.diagnostics = state.diagnostics.len();
            }
        });
        (ops, size)
    }
}

fn settle(result: Result<ToolResult, ToolError>, shown: &Shown, limits: OutputLimits, duration_ms: Option<f64>) -> Settled {
    shown.with(|state| {
        let mut diagnostics = std::mem::take(&mut state.diagnostics);
        let output = state.output.text();
        let retained = || if output.is_empty() { Vec::new() } else { vec![UserBlock::Text(TextContent::new(output.clone()))] };
        let details = state.details.clone();
        match result {
            Ok(result) => {
                diagnostics.extend(result.diagnostics);
                let explicit = result.content.map(|content| bound(content, limits));
                let (content, dropped) = explicit.unwrap_or_else(|| (retained(), state.output.dropped()));
                diagnostics.extend(truncated(dropped));
                Settled {
                    content,
                    is_error: result.is_error,
                    details: result.details.or(details),
                    diagnostics,
                    usage: result.usage,
                    control: result.control,
                    threw: false,
                    duration_ms,
                }
            }
            Err(error) => {
                diagnostics.extend(truncated(state.output.dropped()));
                diagnostics.push(ToolCode::ToolError.diagnostic(error.to_string()));
                Settled { content: retained(), is_error: true, details, diagnostics, usage: None, control: None, threw: true, duration_ms }
            }
        }
    })
}

/// Bounds explicit text as running output is; images stay.
fn bound(content: Vec<UserBlock>, limits: OutputLimits) -> (Vec<UserBlock>, (u64, u64)) {
    let (mut bytes, mut lines) = (0, 0);
    let bounded = content.into_iter().map(|block| match block {
        UserBlock::Text(text) => {
            let mut buffer = OutputBuffer::new(limits);
            buffer.push(text.text.as_bytes());
            let dropped = buffer.dropped();
            if dropped == (0, 0) {
                return UserBlock::Text(text);
            }
            bytes += dropped.0;
            lines += dropped.1;
            UserBlock::Text(TextContent { text: buffer.raw(), ..text })
        }
        image @ UserBlock::Image(_) => image,
    });
    let bounded = bounded.collect();
    (bounded, (bytes, lines))
}

fn truncated((bytes, lines): (u64, u64)) -> Option<ToolDiagnostic> {
    if bytes == 0 {
        return None;
    }
    let message = format!("output truncated: {} lines, {} bytes dropped", grouped(lines), grouped(bytes));
    Some(ToolDiagnostic { severity: Severity::Warn, message, code: Some("truncated".to_owned()) })
}

/// A number with a comma between groups of three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
