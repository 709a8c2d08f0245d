//! Following one conversation in the process of its line: a snapshot and every frame behind it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use picofleet_session::{CommitError, ConversationId, Standing};

use super::{LineError, SessionLine};
use crate::frame::Frame;
use crate::view::Mount;
use crate::wire::{Answer, Following, HostFailure, Point, Refusal, WatchId};

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
    /// A commit; the watch's mount has followed it.
    Frame(Box<Frame>),
    /// The reader was too slow, or a frame did not fit: the mount is that of a newer snapshot now.
    Gap,
    /// The session ended.
    End,
}

impl SessionLine {
    /// Follows a conversation from now on.
    ///
    /// # Errors
    /// [`LineError::Unwatched`] where the conversation is not there, or the session has too many readers.
    pub async fn watch(&self, conversation: ConversationId) -> Result<ConversationWatch, LineError> {
        let reader = WatchId::random();
        match self.pull(conversation, reader, None).await? {
            Following::Snapshot(mount) => {
                Ok(ConversationWatch { line: self.clone(), reader, conversation, mount: *mount, frames: VecDeque::new() })
            }
            Following::Closed | Following::Frames { .. } => Err(CommitError::Closed.into()),
        }
    }

    /// What a reader gets behind a commit.
    async fn pull(&self, conversation: ConversationId, reader: WatchId, mut after: Option<Point>) -> Result<Following, LineError> {
        loop {
            let answer = match self.attend(conversation, reader).await? {
                Ok(()) => self.frames(conversation, after, WAIT).await?,
                Err(answer) => answer,
            };
            match answer {
                Answer::Following(following) => return Ok(following),
                // A frame did not fit what the line shows: that is read again.
                Answer::Refused(Refusal::AskAgain) if self.session().standing() == Standing::Open => after = None,
                Answer::Refused(Refusal::AskAgain) => return Err(CommitError::Closed.into()),
                Answer::Failed(failure) => return Err(LineError::Unwatched(failure)),
                Answer::Refused(refusal) => return Err(LineError::Unwatched(HostFailure::Invalid(refusal.to_string()))),
                other => return Err(LineError::Unwatched(HostFailure::Invalid(format!("{other:?} in the place of frames")))),
            }
        }
    }
}

impl ConversationWatch {
    /// The conversation as it is behind the frames that were taken.
    #[must_use]
    pub const fn mount(&self) -> &Mount {
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
            match self.line.pull(self.conversation, self.reader, after).await {
                Ok(Following::Frames { frames, complete_to }) => {
                    if frames.is_empty() {
                        self.mount.complete_to(complete_to);
                        after = Some(complete_to);
                    }
                    self.frames.extend(frames);
                }
                Ok(Following::Snapshot(mount)) => {
                    self.mount = *mount;
                    return Followed::Gap;
                }
                Ok(Following::Closed) => return Followed::End,
                Err(error) => {
                    tracing::debug!(conversation = %self.conversation, error = %error, "a watch ends");
                    return Followed::End;
                }
            }
        }
    }
}

impl Drop for ConversationWatch {
    fn drop(&mut self) {
        self.line.unfollow(self.conversation, self.reader);
    }
}
