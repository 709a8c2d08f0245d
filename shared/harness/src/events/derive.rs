//! The events of one commit, in the order of section 9.4.

use std::collections::BTreeSet;
use std::sync::Arc;

use picofleet_session::message::Usage;
use picofleet_session::{EntryRecord, Json, Op, TaskId, TaskOutcome, TaskState, ops_from_json};
use serde::de::DeserializeOwned;

use super::tools::{Ended, Rounds};
use super::{AgentEvent, EventSnapshot, Queued, RunInputs, message};
use crate::config::CONFIG;
use crate::frame::{DocumentFrame, Frame};
use crate::inbox::INBOX;
use crate::kinds::{ASSISTANT, GENERATION};
use crate::live::{CompactionStatus, LIVE, LiveDeferred, LiveRetry, LiveState, Run};
use crate::usage::USAGE;
use crate::view::Mount;

/// A committed value as its type; its first value where there is none.
pub(super) fn read<T: DeserializeOwned + Default>(value: Option<&Json>) -> T {
    value.map_or_else(T::default, |value| {
        value.to().unwrap_or_else(|error| {
            // The line wrote it, so that the two sides are not of one version.
            tracing::warn!(error = %error, "a built-in document can't be read, and its events are left out");
            T::default()
        })
    })
}

/// What an observer begins with.
#[must_use]
pub fn snapshot(mount: &Mount) -> EventSnapshot {
    let live: LiveState = read(mount.get(LIVE.kind));
    EventSnapshot {
        entries: mount.entries().clone(),
        run: live.run.map(|run| RunInputs { inputs: run.inputs }),
        generation: live.generation,
        tools: live.tools.unwrap_or_default(),
        compactions: live.compactions.unwrap_or_default(),
        inbox: queued(mount),
        config: read(mount.get(CONFIG.kind)),
        usage: read(mount.get(USAGE.kind)),
    }
}

fn queued(mount: &Mount) -> Vec<Queued> {
    let items = mount.get(INBOX.kind).and_then(|inbox| inbox.get("items")).and_then(Json::as_array);
    let item = |item: &Json| {
        let mode = item.get("mode").and_then(Json::as_str)?.into_owned();
        Some(Queued { id: item.get("id")?.to().ok()?, mode })
    };
    items.map(|items| items.iter().filter_map(item).collect()).unwrap_or_default()
}

/// The events of a commit, from the mounts before and behind it. None for a frame that tells nothing.
#[must_use]
pub fn events(before: &Mount, frame: &Frame, after: &Mount) -> Vec<AgentEvent> {
    let (was, is) = (before.get(LIVE.kind), after.get(LIVE.kind));
    let ops = changed(frame, LIVE.kind).then(|| live_ops(frame, is));
    let live = ops.map(|ops| Live::new(was, is, ops));
    let mut list = Vec::new();
    let mut ended = Ended::default();
    if let Some(live) = &live {
        list.extend(live.rounds.started(&frame.tasks));
        live.message(&mut list);
        list.extend(live.rounds.updates(&live.ops));
        live.attempt(&mut list);
        ended = live.rounds.ended(&frame.entries);
    }
    entries(frame, live.as_ref().is_some_and(Live::takes_partial), &ended, &mut list);
    list.extend(ended.without());
    if let Some(live) = &live {
        list.extend(live.compactions_ended());
    }
    list.extend(frame.tasks.iter().filter_map(|task| failed(task)));
    list.extend(generations(frame, &frame.decided).map(|_| AgentEvent::TurnEnd));
    list.extend(live.as_ref().and_then(Live::run_ended));
    let mut submissions = frame.submissions.clone();
    submissions.sort_by_key(|record| record.id);
    list.extend(submissions.into_iter().map(|record| AgentEvent::Submission { record }));
    documents(frame, after, &mut list);
    if let Some(live) = &live {
        list.extend(live.compactions_started());
        list.extend(live.run_started());
    }
    list.extend(generations(frame, &frame.created).map(|_| AgentEvent::TurnStart));
    list
}

fn changed(frame: &Frame, kind: &str) -> bool {
    frame.documents.iter().any(|(other, _)| other == kind)
}

/// All that happened to the live document, as operations.
fn live_ops(frame: &Frame, after: Option<&Json>) -> Vec<Op> {
    let whole = || vec![Op::Replace(after.cloned().unwrap_or(Json::null()))];
    let changes = frame.documents.iter().filter(|(kind, _)| kind == LIVE.kind);
    let ops = |change: &DocumentFrame| match change {
        // The mount has followed them, so that they can be read.
        DocumentFrame::Ops(ops) => ops_from_json(ops).unwrap_or_else(|_| whole()),
        DocumentFrame::Value(_) | DocumentFrame::Retired | DocumentFrame::Stored => whole(),
    };
    changes.flat_map(|(_, change)| ops(change)).collect()
}

/// Generations of a frame, in the order of their ids.
fn generations<'a>(frame: &'a Frame, which: &'a [TaskId]) -> impl Iterator<Item = TaskId> + 'a {
    let ids: BTreeSet<TaskId> =
        frame.tasks.iter().filter(|task| task.kind == GENERATION && which.contains(&task.id)).map(|task| task.id).collect();
    ids.into_iter()
}

fn failed(task: &picofleet_session::TaskRecord) -> Option<AgentEvent> {
    let TaskState::Terminal { outcome } = &task.state else { return None };
    let message = match outcome {
        TaskOutcome::Faulted { error } => error.message.clone(),
        TaskOutcome::Orphaned { reason } => reason.clone(),
        TaskOutcome::Completed { .. } | TaskOutcome::Failed { .. } | TaskOutcome::Aborted { .. } => return None,
    };
    Some(AgentEvent::TaskFailed { task_id: task.id, kind: task.kind.clone(), message })
}

/// Entries in the order of their ids. `partial`: the message of the first answer among them has begun already.
fn entries(frame: &Frame, mut partial: bool, ended: &Ended, list: &mut Vec<AgentEvent>) {
    for entry in &frame.entries {
        let Some(first) = entry.model.as_ref().and_then(|model| model.first()) else {
            list.push(AgentEvent::EntryAppended { entry: Arc::clone(entry) });
            continue;
        };
        list.extend(ended.with(entry));
        let begun = entry.kind == ASSISTANT.kind && std::mem::take(&mut partial);
        if !begun {
            list.push(AgentEvent::MessageStart { message: first_message(entry, first) });
        }
        list.push(AgentEvent::MessageEnd { entry: Arc::clone(entry) });
    }
}

fn first_message(entry: &EntryRecord, message: &picofleet_session::message::Message) -> Json {
    Json::from_serde(message).unwrap_or_else(|error| {
        tracing::warn!(entry = %entry.id, error = %error, "a message can't be written; its entry tells it");
        Json::null()
    })
}

fn documents(frame: &Frame, after: &Mount, list: &mut Vec<AgentEvent>) {
    if changed(frame, INBOX.kind) {
        list.push(AgentEvent::InboxUpdate { items: queued(after) });
    }
    if changed(frame, CONFIG.kind) {
        list.push(AgentEvent::ConfigChanged { config: read(after.get(CONFIG.kind)) });
    }
    if changed(frame, USAGE.kind) {
        list.push(AgentEvent::UsageChanged { usage: read(after.get(USAGE.kind)) });
    }
}

/// The live document around a commit that changed it.
struct Live<'a> {
    before: Option<&'a Json>,
    after: Option<&'a Json>,
    ops: Vec<Op>,
    rounds: Rounds,
}

/// The attempt of a live document, as far as it is shown.
fn generation<'a>(live: Option<&'a Json>, field: &str) -> Option<&'a Json> {
    live?.get("generation")?.get(field)
}

impl<'a> Live<'a> {
    fn new(before: Option<&'a Json>, after: Option<&'a Json>, ops: Vec<Op>) -> Self {
        Self { before, after, ops, rounds: Rounds::new(before, after) }
    }

    /// The part of the response before and now.
    fn partials(&self) -> (Option<&'a Json>, Option<&'a Json>) {
        let before = generation(self.before, "message");
        let after = generation(self.after, "message");
        (before, after)
    }

    fn same_attempt(&self) -> bool {
        generation(self.before, "attempt") == generation(self.after, "attempt")
    }

    /// Whether the part that was shown became an entry.
    fn takes_partial(&self) -> bool {
        let (before, after) = self.partials();
        before.is_some() && (after.is_none() || !self.same_attempt())
    }

    fn message(&self, list: &mut Vec<AgentEvent>) {
        let (before, after) = self.partials();
        let Some(after) = after else { return };
        match before.filter(|_| self.same_attempt()) {
            None => list.push(AgentEvent::MessageStart { message: after.clone() }),
            Some(before) => {
                if let Some(changes) = message::changes(before, &self.ops, after) {
                    let usage: Usage = read(after.get("usage"));
                    list.push(AgentEvent::MessageUpdate { usage, changes });
                }
            }
        }
    }

    /// Pauses between attempts, and responses that come later.
    fn attempt(&self, list: &mut Vec<AgentEvent>) {
        let retry =
            |live| -> Option<(u32, LiveRetry)> { Some((generation(live, "attempt")?.to().ok()?, generation(live, "retry")?.to().ok()?)) };
        let (before, after) = (retry(self.before), retry(self.after));
        if before != after {
            list.extend(before.map(|(attempt, _)| AgentEvent::AutoRetryEnd { attempt }));
            let start = |(attempt, LiveRetry { at, error })| AgentEvent::AutoRetryStart { attempt, at, error_message: error };
            list.extend(after.map(start));
        }
        let deferred = |live| generation(live, "deferred").and_then(|deferred| deferred.to::<LiveDeferred>().ok());
        let after = deferred(self.after).filter(|after| deferred(self.before) != Some(*after));
        list.extend(after.map(|LiveDeferred { poll_at }| AgentEvent::DeferredPoll { poll_at }));
    }

    fn compactions(live: Option<&Json>) -> Vec<CompactionStatus> {
        read(live.and_then(|live| live.get("compactions")))
    }

    fn compactions_ended(&self) -> Vec<AgentEvent> {
        let after = Self::compactions(self.after);
        let gone = Self::compactions(self.before).into_iter().filter(|status| after.iter().all(|other| other.task_id != status.task_id));
        gone.map(|status| AgentEvent::CompactionEnd { task_id: status.task_id, reason: status.reason }).collect()
    }

    fn compactions_started(&self) -> Vec<AgentEvent> {
        let before = Self::compactions(self.before);
        let new = Self::compactions(self.after).into_iter().filter(|status| before.iter().all(|other| other.task_id != status.task_id));
        let start = |CompactionStatus { task_id, reason, blocking, .. }| AgentEvent::CompactionStart { task_id, reason, blocking };
        new.map(start).collect()
    }

    /// The runs before and now, where they are not one run in the hands of several tasks.
    fn runs(&self) -> (Option<Run>, Option<Run>) {
        let run = |live: Option<&Json>| live.and_then(|live| live.get("run")).and_then(|run| run.to::<Run>().ok());
        match (run(self.before), run(self.after)) {
            (Some(before), Some(after)) if before.inputs.first() == after.inputs.first() => (None, None),
            runs => runs,
        }
    }

    fn run_ended(&self) -> Option<AgentEvent> {
        self.runs().0.map(|run| AgentEvent::RunEnd { inputs: run.inputs })
    }

    fn run_started(&self) -> Option<AgentEvent> {
        self.runs().1.map(|run| AgentEvent::RunStart { inputs: run.inputs })
    }
}
