//! How much room a context leaves in the model's window (sections 8.3 and 8.7).

use picofleet_models::model::Model;
use picofleet_session::{ContextView, TaskId, TaskOutcome, TaskRecord, TaskState};

use super::super::invocation::Fault;
use super::super::phase::PhaseRun;
use super::document;
use crate::compaction::CompactionResult;
use crate::compaction::range::{Cut, context_tokens};
use crate::config::{CONFIG, ConversationConfig};
use crate::generation::{Overflow, PlannedSystem};
use crate::wire::Read;

/// How much room there is for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Room {
    /// Enough, or a summary would make none.
    Enough,
    /// So little that a compaction is to run beside the request.
    Short,
    /// So little that the request waits for a compaction.
    Blocked,
}

/// Compares the estimate of a request with the thresholds.
pub(super) fn look(config: &ConversationConfig, model: &Model, view: &ContextView, planned: &[PlannedSystem]) -> Room {
    let policy = config.compaction.unwrap_or_default();
    if !policy.enabled || model.context_window == 0 {
        return Room::Enough;
    }
    let tokens = i128::from(context_tokens(view, planned.iter().map(|planned| &planned.message)));
    let blocking = i128::from(model.context_window) - i128::from(policy.reserve_tokens);
    let room = if tokens > blocking {
        Room::Blocked
    } else if policy.background_tokens > 0 && tokens > blocking - i128::from(policy.background_tokens) {
        Room::Short
    } else {
        return Room::Enough;
    };
    let gains = Cut::select(view, policy.keep_recent_tokens).is_some_and(|cut| cut.gains(view));
    if gains { room } else { Room::Enough }
}

/// What the line has to know about a request that did not fit.
pub(super) async fn overflow(run: &PhaseRun, record: &TaskRecord, view: &ContextView) -> Result<Overflow, Fault> {
    let config: Option<ConversationConfig> = document(run, record, CONFIG.kind).await?;
    let keep = config.unwrap_or_default().compaction.unwrap_or_default().keep_recent_tokens;
    Ok(Overflow { cut: Cut::select(view, keep).is_some() })
}

/// Whether a compaction that a generation waited for has placed a summary.
pub(super) async fn was_made(run: &PhaseRun, compaction: TaskId) -> Result<bool, Fault> {
    let record: Option<TaskRecord> = run.invocation.read(Read::Task(compaction)).await?;
    let Some(TaskState::Terminal { outcome: TaskOutcome::Completed { result } }) = record.map(|record| record.state) else {
        return Ok(false);
    };
    // The line wrote the result itself; one that can't be read names no entry.
    Ok(result.to::<CompactionResult>().is_ok_and(|result| result.entry_id.is_some()))
}
