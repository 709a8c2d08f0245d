//! Following one conversation in the process of its line: a snapshot and every frame behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use picofleet_session::{CommitError, ConversationId};

use super::{LineError, SessionLine};
use crate::frame::Frame;
use crate::view::Mount;
use crate::wire::{Answer, Following, Point, WatchId};

/// How long one look waits. The line has a bound of its own.
const WAIT: Duration = Duration::from_secs(60);

/// A followed conversation. Dropping it ends it; commits never wait for it.
pub struct ConversationWatch {
    line: SessionLine,
    reader: WatchId,
    conversation: ConversationId,
    mount: Mount,
    /// Frames behind the mount.
    frames: VecDeque<Arc<Frame>>,
}

/// What a watch gives next.
#[derive(Clone, Debug)]
pub enum Followed {
    /// A commit; the watch's documents have followed it.
    Frame(Box<Frame>),
    /// The reader was too slow, or a frame did not fit: the documents are those of a newer snapshot now.
    Gap,
    /// The session ended.
    End,
}

impl SessionLine {
    /// Follows a conversation from now on.
    ///
    /// # Errors
    /// [`LineError`].
    pub async fn watch(&self, conversation: ConversationId) -> Result<ConversationWatch, LineError> {
        let reader = WatchId::random();
        let unavailable = |_| LineError::Commit(CommitError::Closed);
        self.attend(conversation, reader).await?.map_err(unavailable)?;
        match self.frames(conversation, None, Duration::ZERO).await? {
            Answer::Following(Following::Snapshot(mount)) => {
                Ok(ConversationWatch { line: self.clone(), reader, conversation, mount: *mount, frames: VecDeque::new() })
            }
            _ => Err(LineError::Commit(CommitError::Closed)),
        }
    }
}

impl ConversationWatch {
    /// The conversation's documents and entries, as of the frames that were taken.
    #[must_use]
    pub const fn documents(&self) -> &Mount {
        &self.mount
    }

    /// What comes next. Cancel-safe: dropping the future loses no frame and no gap.
    pub async fn next(&mut self) -> Followed {
        let mut after = Some(self.mount.at());
        loop {
            if let Some(frame) = self.frames.pop_front() {
                match self.mount.advance(&frame) {
                    Ok(_) => return Followed::Frame(Box::new(Arc::unwrap_or_clone(frame))),
                    Err(error) => {
                        tracing::warn!(error = %error, "a frame did not fit");
                        self.frames.clear();
                        after = None;
                    }
                }
            }
            match self.pull(after).await {
                Some(Following::Frames { frames, complete_to }) => {
                    if frames.is_empty() {
                        self.mount.complete_to(complete_to);
                        after = Some(complete_to);
                    }
                    self.frames.extend(frames);
                }
                Some(Following::Snapshot(mount)) => {
                    self.mount = *mount;
                    return Followed::Gap;
                }
                Some(Following::Closed) | None => return Followed::End,
            }
        }
    }

    async fn pull(&self, after: Option<Point>) -> Option<Following> {
        self.line.attend(self.conversation, self.reader).await.ok()?.ok()?;
        match self.line.frames(self.conversation, after, WAIT).await {
            Ok(Answer::Following(following)) => Some(following),
            _ => None,
        }
    }
}

impl Drop for ConversationWatch {
    fn drop(&mut self) {
        self.line.unfollow(self.conversation, self.reader);
    }
}
