//! Applying a decision on the line, inside one commit.

use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, StopReason, TextContent, UserBlock, UserMessage};
use picofleet_session::{DraftHead, EntryDraft, EntryId, Json, Millis, TaskError, TaskOutcome, TaskRecord, Tx, TxError};

use super::source::{summary_text, wrapped};
use super::{Basis, Checkpoint, Choice, CompactionResult, Decision, Input, Selected, SummaryRequest, Then, status};
use crate::config::RetryPolicy;
use crate::generation::failed;
use crate::kinds::{COMPACTED, reason};
use crate::live::LiveRetry;
use crate::submission::{Admission, Facts, SubmissionDraft, admit};
use crate::usage::count_message;

/// Applies `decision` on a compaction that is at `checkpoint`.
///
/// # Errors
/// As the operations of [`Tx`]; the commit rolls back and the task faults.
pub async fn apply(tx: &Tx, task: &TaskRecord, checkpoint: Checkpoint, decision: Decision) -> Result<Then, TxError> {
    let then = match (decision, checkpoint) {
        (Decision::Selected(selected), Checkpoint::Select) => selected_range(tx, task, *selected).await?,
        (Decision::Fail { reason, detail }, _) => Then::End(failed(&reason, detail)),
        (Decision::Summarized { message, retryable }, Checkpoint::Summarize(request)) => {
            summarized(tx, task, *request, *message, retryable).await?
        }
        (Decision::Due, Checkpoint::Retry { request, .. }) => {
            let attempt = request.attempt.saturating_add(1);
            status::set_attempt(tx, task, attempt, None).await?;
            Then::Checkpoint(Checkpoint::Summarize(Box::new(SummaryRequest { attempt, ..*request })))
        }
        (Decision::Aborted, _) => Then::End(TaskOutcome::Aborted { reason: None, result: None }),
        (decision, checkpoint) => Then::End(fault(format!("a compaction at {checkpoint:?} can't take the decision {}", name(&decision)))),
    };
    if matches!(then, Then::End(_)) {
        status::remove(tx, task).await?;
    }
    Ok(then)
}

const fn name(decision: &Decision) -> &'static str {
    match decision {
        Decision::Selected(_) => "selected",
        Decision::Fail { .. } => "fail",
        Decision::Summarized { .. } => "summarized",
        Decision::Due => "due",
        Decision::Aborted => "aborted",
    }
}

fn fault(message: String) -> TaskOutcome {
    TaskOutcome::Faulted { error: TaskError { message, detail: None } }
}

fn completed(result: CompactionResult) -> Then {
    match Json::from_serde(&result) {
        Ok(result) => Then::End(TaskOutcome::Completed { result }),
        Err(error) => Then::End(fault(error.to_string())),
    }
}

async fn selected_range(tx: &Tx, task: &TaskRecord, selected: Selected) -> Result<Then, TxError> {
    let facts = Facts::read(tx, task.conversation_id).await?;
    if Basis::of(&facts.config) != selected.config || facts.marker != selected.marker {
        return Ok(Then::Stale);
    }
    match selected.choice {
        Choice::Nothing => Ok(completed(CompactionResult::default())),
        Choice::Summary { text, first_kept } => place(tx, task, &facts, &text, first_kept).await,
        Choice::Summarize(request) => Ok(Then::Checkpoint(Checkpoint::Summarize(request))),
    }
}

/// Classifies the answer to a request for a summary, and counts it.
async fn summarized(
    tx: &Tx,
    task: &TaskRecord,
    request: SummaryRequest,
    message: AssistantMessage,
    retryable: bool,
) -> Result<Then, TxError> {
    let facts = Facts::read(tx, task.conversation_id).await?;
    count_message(tx, task.conversation_id, &message).await?;
    let error = match message.stop_reason {
        StopReason::Stop if has_calls(&message) => "the answer to a request for a summary calls a tool".to_owned(),
        StopReason::Stop => match summary_text(&message) {
            text if text.trim().is_empty() => "the summary has no text".to_owned(),
            text => return place(tx, task, &facts, &text, request.first_kept).await,
        },
        StopReason::Length => format!("the summary is longer than {} tokens and was cut off", request.max_tokens),
        StopReason::Error | StopReason::Aborted => {
            message.error_message.unwrap_or_else(|| "the request for a summary ended without an answer".to_owned())
        }
        other => format!("the request for a summary ended as {other:?}"),
    };
    let policy = facts.config.retry.unwrap_or_default();
    if message.stop_reason == StopReason::Error && retryable && policy.enabled && request.attempt <= policy.max_retries {
        return retry(tx, task, request, &policy, error).await;
    }
    Ok(Then::End(failed(reason::MODEL_ERROR, Some(Json::from(error)))))
}

fn has_calls(message: &AssistantMessage) -> bool {
    message.content.iter().any(|block| matches!(block, AssistantBlock::ToolCall(_)))
}

async fn retry(tx: &Tx, task: &TaskRecord, request: SummaryRequest, policy: &RetryPolicy, error: String) -> Result<Then, TxError> {
    let until = Millis(tx.now().0.saturating_add(policy.delay_ms(request.attempt)));
    status::set_attempt(tx, task, request.attempt, Some(LiveRetry { at: until, error })).await?;
    Ok(Then::Sleep { checkpoint: Checkpoint::Retry { until, request: Box::new(request) }, until })
}

/// Puts a summary into the conversation: at once where a generation waits for it, else as any other write (section 6).
async fn place(tx: &Tx, task: &TaskRecord, facts: &Facts, text: &str, first_kept: EntryId) -> Result<Then, TxError> {
    let Ok(input) = task.input.to::<Input>() else {
        return Ok(Then::End(fault(format!("the input of compaction {} can't be read", task.id))));
    };
    let content = vec![UserBlock::Text(TextContent::new(wrapped(text)))];
    let message = Message::from(UserMessage { content: picofleet_session::message::TextOrBlocks::Blocks(content), timestamp: tx.now() });
    let entry = EntryDraft::new(COMPACTED.kind)
        .model(vec![message])
        .data(Json::object([("reason", input.reason.as_str())]))
        .head(DraftHead::Entry(first_kept));
    if task.owner.is_some() {
        // Its generation has the run, so that no boundary moves the head; a commit of an application may have. An older cut would undo it.
        if facts.active_from.is_some_and(|start| first_kept < start) {
            return Ok(completed(CompactionResult::default()));
        }
        let entry = tx.append_entry(task.conversation_id, entry).await?.id;
        return Ok(completed(CompactionResult { entry_id: Some(entry), submission_id: None }));
    }
    let draft = SubmissionDraft::write(entry).request_id(format!("compaction:{}", task.id));
    Ok(match admit(tx, task.conversation_id, draft).await? {
        Admission::Admitted(record) | Admission::Existing(record) => {
            completed(CompactionResult { entry_id: None, submission_id: Some(record.id) })
        }
        Admission::Full => {
            Then::End(failed(reason::INBOX_FULL, Some(Json::from("the inbox of the conversation has no place for the summary"))))
        }
        Admission::OtherType => Then::End(fault(format!("the request id compaction:{} names an input", task.id))),
        Admission::Busy => Then::End(fault("a write waits while its conversation is busy, and was refused".to_owned())),
    })
}
