//! What a line keeps of its followed conversations: follows publications, and reads nothing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdMap;
use picofleet_session::storage::Head;
use picofleet_session::{ConversationId, DocumentScope, Publication, Seq, TaskId, TaskRecord};
use tokio::time::Instant;

use super::size::frame_size;
use crate::frame::{Before, Frame, FrameError, frame};
use crate::view::Mount;
use crate::wire::{Following, Point, Refusal, WatchId};

/// How many frames a followed conversation keeps for readers that are behind, and how many bytes of them, about. A reader that is further
/// behind takes a snapshot.
const FRAMES_MAX: usize = 256;
const BYTES_MAX: usize = 1 << 20;
/// How many bytes of frames one session keeps for all its conversations, about.
const SESSION_BYTES_MAX: usize = 16 << 20;
/// How many conversations of one session are followed at once: each has a mount.
const FOLLOWED_MAX: usize = 256;
/// How many readers one session has at once.
const READERS_MAX: usize = 4_096;
/// How long a reader may stay away. Longer than any call waits on the line.
const AWAY_MAX: Duration = Duration::from_secs(180);
/// How many commits are known by name, for readers that saw none of the conversation in them.
const RECENT_MAX: usize = 256;
/// How many conversations are remembered to have changed since the opening. With more, no reader of an earlier owner goes on.
const TOUCHED_MAX: usize = 1_024;

/// The followed conversations of a line.
#[derive(Default)]
pub(in crate::line) struct Follows {
    followed: BTreeMap<ConversationId, Ring>,
    /// The newest commits of this opening, the oldest first; at least the opening itself.
    recent: VecDeque<Point>,
    /// The commit that the opening stands on.
    before: Option<Point>,
    /// The first commit since the opening that touched a conversation.
    touched: BTreeMap<ConversationId, Seq>,
    /// The next id that the session mints.
    next_id: i64,
}

/// One of them: what it shows, and the newest frames that led there.
struct Ring {
    mount: Mount,
    /// The commit that the oldest frame stands on.
    floor: Point,
    /// The newest frame that there was, whether it is kept or not.
    newest: Option<Point>,
    /// With their sizes.
    frames: VecDeque<(Arc<Frame>, usize)>,
    bytes: usize,
    /// When each was here last.
    readers: BTreeMap<WatchId, Instant>,
}

impl Ring {
    const fn new(mount: Mount) -> Self {
        Self { floor: mount.at(), mount, newest: None, frames: VecDeque::new(), bytes: 0, readers: BTreeMap::new() }
    }

    /// The frame before the next one. The commit that the first one stands on is none of the conversation, so that a reader need not have
    /// heard of it.
    const fn previous(&self) -> Option<Point> {
        self.newest
    }

    fn follow(&mut self, frame: Frame) -> Result<(), FrameError> {
        let batch = self.mount.advance(&frame)?;
        let size = frame_size(&frame, &batch);
        self.bytes += size;
        self.newest = Some(frame.at);
        self.frames.push_back((Arc::new(frame), size));
        while self.frames.len() > FRAMES_MAX || (self.bytes > BYTES_MAX && self.frames.len() > 1) {
            self.drop_oldest();
        }
        Ok(())
    }

    /// A reader that has less than the oldest frame stands on takes a snapshot from now on.
    fn drop_oldest(&mut self) {
        if let Some((dropped, size)) = self.frames.pop_front() {
            self.bytes -= size;
            self.floor = dropped.at;
        }
    }

    /// Forgets readers that stay away; whether any is left.
    fn expects(&mut self, now: Instant) -> bool {
        self.readers.retain(|_, seen| now.duration_since(*seen) < AWAY_MAX);
        !self.readers.is_empty()
    }

    fn behind(&self, seq: Seq) -> Vec<Arc<Frame>> {
        self.frames.iter().filter(|(frame, _)| frame.at.0 > seq).map(|(frame, _)| Arc::clone(frame)).collect()
    }
}

impl Follows {
    /// Those of an opened line. `before` is the commit that storage had right before the opening, where it is known.
    pub(in crate::line) fn new(opened: &Head, before: Option<Point>) -> Self {
        let before = before.filter(|before| before.0.next() == opened.seq);
        let recent = VecDeque::from([Point(opened.seq, opened.token)]);
        Self { recent, before, next_id: opened.next_id, ..Self::default() }
    }

    /// Whether a reader of some conversation is still expected.
    pub(in crate::line) fn read(&self) -> bool {
        self.followed.values().any(|followed| followed.readers.values().any(|at| at.elapsed() < AWAY_MAX))
    }

    /// Follows a commit; `live` are the tasks before it.
    pub(in crate::line) fn observe(&mut self, publication: &Publication, live: &OrdMap<TaskId, TaskRecord>) {
        self.touch(publication);
        if !self.followed.is_empty() {
            let now = Instant::now();
            let next_id = self.next_id;
            self.followed.retain(|conversation, followed| {
                let expected = followed.expects(now);
                let before = Before { previous: followed.previous(), next_id, live };
                let followed = match frame(publication, *conversation, before) {
                    Some(frame) => followed.follow(frame).map(|()| expected),
                    None => Ok(expected),
                };
                followed.unwrap_or_else(|error| {
                    tracing::warn!(conversation = %conversation, error = %error, "a followed conversation is read again");
                    false
                })
            });
            self.shrink();
        }
        self.know(Point(publication.head.seq, publication.head.token));
        self.next_id = publication.head.next_id;
    }

    /// Keeps the frames of all conversations together within their bound: those of the one that has most go first.
    fn shrink(&mut self) {
        let mut bytes: usize = self.followed.values().map(|ring| ring.bytes).sum();
        while bytes > SESSION_BYTES_MAX
            && let Some(largest) = self.followed.values_mut().max_by_key(|ring| ring.bytes)
        {
            let before = largest.bytes;
            largest.drop_oldest();
            bytes -= before - largest.bytes;
        }
    }

    /// Notes what a commit touched, as long as a reader of an earlier owner could go on.
    fn touch(&mut self, publication: &Publication) {
        if self.before.is_none() {
            return;
        }
        let entries = publication.entries.iter().map(|entry| entry.conversation_id);
        let tasks = publication.tasks.iter().map(|task| task.conversation_id);
        let submissions = publication.submissions.iter().map(|record| record.conversation_id);
        let documents = publication.documents.iter().filter_map(|change| match change.document.placement.scope() {
            DocumentScope::Conversation { id } => Some(id),
            _ => None,
        });
        for conversation in entries.chain(tasks).chain(submissions).chain(documents) {
            self.touched.entry(conversation).or_insert(publication.head.seq);
        }
        if self.touched.len() > TOUCHED_MAX {
            self.before = None;
            self.touched.clear();
        }
    }

    /// A conversation is followed from a mount on. Commits that nothing was published of are known by its head only, and a reader is
    /// complete to them as well: it would go back behind the mount else.
    pub(super) fn begin(&mut self, conversation: ConversationId, mount: Mount) {
        let at = mount.at();
        if self.recent.back().is_none_or(|newest| newest.0 < at.0) {
            self.know(at);
        }
        self.followed.insert(conversation, Ring::new(mount));
    }

    fn know(&mut self, commit: Point) {
        self.recent.push_back(commit);
        if self.recent.len() > RECENT_MAX {
            self.recent.pop_front();
        }
    }

    fn newest(&self, followed: &Ring) -> Point {
        self.recent.back().copied().unwrap_or_else(|| followed.mount.at())
    }

    /// What a reader gets; `None` where nobody follows the conversation any more.
    pub(super) fn next(&self, conversation: ConversationId, after: Option<Point>) -> Option<Following> {
        let followed = self.followed.get(&conversation)?;
        let complete_to = self.newest(followed);
        Some(match after.filter(|after| self.reaches(conversation, followed, *after)) {
            Some(after) => Following::Frames { frames: followed.behind(after.0), complete_to },
            None => {
                let mut mount = followed.mount.clone();
                mount.complete_to(complete_to);
                Following::Snapshot(Box::new(mount))
            }
        })
    }

    /// Whether the frames that are kept follow on what a reader has.
    fn reaches(&self, conversation: ConversationId, followed: &Ring, after: Point) -> bool {
        if self.before == Some(after) {
            return self.touched.get(&conversation).is_none_or(|first| *first > followed.floor.0);
        }
        let known = || followed.frames.iter().any(|(frame, _)| frame.at == after) || self.recent.contains(&after);
        after == followed.floor || (after.0 > followed.floor.0 && known())
    }

    fn readers(&self) -> usize {
        self.followed.values().map(|followed| followed.readers.len()).sum()
    }

    /// Notes that a reader is there; `false` where nobody follows the conversation yet.
    pub(super) fn seen(&mut self, conversation: ConversationId, reader: WatchId) -> Result<bool, Refusal> {
        let now = Instant::now();
        let known = self.followed.get(&conversation).is_some_and(|followed| followed.readers.contains_key(&reader));
        if !known && self.readers() >= READERS_MAX {
            self.followed.retain(|_, followed| followed.expects(now));
            if self.readers() >= READERS_MAX {
                return Err(Refusal::Rejected(format!("a session has {READERS_MAX} readers at most; stop one that is not needed")));
            }
        }
        if let Some(followed) = self.followed.get_mut(&conversation) {
            followed.readers.insert(reader, now);
            return Ok(true);
        }
        if self.followed.len() >= FOLLOWED_MAX {
            self.followed.retain(|_, followed| followed.expects(now));
            if self.followed.len() >= FOLLOWED_MAX {
                let why = format!("{FOLLOWED_MAX} conversations of a session are followed at most; stop following one that is not needed");
                return Err(Refusal::Rejected(why));
            }
        }
        Ok(false)
    }

    pub(super) fn stop(&mut self, conversation: ConversationId, reader: WatchId) {
        let empty = self.followed.get_mut(&conversation).is_some_and(|followed| {
            followed.readers.remove(&reader);
            followed.readers.is_empty()
        });
        if empty {
            self.followed.remove(&conversation);
        }
    }
}

#[cfg(test)]
mod tests;
