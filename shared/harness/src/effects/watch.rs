//! Watches of documents by an invocation (section 9.2): the line keeps the frames, and a task of the worker brings them as they are taken.

use std::sync::Arc;

use picofleet_session::{DocValue, Json, Op, StoredReader, StoredValue, Watch, WatchEnd, WatchFeed, apply, ops_from_json};

use super::invocation::{Fault, Invocation, unexpected};
use crate::transport::CallError;
use crate::wire::{Answer, Refusal, Request, WatchCall, WatchChange, WatchFrame, WatchId, Watched};

/// How long one message waits for frames, in milliseconds; then it is sent again.
const WAIT_MS: u64 = 20_000;

impl Invocation {
    /// Watches a document until the invocation is over; `None` where there is none.
    pub(crate) async fn watch_doc<T: DocValue>(self: &Arc<Self>, reader: StoredReader) -> Result<Option<Watch<T>>, Fault> {
        let id = WatchId::random();
        let stored = match self.call(self.watching(id, WatchCall::Begin(reader.address().clone()))).await? {
            Answer::Watched(Watched::Begun(stored)) => *stored,
            Answer::Watched(Watched::Absent) => return Ok(None),
            Answer::Refused(Refusal::Rejected(why)) => {
                return Err(Fault::Failed(picofleet_session::TaskError { message: why, detail: None }));
            }
            other => return Err(unexpected(other)),
        };
        let value = reader.value(stored.clone()).map_err(|error| Fault::failed(&error))?;
        let (watch, feed) = Watch::fed(reader.kind(), stored.record.create.id, value.clone());
        let watch = watch.until_ends(self.over().clone(), WatchEnd::Stopped);
        let feeder = Feeder { invocation: Arc::clone(self), id, reader, stored, value, seen: 0, feed };
        // It ends with the watch, and with the invocation.
        self.spawn_beside(feeder.run());
        Ok(Some(watch))
    }

    fn watching(&self, watch: WatchId, call: WatchCall) -> Request {
        Request::Watch { watch, by: (self.task(), self.id()), call: Box::new(call) }
    }
}

/// Brings the frames of one watch.
struct Feeder {
    invocation: Arc<Invocation>,
    id: WatchId,
    reader: StoredReader,
    /// The document as the line stored it: what operations stand on.
    stored: StoredValue,
    /// The same at the token's version.
    value: Json,
    /// The number of the last frame that arrived.
    seen: u64,
    feed: WatchFeed,
}

impl Feeder {
    async fn run(mut self) {
        let over = self.invocation.over().clone();
        while self.wanted().await {
            let document = self.stored.record.create.id;
            let next = self.invocation.watching(self.id, WatchCall::Next { document, seen: self.seen, timeout_ms: WAIT_MS });
            let answer = tokio::select! {
                biased;
                () = over.cancelled() => return,
                () = self.feed.ended() => break,
                answer = self.invocation.sent(next) => answer,
            };
            let frames = match answer {
                Ok(Answer::Watched(Watched::Frames(frames))) => frames,
                other => {
                    self.feed.end(reason(&other));
                    return;
                }
            };
            if let Err(end) = frames.into_iter().try_for_each(|frame| self.take(frame)) {
                // What came before is delivered still.
                self.wanted().await;
                self.feed.end(end);
            }
        }
        if !over.is_cancelled() {
            // Best effort: what the line keeps of it ends with the invocation.
            let _ = self.invocation.transport().call(self.invocation.session(), self.invocation.watching(self.id, WatchCall::Stop)).await;
        }
    }

    /// Waits until the reader has taken everything; `false` once the watch or the invocation is over.
    async fn wanted(&self) -> bool {
        tokio::select! {
            biased;
            () = self.invocation.over().cancelled() => false,
            wanted = self.feed.wanted() => wanted,
        }
    }

    /// Hands a frame on as the token sees it.
    fn take(&mut self, frame: WatchFrame) -> Result<(), WatchEnd> {
        let WatchFrame { number, seq, version, change } = frame;
        self.seen = number;
        let (value, ops, again) = match change {
            WatchChange::Retired => {
                self.feed.retire(seq);
                return Ok(());
            }
            WatchChange::Ops(ops) => {
                let ops = ops_from_json(&ops).map_err(|error| failed(&error))?;
                (apply(Some(&self.stored.value), &ops).map_err(|error| failed(&error))?, Some(ops), false)
            }
            WatchChange::Value(value) => (value, None, false),
            WatchChange::Again(value) => (value, None, true),
        };
        self.stored = StoredValue { version, value, ..self.stored.clone() };
        // Operations stand on the stored value; the token sees them where it has the same one.
        let ops = ops.filter(|_| version == self.reader.version());
        let value = self.reader.value(self.stored.clone()).map_err(|error| WatchEnd::ListenerError(Arc::new(error)))?;
        let ops: Arc<[Op]> = match ops {
            Some(ops) => ops.into(),
            None if value == self.value && !again => return Ok(()),
            None => Arc::from([Op::Replace(value.clone())]),
        };
        self.value = value.clone();
        self.feed.push(value, ops, seq);
        Ok(())
    }
}

/// Why a watch ends where no frames come: nobody who has the line now could be reached, or the invocation is over.
fn reason(answer: &Result<Answer, CallError>) -> WatchEnd {
    match answer {
        Ok(Answer::Refused(Refusal::AskAgain)) | Err(CallError::Unavailable { .. }) => WatchEnd::Takeover,
        Ok(Answer::Refused(Refusal::Gone)) => WatchEnd::Stopped,
        Err(CallError::Closed(_)) => WatchEnd::SessionClosed,
        _ => WatchEnd::SessionFailed,
    }
}

fn failed(error: &dyn std::error::Error) -> WatchEnd {
    tracing::warn!(error = %error, "a frame of a watch does not fit what was watched");
    WatchEnd::SessionFailed
}
