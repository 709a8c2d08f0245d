//! The agent events of a conversation as a host gets them (section 9.4).

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_session::{ConversationId, WATCH_FRAMES_MAX, WatchEnd};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::follow::Hub;
use super::{Conversation, Harness, HostError};
use crate::events::{AgentEvent, EventSnapshot, snapshot};
use crate::view::Mount;

/// The events of one conversation, one batch a commit. Dropping it stops it.
///
/// It converges and is no log: of more than 100 batches that nobody took one [`AgentEvent::Snapshot`] stays.
pub struct AgentEvents {
    snapshot: EventSnapshot,
    channel: Arc<Channel>,
    /// As long as somebody observes, frames come.
    _hub: Arc<Hub>,
}

/// The agent events of a conversation from now on, and of nothing that it owns. Experimental: what the events tell may change.
///
/// # Errors
/// [`HostError::NotFound`], [`HostError::Unavailable`].
pub async fn watch_events(harness: &Harness, conversation: ConversationId) -> Result<AgentEvents, HostError> {
    let hub = Hub::of(&harness.caller, conversation).await?;
    let channel = Arc::new(Channel::default());
    Ok(AgentEvents { snapshot: hub.events(&channel), channel, _hub: hub })
}

impl Conversation {
    /// [`watch_events`] of it.
    ///
    /// # Errors
    /// [`HostError::NotFound`], [`HostError::Unavailable`].
    pub async fn events(&self) -> Result<AgentEvents, HostError> {
        watch_events(&self.harness, self.id).await
    }
}

impl AgentEvents {
    /// What the first event applies to.
    #[must_use]
    pub const fn snapshot(&self) -> &EventSnapshot {
        &self.snapshot
    }

    /// The events of the next commit that has any; `None` once the stream has ended. Cancel-safe: no batch is lost.
    pub async fn next(&mut self) -> Option<Vec<AgentEvent>> {
        loop {
            let changed = self.channel.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let cancel = {
                let mut queue = self.channel.lock();
                if queue.end.is_some() {
                    return None;
                }
                if let Some(batch) = queue.pending.pop_front() {
                    return Some(batch);
                }
                queue.cancel.clone()
            };
            // Both only wake this loop, which looks at the state again.
            tokio::select! { () = changed => {}, () = cancelled(cancel.as_ref()) => {} }
        }
    }

    /// Hands each batch to `listener`, one after the other, until the stream ends. A failing listener ends it.
    pub async fn run<F, E>(mut self, mut listener: F) -> WatchEnd
    where
        F: AsyncFnMut(Vec<AgentEvent>) -> Result<(), E>,
        E: std::error::Error + Send + Sync + 'static,
    {
        while let Some(batch) = self.next().await {
            if let Err(error) = listener(batch).await {
                self.channel.end(WatchEnd::ListenerError(Arc::new(error)));
            }
        }
        self.end().unwrap_or(WatchEnd::Stopped)
    }

    /// Ends the stream once `token` is cancelled: from then on nothing is delivered.
    #[must_use]
    pub fn until(self, token: CancellationToken) -> Self {
        self.channel.lock().cancel = Some(token);
        self
    }

    /// Something that stops the stream from elsewhere, also from its own listener.
    #[must_use]
    pub fn stopper(&self) -> EventsStopper {
        EventsStopper { channel: Arc::clone(&self.channel) }
    }

    /// Why it ended; `None` while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<WatchEnd> {
        self.channel.ended()
    }

    /// Waits for the end.
    pub async fn ended(&self) -> WatchEnd {
        self.channel.over().await
    }
}

impl Drop for AgentEvents {
    fn drop(&mut self) {
        self.channel.end(WatchEnd::Stopped);
    }
}

/// Stops a stream of events. A batch that is being handled is not disturbed.
#[derive(Clone)]
pub struct EventsStopper {
    channel: Arc<Channel>,
}

impl EventsStopper {
    /// Stops it; what ended it, which may be something earlier.
    pub fn stop(&self) -> WatchEnd {
        self.channel.end(WatchEnd::Stopped)
    }
}

async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

/// What reaches the reader of one stream.
#[derive(Default)]
pub(super) struct Channel {
    queue: Mutex<Queue>,
    changed: Notify,
}

#[derive(Default)]
struct Queue {
    pending: VecDeque<Vec<AgentEvent>>,
    end: Option<WatchEnd>,
    cancel: Option<CancellationToken>,
}

fn whole(mount: &Mount) -> Vec<AgentEvent> {
    vec![AgentEvent::Snapshot(Box::new(snapshot(mount)))]
}

impl Channel {
    /// The queue as it is now: after a cancellation the end.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.end.is_none() && queue.cancel.as_ref().is_some_and(CancellationToken::is_cancelled) {
            queue.end = Some(WatchEnd::Cancelled);
            queue.pending.clear();
        }
        queue
    }

    /// A batch; too many that nobody took become what the conversation is now.
    pub(super) fn push(&self, batch: Vec<AgentEvent>, mount: &Mount) {
        let mut queue = self.lock();
        if queue.end.is_some() {
            return;
        }
        if queue.pending.len() < WATCH_FRAMES_MAX {
            queue.pending.push_back(batch);
        } else {
            queue.pending = VecDeque::from([whole(mount)]);
        }
        drop(queue);
        self.changed.notify_waiters();
    }

    /// What the conversation is now, in the place of all that nobody took.
    pub(super) fn replace(&self, mount: &Mount) {
        let mut queue = self.lock();
        if queue.end.is_none() {
            queue.pending = VecDeque::from([whole(mount)]);
        }
        drop(queue);
        self.changed.notify_waiters();
    }

    /// Ends it unless it has ended; the reason that holds.
    pub(super) fn end(&self, end: WatchEnd) -> WatchEnd {
        let mut queue = self.lock();
        queue.pending.clear();
        let end = queue.end.get_or_insert(end).clone();
        drop(queue);
        self.changed.notify_waiters();
        end
    }

    pub(super) fn ended(&self) -> Option<WatchEnd> {
        self.lock().end.clone()
    }

    async fn over(&self) -> WatchEnd {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let cancel = {
                let queue = self.lock();
                if let Some(end) = &queue.end {
                    return end.clone();
                }
                queue.cancel.clone()
            };
            tokio::select! { () = changed => {}, () = cancelled(cancel.as_ref()) => {} }
        }
    }
}
