//! Tool rounds (sections 8.3 and 8.5): their start, the next call of a sequential one, their end.

use std::collections::HashMap;

use picofleet_session::message::{AssistantBlock, AssistantMessage, Message, ToolCall, UserMessage};
use picofleet_session::{
    DraftHead, EntryDraft, EntryId, EntryRecord, Json, SubmissionId, TaskCreate, TaskId, TaskOutcome, TaskOwnership, TaskRecord, TaskState,
    Tx, TxError,
};

use super::responded::entry_result;
use super::{CallFacts, Checkpoint, Pinned, Round, Then};
use crate::config::{CONFIG, ToolExecution};
use crate::inbox::Boundary;
use crate::kinds::{RESET, TOOL, reason};
use crate::live::{LIVE, SlotStatus, ToolSlot};
use crate::run::{RunEnd, end_run};
use crate::submission::{Facts, final_boundary_with, place, start_run};
use crate::tool::{Control, ToolCode, append_error_result};

/// The calls of an answer, in order.
pub(crate) fn calls(message: &AssistantMessage) -> impl Iterator<Item = &ToolCall> {
    message.content.iter().filter_map(|block| if let AssistantBlock::ToolCall(call) = block { Some(call) } else { None })
}

/// Starts a round: results for calls that were not offered, slots for all, tasks for all or for the first.
pub(super) async fn start_round(
    tx: &Tx,
    task: &TaskRecord,
    pinned: &Pinned,
    assistant: EntryId,
    message: &AssistantMessage,
    facts: &[CallFacts],
) -> Result<Then, TxError> {
    let sequential = pinned.tool_execution == ToolExecution::Sequential || facts.iter().any(|call| call.offered && call.sequential);
    let (mut slots, mut tools, mut pending) = (Vec::new(), Vec::new(), Vec::new());
    // A worker says one fact a call; a call without one was not offered.
    let facts = facts.iter().copied().chain(std::iter::repeat(CallFacts { offered: false, sequential: false }));
    for (call, facts) in calls(message).zip(facts) {
        let mut slot = new_slot(call);
        if !facts.offered {
            let text = format!("Tool {} is not available", call.name);
            slot.status = SlotStatus::Done;
            slot.entry = Some(append_error_result(tx, task.conversation_id, call, ToolCode::ToolUnavailable, &text, None).await?);
        } else if sequential && !tools.is_empty() {
            pending.push(call.id.clone());
        } else {
            let id = create_tool(tx, task, assistant, &call.id).await?;
            slot.task_id = Some(id);
            tools.push(id);
        }
        slots.push(slot);
    }
    let live = tx.doc(&LIVE, task.conversation_id).await?;
    live.draft.key("generation").remove()?;
    live.draft.key("tools").set_serde(&slots)?;
    Ok(Then::Wait { on: tools.clone(), checkpoint: Checkpoint::Tools(Round { assistant, tools, pending }) })
}

fn new_slot(call: &ToolCall) -> ToolSlot {
    ToolSlot {
        call_id: call.id.clone(),
        name: call.name.clone(),
        task_id: None,
        status: SlotStatus::Pending,
        output: None,
        dropped_bytes: None,
        dropped_lines: None,
        details: None,
        diagnostics: None,
        entry: None,
    }
}

async fn create_tool(tx: &Tx, task: &TaskRecord, assistant: EntryId, call: &str) -> Result<TaskId, TxError> {
    tx.create_task_raw(TaskCreate {
        kind: TOOL.to_owned(),
        version: 1,
        input: Json::object([("assistant", Json::from(assistant.get())), ("callId", Json::from(call))]),
        checkpoint: Json::object([("phase", "call")]),
        ownership: TaskOwnership::Task { task_id: task.id },
        conversation_id: None,
        background: false,
    })
    .await
}

/// The next call of a sequential round.
pub(super) async fn next_call(tx: &Tx, task: &TaskRecord, mut round: Round) -> Result<Then, TxError> {
    if round.pending.is_empty() {
        return Ok(Then::Stale);
    }
    let call = round.pending.remove(0);
    let id = create_tool(tx, task, round.assistant, &call).await?;
    let tools = tx.doc(&LIVE, task.conversation_id).await?.draft.key("tools");
    let index = tools.get().as_ref().and_then(Json::as_array).and_then(|slots| {
        slots
            .iter()
            .position(|slot| slot.get("callId").and_then(Json::as_str).as_deref() == Some(call.as_str()) && slot.get("taskId").is_none())
    });
    if let Some(index) = index {
        tools.index(index).key("taskId").set(id.get())?;
    }
    round.tools.push(id);
    Ok(Then::Wait { on: vec![id], checkpoint: Checkpoint::Tools(round) })
}

/// The end of a round: what its results ask for, and the boundary behind it.
pub(super) async fn round_done(tx: &Tx, task: &TaskRecord, round: Round) -> Result<Then, TxError> {
    if !round.pending.is_empty() {
        return Ok(Then::Stale);
    }
    let mut facts = Facts::read(tx, task.conversation_id).await?;
    let controls = controls(tx, task, &round).await?;
    add_tools(tx, task, &controls).await?;
    let handoff = controls.iter().rev().find_map(|control| control.as_ref().and_then(|control| control.handoff.clone()));
    let terminate =
        !controls.is_empty() && controls.iter().all(|control| control.as_ref().is_some_and(|control| control.terminate == Some(true)));
    let result = TaskOutcome::Completed { result: entry_result(round.assistant) };
    if handoff.is_some() || terminate {
        if let Some(text) = handoff {
            // It counts for what the boundary places behind it: a summary of what it cut is stale.
            facts.active_from = Some(append_reset(tx, task, text).await?);
        }
        end_run(tx, task, RunEnd::Done(round.assistant)).await?;
        final_boundary_with(tx, task.conversation_id, &facts, None).await?;
        return Ok(Then::End(result));
    }
    let placed = place(tx, task.conversation_id, &facts, Boundary::PostTools).await?;
    if placed.reset {
        end_run(tx, task, RunEnd::Unanswered { reason: reason::RESET, detail: None }).await?;
        if !placed.inputs.is_empty() {
            start_run(tx, task.conversation_id, placed.inputs).await?;
        }
    } else {
        let mut inputs: Vec<SubmissionId> = end_run(tx, task, RunEnd::HandedOn).await?;
        inputs.extend(placed.inputs);
        start_run(tx, task.conversation_id, inputs).await?;
    }
    Ok(Then::End(result))
}

/// What each result of the round asks for, in call order. A call without a result that completed asks for nothing.
async fn controls(tx: &Tx, task: &TaskRecord, round: &Round) -> Result<Vec<Option<Control>>, TxError> {
    let mut by_task: HashMap<TaskId, Control> = HashMap::new();
    for id in &round.tools {
        let Some(TaskState::Terminal { outcome: TaskOutcome::Completed { result } }) = tx.task_as_left(*id).await?.map(|task| task.state)
        else {
            continue;
        };
        // The line wrote the result itself; one that can't be read asks for nothing.
        if let Some(control) = result.get("control").and_then(|control| control.to::<Control>().ok()) {
            by_task.insert(*id, control);
        }
    }
    let slots = tx.doc(&LIVE, task.conversation_id).await?.draft.key("tools").get();
    let slots: Vec<ToolSlot> = slots.and_then(|slots| slots.to().ok()).unwrap_or_default();
    Ok(slots.into_iter().map(|slot| slot.task_id.and_then(|id| by_task.remove(&id))).collect())
}

/// Appends tool names that are not active yet to the configuration.
async fn add_tools(tx: &Tx, task: &TaskRecord, controls: &[Option<Control>]) -> Result<(), TxError> {
    let wanted: Vec<&String> = controls.iter().flatten().flat_map(|control| control.add_tools.iter().flatten()).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    tx.doc(&CONFIG, task.conversation_id).await?.edit(|config| {
        for name in wanted {
            if !config.active_tools.contains(name) {
                config.active_tools.push(name.clone());
            }
        }
    })
}

/// A reset with a handoff text, exactly what `reset(handoff)` writes (section 8.1).
async fn append_reset(tx: &Tx, task: &TaskRecord, text: String) -> Result<EntryId, TxError> {
    let message = Message::from(UserMessage { content: text.into(), timestamp: tx.now() });
    let entry = EntryDraft::new(RESET.kind).model(vec![message]).head(DraftHead::Itself);
    Ok(tx.append_entry(task.conversation_id, entry).await?.id)
}

/// Aborted results for the calls of a round that never started (section 8.5).
pub(super) async fn unstarted_results(tx: &Tx, task: &TaskRecord, round: &Round, assistant: &EntryRecord) -> Result<(), TxError> {
    let Some(Message::Assistant(message)) = assistant.model.as_ref().and_then(|model| model.first()) else { return Ok(()) };
    for call in calls(message).filter(|call| round.pending.contains(&call.id)) {
        let text = format!("Tool {} was aborted", call.name);
        append_error_result(tx, task.conversation_id, call, ToolCode::Aborted, &text, None).await?;
    }
    Ok(())
}
