//! The slots of a tool round, as events of tools (section 9.4).

use std::collections::BTreeMap;
use std::sync::Arc;

use picofleet_session::{EntryId, EntryRecord, Json, Op, Segment, TaskId, TaskRecord, TaskState};

use super::{AgentEvent, OutputChange};
use crate::live::{SlotStatus, ToolSlot};
use crate::tool::Checkpoint;

/// The rounds around a commit.
pub(super) struct Rounds {
    before: Vec<ToolSlot>,
    after: Vec<ToolSlot>,
}

/// Calls that a commit ended.
#[derive(Default)]
pub(super) struct Ended {
    /// By their result entry.
    by_entry: BTreeMap<EntryId, (String, String)>,
    /// Those without, in call order.
    without: Vec<(String, String)>,
}

fn named(slot: &ToolSlot) -> (String, String) {
    (slot.call_id.clone(), slot.name.clone())
}

fn slots(live: Option<&Json>) -> Vec<ToolSlot> {
    super::derive::read(live.and_then(|live| live.get("tools")))
}

impl Rounds {
    pub(super) fn new(before: Option<&Json>, after: Option<&Json>) -> Self {
        Self { before: slots(before), after: slots(after) }
    }

    /// The slot that a slot was before. Slots never move, and a round is only replaced as a whole.
    fn was(&self, index: usize) -> Option<&ToolSlot> {
        let after = self.after.get(index)?;
        self.before.get(index).filter(|before| before.call_id == after.call_id && same_task(before, after))
    }

    /// Slots that began to execute, with the arguments of their task's intent.
    pub(super) fn started(&self, tasks: &[Arc<TaskRecord>]) -> Vec<AgentEvent> {
        let running = |slot: &ToolSlot| slot.status == SlotStatus::Running;
        let started = self.after.iter().enumerate().filter(|(index, slot)| running(slot) && !self.was(*index).is_some_and(running));
        let event = |(_, slot): (usize, &ToolSlot)| {
            let (tool_call_id, tool_name) = named(slot);
            AgentEvent::ToolExecutionStart { tool_call_id, tool_name, args: arguments(tasks, slot.task_id) }
        };
        started.map(event).collect()
    }

    /// What slots that execute show now and did not before. `ops` are what happened to the live document.
    pub(super) fn updates(&self, ops: &[Op]) -> Vec<AgentEvent> {
        let running = self.after.iter().enumerate().filter(|(_, slot)| slot.status == SlotStatus::Running);
        running.filter_map(|(index, slot)| update(self.was(index), slot, index, ops)).collect()
    }

    /// The calls that ended.
    pub(super) fn ended(&self, entries: &[Arc<EntryRecord>]) -> Ended {
        let mut ended = Ended::default();
        let open = |slot: &ToolSlot| slot.status != SlotStatus::Done;
        for (index, slot) in self.after.iter().enumerate().filter(|(_, slot)| !open(slot)) {
            if self.was(index).is_none_or(open) {
                ended.add(slot, slot.entry);
            }
        }
        // A slot that disappears with its run ends with the result that the same commit wrote for its call.
        for (index, slot) in self.before.iter().enumerate().filter(|(_, slot)| open(slot)) {
            let stays = self.after.get(index).is_some_and(|after| after.call_id == slot.call_id && same_task(slot, after));
            if !stays {
                let result = entries.iter().find(|entry| result_of(entry).as_deref() == Some(&slot.call_id));
                ended.add(slot, result.map(|entry| entry.id));
            }
        }
        ended.keep(entries);
        ended
    }
}

/// A call of a sequential round gets its task when it starts.
fn same_task(before: &ToolSlot, after: &ToolSlot) -> bool {
    before.task_id.is_none() || before.task_id == after.task_id
}

fn result_of(entry: &EntryRecord) -> Option<String> {
    match entry.model.as_ref()?.first()? {
        picofleet_session::message::Message::ToolResult(result) => Some(result.tool_call_id.clone()),
        _ => None,
    }
}

impl Ended {
    fn add(&mut self, slot: &ToolSlot, entry: Option<EntryId>) {
        match entry {
            Some(entry) => drop(self.by_entry.insert(entry, named(slot))),
            None => self.without.push(named(slot)),
        }
    }

    /// A result that is none of this commit's entries ends its call without one.
    fn keep(&mut self, entries: &[Arc<EntryRecord>]) {
        let (here, elsewhere) =
            std::mem::take(&mut self.by_entry).into_iter().partition(|(id, _)| entries.iter().any(|entry| entry.id == *id));
        self.by_entry = here;
        self.without.extend(BTreeMap::into_values(elsewhere));
    }

    /// The end of a call whose result an entry is.
    pub(super) fn with(&self, entry: &Arc<EntryRecord>) -> Option<AgentEvent> {
        let (tool_call_id, tool_name) = self.by_entry.get(&entry.id)?.clone();
        Some(AgentEvent::ToolExecutionEnd { tool_call_id, tool_name, entry: Some(Arc::clone(entry)) })
    }

    /// The ends of calls without a result.
    pub(super) fn without(self) -> impl Iterator<Item = AgentEvent> {
        let end = |(tool_call_id, tool_name)| AgentEvent::ToolExecutionEnd { tool_call_id, tool_name, entry: None };
        self.without.into_iter().map(end)
    }
}

/// The arguments of the intent that was committed with the slot.
fn arguments(tasks: &[Arc<TaskRecord>], task: Option<TaskId>) -> Json {
    let record = tasks.iter().find(|record| Some(record.id) == task);
    let checkpoint = record.and_then(|record| match &record.state {
        TaskState::Running { checkpoint } => checkpoint.to::<Checkpoint>().ok(),
        _ => None,
    });
    match checkpoint {
        Some(Checkpoint::Execute { arguments, .. }) => arguments,
        // Only the intent makes a slot run, and it writes both.
        _ => Json::object::<&str, Json>([]),
    }
}

fn update(before: Option<&ToolSlot>, after: &ToolSlot, index: usize, ops: &[Op]) -> Option<AgentEvent> {
    let was = |of: fn(&ToolSlot) -> Option<&str>| before.and_then(of);
    let output = output(was(|slot| slot.output.as_deref()), after.output.as_deref(), index, ops);
    let details =
        (before.and_then(|slot| slot.details.as_ref()) != after.details.as_ref()).then(|| after.details.clone().unwrap_or(Json::null()));
    let diagnostics = (before.and_then(|slot| slot.diagnostics.as_ref()) != after.diagnostics.as_ref())
        .then(|| after.diagnostics.clone().unwrap_or_default());
    if output.is_none() && details.is_none() && diagnostics.is_none() {
        return None;
    }
    let (tool_call_id, tool_name) = named(after);
    Some(AgentEvent::ToolExecutionUpdate { tool_call_id, tool_name, output, details, diagnostics })
}

/// A front trim and then an append, where the operations are that; else the whole.
fn output(before: Option<&str>, after: Option<&str>, index: usize, ops: &[Op]) -> Option<OutputChange> {
    let set = || OutputChange::Set { set: after.unwrap_or_default().to_owned() };
    let (mut trim, mut append): (usize, Option<String>) = (0, None);
    for op in ops {
        match (touches(op, index), op) {
            (Touch::Not, _) => {}
            (Touch::Output, Op::TrimUtf16(_, count)) if append.is_none() => trim += count,
            (Touch::Output, Op::Append(_, text)) if before.is_some() => append.get_or_insert_default().push_str(text),
            _ => return (before != after).then(set),
        }
    }
    (trim > 0 || append.is_some()).then(|| OutputChange::Slide { trim_start: (trim > 0).then_some(trim), append })
}

enum Touch {
    Not,
    /// The output and nothing else.
    Output,
    /// What the output stands in, or it in another way.
    Around,
}

fn touches(op: &Op, index: usize) -> Touch {
    let Some(path) = op.path() else { return Touch::Around };
    let place = [Segment::from("tools"), Segment::from(index), Segment::from("output")];
    if !path.iter().zip(&place).all(|(a, b)| a == b) {
        return Touch::Not;
    }
    if path.len() == place.len() { Touch::Output } else { Touch::Around }
}
