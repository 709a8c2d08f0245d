//! The phases of a tool task (section 8.4).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use picofleet_models::validate::validate_tool_arguments;
use picofleet_session::message::{TextContent, ToolCall, ToolDeclaration, UserBlock};
use picofleet_session::{Json, Op, Segment, TaskRecord};
use tokio::time::Instant;

use super::invocation::Fault;
use super::output::{OutputBuffer, OutputLimits};
use super::phase::PhaseRun;
use crate::hooks::{BeforeTool, ToolTask, panic_text};
use crate::live::{Severity, ToolDiagnostic};
use crate::registry::FailureKind;
use crate::task::checkpoint;
use crate::tool::{Checkpoint, DECISION_VERSION, Decision, Input, Replay, Settled, ToolCode};
use crate::tools::{Call, SharedTool, Shown, ToolApi, ToolError, ToolResult};
use crate::wire::{Next, Read};

/// The shortest time between two commits of running output (section 7.3).
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);
/// A commit delays the next one by its size at this rate, in bytes a second.
const PROGRESS_RATE: f64 = 100.0 * 1024.0;

pub(super) async fn run(run: &PhaseRun, record: &TaskRecord) -> Result<Next, Fault> {
    let null = Json::null();
    let at: Checkpoint = checkpoint(record).unwrap_or(&null).to().map_err(|error| Fault::failed(&error))?;
    let call = call(run, record).await?;
    // Pinned until the execution is settled (section 7.3).
    let tool = run.registry.tool(&call.name).cloned();
    match (at, tool) {
        (Checkpoint::Call, None) => {
            for failure in run.registry.failures().iter().filter(|failure| failure.kind == FailureKind::Tool && failure.name == call.name) {
                run.report(failure);
            }
            refuse(run, ToolCode::ToolUnavailable, format!("Tool {} is not available", call.name)).await
        }
        (Checkpoint::Call, Some(tool)) => {
            let arguments = match final_arguments(run, &tool, &call).await? {
                Ok(arguments) => arguments,
                Err((code, text)) => return refuse(run, code, text).await,
            };
            // A hook may not have heeded the cancellation: an intent would make a call that never executed look interrupted.
            if run.invocation.cancel().is_cancelled() {
                return Err(Fault::Ended);
            }
            let replay = tool.spec().replay;
            run.invocation.decide(DECISION_VERSION, &Decision::Intent { arguments: arguments.clone(), replay }).await?;
            execute(run, record, &tool, &call, arguments).await
        }
        // Only recovery comes here: both the stored and the present policy have to allow it.
        (Checkpoint::Execute { arguments, replay: Replay::Safe }, Some(tool)) if tool.spec().replay == Replay::Safe => {
            execute(run, record, &tool, &call, arguments).await
        }
        (Checkpoint::Execute { .. }, _) => run.invocation.decide_last(DECISION_VERSION, &Decision::Interrupted).await,
    }
}

async fn refuse(run: &PhaseRun, code: ToolCode, text: String) -> Result<Next, Fault> {
    run.invocation.decide_last(DECISION_VERSION, &Decision::Refused { code, text }).await
}

async fn call(run: &PhaseRun, record: &TaskRecord) -> Result<ToolCall, Fault> {
    let input: Input = record.input.to().map_err(|error| Fault::failed(&error))?;
    let asked = Read::Call { answer: input.assistant, call: input.call_id.clone() };
    let call: Option<ToolCall> = run.invocation.read(asked).await?;
    call.ok_or_else(|| {
        let message = format!("entry {} has no call {:?}", input.assistant, input.call_id);
        Fault::Failed(picofleet_session::TaskError { message, detail: None })
    })
}

type Refused = (ToolCode, String);

/// The arguments that are executed: repaired, validated, replaced by hooks, and validated again; or why there is no execution.
async fn final_arguments(run: &PhaseRun, tool: &SharedTool, call: &ToolCall) -> Result<Result<Json, Refused>, Fault> {
    let repair = || tool.prepare_arguments(call.arguments.clone());
    let repaired = match catch_unwind(AssertUnwindSafe(repair)) {
        Ok(Ok(arguments)) => validated(tool, &ToolCall { arguments, ..call.clone() }),
        Ok(Err(error)) => Err((ToolCode::InvalidArguments, error.to_string())),
        Err(panic) => Err((ToolCode::InvalidArguments, format!("the repair of the arguments failed: {}", panic_text(&*panic)))),
    };
    let mut asked = match repaired {
        Ok(arguments) => ToolCall { arguments, ..call.clone() },
        Err(refused) => return Ok(Err(refused)),
    };
    let blocked = |reason: &str| Ok(Err((ToolCode::Blocked, format!("Tool call blocked: {reason}"))));
    for handler in run.handlers::<ToolTask>().await? {
        match run.ask(async { handler.before_tool(&asked, &run.api).await }).await? {
            Ok(None) => {}
            Ok(Some(BeforeTool { block: Some(reason), .. })) => return blocked(&reason),
            Ok(Some(BeforeTool { arguments, .. })) => asked.arguments = arguments.unwrap_or(asked.arguments),
            Err(error) => return blocked(&error.to_string()),
        }
    }
    Ok(validated(tool, &asked))
}

fn validated(tool: &SharedTool, call: &ToolCall) -> Result<Json, Refused> {
    let spec = tool.spec();
    let declaration = ToolDeclaration {
        name: spec.name.clone(),
        description: spec.description.clone(),
        parameters: spec.parameters.clone(),
        constrained_sampling: None,
    };
    validate_tool_arguments(&declaration, call).map_err(|error| (ToolCode::InvalidArguments, error.to_string()))
}

/// The result that is settled: handlers replace it one after the other (section 7.2).
async fn after_tool(run: &PhaseRun, call: &ToolCall, mut result: ToolResult) -> Result<ToolResult, Fault> {
    for handler in run.handlers::<ToolTask>().await? {
        let answer = run.ask_or_report(async { handler.after_tool(call, &result, &run.api).await }).await?;
        result = answer.flatten().unwrap_or(result);
    }
    Ok(result)
}

/// Executes and settles. A tool that stops because it was told to decides nothing: the abort handler does.
async fn execute(run: &PhaseRun, record: &TaskRecord, tool: &SharedTool, call: &ToolCall, arguments: Json) -> Result<Next, Fault> {
    run.invocation.effect().await?;
    let shown = Shown::new(tool.spec().output);
    // Whoever waits for a commit of details learns how the call ended, whatever way this ends.
    let promises = shown.promises();
    let about = Call { task: run.invocation.task(), conversation: record.conversation_id, id: call.id.clone() };
    let api =
        ToolApi::new(Arc::clone(&shown), run.invocation.services().env.clone(), run.invocation.cancel().clone(), about, run.api.clone());
    let started = Instant::now();
    let execution = AssertUnwindSafe(async { tool.execute(arguments, api).await }).catch_unwind();
    let result = show(run, &shown, execution).await?;
    shown.end();
    if run.invocation.cancel().is_cancelled() {
        return Err(Fault::Ended);
    }
    let duration_ms = Some((started.elapsed().as_secs_f64() * 1_000.0).round());
    let result = match result.unwrap_or_else(|_| Err(ToolError::new(format!("tool {} panicked", call.name)))) {
        Ok(result) => Ok(after_tool(run, call, result).await?),
        Err(error) => Err(error),
    };
    let settled = settle(result, &shown, tool.spec().output, duration_ms);
    run.invocation.settle();
    let next = run.invocation.decide_last(DECISION_VERSION, &Decision::Settled(Box::new(settled))).await?;
    promises.kept();
    Ok(next)
}

/// Awaits `execution` and commits what it reports meanwhile.
async fn show<R>(run: &PhaseRun, shown: &Shown, execution: impl Future<Output = R>) -> Result<R, Fault> {
    tokio::pin!(execution);
    let (mut written, mut whole) = (Written::default(), false);
    let mut next = Instant::now();
    loop {
        let changed = async {
            shown.changed.notified().await;
            tokio::time::sleep_until(next).await;
        };
        tokio::select! {
            biased;
            result = &mut execution => return Ok(result),
            () = changed => {}
        }
        let (ops, size) = written.changes(shown);
        if ops.is_empty() {
            shown.committed(written.reports);
            continue;
        }
        let decision = Decision::Progress { ops };
        let progress = run.invocation.progress(&decision, std::mem::take(&mut whole));
        let kept = tokio::select! {
            biased;
            kept = progress => kept,
            // The result has everything that the commit would have shown: it must not wait for one that may get no answer.
            result = &mut execution => return Ok(result),
        };
        if kept? {
            shown.committed(written.reports);
        } else {
            // The slot has another text: the next commit brings the whole.
            written = Written::default();
            whole = true;
            shown.changed.notify_one();
        }
        next = Instant::now() + PROGRESS_PAUSE.max(Duration::from_secs_f64(size as f64 / PROGRESS_RATE));
    }
}

/// What the slot has already.
#[derive(Default)]
struct Written {
    output: String,
    dropped: (u64, u64),
    details: Option<Json>,
    diagnostics: usize,
    /// Which report of details it has.
    reports: u64,
}

impl Written {
    /// What is new, as operations relative to the slot, and about how many bytes that is.
    fn changes(&mut self, shown: &Shown) -> (Vec<Op>, usize) {
        let key = |name: &str| vec![Segment::Key(name.into())];
        let mut ops = Vec::new();
        let mut size = 0;
        shown.with(|state| {
            self.reports = state.reports;
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
