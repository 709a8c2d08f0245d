//! What beats change on the line (`protocol.md` 4). The leases themselves are the coordinator's.

use picofleet_session::{InvocationId, TaskId};

use super::SessionLine;
use crate::step::Mode;
use crate::wire::WorkerId;

impl SessionLine {
    /// A worker named invocations of this session: those that are to stop, and those that are over.
    pub fn beat(&self, worker: WorkerId, named: &[(TaskId, InvocationId)], draining: bool) -> (Vec<InvocationId>, Vec<InvocationId>) {
        let mut state = self.state();
        // One that drains and has nothing here any more is forgotten.
        if draining && !named.is_empty() {
            state.draining.insert(worker);
        } else {
            state.draining.remove(&worker);
        }
        let (mut cancels, mut gone) = (Vec::new(), Vec::new());
        let mut unstored = false;
        for (task, invocation) in named {
            let held = state.held.get_mut(task).filter(|held| held.invocation == *invocation);
            let Some(held) = held else {
                gone.push(*invocation);
                continue;
            };
            held.worker = Some(worker);
            held.heard = true;
            unstored |= held.unstored.is_some();
            // It is alive after all: nobody has taken the task over.
            held.expired = false;
            let held = held.clone();
            if state.cancelled(*task, &held) {
                cancels.push(*invocation);
            }
        }
        drop(state);
        if unstored {
            // The next plan stores them.
            self.changed().notify_waiters();
        }
        (cancels, gone)
    }

    /// The lease of an invocation is over: the task may be reserved, which ends it. Until then it may go on saying.
    pub fn expire(&self, task: TaskId, invocation: InvocationId) {
        if let Some(held) = self.state().held.get_mut(&task).filter(|held| held.invocation == invocation) {
            held.expired = true;
        }
        self.changed().notify_waiters();
    }

    /// Whether somebody waits for an invocation to end, because its task is to abort.
    #[must_use]
    pub fn joins(&self, task: TaskId, invocation: InvocationId) -> bool {
        let state = self.state();
        let marked = state.tree.live.get(&task).is_some_and(|record| record.abort_requested);
        marked && state.held.get(&task).is_some_and(|held| held.invocation == invocation && held.mode == Mode::Run)
    }
}
