//! Watches and states of documents (sections 9.1 and 9.2). Commits hand frames over and never wait for who reads them.

mod feed;

use std::collections::{HashMap, VecDeque};
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use picofleet_delta::{Json, Op};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::definition::typed;
use crate::{DefinitionError, DocValue, DocumentId, Seq};

pub use feed::WatchFeed;

/// How many frames a watch keeps for a slow reader; one more folds all of them into a root replacement (section 9.2).
pub const WATCH_FRAMES_MAX: usize = 100;

/// Why a watch ended. The first reason wins.
#[non_exhaustive]
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchEnd {
    /// It was stopped.
    #[error("stopped")]
    Stopped,
    /// The token that it was bound to was cancelled.
    #[error("cancelled")]
    Cancelled,
    /// The session was closed.
    #[error("session closed")]
    SessionClosed,
    /// The session failed; open it again.
    #[error("session failed")]
    SessionFailed,
    /// The session went to another owner; watch again there.
    #[error("takeover")]
    Takeover,
    /// The document was retired. Its last frame has no value.
    #[error("retired")]
    Retired,
    /// The listener failed.
    #[error("listener error")]
    ListenerError(#[source] Arc<dyn std::error::Error + Send + Sync>),
}

impl WatchEnd {
    /// The reason as a stable word.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Cancelled => "cancelled",
            Self::SessionClosed => "session_closed",
            Self::SessionFailed => "failed",
            Self::Takeover => "takeover",
            Self::Retired => "retired",
            Self::ListenerError(_) => "listener_error",
        }
    }
}

/// One committed revision of a document and the operations that led to it.
#[derive(Clone, Debug)]
pub struct Frame<T> {
    /// The revision; `None` once the document is retired.
    pub value: Option<Json>,
    /// The operations from the frame before it.
    pub ops: Arc<[Op]>,
    /// The commit.
    pub seq: Seq,
    kind: &'static str,
    ty: PhantomData<fn() -> T>,
}

impl<T: DocValue> Frame<T> {
    /// The revision as the document's type; costs the size of the document.
    ///
    /// # Errors
    /// [`DefinitionError::Type`].
    pub fn read(&self) -> Result<Option<T>, DefinitionError> {
        self.value.as_ref().map(|value| typed(self.kind, value)).transpose()
    }
}

/// The committed revisions of one document incarnation, pulled one at a time. Dropping it stops it.
pub struct Watch<T> {
    channel: Arc<Channel>,
    observers: Arc<Observers>,
    cancel: Vec<CancellationToken>,
    value: Option<Json>,
    kind: &'static str,
    ty: PhantomData<fn() -> T>,
}

impl<T: DocValue> Watch<T> {
    /// The revision at the acquisition; once frames were taken, the newest one that was.
    #[must_use]
    pub fn value(&self) -> Option<&Json> {
        self.value.as_ref()
    }

    /// [`Watch::value`] as the document's type.
    ///
    /// # Errors
    /// [`DefinitionError::Type`].
    pub fn read(&self) -> Result<Option<T>, DefinitionError> {
        self.value.as_ref().map(|value| typed(self.kind, value)).transpose()
    }

    /// Ends the watch once `token` is cancelled, also while nobody takes frames: from then on nothing is delivered or kept. It may be
    /// bound to several.
    #[must_use]
    pub fn until(self, token: CancellationToken) -> Self {
        self.until_ends(token, WatchEnd::Cancelled)
    }

    /// [`Watch::until`] with another reason.
    #[must_use]
    pub fn until_ends(mut self, token: CancellationToken, end: WatchEnd) -> Self {
        self.channel.lock().cancel.push((token.clone(), end));
        self.cancel.push(token);
        self
    }

    /// Something that stops the watch from elsewhere, also from its own listener.
    #[must_use]
    pub fn stopper(&self) -> WatchStopper {
        WatchStopper { channel: Arc::clone(&self.channel) }
    }

    /// The next frame; `None` once the watch has ended. Cancel-safe: no frame is lost.
    pub async fn next(&mut self) -> Option<Frame<T>> {
        loop {
            match self.channel.take() {
                Taken::Frame(frame) => {
                    self.value.clone_from(&frame.value);
                    return Some(Frame { value: frame.value, ops: frame.ops, seq: frame.seq, kind: self.kind, ty: PhantomData });
                }
                Taken::Ended => return None,
                // Both branches only wake this loop, which looks at the state again.
                Taken::Nothing => tokio::select! { () = self.channel.changed.notified() => {}, () = one_of(&self.cancel) => {} },
            }
        }
    }

    /// Hands each frame to `listener`, one after the other, until the watch ends. A failing listener ends it.
    pub async fn run<F, E>(mut self, mut listener: F) -> WatchEnd
    where
        F: AsyncFnMut(Frame<T>) -> Result<(), E>,
        E: std::error::Error + Send + Sync + 'static,
    {
        while let Some(frame) = self.next().await {
            if let Err(error) = listener(frame).await {
                self.channel.end(WatchEnd::ListenerError(Arc::new(error)));
            }
        }
        self.end().unwrap_or(WatchEnd::Stopped)
    }

    /// Why it ended; `None` while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<WatchEnd> {
        self.channel.lock().end.clone()
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        self.channel.end(WatchEnd::Stopped);
        self.observers.remove(&self.channel);
    }
}

/// Stops a watch. No frame is delivered any more; one that is being handled is not disturbed.
#[derive(Clone)]
pub struct WatchStopper {
    channel: Arc<Channel>,
}

impl WatchStopper {
    /// Stops it; what ended it, which may be something earlier.
    pub fn stop(&self) -> WatchEnd {
        self.channel.end(WatchEnd::Stopped)
    }
}

/// The newest committed revision of one document incarnation, always at hand. Dropping it ends the observation.
pub struct DocumentState<T> {
    channel: Arc<Channel>,
    observers: Arc<Observers>,
    kind: &'static str,
    ty: PhantomData<fn() -> T>,
}

impl<T: DocValue> DocumentState<T> {
    /// The newest revision; `None` once the document is retired. After the session closed it stays as it was.
    #[must_use]
    pub fn value(&self) -> Option<Json> {
        self.channel.lock().newest.clone()
    }

    /// [`DocumentState::value`] as the document's type.
    ///
    /// # Errors
    /// [`DefinitionError::Type`].
    pub fn read(&self) -> Result<Option<T>, DefinitionError> {
        self.value().as_ref().map(|value| typed(self.kind, value)).transpose()
    }

    /// How many revisions it saw.
    #[must_use]
    pub fn cursor(&self) -> u64 {
        self.channel.lock().cursor
    }

    /// The present revision, and every later one as a frame: no commit falls between the two (section 9.1).
    #[must_use]
    pub fn attach(&self) -> Watch<T> {
        self.observers.attach(&self.channel, self.kind)
    }

    /// Why it ended; `None` while it goes on.
    #[must_use]
    pub fn end(&self) -> Option<WatchEnd> {
        self.channel.lock().end.clone()
    }
}

impl<T> Drop for DocumentState<T> {
    fn drop(&mut self) {
        self.channel.end(WatchEnd::Stopped);
        self.observers.remove(&self.channel);
    }
}

/// Waits until one of the tokens is cancelled; for ever where there is none.
async fn one_of(tokens: &[CancellationToken]) {
    if tokens.is_empty() {
        std::future::pending::<()>().await;
    }
    futures::future::select_all(tokens.iter().map(|token| Box::pin(token.cancelled()))).await;
}

/// What reaches the reader of one watch or state.
struct Channel {
    document: DocumentId,
    keeps_frames: bool,
    state: Mutex<ChannelState>,
    changed: Notify,
    /// The reader took everything, or the watch ended: for who feeds it.
    taken: Notify,
}

struct ChannelState {
    newest: Option<Json>,
    /// The version of the definition that `newest` has: tokens of several versions may be at work.
    version: u32,
    cursor: u64,
    pending: VecDeque<RawFrame>,
    /// The document is retired: the watch ends behind the pending frames.
    retired: bool,
    end: Option<WatchEnd>,
    /// Whoever looks at the state looks at these first, so that a cancellation counts from its time on.
    cancel: Vec<(CancellationToken, WatchEnd)>,
}

struct RawFrame {
    value: Option<Json>,
    ops: Arc<[Op]>,
    seq: Seq,
}

enum Taken {
    Frame(RawFrame),
    Nothing,
    Ended,
}

impl Channel {
    fn new(document: DocumentId, keeps_frames: bool, newest: Option<Json>, version: u32) -> Arc<Self> {
        let state = ChannelState { newest, version, cursor: 0, pending: VecDeque::new(), retired: false, end: None, cancel: Vec::new() };
        Arc::new(Self { document, keeps_frames, state: Mutex::new(state), changed: Notify::new(), taken: Notify::new() })
    }

    /// The state as it is now: after a cancellation the end.
    fn lock(&self) -> MutexGuard<'_, ChannelState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let cancelled = state.cancel.iter().find(|(token, _)| token.is_cancelled()).map(|(_, end)| end.clone());
        if let (None, Some(end)) = (&state.end, cancelled) {
            state.end = Some(end);
            state.pending.clear();
        }
        state
    }

    fn take(&self) -> Taken {
        let mut state = self.lock();
        if state.end.is_some() {
            return Taken::Ended;
        }
        match state.pending.pop_front() {
            Some(frame) => {
                if state.pending.is_empty() {
                    self.taken.notify_one();
                }
                Taken::Frame(frame)
            }
            None if state.retired => {
                state.end = Some(WatchEnd::Retired);
                self.taken.notify_one();
                Taken::Ended
            }
            None => Taken::Nothing,
        }
    }

    /// Ends it unless it has ended; the reason that holds.
    fn end(&self, end: WatchEnd) -> WatchEnd {
        let mut state = self.lock();
        state.pending.clear();
        let end = state.end.get_or_insert(end).clone();
        drop(state);
        self.changed.notify_one();
        self.taken.notify_one();
        end
    }

    fn deliver(&self, change: &Delivery<'_>) {
        let mut state = self.lock();
        if state.end.is_some() {
            return;
        }
        let revision = change.revision(state.newest.as_ref(), state.version);
        if change.change.is_some() {
            state.version = change.version;
        }
        if let Some((value, ops)) = revision {
            state.newest = Some(value.clone());
            self.push(&mut state, RawFrame { value: Some(value), ops, seq: change.seq });
        }
        if change.retired {
            state.newest = None;
            state.retired = true;
            self.push(&mut state, RawFrame { value: None, ops: Arc::from([Op::Replace(Json::null())]), seq: change.seq });
            if !self.keeps_frames {
                state.end = Some(WatchEnd::Retired);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    fn push(&self, state: &mut ChannelState, frame: RawFrame) {
        state.cursor += 1;
        if !self.keeps_frames {
            return;
        }
        if state.pending.len() < WATCH_FRAMES_MAX {
            state.pending.push_back(frame);
            return;
        }
        state.pending.clear();
        let newest = frame.value.clone().unwrap_or(Json::null());
        state.pending.push_back(RawFrame { ops: Arc::from([Op::Replace(newest)]), ..frame });
    }
}

/// A committed change of one document on its way to its observers.
pub(crate) struct Delivery<'a> {
    pub(crate) document: DocumentId,
    /// The revision before, the one after, and the operations between; `None` where the document was only retired.
    pub(crate) change: Option<(&'a Json, &'a Json, &'a Arc<[Op]>)>,
    /// The version of the definition that changed it.
    pub(crate) version: u32,
    /// The stored value was migrated: an observer may have the value of another version.
    pub(crate) migrated: bool,
    pub(crate) retired: bool,
    pub(crate) seq: Seq,
}

impl Delivery<'_> {
    /// What an observer gets that has `newest`: the exact operations, or a root replacement where they don't stand on what it has.
    fn revision(&self, newest: Option<&Json>, version: u32) -> Option<(Json, Arc<[Op]>)> {
        let (base, value, ops) = self.change?;
        let stands_on_it = (!self.migrated && self.version == version) || newest.is_some_and(|newest| newest.same_revision(base));
        if !stands_on_it && newest != Some(value) {
            return Some((value.clone(), Arc::from([Op::Replace(value.clone())])));
        }
        (stands_on_it && !ops.is_empty()).then(|| (value.clone(), Arc::clone(ops)))
    }
}

/// Who observes which documents of a session.
#[derive(Default)]
pub(crate) struct Observers {
    state: Mutex<Observed>,
}

#[derive(Default)]
struct Observed {
    channels: HashMap<DocumentId, Vec<Arc<Channel>>>,
    /// The session has ended: who comes now ends at once.
    end: Option<WatchEnd>,
}

impl Observed {
    fn add(&mut self, channel: &Arc<Channel>) {
        match &self.end {
            Some(end) => drop(channel.end(end.clone())),
            None => self.channels.entry(channel.document).or_default().push(Arc::clone(channel)),
        }
    }
}

impl Observers {
    fn lock(&self) -> MutexGuard<'_, Observed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many watches and states there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().channels.values().map(Vec::len).sum()
    }

    pub(crate) fn watch<T>(self: &Arc<Self>, document: DocumentId, value: Json, token: (&'static str, u32)) -> Watch<T> {
        let (kind, version) = token;
        let channel = Channel::new(document, true, Some(value.clone()), version);
        self.lock().add(&channel);
        Watch { channel, observers: Arc::clone(self), cancel: Vec::new(), value: Some(value), kind, ty: PhantomData }
    }

    pub(crate) fn state<T>(self: &Arc<Self>, document: DocumentId, value: Json, token: (&'static str, u32)) -> DocumentState<T> {
        let (kind, version) = token;
        let channel = Channel::new(document, false, Some(value), version);
        self.lock().add(&channel);
        DocumentState { channel, observers: Arc::clone(self), kind, ty: PhantomData }
    }

    fn attach<T>(self: &Arc<Self>, state: &Channel, kind: &'static str) -> Watch<T> {
        // Deliveries hold the same lock, so that the value and the registration belong together.
        let mut observed = self.lock();
        let (value, version, end) = {
            let state = state.lock();
            (state.newest.clone(), state.version, state.end.clone())
        };
        let channel = Channel::new(state.document, true, value.clone(), version);
        match end {
            Some(end) => drop(channel.end(end)),
            None => observed.add(&channel),
        }
        Watch { channel, observers: Arc::clone(self), cancel: Vec::new(), value, kind, ty: PhantomData }
    }

    pub(crate) fn deliver(&self, delivery: &Delivery<'_>) {
        for channel in self.lock().channels.get(&delivery.document).into_iter().flatten() {
            channel.deliver(delivery);
        }
    }

    /// Ends everything that observes now or will. The first end holds.
    pub(crate) fn end_all(&self, end: &WatchEnd) {
        let mut observed = self.lock();
        observed.end.get_or_insert_with(|| end.clone());
        for channel in std::mem::take(&mut observed.channels).into_values().flatten() {
            channel.end(end.clone());
        }
    }

    fn remove(&self, channel: &Arc<Channel>) {
        let mut observed = self.lock();
        if let Some(of_document) = observed.channels.get_mut(&channel.document) {
            of_document.retain(|other| !Arc::ptr_eq(other, channel));
            if of_document.is_empty() {
                observed.channels.remove(&channel.document);
            }
        }
    }
}

#[cfg(test)]
mod tests;
