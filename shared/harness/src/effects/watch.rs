//! Watches of documents by an invocation or a host (section 9.2): the line keeps the frames, and a task of the reader's process brings them
//! as they are taken.

use std::sync::Arc;

use picofleet_session::{
    DefinitionError, DocValue, InvocationId, Json, Op, SessionId, StoredReader, StoredValue, TaskId, Watch, WatchEnd, WatchFeed, apply,
    ops_from_json,
};
use tokio_util::sync::CancellationToken;

use super::invocation::{Fault, Invocation, lasting, unexpected};
use crate::transport::{CallError, Transport};
use crate::wire::{Answer, Refusal, Request, WatchCall, WatchChange, WatchFrame, WatchId, Watched};

/// How long one message waits for frames, in milliseconds; then it is sent again.
const WAIT_MS: u64 = 20_000;

impl Invocation {
    /// Watches a document until the invocation is over; `None` where there is none.
    pub(crate) async fn watch_doc<T: DocValue>(self: &Arc<Self>, reader: StoredReader) -> Result<Option<Watch<T>>, Fault> {
        let by = Some((self.task(), self.id()));
        let source = Source::new(Arc::clone(self.transport()), self.session(), by, (self.over().clone(), self.cancel().clone()));
        match self.call(source.asks(WatchCall::Begin(reader.address().clone()))).await? {
            Answer::Watched(Watched::Begun(stored)) => {
                let (watch, feeder) = source.watch(reader, *stored).map_err(|error| Fault::failed(&error))?;
                // It ends with the watch, and with the invocation.
                self.spawn_beside(feeder);
                Ok(Some(watch.until_ends(self.over().clone(), WatchEnd::Stopped)))
            }
            Answer::Watched(Watched::Absent) => Ok(None),
            Answer::Refused(Refusal::Rejected(why)) => Err(Fault::Failed(picofleet_session::TaskError { message: why, detail: None })),
            other => Err(unexpected(other)),
        }
    }
}

/// Where a watch comes from, and who reads it.
pub(crate) struct Source {
    transport: Arc<dyn Transport>,
    session: SessionId,
    id: WatchId,
    /// The invocation; `None` for a host.
    by: Option<(TaskId, InvocationId)>,
    /// The reader is over: nothing is said any more.
    over: CancellationToken,
    /// The reader is to stop: no outage is waited for.
    cancel: CancellationToken,
}

impl Source {
    /// The source of a watch that has not begun.
    pub(crate) fn new(
        transport: Arc<dyn Transport>,
        session: SessionId,
        by: Option<(TaskId, InvocationId)>,
        (over, cancel): (CancellationToken, CancellationToken),
    ) -> Self {
        Self { transport, session, id: WatchId::random(), by, over, cancel }
    }

    /// A call of the watch.
    pub(crate) fn asks(&self, call: WatchCall) -> Request {
        Request::Watch { watch: self.id, by: self.by, call: Box::new(call) }
    }

    /// The watch that begins with a value, and what feeds it until it ends.
    pub(crate) fn watch<T: DocValue>(
        self,
        reader: StoredReader,
        stored: StoredValue,
    ) -> Result<(Watch<T>, impl Future<Output = ()> + Send + 'static), DefinitionError> {
        let value = reader.value(stored.clone())?;
        let (watch, feed) = Watch::fed(reader.kind(), stored.record.create.id, value.clone());
        Ok((watch, Feeder { source: self, reader, stored, value, seen: 0, feed }.run()))
    }

    /// Why a watch ends where no frames come: nobody who has the line now could be reached, or its reader or the session is over.
    fn reason(&self, answer: &Result<Answer, CallError>) -> WatchEnd {
        match answer {
            Ok(Answer::Refused(Refusal::AskAgain)) | Err(CallError::Unavailable { .. }) => WatchEnd::Takeover,
            Err(CallError::Closed(_)) => WatchEnd::SessionClosed,
            Ok(Answer::Refused(Refusal::Gone)) if self.by.is_none() => WatchEnd::SessionClosed,
            Ok(Answer::Refused(Refusal::Gone)) => WatchEnd::Stopped,
            _ => WatchEnd::SessionFailed,
        }
    }
}

/// Brings the frames of one watch.
struct Feeder {
    source: Source,
    reader: StoredReader,
    /// The document as the line stored it: what operations stand on.
    stored: StoredValue,
    /// The same at the token's version.
    value: Json,
    /// The number of the last frame that arrived.
    seen: u64,
    feed: WatchFeed,
}

/// Whoever reads the watch hears of a feeder that panicked.
impl Drop for Feeder {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.feed.end(WatchEnd::SessionFailed);
        }
    }
}

impl Feeder {
    async fn run(mut self) {
        let over = self.source.over.clone();
        while self.wanted().await {
            let document = self.stored.record.create.id;
            let next = self.source.asks(WatchCall::Next { document, seen: self.seen, timeout_ms: WAIT_MS });
            let answer = tokio::select! {
                biased;
                () = over.cancelled() => return,
                () = self.feed.ended() => break,
                answer = lasting(&*self.source.transport, self.source.session, next, &self.source.cancel) => answer,
            };
            let frames = match answer {
                Ok(Answer::Watched(Watched::Frames(frames))) => frames,
                other => {
                    self.feed.end(self.source.reason(&other));
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
            // Best effort: what the line keeps of it ends with the reader.
            let _ = self.source.transport.call(self.source.session, self.source.asks(WatchCall::Stop)).await;
        }
    }

    /// Waits until the reader has taken everything; `false` once the watch or the invocation is over.
    async fn wanted(&self) -> bool {
        tokio::select! {
            biased;
            () = self.source.over.cancelled() => false,
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

fn failed(error: &dyn std::error::Error) -> WatchEnd {
    tracing::warn!(error = %error, "a frame of a watch does not fit what was watched");
    WatchEnd::SessionFailed
}
