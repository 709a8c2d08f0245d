//! How much a frame takes, about.

use picofleet_delta::JsonRef;
use picofleet_session::{InputState, Json, Op, SubmissionState, TaskOutcome, TaskRecord, TaskState, WriteState};

use crate::frame::Frame;
use crate::view::ViewBatch;

/// What a record takes beside its values, about.
const RECORD: usize = 256;

/// About how many bytes a frame takes as it is written: told by a walk that writes nothing, as commits wait for it.
pub(super) fn frame_size(frame: &Frame, batch: &ViewBatch) -> usize {
    let ops: usize = batch.ops.iter().map(op_size).sum();
    let tasks: usize = frame.tasks.iter().map(|task| RECORD + json_size(&task.input) + task_size(task)).sum();
    let details = frame.submissions.iter().filter_map(|record| match &record.state {
        SubmissionState::Input(InputState::Unanswered { detail, .. }) | SubmissionState::Write(WriteState::Unanswered { detail, .. }) => {
            detail.as_ref()
        }
        _ => None,
    });
    RECORD + ops + tasks + RECORD * frame.submissions.len() + details.map(json_size).sum::<usize>()
}

fn task_size(task: &TaskRecord) -> usize {
    let state = match &task.state {
        TaskState::Pending { checkpoint }
        | TaskState::Running { checkpoint }
        | TaskState::Waiting { checkpoint, .. }
        | TaskState::Sleeping { checkpoint, .. } => json_size(checkpoint),
        TaskState::Completing { outcome } | TaskState::Terminal { outcome } => outcome_size(outcome),
    };
    state + task.memos.as_ref().map_or(0, json_size)
}

fn outcome_size(outcome: &TaskOutcome) -> usize {
    match outcome {
        TaskOutcome::Completed { result } => json_size(result),
        TaskOutcome::Failed { error, result } => {
            error.message.len() + error.detail.iter().chain(result.as_ref()).map(json_size).sum::<usize>()
        }
        TaskOutcome::Aborted { reason, result } => reason.as_ref().map_or(0, String::len) + result.as_ref().map_or(0, json_size),
        TaskOutcome::Orphaned { reason } => reason.len(),
        TaskOutcome::Faulted { error } => error.message.len() + error.detail.as_ref().map_or(0, json_size),
    }
}

fn op_size(op: &Op) -> usize {
    /// What an operation takes beside its values, about.
    const OP: usize = 32;
    OP + match op {
        Op::Replace(value) | Op::Set(_, value) => json_size(value),
        Op::Append(_, text) => text.len(),
        Op::Splice { items, .. } => items.iter().map(json_size).sum(),
        Op::Move(_, order) => 4 * order.len(),
        Op::Delete(_) | Op::TrimUtf16(..) => 0,
    }
}

fn json_size(value: &Json) -> usize {
    match value.as_ref() {
        JsonRef::Null | JsonRef::Bool(_) | JsonRef::Int(_) | JsonRef::Float(_) => 8,
        JsonRef::String(text) => text.len() + 3,
        JsonRef::Array(array) => 2 + array.iter().map(|item| 1 + json_size(item)).sum::<usize>(),
        JsonRef::Object(object) => 2 + object.iter().map(|(key, item)| key.len() + 4 + json_size(item)).sum::<usize>(),
    }
}
