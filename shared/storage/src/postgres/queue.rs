//! The batches that wait for a committer: numbered decisions before progress, round robin over tenants (`protocol.md` 2 and 5).

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use picofleet_session::storage::Tenant;
use tokio::sync::Notify;

use super::line::Work;

/// Most batches in a group.
const GROUP_BATCHES: usize = 256;
/// Most bytes in a group, unless one batch alone has more.
const GROUP_BYTES: usize = 1 << 20;
/// Most batches and bytes that wait. A session has one at most, so this is about sessions.
const WAITING_BATCHES: usize = 16_384;
const WAITING_BYTES: usize = 128 << 20;

/// See the module.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    numbered: Lanes,
    progress: Lanes,
    batches: usize,
    bytes: usize,
    sealed: bool,
}

/// One lane for each tenant that has something, in the order in which they are served.
#[derive(Default)]
struct Lanes {
    order: VecDeque<Tenant>,
    lanes: HashMap<Tenant, VecDeque<Work>>,
}

impl Lanes {
    fn push(&mut self, work: Work) {
        let lane = self.lanes.entry(work.tenant().clone()).or_default();
        if lane.is_empty() {
            self.order.push_back(work.tenant().clone());
        }
        lane.push_back(work);
    }

    /// The next of the tenant whose turn it is, if `fits` takes it; one that does not fit waits at the front of its lane.
    fn pop(&mut self, mut fits: impl FnMut(&Work) -> bool) -> Option<Work> {
        for _ in 0..self.order.len() {
            let tenant = self.order.pop_front()?;
            let Some(lane) = self.lanes.get_mut(&tenant) else { continue };
            let work = if lane.front().is_some_and(&mut fits) { lane.pop_front() } else { None };
            if lane.is_empty() {
                self.lanes.remove(&tenant);
            } else {
                self.order.push_back(tenant);
            }
            if work.is_some() {
                return work;
            }
        }
        None
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a batch; gives it back where too much waits.
    pub(super) fn push(&self, work: Work) -> Result<(), Box<Work>> {
        let mut state = self.state();
        if state.sealed || state.batches >= WAITING_BATCHES || (state.bytes > 0 && state.bytes + work.bytes() > WAITING_BYTES) {
            return Err(Box::new(work));
        }
        state.batches += 1;
        state.bytes += work.bytes();
        if work.progress() {
            state.progress.push(work)
        } else {
            state.numbered.push(work)
        }
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// The next group; `None` once the queue is sealed and empty.
    pub(super) async fn next(&self) -> Option<Vec<Work>> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                let group = take(&mut state);
                if !group.is_empty() {
                    return Some(group);
                }
                if state.sealed {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// Takes nothing more. What waits is done.
    pub(super) fn seal(&self) {
        self.state().sealed = true;
        self.changed.notify_one();
    }
}

fn take(state: &mut State) -> Vec<Work> {
    let mut group: Vec<Work> = Vec::new();
    let mut bytes = 0;
    // Two owners of a session may both be here, and the restriction to winners is by session.
    let mut sessions = HashSet::new();
    while group.len() < GROUP_BATCHES {
        let fits = |work: &Work| (bytes == 0 || bytes + work.bytes() <= GROUP_BYTES) && !sessions.contains(&work.session());
        let Some(work) = state.numbered.pop(fits).or_else(|| state.progress.pop(fits)) else { break };
        bytes += work.bytes();
        state.batches -= 1;
        state.bytes -= work.bytes();
        sessions.insert(work.session());
        group.push(work);
    }
    group
}
