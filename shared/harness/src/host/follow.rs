//! Following conversations from a host: one mount for all who observe a conversation through one [`super::Harness`], fed by one reader.
//!
//! A task pulls frames as long as somebody observes. It hands them over and waits for nobody: whoever is slow has a bounded queue, and
//! then the whole in the place of what was in it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures::FutureExt as _;
use picofleet_session::{ConversationId, Op, Seq, WatchEnd, WatchFeed};
use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::agent_events::Channel;
use super::call::Caller;
use super::{HostError, WAIT};
use crate::events::{events, snapshot};
use crate::frame::Frame;
use crate::view::Mount;
use crate::wire::{Answer, Follow, FollowCall, Following, Point, Request, WatchId};

/// How often in a row nobody may have the session until those who observe it hear that. Each time takes about three seconds.
const AWAY_MAX: u32 = 10;

/// The conversations that are observed through one harness.
#[derive(Default)]
pub(super) struct Hubs(Mutex<HashMap<ConversationId, Weak<Hub>>>);

/// One conversation that is observed.
pub(super) struct Hub {
    reader: WatchId,
    state: Mutex<State>,
    /// The mount went on, or it ended.
    moved: Notify,
    /// The feeder stops when nobody observes any more.
    _stop: DropGuard,
}

struct State {
    mount: Mount,
    /// The commit that changed what the mount shows last.
    changed: Seq,
    views: Vec<WatchFeed>,
    events: Vec<Arc<Channel>>,
    end: Option<WatchEnd>,
}

impl Caller {
    async fn follow(&self, conversation: ConversationId, reader: WatchId, call: FollowCall) -> Result<Following, HostError> {
        match self.request(Request::Follow(Follow { reader, conversation, call })).await? {
            Answer::Following(following) => Ok(following),
            other => Err(super::call::value::<()>(other).map_or_else(HostError::from, |()| HostError::Answer("no frames".to_owned()))),
        }
    }
}

fn closing() -> HostError {
    HostError::Unavailable("the session is closing".to_owned())
}

impl Hubs {
    fn lock(&self) -> MutexGuard<'_, HashMap<ConversationId, Weak<Hub>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn live(&self, conversation: ConversationId) -> Option<Arc<Hub>> {
        let mut hubs = self.lock();
        hubs.retain(|_, hub| hub.strong_count() > 0);
        found(&hubs, conversation)
    }

    /// Enters a hub where there is none; the one that is found from now on.
    fn enter(&self, conversation: ConversationId, hub: Arc<Hub>) -> Arc<Hub> {
        let mut hubs = self.lock();
        if let Some(hub) = found(&hubs, conversation) {
            return hub;
        }
        hubs.insert(conversation, Arc::downgrade(&hub));
        hub
    }
}

fn found(hubs: &HashMap<ConversationId, Weak<Hub>>, conversation: ConversationId) -> Option<Arc<Hub>> {
    hubs.get(&conversation).and_then(Weak::upgrade).filter(|hub| hub.lock().end.is_none())
}

impl Hub {
    /// The hub of a conversation, with all that was committed before the call.
    pub(super) async fn of(caller: &Arc<Caller>, conversation: ConversationId) -> Result<Arc<Self>, HostError> {
        if let Some(hub) = caller.hubs().live(conversation) {
            hub.catch_up(caller, conversation).await?;
            return Ok(hub);
        }
        let reader = WatchId::random();
        let begin = FollowCall::Next { after: None, timeout_ms: 0 };
        let mount = match caller.follow(conversation, reader, begin).await? {
            Following::Snapshot(mount) => *mount,
            Following::Closed => return Err(closing()),
            Following::Frames { .. } => return Err(HostError::Answer("frames in the place of a snapshot".to_owned())),
        };
        let stop = CancellationToken::new();
        let at = mount.at();
        let state = State { changed: at.0, mount, views: Vec::new(), events: Vec::new(), end: None };
        let (state, moved) = (Mutex::new(state), Notify::new());
        let hub = Arc::new(Self { reader, state, moved, _stop: stop.clone().drop_guard() });
        let mine = Arc::downgrade(&hub);
        let hub = caller.hubs().enter(conversation, hub);
        // Of two that begin at once the earlier one is everybody's. The feeder of the other one finds that nobody observes, and only says
        // so to the line.
        let feeder = Feeder { caller: Arc::clone(caller), conversation, reader, hub: mine, stop };
        tokio::spawn(feeder.run(at));
        if hub.reader != reader {
            hub.catch_up(caller, conversation).await?;
        }
        Ok(hub)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the mount has what is committed now.
    async fn catch_up(&self, caller: &Caller, conversation: ConversationId) -> Result<(), HostError> {
        let call = FollowCall::Next { after: Some(self.mount().at()), timeout_ms: 0 };
        let (Point(wanted, _), shown) = match caller.follow(conversation, self.reader, call).await? {
            Following::Frames { frames, .. } => match frames.last() {
                Some(frame) => (frame.at, None),
                None => return Ok(()),
            },
            // The commit that it is complete to need not be one of the conversation, so that the feeder may not hear of it for long.
            Following::Snapshot(mount) => (mount.at(), Some(mount)),
            Following::Closed => return Err(closing()),
        };
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let state = self.lock();
                if state.mount.at().0 >= wanted || shown.as_ref().is_some_and(|shown| shown.same_state(&state.mount)) {
                    return Ok(());
                }
                if let Some(end) = &state.end {
                    return Err(HostError::Unavailable(format!("the subscription ended: {end}")));
                }
            }
            moved.await;
        }
    }

    /// The newest revision.
    pub(super) fn mount(&self) -> Mount {
        self.lock().mount.clone()
    }

    /// Why it ended; `None` while it goes on.
    pub(super) fn end(&self) -> Option<WatchEnd> {
        self.lock().end.clone()
    }

    /// Waits for a revision that shows something else than the one that was complete to a commit, or for the end. Commits that change
    /// nothing of the view make no revision.
    pub(super) async fn behind(&self, at: Point) -> Option<Mount> {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let state = self.lock();
                if state.end.is_some() {
                    return None;
                }
                // Behind `at` there is only what another owner's storage has: the mount was replaced by an older one.
                if state.changed > at.0 || state.mount.at().0 < at.0 {
                    return Some(state.mount.clone());
                }
            }
            moved.await;
        }
    }

    /// The revision now, with an outlet for every later one; no commit falls between the two.
    pub(super) fn view<R>(&self, outlet: impl FnOnce(&Mount) -> (R, WatchFeed)) -> R {
        let mut state = self.lock();
        let (watch, feed) = outlet(&state.mount);
        match &state.end {
            Some(end) => feed.end(end.clone()),
            None => state.views.push(feed),
        }
        watch
    }

    /// The same for events.
    pub(super) fn events(&self, channel: &Arc<Channel>) -> crate::events::EventSnapshot {
        let mut state = self.lock();
        match &state.end {
            Some(end) => drop(channel.end(end.clone())),
            None => state.events.push(Arc::clone(channel)),
        }
        snapshot(&state.mount)
    }

    /// Follows what came; what the feeder asks behind.
    fn take(&self, following: Following) -> Result<Option<Point>, WatchEnd> {
        let mut state = self.lock();
        state.views.retain(|feed| feed.ended().now_or_never().is_none());
        state.events.retain(|channel| channel.ended().is_none());
        let after = match following {
            Following::Closed => return Err(WatchEnd::SessionClosed),
            Following::Snapshot(mount) => {
                // After a takeover the line may not know what came before; where nothing was missed, nobody is told anything.
                if mount.same_state(&state.mount) {
                    state.mount.complete_to(mount.at());
                } else {
                    state.replace(*mount);
                }
                Some(state.mount.at())
            }
            Following::Frames { frames, complete_to } => match frames.iter().try_for_each(|frame| state.follow(frame)) {
                Ok(()) => {
                    // Also behind frames: who waits for that commit hears of it now, and not with the next frame.
                    state.mount.complete_to(complete_to);
                    Some(complete_to)
                }
                Err(error) => {
                    tracing::warn!(error = %error, "a frame of a followed conversation did not fit; it is read again");
                    None
                }
            },
        };
        drop(state);
        self.moved.notify_waiters();
        Ok(after)
    }

    fn finish(&self, end: WatchEnd) {
        let mut state = self.lock();
        let end = state.end.get_or_insert(end).clone();
        state.views.drain(..).for_each(|feed| feed.end(end.clone()));
        state.events.drain(..).for_each(|channel| drop(channel.end(end.clone())));
        drop(state);
        self.moved.notify_waiters();
    }
}

impl State {
    fn follow(&mut self, frame: &Frame) -> Result<(), crate::frame::FrameError> {
        let before = self.mount.clone();
        let batch = self.mount.advance(frame)?;
        if !batch.ops.is_empty() {
            self.changed = frame.at.0;
        }
        if !batch.ops.is_empty() && !self.views.is_empty() {
            let (view, ops): (_, Arc<[Op]>) = (self.mount.view(), batch.ops.into());
            self.views.iter().for_each(|feed| feed.push(view.clone(), Arc::clone(&ops), frame.at.0));
        }
        if !self.events.is_empty() {
            let list = events(&before, frame, &self.mount);
            if !list.is_empty() {
                self.events.iter().for_each(|channel| channel.push(list.clone(), &self.mount));
            }
        }
        Ok(())
    }

    /// What was between is not known: everybody gets the whole.
    fn replace(&mut self, mount: Mount) {
        self.mount = mount;
        self.changed = self.mount.at().0;
        let (view, seq) = (self.mount.view(), self.mount.at().0);
        self.views.iter().for_each(|feed| feed.push(view.clone(), Arc::from([Op::Replace(view.clone())]), seq));
        self.events.iter().for_each(|channel| channel.replace(&self.mount));
    }
}

/// Brings the frames of one conversation.
struct Feeder {
    caller: Arc<Caller>,
    conversation: ConversationId,
    reader: WatchId,
    hub: Weak<Hub>,
    stop: CancellationToken,
}

/// However the feeder stops, nobody waits for it for ever. One that has told the end already, or whom nobody needs, changes nothing.
impl Drop for Feeder {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.finish(WatchEnd::SessionFailed);
        }
    }
}

impl Feeder {
    async fn run(self, at: Point) {
        let (mut after, mut away) = (Some(at), 0);
        while let Some(answer) = self.next(after).await {
            let Some(hub) = self.hub.upgrade() else { break };
            let taken = match answer {
                Ok(following) => {
                    away = 0;
                    hub.take(following)
                }
                // Whoever has the session next goes on with it.
                Err(HostError::Unavailable(_) | HostError::OutcomeUnknown(_)) if away < AWAY_MAX => {
                    away += 1;
                    Ok(after)
                }
                Err(error) => Err(reason(self.conversation, &error)),
            };
            match taken {
                Ok(next) => after = next,
                Err(end) => return hub.finish(end),
            }
        }
        // Best effort: the line forgets a reader that stays away.
        let stop = Request::Follow(Follow { reader: self.reader, conversation: self.conversation, call: FollowCall::Stop });
        let _ = self.caller.transport().call(self.caller.session(), stop).await;
    }

    /// What comes next; `None` once nobody observes any more.
    async fn next(&self, after: Option<Point>) -> Option<Result<Following, HostError>> {
        let call = FollowCall::Next { after, timeout_ms: WAIT };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            answer = self.caller.follow(self.conversation, self.reader, call) => Some(answer),
        }
    }
}

fn reason(conversation: ConversationId, error: &HostError) -> WatchEnd {
    tracing::warn!(conversation = %conversation, error = %error, "a followed conversation can't be followed any more");
    match error {
        HostError::Unavailable(_) | HostError::OutcomeUnknown(_) => WatchEnd::Takeover,
        _ => WatchEnd::SessionFailed,
    }
}
