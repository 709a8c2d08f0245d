//! Following one conversation: a snapshot of its built-in documents and every frame behind it (`design.md` 8).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use picofleet_session::{CommitError, ConversationId, DocumentAddress, DocumentScope, Json, Point, Subscription};
use tokio::sync::mpsc;

use super::{LineError, SessionLine};
use crate::config::CONFIG;
use crate::frame::{Documents, Frame, frame};
use crate::inbox::INBOX;
use crate::live::LIVE;
use crate::usage::USAGE;

/// How many frames wait for a slow reader; one more ends the watch, and the reader takes a snapshot again.
const FRAMES_MAX: usize = 256;

/// A followed conversation. Dropping it ends it; commits never wait for it.
pub struct ConversationWatch {
    frames: mpsc::Receiver<Frame>,
    documents: Documents,
    lost: Arc<AtomicBool>,
    _subscription: Subscription,
}

/// What a watch gives next.
#[derive(Clone, Debug)]
pub enum Followed {
    /// A commit; the watch's documents have followed it.
    Frame(Box<Frame>),
    /// The reader was too slow, or a frame did not fit: watch again.
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
        let (sender, frames) = mpsc::channel(FRAMES_MAX);
        let lost = Arc::new(AtomicBool::new(false));
        let previous = Mutex::new(None);
        let (flag, session) = (Arc::clone(&lost), self.session().clone());
        // The line is held while the values are read and the listener registered, so that no commit falls between the two.
        let (subscription, documents) = self
            .session()
            .commit(async |_| {
                let listener = move |publication: &picofleet_session::Publication| {
                    let mut previous = previous.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(frame) = frame(publication, conversation, *previous) {
                        *previous = Some(frame.at);
                        if sender.try_send(frame).is_err() {
                            flag.store(true, Ordering::Release);
                        }
                    }
                };
                let subscription = session.subscribe_commits(listener);
                let mut values = Vec::new();
                for kind in [CONFIG.kind, LIVE.kind, INBOX.kind, USAGE.kind] {
                    values.extend(committed(&session, conversation, kind).await?.map(|value| (kind.to_owned(), value)));
                }
                Ok::<_, CommitError>((subscription, Documents::new(values)))
            })
            .await?;
        Ok(ConversationWatch { frames, documents, lost, _subscription: subscription })
    }
}

async fn committed(session: &picofleet_session::Session, conversation: ConversationId, kind: &str) -> Result<Option<Json>, CommitError> {
    let read = |error| CommitError::Tx(picofleet_session::TxError::Read(error));
    let address = DocumentAddress { kind: kind.to_owned(), scope: DocumentScope::Conversation { id: conversation }, key: None };
    let Some(record) = session.store().find_document(address, Point::Current).await.map_err(read)? else { return Ok(None) };
    let stored = session.store().document(record.create.id, Point::Current).await.map_err(read)?;
    Ok(stored.map(|stored| stored.value))
}

impl ConversationWatch {
    /// The conversation's documents, as of the frames that were taken.
    #[must_use]
    pub const fn documents(&self) -> &Documents {
        &self.documents
    }

    /// What comes next. Cancel-safe.
    pub async fn next(&mut self) -> Followed {
        if self.lost.load(Ordering::Acquire) {
            return Followed::Gap;
        }
        let Some(frame) = self.frames.recv().await else { return Followed::End };
        match self.documents.advance(&frame) {
            Ok(()) => Followed::Frame(Box::new(frame)),
            Err(error) => {
                tracing::warn!(error = %error, "a frame did not fit");
                Followed::Gap
            }
        }
    }
}
