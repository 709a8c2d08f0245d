//! Followed conversations (section 9.3): a mount and the newest frames of each one that somebody follows. A commit never waits for a reader
//! that follows; it waits while the mount is read for the first one of a conversation.

mod rings;
mod size;

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use picofleet_session::storage::{EntryQuery, PAGE_MAX, StorageError};
use picofleet_session::{ConversationId, DocumentAddress, DocumentScope, EntryRecord, Point as At, Standing};

pub(super) use self::rings::Follows;
use super::host::not_found;
use super::wait::Look;
use super::{LineError, SessionLine};
use crate::inspection::Scheduling;
use crate::view::{Mount, mounted};
use crate::wire::{Answer, Follow, FollowCall, Following, Point, Refusal, WatchId};

impl SessionLine {
    /// Answers a reader of a conversation.
    pub(super) async fn follow(&self, follow: Follow) -> Result<Answer, LineError> {
        let Follow { reader, conversation, call } = follow;
        match call {
            FollowCall::Stop => {
                self.unfollow(conversation, reader);
                Ok(Answer::Done)
            }
            FollowCall::Next { after, timeout_ms } => {
                if let Err(answer) = self.attend(conversation, reader).await? {
                    return Ok(answer);
                }
                let answer = self.frames(conversation, after, Duration::from_millis(timeout_ms)).await?;
                // It was here all the time.
                let _ = self.state().follows.seen(conversation, reader);
                Ok(answer)
            }
        }
    }

    /// A reader goes away.
    pub(super) fn unfollow(&self, conversation: ConversationId, reader: WatchId) {
        self.state().follows.stop(conversation, reader);
    }

    /// Makes a mount where there is none yet. The line is held while it is read, so that no commit falls between it and its first frame.
    pub(super) async fn attend(&self, conversation: ConversationId, reader: WatchId) -> Result<Result<(), Answer>, LineError> {
        if self.scheduling() == Scheduling::Closing {
            return Ok(Err(Answer::Following(Following::Closed)));
        }
        let seen = || self.state().follows.seen(conversation, reader).map_err(Answer::Refused);
        match seen() {
            Ok(true) => return Ok(Ok(())),
            Ok(false) => {}
            Err(answer) => return Ok(Err(answer)),
        }
        self.session()
            .commit(async |_| {
                // Somebody else may have made it meanwhile.
                match seen() {
                    Ok(true) => return Ok(Ok(())),
                    Ok(false) => {}
                    Err(answer) => return Ok(Err(answer)),
                }
                let mount = match self.mount(conversation).await? {
                    Ok(mount) => mount,
                    Err(answer) => return Ok(Err(answer)),
                };
                self.state().follows.begin(conversation, mount);
                Ok::<_, LineError>(seen().map(|_| ()))
            })
            .await
    }

    /// The committed state of a conversation; the line is held.
    async fn mount(&self, conversation: ConversationId) -> Result<Result<Mount, Answer>, LineError> {
        let store = self.session().store();
        let Some(record) = store.conversation(conversation).await? else {
            return Ok(Err(not_found("conversation", conversation.get())));
        };
        let head = store.head().await?;
        let entries = self.active_entries(conversation).await?;
        let mut documents = Vec::new();
        for kind in mounted() {
            let address = DocumentAddress { kind: kind.to_owned(), scope: DocumentScope::Conversation { id: conversation }, key: None };
            let Some(document) = store.find_document(address, At::Current).await? else { continue };
            let stored = store.document(document.create.id, At::Current).await?;
            documents.extend(stored.map(|stored| (kind.to_owned(), stored.value)));
        }
        let mount = Mount::new(Point(head.seq, head.token), record, &entries, documents);
        Ok(mount.map_err(|error| Answer::Refused(Refusal::Rejected(format!("conversation {conversation} can't be shown: {error}")))))
    }

    /// The head marker, then the other entries of the active range.
    async fn active_entries(&self, conversation: ConversationId) -> Result<Vec<EntryRecord>, StorageError> {
        let store = self.session().store();
        let marker = store.latest_head_marker(conversation, None).await?;
        let query = EntryQuery { min_entry_id: marker.as_ref().and_then(|marker| marker.head), ..EntryQuery::all(conversation) };
        let (mut range, mut cursor) = (Vec::new(), None);
        loop {
            let page = store.scan_entries(query, PAGE_MAX, cursor).await?;
            range.extend(page.items.into_iter().filter(|entry| entry.head.is_none()));
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        range.extend(marker);
        range.reverse();
        Ok(range)
    }

    /// The frames behind a commit, as soon as there is one.
    pub(super) async fn frames(&self, conversation: ConversationId, after: Option<Point>, timeout: Duration) -> Result<Answer, LineError> {
        // It follows the commits of other conversations, so that it is still known when a frame comes.
        let complete_to = Mutex::new(after);
        let look = || -> Look<'_, Answer> {
            let mut after = complete_to.lock().unwrap_or_else(PoisonError::into_inner);
            let found = self.look_at(conversation, &mut after);
            Box::pin(std::future::ready(Ok(found)))
        };
        Ok(self.until(timeout, look).await?.1)
    }

    fn look_at(&self, conversation: ConversationId, after: &mut Option<Point>) -> (bool, Answer) {
        let state = self.state();
        if state.scheduling == Scheduling::Closing {
            return (true, Answer::Following(Following::Closed));
        }
        if self.session().standing() != Standing::Open {
            return (true, Answer::Refused(Refusal::AskAgain));
        }
        match state.follows.next(conversation, *after) {
            Some(Following::Frames { frames, complete_to }) => {
                if frames.is_empty() {
                    *after = Some(complete_to);
                }
                (!frames.is_empty(), Answer::Following(Following::Frames { frames, complete_to }))
            }
            Some(other) => (true, Answer::Following(other)),
            // A frame did not fit: it is read again.
            None => (true, Answer::Refused(Refusal::AskAgain)),
        }
    }
}
